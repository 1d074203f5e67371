"""Arrays: chunks and shuffled rows against the rivals at their best, and memory over a full pass.

python -m benchmarks.arrays            4 GiB file, 3 rounds
LOWTIDE_BENCH_DIR=/disk python ...     put the files on another disk
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np

import lowtide
from benchmarks.measure import DIRECTORY, GIB, Figure, drop, interleaved, make_file, read_ahead, report, warm
from lowtide import machine

ROW = 2048
BATCH = 64
SIZE = 4 * GIB
CHUNK = 8 * 1024**2


def aligned(size: int) -> memoryview:
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def open_rows(path: Path, **settings: str) -> lowtide.Array:
    return lowtide.open(path, dtype="uint8", shape=(-1, ROW), **settings)


# Chunks


def bare_chunks(path: Path) -> float:
    """One aligned buffer, one preadv a chunk: nothing can be simpler in Python."""
    number, view = os.open(path, os.O_RDONLY), aligned(CHUNK)
    for offset in range(0, SIZE, CHUNK):
        os.preadv(number, [view], offset)
    os.close(number)
    return SIZE / GIB


def our_chunks(path: Path, **settings: str) -> float:
    with open_rows(path, **settings) as array:
        for chunk in array.chunks(CHUNK // ROW):
            chunk[0, 0]
    return SIZE / GIB


def fio_rate(path: Path) -> float | None:
    """GiB/s that fio reads sequentially with O_DIRECT, depth 8, 1 MiB: what the device gives."""
    if shutil.which("fio") is None:
        print("NOT MEASURED: cold chunks against fio - fio is not installed", file=sys.stderr)
        return None
    words = f"fio --name=s --filename={path} --rw=read --bs=1M --direct=1 --ioengine=libaio --iodepth=8 --readonly"
    run = subprocess.run([*words.split(), "--output-format=json"], capture_output=True, text=True, check=True)
    return float(json.loads(run.stdout[run.stdout.index("{") :])["jobs"][0]["read"]["bw_bytes"]) / GIB


def chunk_figures(path: Path) -> list[Figure]:
    warm(path)
    rates = interleaved({"bare": lambda: bare_chunks(path), "ours": lambda: our_chunks(path)})
    figures = [Figure("chunks of 8 MiB, warm / bare preadv loop", rates["ours"], rates["bare"], "GiB/s", 0.85)]
    device, cold = [], []
    for turn in range(4):  # the first round is thrown away: the host caches too
        rate = fio_rate(path)
        drop(path)
        ours = interleaved({"ours": lambda: our_chunks(path, cache="drop")}, rounds=1)["ours"]
        if rate is not None and turn:
            device.append(rate)
            cold.append(ours)
    if device:
        figures.append(Figure("chunks, cold, cache='drop' / fio O_DIRECT", *_medians(cold, device), "GiB/s", 0.65))
    left = machine.page_cache(path).cached / 1024**2
    figures.append(Figure("page cache left behind by cache='drop'", left, 1, "MiB", 16, at_most=True))
    return figures


def _medians(first: list[float], second: list[float]) -> tuple[float, float]:
    return float(np.median(first)), float(np.median(second))


# Shuffled rows


def shuffled_figures(path: Path) -> list[Figure]:
    count = SIZE // ROW
    order = np.random.default_rng(1).permutation(count)
    return [*_warm_rows(path, count, order), *_cold_rows(path, count, order)]


def _warm_rows(path: Path, count: int, order: np.ndarray) -> list[Figure]:
    warm(path)
    batches = 4000
    number, view = os.open(path, os.O_RDONLY), aligned(ROW * BATCH)
    slots = [[view[start : start + ROW]] for start in range(0, ROW * BATCH, ROW)]
    kept = np.memmap(path, np.uint8, "r", shape=(count, ROW))
    np.asarray(kept)[:, ::1024].sum()  # every page mapped: the kept map at its best
    numbers = [order[start : start + BATCH] for start in range(0, batches * BATCH, BATCH)]

    def bare() -> float:
        for rows in numbers:
            for slot, offset in zip(slots, (rows * ROW).tolist(), strict=True):
                os.preadv(number, slot, offset)
        return batches * BATCH

    def kept_map() -> float:
        for rows in numbers:
            kept[rows]
        return batches * BATCH

    def recreated() -> float:
        for rows in numbers:
            np.memmap(path, np.uint8, "r", shape=(count, ROW))[rows]
        return batches * BATCH

    def ours(array: lowtide.Array) -> float:
        for _ in islice(array.shuffled(BATCH, seed=1), batches):
            pass
        return batches * BATCH

    arrays = {name: open_rows(path, strategy=name) for name in ("read", "map", "remap", "advise")}
    ways = {"bare": bare, "kept": kept_map, "recreated": recreated}
    ways |= {name: lambda array=array: ours(array) for name, array in arrays.items()}
    rates = interleaved(ways, rounds=5)
    os.close(number)
    return [
        Figure("shuffled rows, warm / bare preadv loop", rates["read"], rates["bare"], "rows/s", 0.75),
        Figure("shuffled rows, warm / memmap recreated per batch", rates["read"], rates["recreated"], "rows/s", 2),
        Figure("strategy='map', warm / kept_memmap[indices]", rates["map"], rates["kept"], "rows/s", 0.8),
        Figure("strategy='remap', warm / memmap recreated", rates["remap"], rates["recreated"], "rows/s", None),
        Figure("strategy='advise', warm / memmap recreated", rates["advise"], rates["recreated"], "rows/s", None),
    ]


def _cold_rows(path: Path, count: int, order: np.ndarray) -> list[Figure]:
    def naive() -> float:
        mapped = np.memmap(path, np.uint8, "r", shape=(count, ROW))
        for start in range(0, 100 * BATCH, BATCH):
            np.stack([mapped[row] for row in order[start : start + BATCH]])
        return 100 * BATCH

    def ours(cache: str) -> float:
        with open_rows(path, cache=cache) as array:
            for _ in islice(array.shuffled(BATCH, seed=1), 400):
                pass
        return 400 * BATCH

    with read_ahead(path, 128):
        ways = {"naive": naive, "keep": lambda: ours("keep"), "drop": lambda: ours("drop")}
        rates = interleaved(ways, rounds=3, discard=1, before=lambda: drop(path))
    return [
        Figure("shuffled rows, cold / loop over np.memmap", rates["keep"], rates["naive"], "rows/s", 7),
        Figure("shuffled rows, cold, cache='drop' / the same", rates["drop"], rates["naive"], "rows/s", None),
    ]


# Memory, in fresh processes

GROWTH = """
import sys, lowtide
from lowtide.memory import process_memory
path, strategy = sys.argv[1:]
array = lowtide.open(path, dtype="uint8", shape=(-1, 2048), strategy=strategy, budget="64MiB")
before = process_memory()
peak = 0
for turn, rows in enumerate(array.shuffled(4096, seed=0)):
    now = process_memory()
    peak = max(peak, now.anon + now.mapped - before.anon - before.mapped)
