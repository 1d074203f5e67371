"""Plans of packed batches in Python: which reads make a batch of packed rows, and where documents begin and end.

Both follow from the sizes of a row's pieces alone, which are neighbours in the tables, so they are found for a whole
batch at once. The C core walks over the pieces instead. Costs about 50 microseconds per batch. Reads no tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowtide.engine.runs import Numbers


class PackedTables(NamedTuple):
    """A packing."""

    rows: Any  # uint32: pieces before each row, the low half
    starts: Any  # uint32: of pieces, from the group's first token
    sizes: Any  # uint16 or uint32: tokens of pieces, plus one if the document continues
    row_bounds: Any  # int64: rows before each group
    piece_bounds: Any  # int64: pieces before each group
    first: Any  # int64: first token of each group
    length: int
    item: int  # bytes of a token
    there: int  # tokens of the corpus
    held: Any = None  # the arrays as the C core holds them, asked for once instead of for every batch


class RowPieces(NamedTuple):
    """The pieces of a batch of rows, row by row."""

    counts: Numbers  # of each row
    starts: Numbers  # first tokens, counted from the corpus's beginning
    sizes: Numbers  # tokens
    goes_on: NDArray[np.bool_]  # its document continues after it


def pieces_of(tables: PackedTables, rows: Numbers) -> RowPieces:
    """The pieces of these rows."""
    group = tables.row_bounds.searchsorted(rows, side="right") - 1
    before = tables.piece_bounds[group]
    begins, ends = tables.rows[rows], tables.rows[rows + 1]
    counts = (ends - begins).astype(np.int64)  # unsigned: right even if the low half wrapped
    if (counts > tables.length).any():
        raise ValueError(f"rows: expected at most {tables.length} pieces, got {int(counts.max())}. Pack again.")
    first = before + (begins - before.astype(np.uint32))
    upto = counts.cumsum()
    numbers = (first - upto + counts).repeat(counts)
    numbers += np.arange(len(numbers))
    sizes = tables.sizes[numbers].astype(np.int64)
    goes_on = sizes > tables.length
    sizes -= goes_on
    if len(sizes) and not 1 <= int(sizes.min()) <= int(sizes.max()) <= tables.length:
        raise ValueError(f"sizes: expected pieces of 1 to {tables.length} tokens, got {int(sizes.max())}. Pack again.")
    starts = tables.starts[numbers] + tables.first[group].repeat(counts)
    return RowPieces(counts, starts, sizes, goes_on)


def hold_tables(tables: PackedTables) -> None:
    """What ``held`` should be: nothing to gain here."""


def packed_plan(tables: PackedTables, rows: Numbers, into: Any) -> tuple[int, int, int, int] | None:
    """Write offsets, lengths, begins and closing into the rows of ``into`` and, as bytes of the fifth, which runs are
    padding.

    Returns how many of each there are (reads, runs, closed) and whether any run is padding; None: no room.
    """
    pieces = pieces_of(tables, rows)
    offsets, lengths = _reads(pieces, tables)
    begins, closing, padded = _runs(pieces, tables.length)
    room = into.shape[1]
    if max(len(offsets), len(begins)) > room:
        return None
    for target, found in zip(into[:4], (offsets, lengths, begins, closing), strict=True):
        target[: len(found)] = found
    into[4].view(np.bool_)[: len(begins)] = False if padded is None else padded
    return len(offsets), len(begins), len(closing), int(padded is not None)


def _runs(pieces: RowPieces, length: int) -> tuple[Numbers, Numbers, NDArray[np.bool_] | None]:
    count = len(pieces.counts)
    upto = pieces.sizes.cumsum()
    whole = ~pieces.goes_on
    if count == 0 or int(upto[-1]) == count * length:
        return upto - pieces.sizes, (upto - 1)[whole], None
    after = upto[pieces.counts.cumsum() - 1]
    totals = after.copy()
    totals[1:] -= after[:-1]
    # Padding before a row moves its pieces.
    missing = length * np.arange(count) - (after - totals)
    begins = upto - pieces.sizes + missing.repeat(pieces.counts)
    closing = (begins + pieces.sizes - 1)[whole]
    short = (totals < length).nonzero()[0]
    both = np.concatenate((begins, short * length + totals[short]))
    order = both.argsort(kind="stable")
    return both[order], closing, order >= len(begins)


def _reads(pieces: RowPieces, tables: PackedTables) -> tuple[Numbers, Numbers]:
    width, item, there = tables.length + 1, tables.item, tables.there
    starts, sizes = pieces.starts, pieces.sizes.copy()
    if len(starts) == 0:
        return starts, sizes
    if ((starts < 0) | (starts > there - sizes)).any():
        raise ValueError(f"starts: expected pieces among {there} tokens, got {int(starts.max())}. Pack again.")
    last = pieces.counts.cumsum() - 1
    # A full row reads one token more, for y; if it is not the next one of its document, it is padded over.
    sizes[last] += 1
    if int(sizes.sum()) != len(last) * width:
        missing = width - np.add.reduceat(sizes, last - pieces.counts + 1)
        if (missing < 0).any():
            raise ValueError(f"sizes: expected rows of at most {tables.length} tokens, got more. Pack again.")
        sizes[last] += missing
    beyond = starts[last] + sizes[last] - there
    if (beyond > 0).any():  # after the corpus's last token there is nothing to read: its first tokens serve as well
        missing = np.maximum(beyond, 0)
        sizes[last] -= missing
        starts, sizes = _filled_up(starts, sizes, last, missing, there)
    return starts * item, sizes * item


def _filled_up(starts: Numbers, sizes: Numbers, last: Numbers, missing: Numbers, there: int) -> tuple[Numbers, Numbers]:
    """Add runs from the corpus's beginning after the pieces of rows that lack tokens, as many as needed."""
    behind, more = [], []
    for row in np.flatnonzero(missing).tolist():
        left = int(missing[row])
        while left:
            behind.append(int(last[row]) + 1)
            more.append(min(left, there))
            left -= more[-1]
    return np.insert(starts, behind, 0), np.insert(sizes, behind, more)
