"""Streams of windows: which token row k of a feed begins at.

One idea: a stream maps row numbers to first tokens, purely; an epoch is just a stretch of rows. Nothing is stored per
row and row 10^12 costs what row 0 costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lowtide.arguments import one_of, whole_number
from lowtide.order import Permutation, draws, key
from lowtide.reading.upcoming import Numbers

ORDERS = ("shuffled", "random", "sequential")


class Stream(Protocol):
    """Row numbers -> first tokens. ``rows`` is None for an endless stream."""

    @property
    def order(self) -> str: ...
    @property
    def rows(self) -> int | None: ...
    @property
    def consecutive(self) -> bool:
        """Rows that follow one another are windows that follow one another."""
        ...

    def starts(self, rows: Numbers) -> Numbers: ...
    def settings(self) -> dict[str, Any]: ...


class ShuffledStream:
    """Every window once per epoch, in an order and from a phase of each epoch's own."""

    order = "shuffled"
    rows = None
    consecutive = False

    def __init__(self, tokens: int, length: int, seed: int) -> None:
        self.length = length
        self.seed = seed
        self.windows = (tokens - length) // length  # the same for every phase, so rows divide into epochs evenly
        self._epochs: dict[int, tuple[Permutation, int]] = {}

    def starts(self, rows: Numbers) -> Numbers:
        epochs, positions = np.divmod(rows, self.windows)
        found = np.empty(len(rows), np.int64)
        # Not np.unique: its first call imports numpy.ma, and a child forked meanwhile waits for the import for ever.
        for first, last in _stretches(epochs[1:] != epochs[:-1]):
            found[first:last] = self._of_epoch(int(epochs[first]), positions[first:last])
        return found

    def _of_epoch(self, epoch: int, positions: Numbers) -> Numbers:
        known = self._epochs.get(epoch)
        if known is None:
            phase = key(self.seed, epoch, "phase") % self.length
            known = Permutation(self.windows, seed=self.seed, epoch=epoch, purpose="windows"), phase
            if len(self._epochs) > 3:  # a batch straddles two; a look ahead may reach a third
                self._epochs.clear()
            self._epochs[epoch] = known
        order, phase = known
        return order.at(positions) * self.length + phase

    def settings(self) -> dict[str, Any]:
        return {"order": self.order, "seed": self.seed}


class RandomStream:
    """Windows drawn with replacement, each start as likely as any other."""

    order = "random"
    rows = None
    consecutive = False

    def __init__(self, tokens: int, length: int, seed: int) -> None:
        self.choices = tokens - length
        self.seed = seed

    def starts(self, rows: Numbers) -> Numbers:
        found = np.empty(len(rows), np.int64)
        for first, last in _stretches(rows[1:] - rows[:-1] != 1):
            found[first:last] = draws(
                self.choices, seed=self.seed, start=int(rows[first]), count=last - first, purpose="windows"
            )
        return found

    def settings(self) -> dict[str, Any]:
        return {"order": self.order, "seed": self.seed}


class SequentialStream:
    """Every token predicted once, in order: for evaluation. Finite; the seed plays no part."""

    order = "sequential"
    consecutive = True

    def __init__(self, tokens: int, length: int) -> None:
        self.length = length
        self.rows = (tokens - 1) // length

    def starts(self, rows: Numbers) -> Numbers:
        return rows * self.length

    def settings(self) -> dict[str, Any]:
        return {"order": self.order}


def _stretches(breaks: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Stretches [first, last) of one item more than there are ``breaks``; break k lies between items k and k + 1."""
    return pairwise([0, *(np.flatnonzero(breaks) + 1).tolist(), len(breaks) + 1])


def make_stream(order: str, tokens: int, length: int, seed: int) -> Stream:
    """The stream of that name. A seed of NumPy's becomes an int: a state must be safe for JSON."""
    seed = whole_number("seed", seed)
    one_of("order", order, ORDERS)
    if order == "shuffled":
        return ShuffledStream(tokens, length, seed)
    return RandomStream(tokens, length, seed) if order == "random" else SequentialStream(tokens, length)
