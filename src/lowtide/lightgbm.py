"""LightGBM from rows on disk: ``lowtide.lightgbm.sequence(X)`` is a real ``lightgbm.Sequence``.

LightGBM first asks for its sample, up to 200,000 single rows in rising order, and then for every row in slices. A
single row costs a call of 15 microseconds wherever it lies; so where the next one is near, a block of neighbours is
read at once and answers those that follow. The only file that imports LightGBM.
"""

from __future__ import annotations

import operator
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from lowtide.array import Array
from lowtide.reading.rows.indexing import row_inside
from lowtide.units import KIB, MIB

__all__ = ["RowSequence", "sequence"]

BLOCK_OF_ROWS = 1 * MIB  # read at once for single rows
NEAR = 64 * KIB  # reading past up to this many bytes costs less than another call
SLICE = 8 * MIB  # of float64 that LightGBM asks for at a time

Floats = NDArray[np.float64]


def sequence(X: Array) -> RowSequence:  # noqa: N803 - as users of LightGBM write it
    """``X`` as a ``lightgbm.Sequence``: for ``lightgbm.Dataset(lowtide.lightgbm.sequence(X), label=y)``.

    Rows come as float64, which is what LightGBM takes. A list of several sequences is read one after the other.

    >>> data = lightgbm.Dataset(lowtide.lightgbm.sequence(lowtide.open("x.npy")), label=y)
    """
    if not isinstance(X, Array):
        raise TypeError(
            f"lowtide.lightgbm.sequence: expected what lowtide.open gives, got {type(X).__name__}. "
            "Use sequence(lowtide.open(path))."
        )
    if X.ndim != 2:
        raise ValueError(
            f"{X.where}: expected rows of features, an array of 2 axes, got shape {X.shape}. Reshape the file's rows: "
            "lowtide.open(path, dtype=, shape=(-1, features))."
        )
    if not np.can_cast(X.dtype, np.float64, "same_kind"):
        raise TypeError(f"{X.where}: expected numbers that float64 can hold, got {X.dtype}. Convert the file first.")
    return RowSequence(X)


class RowSequence(lightgbm.Sequence):
    """Rows by number, slice or list, in arrays of their own."""

    def __init__(self, rows: Array) -> None:
        self._rows = rows
        width = 8 * max(1, rows.shape[1])
        room = rows.budget.limit // 4  # the block, and a slice with what it is converted from
        self.batch_size = max(1, min(SLICE, room) // width)
        self._block_rows = max(1, min(BLOCK_OF_ROWS, room) // width)
        self._near = NEAR // max(1, rows.nbytes // max(1, len(rows)))
        self._first, self._block = 0, np.empty((0, rows.shape[1]))
        self._last = -1  # the row asked for before

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Floats:
        if isinstance(index, (slice, list)):
            return np.asarray(self._rows[index], np.float64)
        number = row_inside(operator.index(index), len(self._rows))  # a block begins at a row counted from the front
        place = number - self._first
        if not 0 <= place < len(self._block):
            if not 0 <= number - self._last <= self._near:
                self._last = number
                return np.asarray(self._rows[number], np.float64)
            self._first, place = number, 0
            self._block = np.asarray(self._rows[number : number + self._block_rows], np.float64)
        self._last = number
        row: Floats = self._block[place].copy()  # a view would keep the whole block
        return row

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_first": 0, "_block": self._block[:0].copy(), "_last": -1}
