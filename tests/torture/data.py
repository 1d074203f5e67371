"""Files to read under fire, and every public way to read them, each with the batches a calm pass gives.

A row's bytes tell its number, so that a row torn, doubled or out of place cannot pass for a right one. A case is what a
seed chooses: a way of reading, a strategy, a cache policy; the batches a case must give are taken beforehand, calmly,
with the plain strategy.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import lowtide

STRATEGIES = ("read", "remap", "advise", "map")
BOUNDED = STRATEGIES[:-1]
ARRAY_WAYS = ("chunks", "shuffled", "local", "gather", "sample")
FEED_WAYS = ("feed shuffled", "feed random", "feed sequential")

ROWS, WIDTH = 4096, 250  # 1,000 bytes per row: nothing is aligned
BATCH = 64
TOKENS, LENGTH, FEED_BATCH = 200_003, 255, 16
BUDGET = 4 << 20


def fingerprint(batch: Any) -> int:
    """One number for a batch, or for the pair a feed gives."""
    parts = batch if isinstance(batch, tuple) else (batch,)
    total = 0
    for part in parts:
        total = zlib.crc32(part, total)
    return total


def write_rows(path: Path, rows: int = ROWS, width: int = WIDTH, first: int = 0) -> Path:
    """Row k holds the numbers from k x width on."""
    np.arange(first * width, (first + rows) * width, dtype=np.uint32).tofile(path)
    return path


def row_numbers(batch: Any, width: int = WIDTH) -> list[int] | None:
    """Which rows of `write_rows` these are; None when a row is not whole."""
    numbers = batch[:, 0].astype(np.int64) // width
    whole = numbers[:, None] * width + np.arange(width)
    return numbers.tolist() if np.array_equal(batch, whole) else None


def write_tokens(path: Path, count: int = TOKENS) -> Path:
    np.random.default_rng(count).integers(0, 50_257, count).astype(np.uint16).tofile(path)
    return path


@dataclass(frozen=True)
class Case:
    """One way of reading, opened in one way. ``files`` above 1 cuts the data into that many."""

    way: str
    strategy: str
    cache: str
    files: int
    seed: int

    @classmethod
    def chosen(cls, rng: random.Random, strategies: tuple[str, ...] = STRATEGIES) -> Case:
        way = rng.choice(ARRAY_WAYS + FEED_WAYS)
        return cls(way, rng.choice(strategies), rng.choice(("keep", "drop")), rng.choice((1, 1, 3)), rng.randrange(99))

    def __str__(self) -> str:
        return f"{self.way}, strategy={self.strategy}, cache={self.cache}, files={self.files}"

    @property
    def fed(self) -> bool:
        return self.way in FEED_WAYS

    def write(self, directory: Path) -> list[Path]:
        """The files, of unequal length."""
        cuts = [*[0, 1, 3, 7][: self.files], 10] if self.files > 1 else [0, 10]
        if self.fed:
            whole = np.fromfile(write_tokens(directory / "whole"), np.uint16)
            parts = [whole[TOKENS * a // 10 : TOKENS * b // 10] for a, b in pairwise(cuts)]
            paths = [directory / f"tokens-{k}.bin" for k in range(len(parts))]
            for path, part in zip(paths, parts, strict=True):
                part.tofile(path)
            (directory / "whole").unlink()
            return paths
        edges = [(ROWS * a // 10, ROWS * b // 10) for a, b in pairwise(cuts)]
        return [
            write_rows(directory / f"rows-{k}.u32", last - first, first=first) for k, (first, last) in enumerate(edges)
        ]

    def open(self, paths: list[Path], **changed: Any) -> Any:
        keywords = {"strategy": self.strategy, "cache": self.cache, "budget": BUDGET, **changed}
        if self.fed:
            return lowtide.open_tokens(paths, dtype="uint16", **keywords)
        return lowtide.open(paths, dtype="uint32", shape=(-1, WIDTH), **keywords)

    def begin(self, opened: Any) -> Iterator[Any]:
        """A new pass of this case over something opened."""
        if self.fed:
            feed: Iterator[Any] = opened.batches(FEED_BATCH, length=LENGTH, seed=self.seed, order=self.way.split()[1])
            return feed
        if self.way == "chunks":
            chunks: Iterator[Any] = opened.chunks(BATCH)
            return chunks
        if self.way == "gather":
            numbers = np.random.default_rng(self.seed).integers(0, ROWS, 20 * BATCH)
            gathered: Iterator[Any] = opened.gather(numbers, BATCH)
            return gathered
        if self.way == "local":
            local: Iterator[Any] = opened.shuffled(BATCH, seed=self.seed, locality="200KB")
            return local
        found: Iterator[Any] = getattr(opened, self.way)(BATCH, seed=self.seed)
        return found

    def calm(self, paths: list[Path], most: int) -> list[int]:
        """Fingerprints of the first batches of a pass, read without disturbance by the plain strategy."""
        found = []
        with self.open(paths, strategy="read", cache="keep") as opened:
            for batch, _ in zip(self.begin(opened), range(most), strict=False):
                found.append(fingerprint(batch))
        return found
