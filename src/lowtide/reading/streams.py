"""Streams of windows: which token row k of a feed begins at.

One idea: a stream maps row numbers to first tokens, purely; an epoch is just a stretch of rows. Nothing is stored per
row and row 10^12 costs what row 0 costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lowtide.arguments import one_of, whole_number
from lowtide.order import LocalPermutation, Permutation, draws, key
from lowtide.reading.upcoming import Numbers
from lowtide.units import MIB, parse_size

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

    @property
    def epoch_rows(self) -> int | None:
        """Rows of one epoch; None: the stream has no epochs and never runs out."""
        ...

    def starts(self, rows: Numbers) -> Numbers: ...
    def settings(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Locality:
    """How far a local shuffle mixes: as many bytes of neighbouring windows as were stated."""

    nbytes: int
    windows: int


def locality_of(stated: int | str | None, length: int, item: int, order: str) -> Locality | None:
    """What ``locality=`` means for windows of ``length`` tokens of ``item`` bytes; refused below one window."""
    if stated is None:
        return None
    size, window = parse_size(stated, what="locality"), length * item
    if order != "shuffled":
        raise ValueError(
            f"locality: expected order='shuffled', got order={order!r}, which has nothing to shuffle among neighbours. "
            "Leave locality= out."
        )
    if size < window:
        raise ValueError(
            f"locality: expected at least one window ({window} bytes: {length} tokens of {item}), got {size} bytes. "
            f"Use locality={max(window, MIB)} or more; 64MiB is usual."
        )
    return Locality(size, size // window)


class WindowStretch(NamedTuple):
    """Neighbouring tokens that a local shuffle mixes: which ones, and the rows of the stream they are."""

    first: int  # token
    tokens: int
    row: int  # the first of their rows
    rows: int


class ShuffledStream:
    """Every window once per epoch, in an order and from a phase of each epoch's own.

    ``locality``: bytes of neighbouring windows that are shuffled among themselves; None: all windows.
    """

    order = "shuffled"
    rows = None
    consecutive = False

    def __init__(self, tokens: int, length: int, seed: int, locality: Locality | None = None) -> None:
        self.length = length
        self.seed = seed
        self.windows = (tokens - length) // length  # the same for every phase, so rows divide into epochs evenly
        self.epoch_rows = self.windows
        self.locality = locality
        self._epochs: dict[int, tuple[Permutation | LocalPermutation, int]] = {}

    def starts(self, rows: Numbers) -> Numbers:
        epochs, positions = np.divmod(rows, self.windows)
        found = np.empty(len(rows), np.int64)
        # Not np.unique: its first call imports numpy.ma, and a child forked meanwhile waits for the import for ever.
        for first, last in _stretches(epochs[1:] != epochs[:-1]):
            order, phase = self._of_epoch(int(epochs[first]))
            found[first:last] = order.at(positions[first:last]) * self.length + phase
        return found

    def stretch(self, row: int) -> WindowStretch:
        """The stretch that a row of a local shuffle belongs to."""
        epoch, position = divmod(row, self.windows)
        order, phase = self._of_epoch(epoch)
        assert isinstance(order, LocalPermutation)
        window, windows, begins = order.run_at(position)
        tokens = windows * self.length + 1
        return WindowStretch(window * self.length + phase, tokens, epoch * self.windows + begins, windows)

    def _of_epoch(self, epoch: int) -> tuple[Permutation | LocalPermutation, int]:
        known = self._epochs.get(epoch)
        if known is None:
            known = self._permutation(epoch), key(self.seed, epoch, "phase") % self.length
            if len(self._epochs) > 3:  # a batch straddles two; a look ahead may reach a third
                self._epochs.clear()
            self._epochs[epoch] = known
        return known

    def _permutation(self, epoch: int) -> Permutation | LocalPermutation:
        if self.locality is None:
            return Permutation(self.windows, seed=self.seed, epoch=epoch, purpose="windows")
        count = self.locality.windows
        return LocalPermutation(self.windows, count, seed=self.seed, epoch=epoch, purpose="windows")

    def settings(self) -> dict[str, Any]:
        local = {} if self.locality is None else {"locality": self.locality.nbytes}
        return {"order": self.order, "seed": self.seed, **local}


class RandomStream:
    """Windows drawn with replacement, each start as likely as any other."""

    order = "random"
    rows = None
    consecutive = False
    epoch_rows = None

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
        self.rows = self.epoch_rows = (tokens - 1) // length

    def starts(self, rows: Numbers) -> Numbers:
        return rows * self.length

    def settings(self) -> dict[str, Any]:
        return {"order": self.order}


def _stretches(breaks: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Stretches [first, last) of one item more than there are ``breaks``; break k lies between items k and k + 1."""
    return pairwise([0, *(np.flatnonzero(breaks) + 1).tolist(), len(breaks) + 1])


def make_stream(order: str, tokens: int, length: int, seed: int, locality: Locality | None = None) -> Stream:
    """The stream of that name. A seed of NumPy's becomes an int: a state must be safe for JSON."""
    seed = whole_number("seed", seed)
    one_of("order", order, ORDERS)
    if order == "shuffled":
        return ShuffledStream(tokens, length, seed, locality)
    return RandomStream(tokens, length, seed) if order == "random" else SequentialStream(tokens, length)
