"""``make peers``: measures every peer, and writes docs/comparison.md, its picture and benchmarks/results/peers.json.

python -m benchmarks.peers [--quick] [--rounds N] [--only NAME,NAME]    20 minutes after installing; --quick: 9
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS, drop, facts, read_ahead, warm
from benchmarks.native_engine import fio
from benchmarks.peers import environments, jobs
from benchmarks.peers.checks import promises
from benchmarks.peers.child import PEERS
from benchmarks.peers.loader import Peer
from benchmarks.peers.page import write_page
from benchmarks.peers.picture import draw
from lowtide import machine

READ_AHEAD = 128  # KiB: the usual default
LIMIT = 60.0


def data_files(place: Path) -> list[Path]:
    return [path for path in place.rglob("*") if path.is_file() and path.stat().st_size > 1 << 14]


def converted(peer: type[Peer]) -> None:
    """Its files of both sizes, made once."""
    for size in environments.WINDOWS:
        tokens, place = environments.raw_tokens(size), environments.place_of(peer, size)
        if place.exists():
            continue
        place.mkdir(parents=True)
        try:
            jobs.run(peer, "convert", place, limit=600, tokens=str(tokens))
            os.sync()
        except BaseException:
            shutil.rmtree(place)
            raise


def measured(peer: type[Peer], temperature: str, seconds: float) -> dict[str, Any]:
    """One run; the files are brought in or thrown out when the imports are done."""
    place = environments.place_of(peer, "large")
    files = data_files(place)

    def between() -> None:
        for path in files:
            warm(path) if temperature == "warm" else drop(path)

    answer = jobs.run(
        peer,
        "speed",
        place,
        limit=LIMIT,
        between=between,
        seconds=seconds,
        before=0.3 if temperature == "warm" else 0.0,
        # Where read-ahead brings in 50 times what was asked for, a run of seconds would soon find all of it cached.
        most_read=None if temperature == "warm" else sum(path.stat().st_size for path in files) // 4,
    )
    answer["cached"] = sum(machine.page_cache(path).cached for path in files)
    return dict(answer)


def limits(path: Path) -> dict[str, float]:
    """What the disk can do: in one stream, and at random."""
    block = 8 << 20
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = np.empty(block + 4096, np.uint8)
    at = -buffer.ctypes.data % 4096
    aligned, total, start = memoryview(buffer)[at : at + block], 0, time.perf_counter()
    for offset in range(0, path.stat().st_size - block, block):
        total += os.preadv(fd, [aligned], offset)
    found = {"sequential": total / (time.perf_counter() - start)}
    os.close(fd)
    if shutil.which("fio"):
        found["random"] = fio(path, 64, 3)[0]
    return found


def middle(rounds: list[dict[str, Any]]) -> dict[str, float]:
    return {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}


def version(peer: type[Peer]) -> str:
    if not peer.version_of:
        return ""
    if environments.python_of(peer).parent.parent.parent == environments.HOME:
        code = f"import importlib.metadata as m; print(m.version({peer.version_of!r}))"
        run = subprocess.run([environments.python_of(peer), "-c", code], capture_output=True, text=True)
        return f"{peer.version_of} {run.stdout.strip()}"
    return f"{peer.version_of} {importlib.metadata.version(peer.version_of)}"


def ready(names: list[str]) -> dict[str, dict[str, Any]]:
    """Installed and converted, or why not."""
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        peer = PEERS[name]
        about = {field: getattr(peer, field) for field in ("title", "shuffles", "resumes", "code", "notes")}
        found[name] = {**about, "version": "", "missing": environments.install(peer)}
        if not found[name]["missing"]:
            found[name]["version"] = version(peer)
            try:
                converted(peer)
            except jobs.JobError as failed:
                found[name]["missing"] = f"its files could not be written: {failed}"
    return found


def run_all(found: dict[str, dict[str, Any]], rounds: int, seconds: float) -> list[dict[str, float]]:
    """Rounds of every peer in turn, warm and cold; then the promises of each."""
    there = [name for name, row in found.items() if not row["missing"]]
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    machines = []
    for turn in range(rounds):
        machines.append(limits(environments.raw_tokens("large")))
        for name in there:
            for temperature in ("warm", "cold"):
                try:
                    answer = measured(PEERS[name], temperature, seconds)
                except jobs.JobError as failed:
                    found[name].setdefault("failures", []).append(f"{temperature}: {failed}")
                    print(f"{turn + 1} {name} {temperature} {failed}", flush=True)
                    continue
                runs.setdefault((name, temperature), []).append(answer)
                print(f"{turn + 1} {name:12s} {temperature} {answer['windows']:>10,.0f} windows/s", flush=True)
    for (name, temperature), each in runs.items():
        found[name][temperature] = {**middle(each), "rates": [round(one["windows"]) for one in each]}
    for name in there:
        found[name] |= promises(PEERS[name])
        print(name, {key: found[name].get(key) for key in ("once", "resume", "ranks", "truncated")}, flush=True)
    return machines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(PEERS), help="names, with commas; the page is not written")
    parser.add_argument("--page", action="store_true", help="only write the page and the picture again")
    asked = parser.parse_args()
    results = RESULTS / "peers.json"
    if not asked.page:
        begin = time.perf_counter()
        found = ready(asked.only.split(","))
        installed = time.perf_counter()
        with read_ahead(environments.raw_tokens("large"), READ_AHEAD) as stated:
            machines = run_all(found, asked.rounds, 1.0 if asked.quick else 2.5)
        shutil.rmtree(environments.HOME / "scratch", ignore_errors=True)
        document = {
            **facts(),
            "read_ahead": READ_AHEAD if stated else None,
            "rounds": asked.rounds,
            "seconds": 1.0 if asked.quick else 2.5,
            "minutes": round((time.perf_counter() - installed) / 60, 1),
            "preparing": round((installed - begin) / 60, 1),
            "limits": middle(machines),
            "peers": found,
        }
        if asked.only != ",".join(PEERS):
            print(json.dumps(document, indent=1))
            return
        results.write_text(json.dumps(document, indent=1) + "\n")
    document = json.loads(results.read_text())
    write_page(document)
    draw(document)


if __name__ == "__main__":
    main()
