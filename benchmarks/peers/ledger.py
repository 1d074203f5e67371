"""Tokens that say where they stand, so that what a loader gave out can be checked from its batches alone.

Two tokens hold a position: pair q of the stream is ``q % 2**15`` and ``2**15 + q // 2**15``. Any three neighbours tell
the place of the first one, at whatever phase a loader cuts its windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HALF = 1 << 15
LENGTH, BATCH = 1024, 64
ROW = LENGTH + 1


def tokens_at(start: int, count: int) -> NDArray[np.uint16]:
    """The tokens at ``start`` and after."""
    pairs = np.arange(start // 2, (start + count) // 2 + 1, dtype=np.int64)
    both = np.stack([pairs % HALF, HALF + pairs // HALF], axis=1).astype(np.uint16).ravel()
    return both[start % 2 : start % 2 + count]


def starts_of(x: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each row begins; -1 for a row that is not a piece of the stream."""
    first = x[:, :3].astype(np.int64)
    low_first = first[:, 0] < HALF
    even = 2 * (first[:, 0] + (first[:, 1] - HALF) * HALF)
    odd = 2 * (first[:, 1] + (first[:, 2] - HALF) * HALF) - 1
    starts = np.where(low_first, even, odd)
    return np.where(
        [bool((row == tokens_at(int(s), len(row))).all()) for row, s in zip(x, starts, strict=True)], starts, -1
    )


def write_tokens(path: Path, windows: int) -> None:
    """``windows`` windows at a stride of their length, and the one token after the last that its y needs."""
    total, piece = windows * LENGTH + 1, 1 << 24
    unfinished = path.with_suffix(".part")
    with unfinished.open("wb") as file:
        for start in range(0, total, piece):
            file.write(tokens_at(start, min(piece, total - start)).tobytes())
    unfinished.replace(path)


def rows_of(path: Path) -> NDArray[np.uint16]:
    """Windows of length + 1 tokens at a stride of length, as a view of the file: formats of rows are made of it."""
    tokens = np.memmap(path, np.uint16, "r")
    return np.lib.stride_tricks.sliding_window_view(tokens, ROW)[::LENGTH]


@dataclass(frozen=True)
class Account:
    """What an epoch gave out, row by row."""

    rows: int
    wrong: int  # rows that are no piece of the stream
    twice: int  # rows beyond the first one of each start
    missing: int  # windows of the epoch that never came

    @property
    def exactly_once(self) -> bool:
        return not (self.wrong or self.twice or self.missing)

    def __str__(self) -> str:
        if self.exactly_once:
            return "yes"
        named = {"wrong": self.wrong, "twice": self.twice, "missing": self.missing}
        return "no: " + ", ".join(f"{count:,} {name}" for name, count in named.items() if count)


def account(starts: NDArray[np.int64], epoch: int, batch: int) -> Account:
    """Checks the rows of an epoch; a loader may leave out the end that makes no whole batch."""
    starts = starts[:epoch]
    right = starts[starts >= 0]
    distinct = np.unique(right)
    missing = epoch - len(distinct)
    return Account(
        len(starts), len(starts) - len(right), len(right) - len(distinct), missing if missing >= batch else 0
    )


def resumed_elsewhere(rest: NDArray[np.int64], ranks: Sequence[NDArray[np.int64]], batch: int) -> str:
    """Whether ranks together gave what one process had left to give: step by step, or at least by the epoch's end."""
    ours = np.sort(np.concatenate(ranks)) if ranks else np.empty(0, np.int64)
    if len(ours) != len(rest) or (ours != np.sort(rest)).any():
        known = set(rest.tolist())
        twice = len(ours) - len(np.unique(ours)) + sum(start not in known for start in set(ours.tolist()))
        return f"no: {len(known - set(ours.tolist())):,} lost, {twice:,} repeated"
    share = batch // len(ranks)
    for step in range(len(rest) // batch):
        here = np.concatenate([rank[step * share : (step + 1) * share] for rank in ranks])
        if set(here.tolist()) != set(rest[step * batch : (step + 1) * batch].tolist()):
            return "same rows, other batches"
    return "exact"
