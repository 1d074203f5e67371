"""Features and labels together against the features alone; stats() against one sum; tensors against the bare iterator.

python -m benchmarks.together          1,000,000 rows of 2 KiB and as many labels of 8 bytes, 5 rounds
python -m benchmarks.together quick    a tenth of the rows, 3 rounds
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import numpy as np
import torch

import lowtide
from benchmarks.measure import DIRECTORY, Figure, drop, interleaved, make_file, report, warm
from lowtide.torch import tensors

COLUMNS = 512  # float32: 2 KiB
BATCH = 256


def make_features(rows: int) -> Path:
    """Numbers as features are: finite, around zero. (Noise of any bits would be full of NaN.)"""
    path = make_file(f"features-{rows}.f32", rows * COLUMNS * 4)
    features = np.memmap(path, "float32", "r+", shape=(rows, COLUMNS))
    block = np.random.default_rng(0).normal(size=(4096, COLUMNS)).astype("float32")
    if not np.array_equal(features[:4096], block[:rows]):
        for first in range(0, rows, len(block)):
            features[first : first + len(block)] = block[: rows - first]
        features.flush()
    lowtide.release(features)
    return path


def spent(batches: Iterable[object], count: int) -> float:
    for _ in islice(batches, count):
        pass
    return count * BATCH


def ways_of(x_path: Path, y_path: Path, batches: int) -> dict[str, Callable[[], float]]:
    """Shuffled batches of X, of both, and of both as tensors."""
    x = lowtide.open(x_path, dtype="float32", shape=(-1, COLUMNS))
    both = lowtide.together(x, lowtide.open(y_path, dtype="int64"))
    seeds = iter(range(1_000_000))

    def alone() -> float:
        return spent(x.shuffled(BATCH, seed=next(seeds)), batches)

    def together() -> float:
        return spent(both.shuffled(BATCH, seed=next(seeds)), batches)

    def as_tensors() -> float:
        return spent(tensors(both.shuffled(BATCH, seed=next(seeds))), batches)

    return {"alone": alone, "together": together, "tensors": as_tensors}


def passes_of(x_path: Path) -> dict[str, Callable[[], float]]:
    x = lowtide.open(x_path, dtype="float32", shape=(-1, COLUMNS))

    def sums() -> float:
        total = sum(float(rows.sum()) for rows in x.chunks())
        return x.nbytes if total == total else 0.0

    def stats() -> float:
        x.stats()
        return x.nbytes

    return {"sum": sums, "stats": stats}


def main() -> int:
    quick = "quick" in sys.argv[1:]
    rows, rounds = (100_000, 3) if quick else (1_000_000, 5)
    torch.set_num_threads(1)
    x_path = make_features(rows)
    y_path = make_file(f"labels-{rows}.i64", rows * 8)
    figures = []
    warm(x_path)
    warm(y_path)
    for state, batches, before in (
        ("warm", rows // BATCH // 4, lambda: None),
        ("cold", rows // BATCH // 16, lambda: drop(x_path)),
    ):
        got = interleaved(ways_of(x_path, y_path, batches), rounds, discard=1, before=before)
        figures += [
            Figure(f"X and y together, {state}; beside X alone", got["together"], got["alone"], "rows/s", 0.9),
            Figure(f"tensors of both, {state}; beside the iterator", got["tensors"], got["together"], "rows/s", 0.9),
        ]
    warm(x_path)
    got = interleaved(passes_of(x_path), rounds, discard=1)
    figures.append(Figure("stats(), warm; beside chunks and one sum", got["stats"], got["sum"], "B/s", 0.8))
    missed = report("Together: two arrays beside one", figures)
    print(f"files are kept in {DIRECTORY}")
    return missed


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
