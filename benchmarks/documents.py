"""Documents: what ``documents=True`` and packing cost per batch, and what their index and packing cost once.

python -m benchmarks.documents [MiB]       256 MiB per corpus, interleaved rounds, about a minute

Two corpora of uint16 tokens, warm: documents of a median of 300 tokens (log-normal), and documents longer than a
window. Every rate is a median over many short rounds in which all ways take turns, in this thread's own time: others
on the machine do not count. What the machine allows stands beside ours: bare C loops that make the same reads and write
the same planes, without errors, signals or Python.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lowtide
from benchmarks.measure import DIRECTORY, Figure, drop, report, warm
from benchmarks.native_engine import aligned, bare
from lowtide.feed import Feed

LENGTH, BATCH, ROUNDS, STEPS = 1024, 64, 100, 10
EOT = 50_256
MIB = 1024**2


def corpus(name: str, size: int, median: float, sigma: float) -> Path:
    """Noise with an eot at the end of every document, in a directory of its own without an index."""
    directory = DIRECTORY / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    random = np.random.default_rng(0)
    tokens = random.integers(0, 50_000, size // 2, dtype=np.uint16)
    lengths = np.exp(random.normal(np.log(median), sigma, int(3 * len(tokens) / median)))
    ends = np.cumsum(np.maximum(1, lengths).astype(np.int64))
    tokens[ends[ends <= len(tokens)] - 1] = EOT
    path = directory / "tokens.bin"
    tokens.tofile(path)
    return path


def rates(ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Windows per second of each way, which reads ``STEPS`` batches per call; the first round is not counted."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS + 1):
        for name, way in ways.items():
            began = time.thread_time()
            way()
            found[name].append(STEPS * BATCH / (time.thread_time() - began))
    return {name: statistics.median(values[1:]) for name, values in found.items()}


def steps(feed: Feed) -> None:
    for _ in range(STEPS):
        next(feed)


class BareLoops:
    """Bare C loops over a file of tokens: other windows in every call, as feeds have them."""

    def __init__(self, path: Path, packed: Feed) -> None:
        self.fd = os.open(path, os.O_RDONLY)
        self.loops = bare()
        size = BATCH * LENGTH
        shapes: list[tuple[int, Any]] = [(size, np.int64)] * 2 + [(size + 16, np.int32)] * 4 + [(size + 16, np.uint8)]
        self.targets = [aligned((count,), dtype) for count, dtype in shapes]
        self.targets.append(aligned((4096,), np.uint8))
        self.into = (ctypes.c_void_p * len(self.targets))(*(one.ctypes.data for one in self.targets))
        random = np.random.default_rng(5)
        starts = random.integers(0, (path.stat().st_size // 2 - 1) // LENGTH, (2, ROUNDS + 1, STEPS * BATCH))
        self.windows, self.documented = (iter(some) for some in starts * (2 * LENGTH))
        self.rows = self.packed_rows(packed)

    def packed_rows(self, feed: Feed) -> Iterator[tuple[NDArray[np.int64], ...]]:
        """Offsets and bytes of the reads that make packed rows, and how many each row has; all known before."""
        found = []
        for turn in range(ROUNDS + 1):
            places = [place for step in range(STEPS) for place in feed.where(turn * STEPS + step)]
            offsets = [piece.offset for place in places for piece in place.documents]
            lengths = [2 * piece.tokens for place in places for piece in place.documents]
            counts = np.array([len(place.documents) for place in places])
            last = np.cumsum(counts) - 1
            sizes = np.array(lengths)
            sizes[last] += 2 * (LENGTH + 1) - np.add.reduceat(sizes, last - counts + 1)  # the last read fills its row
            found.append((np.array(offsets), sizes, counts))
        return iter(found)

    def plain(self) -> None:
        some = next(self.windows)
        self._packed(some, np.full(len(some), 2 * (LENGTH + 1)), np.ones(len(some), np.int64))

    def documents(self) -> None:
        some = ctypes.c_void_p(next(self.documented).ctypes.data)
        numbers = [ctypes.c_int64(number) for number in (STEPS, BATCH, LENGTH, EOT)]
        self.loops.bare_documents(self.fd, some, *numbers, self.into)

    def packed(self) -> None:
        self._packed(*next(self.rows))

    def _packed(self, *reads: NDArray[np.int64]) -> None:
        arrays = [ctypes.c_void_p(array.ctypes.data) for array in reads]
        numbers = [ctypes.c_int64(number) for number in (STEPS * BATCH, BATCH, LENGTH)]
        self.loops.bare_packed(self.fd, *arrays, *numbers, self.into)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def batch_figures(path: Path, label: str, wanted: float) -> list[Figure]:
    tokens = lowtide.open_tokens(path, dtype="uint16", eot=EOT, cache="keep")
    warm(path)
    packed = tokens.windows(LENGTH, cut="packed")
    with_documents = tokens.windows(LENGTH, documents=True)
    both = tokens.windows(LENGTH, cut="packed", documents=True)
    # A seed each: with the same one a feed finds what the one before it has just brought into the CPU's cache.
    feeds = {
        "stride": tokens.batches(BATCH, length=LENGTH, seed=1),
        "documents": with_documents.batches(BATCH, seed=2),
        "packed": packed.batches(BATCH, seed=3),
        "both": both.batches(BATCH, seed=4),
    }
    limit = BareLoops(path, packed.batches(BATCH, seed=5))
    loops = {"bare": limit.plain, "bare documents": limit.documents, "bare packed": limit.packed}
    found = rates({**{name: partial(steps, feed) for name, feed in feeds.items()}, **loops})
    os.close(limit.fd)
    padded = packed.account().padded_share

    def beside(what: str, ours: str, baseline: str, asked: float | None) -> Figure:
        return Figure(what, found[ours], found[baseline], "windows/s", asked)

    return [
        beside(f"documents=True, {label}", "documents", "stride", 0.9),
        beside("  in bare C, the same planes / plain windows", "bare documents", "bare", None),
        beside("  ours / bare C", "documents", "bare documents", 0.9),
        beside(f"cut='packed', {label}", "packed", "stride", wanted),
        beside("  in bare C, the same reads / plain windows", "bare packed", "bare", None),
        beside("  ours / bare C", "packed", "bare packed", 0.9),
        beside(f"cut='packed', documents=True, {label}", "both", "packed", 0.85),
        Figure(f"padding of packed, {label}", 100 * padded, 3, "% of rows", 3.0, at_most=True),
    ]


def once_figures(path: Path) -> list[Figure]:
    """Index and packing, and the sequential read that the index is measured against, cold and warm."""
    found: dict[tuple[bool, bool], list[float]] = {}
    size = path.stat().st_size
    for _ in range(5):
        for cold, index in ((True, False), (True, True), (False, False), (False, True)):
            shutil.rmtree(path.parent / ".lowtide", ignore_errors=True)
            (drop if cold else warm)(path)
            took = seconds(lambda index=index: (build_index if index else read_through)(path))  # type: ignore[misc]
            found.setdefault((cold, index), []).append(size / MIB / took)
    speed = {key: statistics.median(values) for key, values in found.items()}
    pack = seconds(lambda: lowtide.open_tokens(path, dtype="uint16", eot=EOT).windows(LENGTH, cut="packed"))
    kept = {one.suffix: one.stat().st_size for one in (path.parent / ".lowtide").iterdir()}
    count = sum(len(block) for block in lowtide.open_tokens(path, dtype="uint16", eot=EOT).documents() or ())
    return [
        Figure("index of ids, cold", speed[True, True], speed[True, False], "MiB/s", 0.9),
        Figure("index of ids, from the page cache", speed[False, True], speed[False, False], "MiB/s", 0.9),
        Figure("index, bytes per document", kept[".index"] / count, 3, "bytes", 3.0, at_most=True),
        Figure("packing, bytes per document", kept[".rows"] / count, 10, "bytes", 10.0, at_most=True),
        Figure("packing, microseconds per document", 1e6 * pack / count, 5, "us", None, at_most=True),
    ]


def read_through(path: Path) -> None:
    for _ in lowtide.open(path, dtype="uint16", shape=(-1,)).chunks(2 * MIB):
        pass


def build_index(path: Path) -> None:
    lowtide.open_tokens(path, dtype="uint16", eot=EOT).windows(LENGTH, documents=True)


def main() -> int:
    size = int(sys.argv[1]) * MIB if len(sys.argv) > 1 else 256 * MIB
    short = corpus("documents_short", size, 300, 1.0)
    figures = once_figures(short) + batch_figures(short, "median 300 tokens", 0.7)
    shutil.rmtree(short.parent)
    long = corpus("documents_long", size, 5_000, 0.7)
    figures += batch_figures(long, "longer than a window", 0.9)[:-1]
    shutil.rmtree(long.parent)
    return report("Documents: windows beside plain ones, and the index of ids", figures)


if __name__ == "__main__":
    raise SystemExit(main())
