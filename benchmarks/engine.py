"""The library with the native engine against the limits of the machine: bare C loops, fio, and a busy main thread.

python -m benchmarks.engine            8 GiB file; about 3 minutes on a quiet machine

``benchmarks.native_engine`` measures the C core alone; this one measures what a user calls.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np

import lowtide
from benchmarks.measure import GIB, Figure, drop, interleaved, make_file, read_ahead, report, warm
from benchmarks.native_engine import BATCH, LENGTH, ROW, WINDOW, Bench
from benchmarks.tokens import nanogpt_loop
from lowtide.storage.read import Read

SIZE = 8 * GIB
BUSY = 0.005  # seconds of pure Python per batch


def opened(path: Path, **how: str) -> lowtide.Tokens:
    return lowtide.open_tokens(path, dtype="uint16", **how)


def feed_rate(tokens: lowtide.Tokens, batches: int, seed: int = 1) -> float:
    for _ in islice(tokens.batches(BATCH, length=LENGTH, seed=seed), batches):
        pass
    return batches * BATCH


def row_rate(array: lowtide.Array, batches: int) -> float:
    for _ in islice(array.shuffled(BATCH, seed=1), batches):
        pass
    return batches * BATCH


def warm_figures(path: Path) -> list[Figure]:
    warm(path)
    bench = Bench(path, 3000)
    mapping = np.memmap(path, np.uint8, "r")
    int(mapping[::4096].sum())
    into_rows = bench.rows()["bare C rows"]
    from_map = bench.mapped()
    native, python = opened(path, engine="native"), opened(path, engine="python")
    mapped = opened(path, engine="native", strategy="map")
    feed_rate(mapped, 3000)
    rows = lowtide.open(path, dtype="uint8", shape=(-1, ROW), engine="native")
    slow = lowtide.open(path, dtype="uint8", shape=(-1, ROW), engine="python")
    rates = interleaved(
        {
            "limit": bench.bare_windows,
            "native": lambda: feed_rate(native, 3000),
            "python": lambda: feed_rate(python, 1000),
            "map limit": from_map["bare C from the map"],
            "map limit, ahead": from_map["bare C that fetches ahead"],
            "map": lambda: feed_rate(mapped, 3000),
            "rows limit": into_rows,
            "rows": lambda: row_rate(rows, 3000),
            "rows python": lambda: row_rate(slow, 1000),
        },
        rounds=5,
        discard=1,
    )
    for each in (native, python, mapped, rows, slow):
        each.close()
    del mapping, from_map, bench  # pages that somebody maps cannot be dropped
    return [
        Figure("windows, warm / bare C pread + widen", rates["native"], rates["limit"], "windows/s", 0.85),
        Figure("windows, warm, python engine / bare C", rates["python"], rates["limit"], "windows/s", None),
        Figure("windows, strategy='map' / bare C from the map", rates["map"], rates["map limit"], "windows/s", 0.85),
        Figure(
            "  the same, which fetches cache lines ahead", rates["map"], rates["map limit, ahead"], "windows/s", None
        ),
        Figure("shuffled rows of 2 KiB, warm / bare C pread", rates["rows"], rates["rows limit"], "rows/s", 0.85),
        Figure(
            "shuffled rows, warm, python engine / bare C", rates["rows python"], rates["rows limit"], "rows/s", None
        ),
    ]


def fio(path: Path, *words: str, seconds: int = 4) -> dict[str, float]:
    command = ["fio", "--name=r", f"--filename={path}", "--direct=1", "--ioengine=io_uring", "--readonly"]
    command += [f"--runtime={seconds}", "--time_based", "--output-format=json", *words]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    read: dict[str, float] = found["jobs"][0]["read"]
    return read


def cold(path: Path, batches: int, *, without: str = "", **how: str) -> float:
    """A cold feed; ``without`` names a way of the kernel's that is to be denied."""
    with opened(path, **how) as tokens:
        strategy = tokens.store.strategy
        if without and isinstance(strategy, Read):
            strategy.do_without("denied for this benchmark", (without,))
        return feed_rate(tokens, batches)


