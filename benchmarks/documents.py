"""Documents: what ``documents=True`` and packing cost per batch, and what their index and packing cost once.

python -m benchmarks.documents [MiB]       256 MiB per corpus, interleaved rounds, about a minute

Two corpora of uint16 tokens, warm: documents of a median of 300 tokens (log-normal), and documents longer than a
window. Every rate is a median over many short rounds in which all ways take turns, in this thread's own time: others
on the machine do not count.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import lowtide
from benchmarks.measure import DIRECTORY, Figure, drop, report, warm
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


def rate(feed: Feed) -> float:
    began = time.thread_time()
    for _ in range(STEPS):
        next(feed)
    return STEPS * BATCH / (time.thread_time() - began)


def rates(ways: dict[str, Feed]) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in ways}
    for feed in ways.values():
        for _ in range(STEPS):
            next(feed)
    for _ in range(ROUNDS):
        for name, feed in ways.items():
            found[name].append(rate(feed))
    return {name: statistics.median(values) for name, values in found.items()}


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
    found = rates(
        {
            # A seed each: with the same one a feed finds what the one before it has just brought into the CPU's cache.
            "stride": tokens.batches(BATCH, length=LENGTH, seed=1),
            "documents": with_documents.batches(BATCH, seed=2),
            "packed": packed.batches(BATCH, seed=3),
            "both": both.batches(BATCH, seed=4),
        }
    )
    padded = packed.account().padded_share
    return [
        Figure(f"documents=True, {label}", found["documents"], found["stride"], "windows/s", 0.9),
        Figure(f"cut='packed', {label}", found["packed"], found["stride"], "windows/s", wanted),
        Figure(f"cut='packed', documents=True, {label}", found["both"], found["packed"], "windows/s", 0.85),
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
    figures += batch_figures(long, "longer than a window", 0.9)[:3]
    shutil.rmtree(long.parent)
    return report("Documents: windows beside plain ones, and the index of ids", figures)


if __name__ == "__main__":
    raise SystemExit(main())
