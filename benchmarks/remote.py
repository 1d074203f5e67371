"""Data behind a server beside the same bytes fetched by obstore itself: ``python -m benchmarks.remote``.

nginx serves one file from the page cache of this machine, at latency 0 and 20 ms: there it asks a server of our own
before every answer, which says yes that much later; no byte of the file passes through it. Sides take turns within the
run. *fetched* counts bytes by the server's own log. Writes ``--size`` MiB (512) twice below ``--place``, and needs
nginx (with its auth_request) and obstore.

A first epoch also writes what it fetches into a block file and reads it from there. What that alone costs is the *bare
loop*: threads of one process that call obstore, write each MiB and read it back whole, at their best number. It has no
second process, no rows in any order, no locks, marks or checksums.
"""

from __future__ import annotations

import argparse
import asyncio
import compileall
import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import lowtide
from benchmarks.measure import Figure, report
from lowtide.blocks.asking import MAKER
from lowtide.units import MIB

CONF = """
daemon off; worker_processes 1; pid {place}/nginx.pid; error_log {place}/error.log;
events {{ worker_connections 512; }}
http {{
  log_format bytes '$body_bytes_sent'; access_log {place}/access.log bytes;
  client_body_temp_path {place}/b; proxy_temp_path {place}/p; fastcgi_temp_path {place}/f; uwsgi_temp_path {place}/u;
  scgi_temp_path {place}/s; sendfile on; keepalive_requests 1000000;
  upstream late {{ server 127.0.0.1:{late}; keepalive 256; }}
  server {{
    listen 127.0.0.1:{port}; root {place}/www;
    location /late/ {{ alias {place}/www/; auth_request /ask; }}
    location = /ask {{
      internal; proxy_pass http://late; proxy_http_version 1.1; proxy_set_header Connection "";
    }}
  }}
}}
"""
ROW = 2048


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def answers(server: subprocess.Popen[bytes], port: int) -> None:
    while server.poll() is None:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"{server.args}: it ended with status {server.returncode}")


@contextlib.contextmanager
def nginx(place: Path, late: int = 9) -> Iterator[int]:
    """Its port. ``late``: that of who is asked before anything below ``/late/`` is answered."""
    port = free_port()
    (place / "nginx.conf").write_text(CONF.format(place=place, port=port, late=late))
    server = subprocess.Popen(["nginx", "-c", str(place / "nginx.conf"), "-e", str(place / "error.log")])
    try:
        answers(server, port)
        yield port
    finally:
        server.terminate()
        server.wait()


async def answer_late(port: int, seconds: float) -> None:
    """A server that says yes to everything, so much later."""

    class Late(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._transport = transport

        def data_received(self, data: bytes) -> None:
            yes = b"HTTP/1.1 204 No Content\r\n\r\n" * data.count(b"\r\n\r\n")
            asyncio.get_running_loop().call_later(seconds, self._transport.write, yes)  # type: ignore[attr-defined]

    server = await asyncio.get_running_loop().create_server(Late, "127.0.0.1", port, backlog=512)
    await server.serve_forever()


@contextlib.contextmanager
def delay(seconds: float) -> Iterator[int]:
    """The port of such a server."""
    port = free_port()
    code = f"import asyncio; from benchmarks.remote import answer_late; asyncio.run(answer_late({port}, {seconds}))"
    server = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[1])
    try:
        answers(server, port)
        yield port
    finally:
        server.kill()
        server.wait()


def epoch(address: str, cache: Path, **order: object) -> float:
    """MiB per second of a shuffled epoch."""
    with lowtide.open(address, dtype="uint8", shape=(-1, ROW), cache_dir=cache, disk="8GiB") as array:
        began, seen = time.perf_counter(), 0
        for rows in array.shuffled(512, seed=1, **order):  # type: ignore[arg-type]
            seen += rows.nbytes
        return seen / MIB / (time.perf_counter() - began)


def local_epoch(path: Path, **order: object) -> float:
    with lowtide.open(path, dtype="uint8", shape=(-1, ROW)) as array:
        began, seen = time.perf_counter(), 0
        for rows in array.shuffled(512, seed=1, **order):  # type: ignore[arg-type]
            seen += rows.nbytes
        return seen / MIB / (time.perf_counter() - began)


