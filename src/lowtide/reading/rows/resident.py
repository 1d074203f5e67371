"""Rows that are in memory: read once, or the caller's own to begin with.

Reading labels of 8 bytes one by one costs more than reading the rows they belong to, and all of them together are
small. What fits beside the buffers is read once, in order, and batches are taken from memory.

Costs the rows' bytes, reserved from the budget before the first batch; nothing if the caller's array is in memory.
"""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lowtide.reading.ahead import Batch, Later
from lowtide.reading.fingerprint import BLOCK_BYTES, BLOCKS, digest
from lowtide.reading.rows.indexing import Selection
from lowtide.reading.rows.parts import Consecutive, Part, chained
from lowtide.reading.rows.reader import ROWS_AT_ONCE, RowReader, Wanted
from lowtide.storage.budget import Budget, Holding, whole_pages
from lowtide.storage.buffers import Bytes, Pool
from lowtide.storage.forks import Turn
from lowtide.storage.read import Temperature
from lowtide.storage.store import Store


class RowMemory:
    """All rows of a reader in memory, from the first batch on; several parts may take from them."""

    def __init__(self, source: RowReader) -> None:
        self.source = source
        self.size = whole_pages(source.nbytes(source.count))
        self._holding: Holding | None = None
        self._rows: NDArray[Any] | None = None
        self._turn = Turn()

    def hold(self) -> bool:
        """Count the rows against the budget for as long as they may be needed; False if they do not fit."""
        if self._holding is None:
            self._holding = self.source.budget.reserve(self.size, aside=True, urgent=True)
            if self._holding is not None:
                self._holding.kept = True
        return self._holding is not None

    def rows(self) -> NDArray[Any]:
        self.source.store.require_open()
        rows = self._rows
        if rows is None:
            with self._turn.lock:
                if self._rows is None:
                    self._rows = self.source.own(range(self.source.count))
                rows = self._rows
        return rows

    def __reduce__(self) -> tuple[object, ...]:
        return RowMemory, (self.source,)


class RowsInMemory:
    """Batches copied from rows in memory, or from a part of them."""

    count: int
    row_bytes: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    where: str
    budget: Budget
    part: Part | None
    pools: tuple[Pool, ...]
    stores: tuple[Store, ...] = ()
    temperatures: tuple[Temperature, ...] = ()

    def all_rows(self) -> NDArray[Any]:
        raise NotImplementedError

    def fingerprint(self) -> dict[str, Any]:
        raise NotImplementedError

    def start(self, numbers: Wanted, early: bool = False) -> Batch:
        if early:
            return Later(self, numbers)
        return Batch(self._copied, numbers, self.pools[0].take(len(numbers) * self.row_bytes))

    def _copied(self, wanted: Wanted, root: Bytes) -> NDArray[Any]:
        rows, part, count = self.all_rows(), self.part, len(wanted)
        batch: NDArray[Any] = np.ndarray((count, *self.shape), self.dtype, root)
        if isinstance(wanted, range) and (part is None or isinstance(part, Consecutive)):
            first = wanted.start if part is None else wanted.start + part.first
            batch[...] = rows[first : first + count]
            return batch
        for done in range(0, count, ROWS_AT_ONCE):
            some = wanted[done : done + ROWS_AT_ONCE]
            numbers = np.arange(some.start, some.stop) if isinstance(some, range) else some
            numbers = numbers if part is None else part.rows(numbers)
            # All numbers are inside: "clip" only spares NumPy a copy of the result.
            rows.take(numbers, axis=0, out=batch[done : done + len(numbers)], mode="clip")
        return batch

    def nbytes(self, rows: int) -> int:
        return rows * self.row_bytes

    def scratch(self, rows: int) -> int:  # noqa: ARG002
        return 0

    def scattered(self) -> Self:
        return self


class ResidentRows(RowsInMemory):
    """Rows of a small array on disk, or of a part of it, served from memory."""

    def __init__(self, memory: RowMemory, part: Part | None = None) -> None:
        self.memory = memory
        self.part = part
        self.source = source = memory.source if part is None else memory.source.part_of(part)
        self.count, self.row_bytes, self.shape, self.dtype = source.count, source.row_bytes, source.shape, source.dtype
        self.where, self.budget, self.stores, self.pools = source.where, source.budget, source.stores, source.pools
        self.select = source.select

    def all_rows(self) -> NDArray[Any]:
        return self.memory.rows()

    def fingerprint(self) -> dict[str, Any]:
        return self.source.fingerprint()

    def part_of(self, part: Part) -> ResidentRows:
        return ResidentRows(self.memory, chained(part, self.part))

    def __reduce__(self) -> tuple[object, ...]:
        return ResidentRows, (self.memory, self.part)


class GivenArray(RowsInMemory):
    """An ordinary array of the caller's, or a part of it. Its memory is the caller's own; batches are copies."""

    def __init__(self, rows: NDArray[Any], budget: Budget, where: str, part: Part | None = None) -> None:
        self.rows, self.part, self.where, self.budget = rows, part, where, budget
        self.count = len(rows) if part is None else part.count
        self.shape, self.dtype = rows.shape[1:], rows.dtype
        self.row_bytes = math.prod(self.shape) * rows.dtype.itemsize
        self.pools = (Pool(budget, where=where),)

    def all_rows(self) -> NDArray[Any]:
        return self.rows

    def fingerprint(self) -> dict[str, Any]:
        """As for files: dtype, shape and blocks sampled at fixed places."""
        total = len(self.rows)
        size = min(max(1, BLOCK_BYTES // max(1, self.row_bytes)), total)
        starts = [(total - size) * block // (BLOCKS - 1) for block in range(BLOCKS)]
        blocks = digest(*(np.ascontiguousarray(self.rows[start : start + size]).tobytes() for start in starts))
        part = None if self.part is None else self.part.settings()
        return {"dtype": self.dtype.str, "shape": list(self.rows.shape), "blocks": blocks, "part": part}

    def select(self, selection: Selection) -> Any:
        numbers = np.arange(self.count)[selection.rows] if isinstance(selection.rows, range) else selection.rows
        found = self.rows[numbers if self.part is None else self.part.rows(numbers)]
        return found if selection.rest is None else found[selection.rest]

    def part_of(self, part: Part) -> GivenArray:
        found = GivenArray(self.rows, self.budget, self.where, chained(part, self.part))
        found.pools = self.pools  # parts share their buffers, as parts of a file do
        return found

    def __reduce__(self) -> tuple[object, ...]:
        return _given, (self.rows, self.dtype, self.budget, self.where, self.part)


def _given(rows: NDArray[Any], dtype: np.dtype[Any], budget: Budget, where: str, part: Part | None) -> GivenArray:
    """As it was pickled. Below protocol 5 NumPy gives the numbers back in this machine's byte order, and a state of
    the other one would be refused."""
    return GivenArray(rows.astype(dtype, copy=False), budget, where, part)
