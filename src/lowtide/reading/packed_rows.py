"""A finished packing: which pieces of which documents make a row.

One idea: rows are numbered through all groups; one search finds a row's group, and its pieces lie together. Everything
is computed for a whole batch at once. Costs 56 bytes per group of 4 Mi tokens; the tables are mapped.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from lowtide._native.planned import PackedTables, RowPieces, pieces_of
from lowtide.reading.boundaries import Marks
from lowtide.reading.boundary_index import Progress, boundary_index, identity_of, key_of
from lowtide.reading.kept_arrays import KeptArrays, KeptFile, damaged, kept
from lowtide.reading.packing import COUNT, ENTRY, FIRST, ROWS, Packer, streams
from lowtide.reading.token_range import TokenRange
from lowtide.reading.upcoming import Numbers


class PackedRows:
    """Rows of ``length`` tokens."""

    def __init__(self, found: KeptArrays, length: int) -> None:
        self.kept = found
        self.length = length
        facts = found.facts
        self.tokens, self.pieces = int(facts["tokens"]), int(facts["pieces"])
        self.padded, self.most_runs = int(facts["padded"]), int(facts["most_runs"])
        self.most_documents = int(facts["most_documents"])
        self._rows, self._starts, self._sizes = (found.arrays[name] for name in ("rows", "starts", "sizes"))
        groups = found.arrays["groups"].reshape(-1, ENTRY)
        self._first = groups[:, FIRST].copy()
        zero = np.zeros(1, np.int64)
        self._row_bounds = np.concatenate((zero, np.cumsum(groups[:, ROWS])))
        self._piece_bounds = np.concatenate((zero, np.cumsum(groups[:, COUNT])))
        if int(self._row_bounds[-1]) + 1 != len(self._rows) or int(self._piece_bounds[-1]) != len(self._starts):
            raise damaged(found.path, f"{len(self._rows) - 1} rows of {len(self._starts)} pieces", "groups of others")

    def __len__(self) -> int:
        return len(self._rows) - 1

    def tables(self, item: int, there: int) -> PackedTables:
        """For the native engine: tokens of ``item`` bytes, of which the corpus has ``there``."""
        bounds = self._row_bounds, self._piece_bounds, self._first
        return PackedTables(self._rows, self._starts, self._sizes, *bounds, self.length, item, there)

    def pieces_of(self, rows: Numbers) -> RowPieces:
        """The pieces of these rows."""
        return pieces_of(self.tables(1, self.tokens), rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedRows, (self.kept, self.length)


def packed_rows(tokens: TokenRange, marks: Marks, length: int, progress: Progress = None) -> PackedRows:
    """The packing of these tokens at this length, made where there is none yet."""
    corpus = identity_of(TokenRange(tokens.layout, tokens.store), marks)
    identity = {**corpus, "length": length, "range": [tokens.first, tokens.last]}
    name = f"packed-{length}-{key_of(identity)}.rows"
    index = boundary_index(tokens, marks, progress)
    packer = Packer(index, tokens.first, tokens.last, length, progress)
    what = KeptFile(name, identity, tokens.layout.extents[0].path)
    return PackedRows(kept(what, streams(length), partial(packer.run, identity=identity)), length)