print(peak / 2**20)
"""

SPARSE = """
import sys, time, lowtide
from lowtide.memory import process_memory
lowtide.open(sys.executable, dtype="uint8")[0]  # names are loaded on first use, which is not what is measured
before = process_memory()
clock = time.perf_counter
start = clock()
array = lowtide.open(sys.argv[1], dtype="uint8", shape=(-1, 2048), budget="8MiB")
opened = clock()
batches = array.shuffled(64, seed=0)
next(batches)
first = clock()
next(array.shuffled(64, seed=0, start=len(array) // 2))
middle = clock()
tables = process_memory().tables
for turn, rows in zip(range(2000), batches): pass
after = process_memory()
print((opened - start) * 1e3, (first - opened) * 1e3, (middle - first) * 1e3)
print((after.anon + after.mapped - before.anon - before.mapped) / 2**20, (after.tables - tables) / 2**10)
"""


def _child(program: str, *words: str) -> list[float]:
    run = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    return [float(word) for word in run.stdout.split()]


def memory_figures(path: Path) -> list[Figure]:
    figures = []
    for strategy in ("read", "remap", "advise"):
        grown = _child(GROWTH, str(path), strategy)[0]
        figures.append(Figure(f"growth over a pass, 64 MiB budget, {strategy}", grown, 1, "MiB", 72, at_most=True))
    control = _child(GROWTH, str(path), "map")[0]
    figures.append(Figure("negative control: strategy='map' must exceed 72 MiB", control, 72, "MiB", 1))
    sparse = DIRECTORY / "sparse.bin"
    with sparse.open("wb") as file:
        file.truncate(4 * 1024 * GIB)
    opened, first, middle, grown, tables = _child(SPARSE, str(sparse))
    sparse.unlink()
    for what, value, unit, most in (
        ("4 TiB sparse: open", opened, "ms", 20),
        ("4 TiB sparse: first shuffled batch", first, "ms", 20),
        ("4 TiB sparse: seek to the middle, batch", middle, "ms", 20),
        ("4 TiB sparse, 8 MiB budget: growth of anon + mapped", grown, "MiB", 12),
        ("4 TiB sparse: growth of page tables over 2,000 batches", tables, "KiB", 64),
    ):
        figures.append(Figure(what, value, 1, unit, most, at_most=True))
    return [*figures, import_figure()]


def import_figure() -> Figure:
    def seconds(words: str) -> float:
        program = f"import time; t = time.perf_counter(); {words}; print(time.perf_counter() - t)"
        return float(np.median([_child(program)[0] for _ in range(9)]))

    added = seconds("import numpy; t = time.perf_counter(); import lowtide") * 1e3
    return Figure("import lowtide, on top of numpy", added, 1, "ms", 40, at_most=True)


def main() -> int:
    path = make_file("rows.bin", SIZE)
    missed = report("Arrays: speed", [*chunk_figures(path), *shuffled_figures(path)])
    return missed + report("Array memory: fresh processes", memory_figures(path))


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
