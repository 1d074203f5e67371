"""Orders of sizes that the tests have no time for: every row exactly once, and back again.

Sizes up to 2**25 near powers of two, where shuffles of others have lost a row, and any others; full and local. Beyond
that only samples: no row twice among them, and the inverse leads back.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from tests.torture.tally import Tally

from lowtide.order import LocalPermutation, Permutation

BLOCK = 1 << 20


def program(rng: random.Random, directory: Path, tally: Tally, rounds: int) -> None:
    for _ in range(rounds):
        tally.tried += 1
        tally.fired += 1
        power = rng.randint(1, 25) if rng.random() < 0.7 else rng.randint(26, 62)
        n = max(1, 2**power + rng.choice((-1, 0, 1, rng.randrange(2**power))))
        seed, epoch = rng.randrange(1 << 64), rng.randrange(1000)
        local = rng.random() < 0.3
        size = rng.randint(1, n) if rng.random() < 0.5 else rng.randint(1, min(n, 5000))
        most = rng.choice((1, 2, 64, rng.randint(1, 5000)))
        order: Permutation | LocalPermutation = Permutation(n, seed=seed, epoch=epoch)
        if local:
            order = LocalPermutation(n, size, most, seed=seed, epoch=epoch)
        where = f"n={n}, seed={seed}, epoch={epoch}" + (f", windows of {most} blocks of {size}" if local else "")
        problem = whole(order, n) if n < 1 << 26 else sampled(order, n, rng)
        if problem:
            tally.found("wrong order", f"{where}: {problem}")
        tally.tell()


def whole(order: Permutation | LocalPermutation, n: int) -> str:
    seen = np.zeros(n, bool)
    for first in range(0, n, BLOCK):
        rows = order.block(first, min(BLOCK, n - first))
        seen[rows] = True
        if not np.array_equal(order.inverse(rows[:1000]), np.arange(first, first + len(rows[:1000]))):
            return f"the inverse does not lead back from position {first} on"
    missing = int(n - np.count_nonzero(seen))
    return f"{missing} rows never come" if missing else ""


def sampled(order: Permutation | LocalPermutation, n: int, rng: random.Random) -> str:
    positions = np.unique(np.array([rng.randrange(n) for _ in range(20_000)], np.int64))
    rows = order.at(positions)
    if rows.min() < 0 or rows.max() >= n:
        return "a row outside the array"
    if len(np.unique(rows)) != len(positions):
        return "two positions have the same row"
    return "" if np.array_equal(order.inverse(rows), positions) else "the inverse does not lead back"
