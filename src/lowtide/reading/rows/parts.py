"""Parts of an array: which row of the file is row k of the part.

A part maps its own row numbers to those of the array it was taken from, and nothing else changes, so a part
can do everything that an array can. Parts of parts are chains.

``Consecutive`` and ``stratified.Stratified`` are computed and hold nothing per row; ``Listed`` holds an index of 4
bytes per row (8 from 2**32 rows on), counted against the budget of its reader. Reads no files.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from lowtide.arguments import array_of
from lowtide.engine import Numbers
from lowtide.errors import BudgetError
from lowtide.reading.fingerprint import digest
from lowtide.reading.rows.indexing import ONE_AXIS, ends_inside, inside, numbers_of, refuse_axes
from lowtide.storage.budget import Budget, Holding
from lowtide.units import format_size

STEP = 1 << 16  # row numbers converted at a time, so that temporaries stay small


class Part(Protocol):
    """Rows ``[0, count)`` of a part -> rows of the whole."""

    @property
    def count(self) -> int: ...
    def rows(self, numbers: Numbers) -> Numbers: ...
    def settings(self) -> dict[str, Any]:
        """What identifies this part, safe for JSON."""
        ...


@dataclass(frozen=True)
class Consecutive:
    """Rows that follow one another, from ``first`` on."""

    first: int
    count: int

    def rows(self, numbers: Numbers) -> Numbers:
        return numbers + self.first

    def settings(self) -> dict[str, Any]:
        return {"part": "rows", "first": self.first, "count": self.count}


class Listed:
    """Rows of the caller's choice, in the caller's order; a row may come twice."""

    def __init__(self, index: np.ndarray[Any, Any]) -> None:
        self.index = index
        self.count = len(index)
        self._holdings: weakref.WeakKeyDictionary[Budget, Holding] = weakref.WeakKeyDictionary()
        self._digest: str | None = None

    def rows(self, numbers: Numbers) -> Numbers:
        return self.index[numbers].astype(np.int64)

    def between(self, first: int, last: int) -> Numbers:
        """The same of consecutive positions."""
        return self.index[first:last].astype(np.int64)

    def settings(self) -> dict[str, Any]:
        if self._digest is None:
            blocks = (self.index[first : first + STEP].astype("<i8") for first in range(0, self.count, STEP))
            self._digest = digest(*(block.tobytes() for block in blocks))
        return {"part": "subset", "count": self.count, "rows": self._digest}

    def hold(self, budget: Budget, where: str) -> None:
        """Count the index against ``budget``, once, for as long as both live."""
        if budget not in self._holdings:
            self.held(budget, reserved(budget, where, self.index.nbytes, self.count))

    def held(self, budget: Budget, holding: Holding) -> None:
        self._holdings[budget] = holding

    def __reduce__(self) -> tuple[object, ...]:
        return Listed, (self.index,)


@dataclass(frozen=True)
class Chain:
    """A part of a part: ``inner`` is the one nearer to the file."""

    outer: Part
    inner: Part

    @property
    def count(self) -> int:
        return self.outer.count

    def rows(self, numbers: Numbers) -> Numbers:
        return self.inner.rows(self.outer.rows(numbers))

    def settings(self) -> dict[str, Any]:
        return {**self.outer.settings(), "of": self.inner.settings()}


def chained(outer: Part, inner: Part | None) -> Part:
    """``outer`` of ``inner``; consecutive rows of consecutive rows are consecutive too."""
    if inner is None:
        return outer
    if isinstance(outer, Consecutive) and isinstance(inner, Consecutive):
        return Consecutive(inner.first + outer.first, outer.count)
    return Chain(outer, inner)


def lists_of(part: Part | None) -> Iterator[Listed]:
    """The indices a part reads through."""
    if isinstance(part, Listed):
        yield part
    elif isinstance(part, Chain):
        yield from lists_of(part.outer)
        yield from lists_of(part.inner)


def index_bytes(part: Part | None) -> int:
    """Bytes of memory a part needs for its rows."""
    return sum(one.index.nbytes for one in lists_of(part))


def reserved(budget: Budget, where: str, size: int, count: int) -> Holding:
    """Room for an index; refused before it is made if a stated budget has none."""
    if not budget.stated:
        budget.limit += size  # in addition to the room for buffers
    holding = budget.reserve(size, aside=True, urgent=True)
    if holding is None:
        raise BudgetError(
            f"{where}: expected {format_size(size)} of the budget free for the index of {count} rows, got "
            f"{format_size(max(0, budget.limit - budget.held))} of {format_size(budget.limit)}. "
            f"Open with budget={budget.limit + 2 * size}, or use split(), which needs no index."
        )
    return holding


def subset_of(which: Any, part: Part | None, rows: int, budget: Budget, where: str) -> Part:
    """The rows ``which`` names - integers, a mask, a slice or a range - of ``part`` of a file of ``rows``."""
    count = rows if part is None else part.count
    if isinstance(which, slice):
        which = range(*which.indices(count))
    if isinstance(which, range) and which.step == 1 and 0 <= which.start <= which.stop <= count:
        return chained(Consecutive(which.start, len(which)), part)
    size, blocks = _named(which, count)
    dtype = np.dtype(np.uint32 if rows <= 2**32 else np.int64)
    holding = reserved(budget, where, size * dtype.itemsize, size)
    index = np.empty(size, dtype)
    done = 0
    for block in blocks:
        index[done : done + len(block)] = block if part is None else part.rows(block)
        done += len(block)
    index.flags.writeable = False
    found = Listed(index)
    found.held(budget, holding)
    return found


def _named(which: Any, count: int) -> tuple[int, Iterator[Numbers]]:
    """How many of ``count`` rows ``which`` names, and which they are, ``STEP`` at a time."""
    if isinstance(which, range):  # never as an array: that would take 8 bytes per row beside the index
        ends_inside(which, count)
        return len(which), (inside(numbers_of(which[k : k + STEP]), count) for k in range(0, len(which), STEP))
    wanted = array_of("subset", which, ONE_AXIS)
    refuse_axes("subset", wanted, count)
    if wanted.dtype == bool:
        if len(wanted) != count:
            raise IndexError(
                f"subset: expected a mask of {count} rows, got {len(wanted)}. Make it as long as the array."
            )
        return int(np.count_nonzero(wanted)), _named_by(wanted)
    if wanted.size == 0:
        wanted = wanted.astype(np.int64)  # an empty list has no dtype of its own
    return len(wanted), (inside(wanted[k : k + STEP], count) for k in range(0, len(wanted), STEP))


def _named_by(mask: np.ndarray[Any, Any]) -> Iterator[Numbers]:
    for first in range(0, len(mask), STEP):
        yield first + np.flatnonzero(mask[first : first + STEP])
