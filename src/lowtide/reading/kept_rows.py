"""Rows that are kept in memory: read once, or the caller's own to begin with.

One idea: labels of 8 bytes per row are a poor thing to read one by one - the reads cost more than the rows - and all of
them are small. What fits beside the buffers is read once, in order, and batches are taken from there.

Costs the rows' bytes, reserved from the budget before the first batch; nothing where the caller brought the array.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.reading.fingerprint import BLOCK_BYTES, BLOCKS, digest
from lowtide.reading.indexing import Selection
from lowtide.reading.parts import Part, Stretch, chained
from lowtide.reading.passes import Pass
from lowtide.reading.prefetch import Following
from lowtide.reading.row_filler import RowFiller
from lowtide.reading.upcoming import BLOCK, Upcoming
from lowtide.storage import Budget, Pool, Store
from lowtide.storage.budget import Holding, whole_pages
from lowtide.storage.forks import Turn


class RowMemory:
    """All rows of a filler in memory, from the first batch on; several parts may take from them."""

    def __init__(self, source: RowFiller) -> None:
        self.source = source
        self.nbytes = whole_pages(source.count * source.nbytes)
        self._holding: Holding | None = None
        self._rows: NDArray[Any] | None = None
        self._turn = Turn()

    def hold(self) -> bool:
        """Count the rows against the budget for as long as they may be kept; False where they do not fit."""
        if self._holding is None:
            self._holding = self.source.budget.reserve(self.nbytes, aside=True)
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


class KeptRows:
    """Rows of a small array on disk, or of a part of it, taken from memory."""

    copies = 2

    def __init__(self, kept: RowMemory, part: Part | None = None) -> None:
        self.kept = kept
        self.part = part
        self.filler = kept.source if part is None else kept.source.part_of(part)
        self.count, self.nbytes, self.shape = self.filler.count, self.filler.nbytes, self.filler.shape
        self.dtype = self.filler.dtype
        self.where = self.filler.where

    @property
    def stores(self) -> tuple[Store, ...]:
        return self.filler.stores

    @property
    def pools(self) -> tuple[Pool, ...]:
        return self.filler.pools

    def fingerprint(self) -> dict[str, Any]:
        return self.filler.fingerprint()

    def read(
        self,
        order: Pass,
        upcoming: Upcoming,
        first: int,
        count: int,
        room: int,
        following: Following | None = None,  # noqa: ARG002
    ) -> NDArray[Any]:
        return _taken(self.kept.rows(), self.part, order, upcoming, (first, count, room), self.pools[0])

    def select(self, selection: Selection) -> Any:
        return self.filler.select(selection)

    def part_of(self, part: Part) -> KeptRows:
        return KeptRows(self.kept, chained(part, self.part))

    def __reduce__(self) -> tuple[object, ...]:
        return KeptRows, (self.kept, self.part)


class GivenArray:
    """An ordinary array of the caller's, or a part of it. Its memory is the caller's own; batches are copies."""

    copies = 2
    stores: tuple[Store, ...] = ()

    def __init__(self, rows: NDArray[Any], budget: Budget, where: str, part: Part | None = None) -> None:
        self.rows = rows
        self.part = part
        self.where = where
        self.budget = budget
        self.count = len(rows) if part is None else part.count
        self.shape, self.dtype = rows.shape[1:], rows.dtype
        self.nbytes = math.prod(self.shape) * rows.dtype.itemsize
        self.pools: tuple[Pool, ...] = (Pool(budget, where=where),)

    def fingerprint(self) -> dict[str, Any]:
        """As for files: dtype, shape and blocks sampled at fixed places."""
        total = len(self.rows)
        size = min(max(1, BLOCK_BYTES // max(1, self.nbytes)), total)
        starts = [(total - size) * block // (BLOCKS - 1) for block in range(BLOCKS)]
        blocks = digest(*(np.ascontiguousarray(self.rows[start : start + size]).tobytes() for start in starts))
        part = None if self.part is None else self.part.settings()
        return {"dtype": self.dtype.str, "shape": list(self.rows.shape), "blocks": blocks, "part": part}

    def read(
        self,
        order: Pass,
        upcoming: Upcoming,
        first: int,
        count: int,
        room: int,
        following: Following | None = None,  # noqa: ARG002
    ) -> NDArray[Any]:
        return _taken(self.rows, self.part, order, upcoming, (first, count, room), self.pools[0])

    def select(self, selection: Selection) -> Any:
        numbers = np.arange(self.count)[selection.rows] if isinstance(selection.rows, range) else selection.rows
        found = self.rows[numbers if self.part is None else self.part.rows(numbers)]
        return found if selection.rest is None else found[selection.rest]

    def part_of(self, part: Part) -> GivenArray:
        found = GivenArray(self.rows, self.budget, self.where, chained(part, self.part))
        found.pools = self.pools  # parts share their buffers, as parts of a file do
        return found

    def __reduce__(self) -> tuple[object, ...]:
        return GivenArray, (self.rows, self.budget, self.where, self.part)


def _taken(
    rows: NDArray[Any],
    part: Part | None,
    order: Pass,
    upcoming: Upcoming,
    place: tuple[int, int, int],
    pool: Pool,
) -> NDArray[Any]:
    """A lent batch from rows in memory; ``place``: first position, count, and the usual count of a batch."""
    first, count, room = place
    shape = (count, *rows.shape[1:])
    with pool.filling(room * math.prod(rows.shape[1:]) * rows.dtype.itemsize) as out:
        batch: NDArray[Any] = np.ndarray(shape, rows.dtype, out.buffer.view)
        if order.consecutive and (part is None or isinstance(part, Stretch)):
            start = int(upcoming.at(first, 1)[0]) + (0 if part is None else part.first)
            batch[...] = rows[start : start + count]
        else:
            for done in range(0, count, BLOCK):
                size = min(BLOCK, count - done)
                numbers = upcoming.at(first + done, size)
                numbers = numbers if part is None else part.rows(numbers)
                # All numbers are inside: "clip" only spares NumPy a copy of the result.
                rows.take(numbers, axis=0, out=batch[done : done + size], mode="clip")
        return out.lend(shape, rows.dtype)
