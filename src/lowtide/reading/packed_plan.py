"""Plans of packed batches: what to read, and where runs begin and documents end, from the engine.

One idea: the tables of a packing are handed to the engine as they are mapped, and a batch's plan comes back as a few
arrays of numbers. Costs a few microseconds per batch natively, and 33 bytes per piece while it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowtide._native.planned import packed_plan
from lowtide.reading.kept_arrays import damaged
from lowtide.reading.packed_rows import PackedRows
from lowtide.reading.token_range import TokenRange
from lowtide.reading.upcoming import Numbers


class PackedPlan(NamedTuple):
    """A batch of packed rows. Reads fill rows of ``length + 1`` tokens; runs count through the flattened batch."""

    offsets: Numbers  # bytes, counted from the corpus's beginning
    lengths: Numbers  # bytes
    begins: Numbers  # of every run, ascending
    closing: Numbers  # last tokens of documents
    padding: NDArray[np.bool_] | None  # which runs are padding


class PackedPlanner:
    """Plans batches of one packing."""

    def __init__(self, tokens: TokenRange, rows: PackedRows) -> None:
        self._engine = tokens.store.engine
        self._most_runs = rows.most_runs
        self._path = rows.kept.path
        self.tables = rows.tables(tokens.dtype.itemsize, int(tokens.layout.shape[0]))

    def plan(self, rows: Numbers) -> PackedPlan:
        """Of these rows of the packing."""
        room = len(rows) * (self._most_runs + 1) + 1  # a row at the corpus's end may need one more read than runs
        try:
            found = self._planned(self._engine.packed_plan, rows, room)
            while found is None:
                # A corpus shorter than a row is read many times to fill one; or the tables make no sense.
                room *= 8
                found = self._planned(packed_plan, rows, room)
        except (IndexError, ValueError) as problem:
            raise damaged(self._path, "rows of whole documents", "numbers that make none") from problem
        return found

    def _planned(self, plan: Callable[..., Any], rows: Numbers, room: int) -> PackedPlan | None:
        into, padding = np.empty((4, room), np.int64), np.empty(room, np.bool_)
        found = plan(self.tables, rows, into, padding)
        if found is None:
            return None
        reads, runs, closed, padded = found
        offsets, lengths, begins, closing = into
        return PackedPlan(
            offsets[:reads], lengths[:reads], begins[:runs], closing[:closed], padding[:runs] if padded else None
        )