def cold_figures(path: Path) -> list[Figure]:
    def nanogpt() -> float:
        return nanogpt_loop(path, 40)

    def device(*sizes: str) -> float:
        started = time.perf_counter()
        rate = fio(path, "--rw=randread", *sizes, "--iodepth=128", seconds=2)["iops"]
        return rate * (time.perf_counter() - started)  # as work done, so that the median is fio's own rate

    with read_ahead(path, 128):
        rates = interleaved(
            {
                "fio": lambda: device("--bs=4k"),
                # What a window is read with: five sectors anywhere. One read in a hundred of 4 KiB has fio begin each
                # read's memory at a page, as the engine does; two pages per read would cost it a fifth of its rate.
                "fio, windows": lambda: device("--bssplit=2560/99:4096/1", "--ba=512"),
                # About as long as fio, whose start is not counted and ours is: a fiftieth of 600 batches.
                "drop": lambda: cold(path, 3000, cache="drop", engine="native"),
                "keep": lambda: cold(path, 3000, cache="keep", engine="native"),
                "aio": lambda: cold(path, 3000, cache="drop", engine="native", without="uring"),
                "fio, aio": lambda: device("--bssplit=2560/99:4096/1", "--ba=512", "--ioengine=libaio"),
                "python": lambda: cold(path, 300, cache="keep", engine="python"),
                "nanogpt": nanogpt,
            },
            rounds=3,
            discard=1,
            before=lambda: drop(path),
        )
    return [
        Figure("windows, cold, drop / fio 4 KiB depth 128", rates["drop"], rates["fio"], "windows/s", 0.9),
        Figure("windows, cold, drop / fio 2.5 KiB depth 128", rates["drop"], rates["fio, windows"], "windows/s", None),
        Figure("windows, cold, drop / nanoGPT's get_batch", rates["drop"], rates["nanogpt"], "windows/s", 20),
        Figure("windows, cold, drop, io_uring denied / with it", rates["aio"], rates["drop"], "windows/s", 0.9),
        Figure("  fio by Linux AIO / by io_uring", rates["fio, aio"], rates["fio, windows"], "windows/s", None),
        Figure("windows, cold, drop / keep", rates["drop"], rates["keep"], "windows/s", 0.9),
        Figure("windows, cold, keep, native / python", rates["keep"], rates["python"], "windows/s", None),
    ]


def chunk_figures(path: Path) -> list[Figure]:
    size = 8 * 1024**2

    def summed(cache: str) -> float:
        with lowtide.open(path, dtype="uint8", shape=(-1, 4096), cache=cache) as array:
            for chunk in islice(array.chunks(size // 4096), 2 * GIB // size):
                chunk[:, 0].sum()
        return 2 * GIB

    def device() -> float:
        started = time.perf_counter()
        rate = fio(path, "--rw=read", "--bs=1m", "--iodepth=32", seconds=2)["bw_bytes"]
        return rate * (time.perf_counter() - started)

    rates = interleaved(
        {"fio": device, "drop": lambda: summed("drop")},
        rounds=3,
        discard=1,
        before=lambda: drop(path),
    )
    return [Figure("chunks, cold, drop, each summed / fio 1 MiB depth 32", rates["drop"], rates["fio"], "B/s", 0.85)]


def busy_figures(path: Path) -> list[Figure]:
    """How much of its time a main thread that is busy for 5 ms per batch waits in ``next``, cold."""

    def compute() -> None:
        until = time.perf_counter() + BUSY
        while time.perf_counter() < until:
            pass

    def sleep() -> None:
        time.sleep(BUSY)

    def waited(work: Callable[[], None], **how: str) -> float:
        drop(path)
        with opened(path, **how) as tokens:
            feed = tokens.batches(BATCH, length=LENGTH, seed=3)
            for _ in range(4):
                next(feed)
            waits, began = 0.0, time.perf_counter()
            for _ in range(200):
                start = time.perf_counter()
                next(feed)
                waits += time.perf_counter() - start
                work()
            return 100 * waits / (time.perf_counter() - began)

    return [
        Figure(
            f"waiting with 5 ms of {what} per batch, cold, {cache}", waited(work, cache=cache), 1, "%", 2, at_most=True
        )
        for what, work in (("Python", compute), ("sleep", sleep))
        for cache in ("drop", "keep")
    ]


def main() -> int:
    path = make_file("tokens.bin", SIZE)
    assert WINDOW == 2 * (LENGTH + 1)
    figures = warm_figures(path)
    gc.collect()
    figures += [*cold_figures(path), *chunk_figures(path), *busy_figures(path)]
    return report("Engine: the library beside the machine's limits", figures)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
