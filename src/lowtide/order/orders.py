"""Which row comes at which position when all rows are shuffled. (``local``: a window of blocks at a time.)

An order is a pure function of (seed, epoch, position). It holds a few numbers instead of an index, any stretch of it is
computed when asked for, and resuming needs nothing but the position.

Ask for thousands of positions per call: 8,192 cost about 30 ns each, one alone about 75 us. Calls share nothing
they write to, so threads need no lock. Knows rows as integers only - no files, no dtypes, no batches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowtide.arguments import whole_number
from lowtide.order.feistel import Feistel
from lowtide.order.words import Words, integer, key, row_count, words

Rows = NDArray[np.int64]

# Up to here a shuffle is a table, exact and fast: 2 bytes per row, so 128 KiB, and as much for the inverse.
TABLE_ROWS = 2**16
FEW_ROWS = 16  # rows that are selected without sorting all of them, once


class Order:
    """Every row of 0 .. n-1 at exactly one position of 0 .. n-1."""

    def __init__(self, n: int, seed: int, epoch: int) -> None:
        self.n = row_count(type(self).__name__, n)
        self.seed, self.epoch = (integer(type(self).__name__, *one) for one in (("seed", seed), ("epoch", epoch)))

    def __len__(self) -> int:
        return self.n

    def at(self, positions: ArrayLike) -> Rows:
        """The rows at these positions."""
        return self._rows(self._checked("at", positions)).view(np.int64)

    def block(self, start: int, count: int) -> Rows:
        """The rows at positions start .. start+count-1."""
        where = f"{type(self).__name__}.block"
        first, length = integer(where, "start", start), integer(where, "count", count)
        if first < 0 or length < 0 or first + length > self.n:
            raise IndexError(
                f"{where}: expected positions within 0 to {self.n}, got start {first} and count {length}. "
                f"Ask for at most {max(0, self.n - max(0, first))} from there."
            )
        return self._rows(np.arange(first, first + length, dtype=np.uint64)).view(np.int64)

    def inverse(self, rows: ArrayLike) -> Rows:
        """The positions at which these rows come."""
        return self._positions(self._checked("inverse", rows)).view(np.int64)

    def _rows(self, positions: Words) -> Words:
        """Of numbers that may be written over."""
        raise NotImplementedError

    def _positions(self, rows: Words) -> Words:
        raise NotImplementedError

    def _checked(self, method: str, values: ArrayLike) -> Words:
        """A fresh uint64 copy of integers that all lie in 0 .. n-1."""
        where, given = f"{type(self).__name__}.{method}", np.asarray(values)
        if given.ndim != 1:
            raise ValueError(f"{where}: expected 1 dimension, got shape {given.shape}. Flatten it first.")
        if given.size == 0:
            return np.empty(0, np.uint64)
        if given.dtype.kind not in "iu":
            raise TypeError(f"{where}: expected integers, got {given.dtype}. Convert them with astype('int64').")
        numbers = given.astype(np.uint64)
        if int(numbers.max()) >= self.n:  # a negative number is a huge uint64, so one comparison finds both
            wrong = int(given[int(np.argmax(numbers))])
            raise IndexError(
                f"{where}: expected numbers of at least 0 and below {self.n}, got {wrong}. "
                f"Use numbers from 0 to {self.n - 1}."
            )
        return numbers


class Permutation(Order):
    """All n rows shuffled; equal (n, seed, epoch, purpose) are the same order on every machine, for ever.

    Up to 65,536 rows it is an exact shuffle kept as a table of 2 bytes per row, made at first use (2 ms).
    Above, it is a ``Feistel`` bijection and holds 1.2 KiB whatever n is.
    """

    def __init__(self, n: int, *, seed: int, epoch: int = 0, purpose: str = "rows") -> None:
        super().__init__(n, seed, epoch)
        # n is hashed too: otherwise nearly equal sizes would have nearly equal orders under one seed.
        self._map = (_Table if self.n <= TABLE_ROWS else Feistel)(self.n, key(self.seed, self.epoch, purpose, self.n))

    def _rows(self, positions: Words) -> Words:
        self._map.forward(positions)
        return positions

    def _positions(self, rows: Words) -> Words:
        self._map.backward(rows)
        return rows


class _Table:
    """An exact shuffle of at most 65,536 rows, with the two calls of a ``Feistel``.

    Sorting rows by random words gives every order the same chance as long as no two words are equal, and
    words of one stream never are; so any correct sort gives the same table, in every version of NumPy.
    """

    def __init__(self, n: int, key: int) -> None:
        self.n, self.key = n, key
        self._asked = False
        self._forward: NDArray[np.uint16] | None = None
        self._backward: NDArray[np.uint16] | None = None

    def forward(self, numbers: Words) -> None:
        if self._forward is None and not self._asked and 0 < len(numbers) <= FEW_ROWS:
            # Whoever looks at a few rows and goes elsewhere (a seek in a mixture) pays a third; who stays, the table.
            self._asked = True
            numbers[:] = np.argpartition(words(self.key, 0, self.n), numbers.view(np.int64))[numbers]
            return
        numbers[:] = self._rows()[numbers]

    def backward(self, numbers: Words) -> None:
        # Two threads may both make a table: they make the same one, and setting an attribute is atomic.
        if self._backward is None:
            positions = np.empty(self.n, np.uint16)
            positions[self._rows()] = np.arange(self.n, dtype=np.uint16)
            self._backward = positions
        numbers[:] = self._backward[numbers]

    def _rows(self) -> NDArray[np.uint16]:
        if self._forward is None:
            self._forward = np.argsort(words(self.key, 0, self.n)).astype(np.uint16)
        return self._forward


def rank_slice(n: int, rank: int, world: int) -> tuple[int, int]:
    """The positions [first, last) of n that are this rank's: disjoint, covering, sizes at most one apart."""
    rows = row_count("rank_slice", n)
    mine, ranks = whole_number("rank", rank), whole_number("world", world, example="world=1")
    if ranks < 1:
        raise ValueError(f"world: expected 1 or more, got {ranks}. Pass the number of readers.")
    if not 0 <= mine < ranks:
        raise ValueError(
            f"rank: expected 0 to {ranks - 1} for world={ranks}, got {mine}. Pass this reader's number, counted from 0."
        )
    return rows * mine // ranks, rows * (mine + 1) // ranks
