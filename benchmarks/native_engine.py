"""The native engine against the bare C loops and against fio: windows, rows and permutations, warm and cold.

python -m benchmarks.native_engine [GiB]       4 GiB file, 5 interleaved rounds, about 2 minutes

Every line is a median over rounds in which all ways of its table take turns, with the processor seconds it costs per
million windows. The bare loops are compiled here with the extension's own flags.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import DIRECTORY, GIB, Figure, drop, make_file, report, warm
from lowtide import engine as _native
from lowtide import machine
from lowtide.engine import DROP, KEEP, Engine, Pair, Runs
from lowtide.order.feistel import Feistel
from lowtide.order.words import key, words

LENGTH, BATCH, ROUNDS = 1024, 64, 5
WINDOW = 2 * (LENGTH + 1)
ROW = 2048


def bare() -> ctypes.CDLL:
    library = DIRECTORY / "bare.so"
    source = Path(__file__).with_name("bare.c")
    subprocess.run(["cc", "-std=c11", "-O3", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library.resolve()))
    loops = "windows", "windows_mapped", "windows_fetched", "rows", "runs", "documents", "packed"
    for name in loops:
        getattr(loaded, f"bare_{name}").restype = ctypes.c_int64
    return loaded


def aligned(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    memory = mmap.mmap(-1, int(np.prod(shape)) * np.dtype(dtype).itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.ndarray(shape, dtype, memory)


def take_turns(ways: dict[str, Callable[[], int]], rounds: int = ROUNDS) -> dict[str, tuple[float, float]]:
    """Work per second and processor seconds per million, medians; the first round is not counted."""
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
            work = way()
            seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            if turn:
                rates[name].append((work / seconds, 1e6 * cpu / work))
    return {
        name: (statistics.median(r for r, _ in found), statistics.median(c for _, c in found))
        for name, found in rates.items()
    }


class Bench:
    """One file, opened as the library opens it, and the loops over it."""

    def __init__(self, path: Path, batches: int) -> None:
        self.path, self.batches = path, batches
        self.fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)
        self.direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
        self.alignment = machine.direct_alignment(self.direct) or 4096
        self.random = np.random.default_rng(7)
        self.x, self.y = aligned((2, BATCH, LENGTH), np.int64)
        self.pairs = [tuple(aligned((2, BATCH, LENGTH), np.int64)) for _ in range(3)]
        self.into = aligned((BATCH, ROW), np.uint8)
        self.scratch = aligned((4096,), np.uint8)
        self.bare = bare()

    def offsets(self, length: int, step: int = 1) -> NDArray[np.int64]:
        return self.random.integers(0, (self.path.stat().st_size - length) // step, (self.batches, BATCH)) * step

    def windows(
        self, engine: Engine, way: str, *, direct: bool = False, how: int = KEEP, depth: int = 64
    ) -> Callable[[], int]:
        queue = engine.queue(way, depth=depth, alignment=self.alignment)
        pair = Pair(self.x, self.y, LENGTH, "uint16", None)

        def loop() -> int:
            for batch in self.offsets(WINDOW, 2):
                runs = Runs(self.fd, batch, WINDOW, None, self.direct if direct else None)
                assert isinstance(queue.fill(runs, pair, how), int)
            return self.batches * BATCH

        return loop

    def ahead(
        self, engine: Engine, way: str, *, direct: bool = False, how: int = KEEP, deep: int = 2
    ) -> Callable[[], int]:
        """Two batches under way, as a feed that holds three would have them."""
        queues = [engine.lane(way, depth=64, alignment=self.alignment) for _ in range(deep)]

        def loop() -> int:
            starts = self.offsets(WINDOW, 2)
            for step in range(self.batches + deep):
                turn = step % deep
                if step >= deep:
                    assert isinstance(queues[turn].wait(), int)
                if step < self.batches:
                    pair = Pair(*self.pairs[turn], LENGTH, "uint16", None)
                    queues[turn].start(
                        Runs(self.fd, starts[step], WINDOW, None, self.direct if direct else None), pair, how
                    )
            return self.batches * BATCH

        return loop

    def limit(self, name: str, first: int, starts: NDArray[np.int64], size: int, *into: NDArray[Any]) -> int:
        """One of the bare loops over all batches: no Python inside."""
        sizes = [ctypes.c_int64(number) for number in (self.batches, BATCH, size)]
        places = [ctypes.c_void_p(array.ctypes.data) for array in into]
        getattr(self.bare, name)(ctypes.c_void_p(first), ctypes.c_void_p(starts.ctypes.data), *sizes, *places)
        return self.batches * BATCH

    def bare_windows(self) -> int:
        starts = self.offsets(WINDOW, 2)
        return self.limit("bare_windows", self.fd, starts, LENGTH, self.x, self.y, self.scratch)

    def mapped(self) -> dict[str, Callable[[], int]]:
        mapping = np.memmap(self.path, np.uint8, "r")
        pair = Pair(self.x, self.y, LENGTH, "uint16", None)

        def limit(loop: str) -> Callable[[], int]:
            address = mapping.ctypes.data
            return lambda: self.limit(loop, address, self.offsets(WINDOW, 2), LENGTH, self.x, self.y)

        def ours(engine: Engine) -> Callable[[], int]:
            def loop() -> int:
                for batch in self.offsets(WINDOW, 2):
                    engine.fill_mapped(mapping, Runs(-1, batch, WINDOW), pair)
                return self.batches * BATCH

            return loop

        return {
            "bare C from the map": limit("bare_windows_mapped"),
            "bare C that fetches ahead": limit("bare_windows_fetched"),
            "native from the map": ours(NATIVE),
            "python from the map": ours(PYTHON),
        }

    def rows(self) -> dict[str, Callable[[], int]]:
        def limit() -> int:
            return self.limit("bare_rows", self.fd, self.offsets(ROW, ROW), ROW, self.into)

        def ours(engine: Engine, way: str) -> Callable[[], int]:
            queue = engine.queue(way)

            def loop() -> int:
                for batch in self.offsets(ROW, ROW):
                    queue.fill(Runs(self.fd, batch, ROW), self.into, KEEP)
                return self.batches * BATCH

            return loop

        return {
            "bare C rows": limit,
            "native rows, read": ours(NATIVE, "read"),
            "native rows, announce": ours(NATIVE, "announce"),
            "python rows": ours(PYTHON, "announce"),
        }


NATIVE, PYTHON = _native.engine("native"), _native.engine("python")


def show(title: str, found: dict[str, tuple[float, float]], limit: str) -> None:
    print(f"\n{title:44s} {'per second':>12s} {'of limit':>9s} {'CPU s per million':>18s}")
    for name, (rate, cpu) in found.items():
        print(f"{name:44s} {rate:>12,.0f} {rate / found[limit][0]:>8.2f}x {cpu:>18.2f}", flush=True)


def fio(path: Path, depth: int, seconds: int) -> tuple[float, float]:
    command = ["fio", "--name=r", f"--filename={path}", "--rw=randread", "--bs=4k", "--direct=1"]
    command += ["--ioengine=io_uring", f"--iodepth={depth}", f"--runtime={seconds}", "--time_based", "--readonly"]
    command += ["--output-format=json"]
    job = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["jobs"][0]
    return job["read"]["iops"], (job["usr_cpu"] + job["sys_cpu"]) / 100 * 1e6 / max(job["read"]["iops"], 1)


def permutations() -> dict[str, Callable[[], int]]:
    n, count = 5_000_000, 8192
    constants = words(key(1, 2), 0, 16)
    numbers = np.arange(count, dtype=np.uint64)

    def ours(engine: Engine) -> Callable[[], int]:
        def loop() -> int:
            for _ in range(50):
                engine.permute(numbers, n, constants)
            return 50 * count

        return loop

    feistel = Feistel(n, key(1, 2))

    def now() -> int:
        for _ in range(50):
            feistel.forward(numbers)
        return 50 * count

    return {"order/feistel.py": now, "native permute": ours(NATIVE), "python permute": ours(PYTHON)}


def cold_ways(bench: Bench) -> dict[str, Callable[[], int]]:
    return {
        "python announce, keep": bench.windows(PYTHON, "announce"),
        "native announce, keep": bench.windows(NATIVE, "announce"),
        "native announce, drop": bench.windows(NATIVE, "announce", how=DROP),
        "native uring, direct, drop": bench.windows(NATIVE, "uring", direct=True, how=DROP),
        "native aio, direct, drop": bench.windows(NATIVE, "aio", direct=True, how=DROP),
        "ahead: native announce, keep": bench.ahead(NATIVE, "announce"),
        "ahead: native announce, drop": bench.ahead(NATIVE, "announce", how=DROP),
        "ahead: native uring, direct, keep": bench.ahead(NATIVE, "uring", direct=True),
        "ahead: native uring, direct, drop": bench.ahead(NATIVE, "uring", direct=True, how=DROP),
        "ahead: native aio, direct, drop": bench.ahead(NATIVE, "aio", direct=True, how=DROP),
        "ahead 3: native aio, direct, drop": bench.ahead(NATIVE, "aio", direct=True, how=DROP, deep=3),
        "ahead 3: native uring, direct, drop": bench.ahead(NATIVE, "uring", direct=True, how=DROP, deep=3),
    }


def main(size: int = 4) -> int:
    if NATIVE.unavailable()["uring"]:
        print(f"NOT MEASURED: io_uring - {NATIVE.unavailable()['uring']}")
        return 0
    path = (
        Path(os.environ["LOWTIDE_BENCH_FILE"])
        if "LOWTIDE_BENCH_FILE" in os.environ
        else make_file("native.bin", size * GIB)
    )
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    small = make_file("native_warm.bin", GIB // 2)
    warm(small)
    bench = Bench(small, 400)
    ways = {
        "bare C": bench.bare_windows,
        "native read": bench.windows(NATIVE, "read"),
        "native announce": bench.windows(NATIVE, "announce"),
        "native uring, direct": bench.windows(NATIVE, "uring", direct=True),
        "native read, ahead": bench.ahead(NATIVE, "read", deep=1),
        "python announce": bench.windows(PYTHON, "announce"),
    }
    windows = take_turns(ways)
    show("Warm windows", windows, "bare C")
    mapped = take_turns(bench.mapped())
    show("Warm windows, mapped", mapped, "bare C from the map")
    rows = take_turns(bench.rows())
    show("Warm rows of 2 KiB", rows, "bare C rows")
    permuted = take_turns(permutations())
    show("Permuted numbers", permuted, "order/feistel.py")
    bench = Bench(path, 100)
    cold = {}
    found: list[tuple[float, float]] = []
    loops = cold_ways(bench)
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in loops}
    for turn in range(ROUNDS):
        found.append(fio(path, 128, 2))
        for name, loop in loops.items():
            drop(path)
            results[name].append(take_turns({name: loop}, rounds=1)[name])
        del turn
    cold["fio io_uring O_DIRECT 4 KiB depth 128"] = tuple(statistics.median(c) for c in zip(*found, strict=True))
    for name, many in results.items():
        cold[name] = tuple(statistics.median(c) for c in zip(*many, strict=True))
    show(f"Cold windows, any offset, alignment {bench.alignment}", cold, "fio io_uring O_DIRECT 4 KiB depth 128")  # type: ignore[arg-type]
    return report(
        "Native engine: against bare C loops and fio",
        [
            Figure("warm windows", windows["native announce"][0], windows["bare C"][0], "windows/s", 0.85),
            Figure(
                "warm windows from a map",
                mapped["native from the map"][0],
                mapped["bare C from the map"][0],
                "windows/s",
                0.85,
            ),
            Figure("warm rows of 2 KiB", rows["native rows, announce"][0], rows["bare C rows"][0], "rows/s", 0.85),
            Figure(
                "cold windows, io_uring, drop",
                cold["ahead: native uring, direct, drop"][0],
                cold["fio io_uring O_DIRECT 4 KiB depth 128"][0],
                "windows/s",
                0.9,
            ),
            Figure(
                "cold windows, AIO beside io_uring",
                cold["ahead: native aio, direct, drop"][0],
                cold["ahead: native uring, direct, drop"][0],
                "windows/s",
                0.9,
            ),
            Figure(
                "cold windows, drop beside keep",
                cold["ahead: native uring, direct, drop"][0],
                cold["ahead: native uring, direct, keep"][0],
                "windows/s",
                0.9,
            ),
            Figure(
                "permuted numbers beside NumPy",
                permuted["native permute"][0],
                permuted["order/feistel.py"][0],
                "numbers/s",
                None,
            ),
        ],
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 4))