def by_obstore(address: str, size: int, piece: int, depth: int) -> float:
    """The same bytes by obstore's get_range, ``piece`` each, ``depth`` at once, in a process of its own."""
    code = f"""
import asyncio, os, time, obstore
from obstore.store import HTTPStore
store = HTTPStore.from_url({address!r}, client_options={{"allow_http": True}})
async def main():
    gate = asyncio.Semaphore({depth})
    async def one(start):
        async with gate:
            return len(await obstore.get_range_async(store, "", start=start, end=min({size}, start + {piece})))
    return sum(await asyncio.gather(*(one(start) for start in range(0, {size}, {piece}))))
began = time.perf_counter()
assert asyncio.run(main()) == {size}
print(time.perf_counter() - began, flush=True)
os._exit(0)  # its threads may abort an interpreter that ends
"""
    took = float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    return size / MIB / took


def by_bare_loop(address: str, size: int, place: Path, depth: int) -> float:
    """The same bytes by obstore's get, a MiB each in any order, ``depth`` threads: written to a file and read back."""
    code = f"""
import mmap, os, random, threading, time, obstore
from obstore.store import HTTPStore
store = HTTPStore.from_url({address!r}, client_options={{"allow_http": True}})
file = os.open({str(place)!r}, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
os.ftruncate(file, {size})
starts = list(range(0, {size}, {MIB}))
random.Random(1).shuffle(starts)
def work():
    buffer = mmap.mmap(-1, {MIB})
    while starts:
        try:
            start = starts.pop()
        except IndexError:
            return
        data = obstore.get(store, "", options={{"range": (start, start + {MIB})}}).bytes()
        assert os.pwrite(file, data, start) == {MIB}
        assert os.preadv(file, [buffer], start) == {MIB}
threads = [threading.Thread(target=work) for _ in range({depth})]
began = time.perf_counter()
for one in threads: one.start()
for one in threads: one.join()
print(time.perf_counter() - began, flush=True)
os._exit(0)
"""
    took = float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    place.unlink()
    return size / MIB / took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--place", default=None)
    parser.add_argument("--size", type=int, default=512, help="MiB")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    # As an installer does: else every maker compiles our sources where Python may not keep what it compiled.
    compileall.compile_dir(Path(lowtide.__file__).parent, quiet=1)
    if shutil.which("nginx") is None:
        print("NOT MEASURED: object stores - nginx is not installed here")
        return 0
    with tempfile.TemporaryDirectory(prefix="lowtide-remote-", dir=asked.place) as made:
        place, size = Path(made).resolve(), asked.size * MIB
        place.chmod(0o755)
        (place / "www").mkdir(mode=0o755)
        data = place / "www" / "x.bin"
        with data.open("wb") as file:
            for _ in range(asked.size):
                file.write(os.urandom(MIB))
        figures = []
        with delay(0.02) as late, nginx(place, late) as port:
            for latency, path in ((0.0, "x.bin"), (0.02, "late/x.bin")):
                address = f"http://127.0.0.1:{port}/{path}"
                figures += measure(address, data, place, size, latency, asked.rounds)
    return report(f"Object stores: {asked.size} MiB behind nginx, rows of {ROW} bytes", figures)


def measure(address: str, data: Path, place: Path, size: int, latency: float, rounds: int) -> list[Figure]:
    theirs: dict[tuple[int, int], list[float]] = {(mib, depth): [] for mib in (1, 8) for depth in (4, 10, 16)}
    bare: dict[int, list[float]] = {depth: [] for depth in (4, 16, 48)}
    first, second, here, fetched = [], [], [], []
    for number in range(rounds):
        cache, log = place / f"cache-{latency}-{number}", place / "access.log"
        for mib, depth in theirs:
            theirs[mib, depth].append(by_obstore(address, size, mib * MIB, depth))
        for depth in bare:
            bare[depth].append(by_bare_loop(address, size, place / "bare", depth))
        before = sum(map(int, log.read_text().split()))
        first.append(epoch(address, cache, locality="64MiB"))
        fetched.append((sum(map(int, log.read_text().split())) - before) / size)
        second.append(epoch(address, cache))
        local_epoch(data)
        here.append(local_epoch(data))
        MAKER.close()
        shutil.rmtree(cache)
    best = max(map(statistics.median, theirs.values()))
    ours, again, local = map(statistics.median, (first, second, here))
    what = f"latency {latency * 1000:.0f} ms, "
    return [
        Figure(
            f"{what}first epoch, locality='64MiB' / obstore's ranges, best size and depth", ours, best, "MiB/s", 0.8
        ),
        Figure(
            f"{what}first epoch, locality='64MiB' / a bare loop that also writes and reads the bytes, best depth",
            ours,
            max(map(statistics.median, bare.values())),
            "MiB/s",
            None,
        ),
        Figure(f"{what}bytes fetched per byte", float(np.median(fetched)), 1, "", 1.05, at_most=True),
        Figure(f"{what}second epoch, full shuffle / a local file", again, local, "MiB/s", 0.9),
    ]


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
