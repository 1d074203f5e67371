"""Sums of columns in Python: what is added to, and NumPy's way of adding rows to it, as the C core does.

The C core walks down the columns once; here pieces that fit the CPU's cache are widened to float64 there and
summed by a few calls of NumPy. NaN are counted and left out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

PIECE = 65536  # items at a time: 512 KiB as float64


class ColumnSums(NamedTuple):
    """One float64 for each column (``nan``: int64). ``guess`` is taken off every number before it is summed."""

    guess: Any
    total: Any
    squares: Any
    low: Any
    high: Any
    nan: Any


def blank_sums(guess: NDArray[np.float64]) -> ColumnSums:
    """Of no rows yet."""
    width = len(guess)
    bounds = np.full(width, np.inf), np.full(width, -np.inf)
    return ColumnSums(guess, np.zeros(width), np.zeros(width), *bounds, np.zeros(width, np.int64))


def add_columns(sums: ColumnSums, rows: NDArray[Any]) -> None:
    """Add rows of as many columns as ``sums`` has."""
    width = len(sums.guess)
    step = max(8, PIECE // max(1, width))
    apart = np.empty((min(step, len(rows)), width))
    with np.errstate(invalid="ignore", over="ignore"):
        for first in range(0, len(rows), step):
            piece = rows[first : first + step]
            _add(sums, piece, apart[: len(piece)])


def _add(sums: ColumnSums, piece: NDArray[Any], apart: NDArray[np.float64]) -> None:
    low, high = np.minimum.reduce(piece), np.maximum.reduce(piece)
    np.subtract(piece, sums.guess, out=apart, dtype=np.float64)
    if (low != low).any():  # the minimum of a column with a NaN is NaN: so looking costs next to nothing
        missing = np.isnan(piece)
        np.add(sums.nan, np.count_nonzero(missing, axis=0), out=sums.nan)
        apart[missing] = 0.0
        low, high = np.fmin.reduce(piece), np.fmax.reduce(piece)
    np.fmin(sums.low, low, out=sums.low)
    np.fmax(sums.high, high, out=sums.high)
    np.add(sums.total, np.add.reduce(apart), out=sums.total)
    np.add(sums.squares, np.einsum("ij,ij->j", apart, apart), out=sums.squares)
