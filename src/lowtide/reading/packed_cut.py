"""The packed cut: rows of whole documents, in an order of their own per epoch.

One idea: the packing numbers all rows; an epoch is a permutation of those numbers by (seed, epoch), so row k of the
stream is found in the time of one permutation and one search, whatever k is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lowtide.machine import PAGE
from lowtide.order import LocalPermutation, Order, Permutation, draws
from lowtide.reading.boundaries import required_marks
from lowtide.reading.cuts import DocumentPlace, Place
from lowtide.reading.packed_filler import PackedFiller
from lowtide.reading.plan import Plan, project
from lowtide.reading.upcoming import Numbers
from lowtide.storage.budget import whole_pages
from lowtide.units import format_size


class PackedOrder:
    """Rows of the stream -> rows of the packing. ``neighbours``: mix only within runs of this many rows."""

    def __init__(self, count: int, order: str, seed: int, neighbours: int | None = None) -> None:
        self.count, self.order, self.seed, self.neighbours = count, order, seed, neighbours
        self.rows = count if order == "sequential" else None
        self._epochs: dict[int, Order] = {}

    def numbers(self, rows: Numbers) -> Numbers:
        if self.order == "sequential" or len(rows) == 0:
            return rows
        found = np.empty(len(rows), np.int64)
        if self.order == "random":
            breaks = np.flatnonzero(rows[1:] - rows[:-1] != 1) + 1
        else:
            epochs, positions = np.divmod(rows, self.count)
            breaks = np.flatnonzero(epochs[1:] != epochs[:-1]) + 1
        for first, last in zip([0, *breaks.tolist()], [*breaks.tolist(), len(rows)], strict=True):
            if self.order == "random":
                start = int(rows[first])
                found[first:last] = draws(self.count, seed=self.seed, start=start, count=last - first, purpose="packed")
            else:
                found[first:last] = self._epoch(int(epochs[first])).at(positions[first:last])
        return found

    def settings(self) -> dict[str, Any]:
        if self.order == "sequential":
            return {"order": self.order}
        own = {"order": self.order, "seed": self.seed}
        return own if self.neighbours is None else {**own, "neighbours": self.neighbours}

    def _epoch(self, epoch: int) -> Order:
        known = self._epochs.get(epoch)
        if known is None:
            if self.neighbours is None:
                known = Permutation(self.count, seed=self.seed, epoch=epoch, purpose="packed")
            else:
                known = LocalPermutation(self.count, self.neighbours, seed=self.seed, epoch=epoch, purpose="packed")
            if len(self._epochs) > 3:  # a batch straddles two; a look ahead may reach a third
                self._epochs.clear()
            self._epochs[epoch] = known
        return known


class PackedCut:
    """Rows of a packing in the order of ``stream``."""

    tail = 0

    def __init__(self, filler: PackedFiller, stream: PackedOrder) -> None:
        self.tokens = filler.tokens
        self._filler = filler
        self._stream = stream
        self.length = filler.length
        self.rows = stream.rows
        self.order = stream.order
        self.stores = (self.tokens.store,)
        self.where = self.tokens.store.where

    def numbers(self, rows: Numbers) -> Numbers:
        """Rows of the packing."""
        return self._stream.numbers(rows)

    def read(
        self,
        numbers: Numbers,
        *,
        rows: int,
        ahead: Callable[[], Numbers] | None = None,
        tail: bool = False,  # noqa: ARG002 - packed rows are all of one length
    ) -> Any:
        return self._filler.read(numbers, rows=rows, ahead=ahead)

    def places(self, numbers: Numbers) -> list[Place]:
        pieces = self._filler.rows.pieces_of(numbers)
        documents = [
            DocumentPlace(*self.tokens.place(start), size)
            for start, size in zip(pieces.starts.tolist(), pieces.sizes.tolist(), strict=True)
        ]
        bounds = np.cumsum(pieces.counts).tolist()
        rows = (tuple(documents[a:b]) for a, b in zip([0, *bounds], bounds, strict=False))
        return [Place(row[0].file, row[0].offset, documents=row) for row in rows]

    def settings(self) -> dict[str, Any]:
        marks = str(required_marks(self.tokens))
        return {"length": self.length, "cut": "packed", "documents_by": marks, **self._stream.settings()}

    def fingerprint(self) -> dict[str, Any]:
        return self.tokens.fingerprint()

    def plan(self, rows: int) -> Plan:
        size, scratch = self._filler.nbytes(rows)
        tables = self._filler.rows.kept.nbytes
        row = (self.length + 1) * self.tokens.dtype.itemsize + 2 * PAGE
        why = (
            f"batches of {format_size(size)}, one held and one being filled, widened from {format_size(scratch)}",
            f"the packing's tables, {format_size(tables)}, are mapped and shared by all processes",
        )
        held = 2 * size + whole_pages(scratch)
        return project(self.tokens.store, held, announced=2 * rows * row, why=why, mapped=tables)
