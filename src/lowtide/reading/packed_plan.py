"""What a batch of packed rows is read from, and where its runs begin and its documents end.

One idea: both follow from the sizes of the pieces alone. The native engine walks over them once (``packed.c``); the
same in NumPy is here, for the Python engine and for tables that make no sense, of which it says what is wrong.

Costs a few microseconds per batch natively, about 50 in NumPy, and 33 bytes per piece meanwhile. Reads no tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowtide.reading.packed_rows import PackedRows, RowPieces
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
        self.tokens, self.rows = tokens, rows
        self._item, self._there = tokens.dtype.itemsize, int(tokens.layout.shape[0])
        self._tables = rows.tables(self._item, self._there)

    def plan(self, rows: Numbers) -> PackedPlan:
        """Of these rows of the packing."""
        engine = self.tokens.store.engine
        room = len(rows) * (self.rows.most_runs + 1) + 1  # a row at the corpus's end may need one more read than runs
        into, padding = np.empty((4, room), np.int64), np.empty(room, np.bool_)
        found = engine.packed_plan(self._tables, rows, into, padding)
        if found is None:
            return self.in_numpy(rows)
        reads, runs, closed, padded = found
        offsets, lengths, begins, closing = into
        return PackedPlan(
            offsets[:reads], lengths[:reads], begins[:runs], closing[:closed], padding[:runs] if padded else None
        )

    def in_numpy(self, rows: Numbers) -> PackedPlan:
        pieces = self.rows.pieces_of(rows)
        offsets, lengths = self._reads(pieces)
        begins, closing, padding = self._runs(pieces)
        return PackedPlan(offsets, lengths, begins, closing, padding)

    def _runs(self, pieces: RowPieces) -> tuple[Numbers, Numbers, NDArray[np.bool_] | None]:
        length, count = self.rows.length, len(pieces.counts)
        upto = pieces.sizes.cumsum()
        whole = ~pieces.goes_on
        if count == 0 or int(upto[-1]) == count * length:
            return upto - pieces.sizes, (upto - 1)[whole], None
        after = upto[pieces.counts.cumsum() - 1]
        totals = after.copy()
        totals[1:] -= after[:-1]
        # What was padded before a row moves its pieces on.
        missing = length * np.arange(count) - (after - totals)
        begins = upto - pieces.sizes + missing.repeat(pieces.counts)
        closing = (begins + pieces.sizes - 1)[whole]
        short = (totals < length).nonzero()[0]
        both = np.concatenate((begins, short * length + totals[short]))
        order = both.argsort(kind="stable")
        return both[order], closing, order >= len(begins)

    def _reads(self, pieces: RowPieces) -> tuple[Numbers, Numbers]:
        width, item, there = self.rows.length + 1, self._item, self._there
        starts, sizes = pieces.starts, pieces.sizes.copy()
        if len(starts) == 0:
            return starts, sizes
        last = pieces.counts.cumsum() - 1
        # A full row takes one token more, be it the next one of its document or any: only the former will be seen.
        sizes[last] += 1
        if int(sizes.sum()) != len(last) * width:
            sizes[last] += width - np.add.reduceat(sizes, last - pieces.counts + 1)
        beyond = starts[last] + sizes[last] - there
        if (beyond > 0).any():  # at the corpus's very end there is nothing behind: its first tokens do as well
            missing = np.maximum(beyond, 0)
            sizes[last] -= missing
            starts, sizes = _filled_up(starts, sizes, last, missing, there)
        return starts * item, sizes * item


def _filled_up(starts: Numbers, sizes: Numbers, last: Numbers, missing: Numbers, there: int) -> tuple[Numbers, Numbers]:
    """Runs from the corpus's beginning behind the pieces of rows that miss some, as many as it takes."""
    behind, more = [], []
    for row in np.flatnonzero(missing).tolist():
        left = int(missing[row])
        while left:
            behind.append(int(last[row]) + 1)
            more.append(min(left, there))
            left -= more[-1]
    return np.insert(starts, behind, 0), np.insert(sizes, behind, more)
