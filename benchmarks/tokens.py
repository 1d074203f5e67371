"""Tokens: windows of 1,024 in batches of 64 against nanoGPT's loop, the bare loop, the fastest gather and DataLoader.

python -m benchmarks.tokens            8 GiB file, 3 rounds
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch.utils.data import DataLoader, Dataset

import lowtide
from benchmarks.measure import GIB, Figure, drop, interleaved, make_file, read_ahead, report, warm

LENGTH = 1024
BATCH = 64
SIZE = 8 * GIB


def nanogpt_loop(path: Path, batches: int) -> float:
    """What nanoGPT's get_batch does: a new memmap a batch, two slices a row, each widened and stacked."""
    for _ in range(batches):
        data = np.memmap(path, dtype=np.uint16, mode="r")
        starts = torch.randint(len(data) - LENGTH, (BATCH,))
        torch.stack([torch.from_numpy(data[i : i + LENGTH].astype(np.int64)) for i in starts])
        torch.stack([torch.from_numpy(data[i + 1 : i + 1 + LENGTH].astype(np.int64)) for i in starts])
    return batches * BATCH


class Bare:
    """The least Python can do: one preadv a window into one aligned buffer, then widen into x and y."""

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDONLY)
        window = (LENGTH + 1) * 2
        view = memoryview(mmap.mmap(-1, window * BATCH, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self.slots = [[view[start : start + window]] for start in range(0, window * BATCH, window)]
        self.narrow = np.frombuffer(view, np.uint16).reshape(BATCH, LENGTH + 1)
        self.x, self.y = np.empty((2, BATCH, LENGTH), np.int64)
        count = path.stat().st_size // 2 - LENGTH
        self.starts = np.random.default_rng(2).integers(0, count, (4000, BATCH)) * 2

    def run(self, batches: int) -> float:
        for offsets in self.starts[:batches]:
            for slot, offset in zip(self.slots, offsets.tolist(), strict=True):
                os.preadv(self.number, slot, offset)
            np.copyto(self.x, self.narrow[:, :-1])
            np.copyto(self.y, self.narrow[:, 1:])
        return batches * BATCH


class Gather:
    """One fancy gather from a kept map, then widen: the fastest way that lets the whole file become resident."""

    def __init__(self, path: Path) -> None:
        data = np.memmap(path, np.uint16, "r")
        self.windows = sliding_window_view(np.asarray(data), LENGTH + 1)
        self.x, self.y = np.empty((2, BATCH, LENGTH), np.int64)
        self.starts = np.random.default_rng(2).integers(0, len(self.windows), (4000, BATCH))

    def run(self, batches: int) -> float:
        for starts in self.starts[:batches]:
            narrow = self.windows[starts]
            np.copyto(self.x, narrow[:, :-1])
            np.copyto(self.y, narrow[:, 1:])
        return batches * BATCH


class MemmapDataset(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The usual map-style dataset over a kept memmap."""

    def __init__(self, path: Path) -> None:
        self.data = np.memmap(path, np.uint16, "r")

    def __len__(self) -> int:
        return (len(self.data) - 1) // LENGTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = torch.from_numpy(self.data[index * LENGTH : index * LENGTH + LENGTH + 1].astype(np.int64))
        return window[:-1], window[1:]


def loader(path: Path, workers: int, batches: int) -> float:
    order = np.random.default_rng(3).integers(0, SIZE // 2 // LENGTH - 1, batches * BATCH).tolist()
    for _ in DataLoader(MemmapDataset(path), batch_size=BATCH, sampler=order, num_workers=workers):
        pass
    return batches * BATCH


def ours(tokens: lowtide.Tokens, batches: int) -> float:
    for _ in islice(tokens.batches(BATCH, length=LENGTH, seed=1), batches):
        pass
    return batches * BATCH


def warm_figures(path: Path) -> list[Figure]:
    warm(path)
    bare, gather = Bare(path), Gather(path)
    np.asarray(np.memmap(path, np.uint8, "r"))[::4096].sum()
    read = lowtide.open_tokens(path, dtype="uint16")
    mapped = lowtide.open_tokens(path, dtype="uint16", strategy="map")
    ours(mapped, 2000)
    rates = interleaved(
        {
            "nanogpt": lambda: nanogpt_loop(path, 300),
            "bare": lambda: bare.run(3000),
            "read": lambda: ours(read, 3000),
            "gather": lambda: gather.run(3000),
            "map": lambda: ours(mapped, 3000),
            "loader0": lambda: loader(path, 0, 300),
            "loader2": lambda: loader(path, 2, 600),
        },
        rounds=5,
    )
    return [
        Figure("feed, warm / bare preadv + widen loop", rates["read"], rates["bare"], "windows/s", 0.7),
        Figure("feed, warm / nanoGPT's get_batch", rates["read"], rates["nanogpt"], "windows/s", 8),
        Figure("strategy='map', warm / sliding_window_view gather", rates["map"], rates["gather"], "windows/s", 0.8),
        Figure("feed, warm / torch DataLoader, 0 workers", rates["read"], rates["loader0"], "windows/s", None),
        Figure("feed, warm / torch DataLoader, 2 workers", rates["read"], rates["loader2"], "windows/s", None),
    ]


def cold_figures(path: Path) -> list[Figure]:
    def cold_nanogpt() -> float:
        return nanogpt_loop(path, 60)

    def cold_ours(cache: str) -> float:
        with lowtide.open_tokens(path, dtype="uint16", cache=cache) as tokens:
            return ours(tokens, 600)

    with read_ahead(path, 128):
        ways = {"nanogpt": cold_nanogpt, "keep": lambda: cold_ours("keep"), "drop": lambda: cold_ours("drop")}
        rates = interleaved(ways, rounds=3, discard=1, before=lambda: drop(path))
    return [
        Figure("feed, cold / nanoGPT's get_batch", rates["keep"], rates["nanogpt"], "windows/s", 15),
        Figure("feed, cold, cache='drop' / nanoGPT's get_batch", rates["drop"], rates["nanogpt"], "windows/s", None),
    ]


GROWTH = """
import sys, lowtide
from lowtide.memory import process_memory
tokens = lowtide.open_tokens(sys.argv[1], dtype="uint16")
feed = tokens.batches(64, length=1024, seed=1)
for _ in range(100): next(feed)
before, peak = process_memory(), 0
for step in range(10**6 // 64):
    next(feed)
    if step % 200 == 0:
        now = process_memory()
        peak = max(peak, now.anon + now.mapped - before.anon - before.mapped)
print(peak / 2**20, (process_memory().tables - before.tables) / 2**10)
"""


def memory_figures(path: Path) -> list[Figure]:
    run = subprocess.run([sys.executable, "-c", GROWTH, str(path)], capture_output=True, text=True, check=True)
    grown, tables = (float(word) for word in run.stdout.split())
    tokens = lowtide.open_tokens(path, dtype="uint16")
    state = tokens.batches(BATCH, length=LENGTH, seed=1).state_dict()
    waits = []
    for _ in range(5):
        fresh = lowtide.open_tokens(path, dtype="uint16").batches(BATCH, length=LENGTH, seed=1)
        start = time.perf_counter()
        fresh.load_state_dict({**state, "rows": 10**9 * BATCH})
        next(fresh)
        waits.append((time.perf_counter() - start) * 1e3)
    return [
        Figure("growth of anon + mapped over 10^6 windows", grown, 1, "MiB", 8, at_most=True),
        Figure("growth of page tables over 10^6 windows", tables, 1, "KiB", 64, at_most=True),
        Figure("load a state of step 10^9 and first batch", float(np.median(waits)), 1, "ms", 5, at_most=True),
    ]


def main() -> int:
    path = make_file("tokens.bin", SIZE)
    torch.set_num_threads(1)
    missed = report("Tokens: speed", [*warm_figures(path), *cold_figures(path)])
    return missed + report("Token memory: fresh processes", memory_figures(path))


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
