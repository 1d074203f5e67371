"""Rows of packed documents as x, y and docs.

A row's pieces are read one after the other, and its last read goes on past its piece until the row is full. So a batch
is one call of unequal reads into rows of ``length + 1`` tokens, and padding is written over the surplus tokens. y is x
shifted by one column, except at the last tokens of documents. What to read comes from the engine, which walks over the
tables of the packing.

Costs one read per piece, and a few microseconds and 40 bytes per piece for the plan. No Python per document.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lowtide.engine import Numbers, RowPieces, packed_plan, spread
from lowtide.errors import FormatError
from lowtide.reading.ahead import Batch, Later
from lowtide.reading.documents.boundaries import padding_id, required_marks
from lowtide.reading.documents.docs import DocsFiller, docs_of
from lowtide.reading.documents.kept_arrays import damaged
from lowtide.reading.documents.packing import PackedRows
from lowtide.reading.places import DocumentPlace, Place
from lowtide.reading.token_range import TokenRange
from lowtide.reading.window_reader import XY, Starts, WindowReader
from lowtide.storage.buffers import Bytes
from lowtide.storage.read import Reads
from lowtide.storage.store import StartedReads


class PackedReads(NamedTuple):
    """The reads that make a batch of packed rows. They fill rows of ``length + 1`` tokens; runs are numbered through
    the flattened batch."""

    offsets: Numbers  # bytes, counted from the corpus's beginning
    lengths: Numbers  # bytes
    begins: Numbers  # of every run, ascending
    closing: Numbers  # last tokens of documents
    padding: NDArray[np.bool_] | None  # which runs are padding


class PackedReader(WindowReader):
    """Reads batches of rows of one packing."""

    def __init__(
        self, tokens: TokenRange, rows: PackedRows, dtype: DTypeLike = "int64", *, documents: bool = False
    ) -> None:
        super().__init__(tokens, rows.length, dtype)
        self.rows = rows
        self.held = rows.held
        self._there = int(tokens.layout.shape[0])
        self.docs = DocsFiller(rows.length, rows.most_runs) if documents else None
        self._padding = padding_id(tokens)
        self._marks = required_marks(tokens)
        self._eot = self._marks.id if self._marks.by == "eot" else None
        if self._padding > np.iinfo(self.dtype).max:
            raise ValueError(
                f"dtype: expected a type that holds the padding id {self._padding}, got {self.dtype}. "
                "Use dtype='int64'."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(PackedReader, documents=self.docs is not None), (self.tokens, self.rows, self.dtype)

    # Batches, lent

    def start(self, numbers: Starts, early: bool = False) -> Batch:
        """These rows of the packing."""
        if isinstance(numbers, range):
            numbers = np.arange(numbers.start, numbers.stop, dtype=np.int64)
        found, rows = self.reads_of(numbers), len(numbers)
        half, size = self.sizes(rows)
        take = self.room if early else self.store.pool.take
        root = take(size)
        scratch = None if root is None or self.widens else take(self.scratch(rows))
        if root is None or (scratch is None and not self.widens):
            self.store.announce(found.offsets, 1, found.lengths)
            return Later(self, numbers, announced=True)
        x: NDArray[Any] = np.ndarray((rows, self.length), self.dtype, root)
        y: NDArray[Any] = np.ndarray((rows, self.length), self.dtype, root, half)
        target: Any = x, y, self.length, self.source, self.tokens.vocab, None, 0
        if scratch is not None:
            target = scratch[: rows * self.window]
        reads = self.store.start(found.offsets, 1, found.lengths, target, self.how, early) if rows else None
        if isinstance(reads, Reads):
            reads.total = rows * self.window
        return Batch(self._filled, numbers, found, reads, scratch, (x, y), root)

    def _filled(
        self,
        numbers: Numbers,
        found: PackedReads,
        reads: StartedReads | None,
        scratch: Bytes | None,
        pair: XY,
        root: Bytes,
    ) -> Any:
        """Padding and docs, once the tokens are there."""
        if reads is not None and reads.finish() is not None:
            # An id was refused, perhaps a surplus one that only fills a row: look closer.
            scratch = self.store.pool.take(self.scratch(len(numbers)))
            target = scratch[: len(numbers) * self.window]
            self.store.start(found.offsets, 1, found.lengths, target, self.how).finish()
        if scratch is not None:
            self._widen_checked(pair, scratch, numbers)
        engine, runs = self.store.engine, found[2:]
        if engine.packed_close(*pair, *runs, self._padding, self._eot) >= 0:
            self._same_data(pair[0], self.rows.pieces_of(numbers), found.closing)
        if self.docs is None:
            return pair
        base = 2 * self.sizes(len(numbers))[0]
        planes = self.docs.planes(len(numbers), root, base)
        return *pair, docs_of(planes, engine.documents_given(planes, *runs))

    def reads_of(self, rows: Numbers) -> PackedReads:
        """The reads that make these rows."""
        room = len(rows) * (self.rows.most_runs + 1) + 1  # a row at the corpus's end may need one more read than runs
        into = np.empty((5, room), np.int64)
        try:
            tables = self.rows.tables(rows, self.item, self._there, self.needs)
            found = self.store.engine.packed_plan(*tables, into)
            while found is None:
                # A corpus shorter than a row is read many times to fill one; or the tables are damaged.
                room *= 8
                into = np.empty((5, room), np.int64)
                found = packed_plan(*tables, into)
        except (IndexError, ValueError) as problem:
            raise damaged(self.rows.kept.path, "tables of rows made of whole documents", "damaged ones") from problem
        reads, runs, closed, padded = found
        padding = into[4].view(np.bool_)[:runs] if padded else None
        return PackedReads(into[0, :reads], into[1, :reads], into[2, :runs], into[3, :closed], padding)

    def _widen_checked(self, pair: XY, scratch: Bytes, numbers: Numbers) -> None:
        """Rows as they are on disk into x and y; surplus ids that only fill rows are not checked."""
        narrow: NDArray[Any] = np.ndarray((len(numbers), self.length + 1), self.tokens.dtype, scratch)
        if self.tokens.vocab is not None or self.narrows:
            self._check_ids(narrow, self.rows.pieces_of(numbers))
        began = perf_counter()
        np.copyto(pair[0], narrow[:, :-1], casting="unsafe")
        np.copyto(pair[1], narrow[:, 1:], casting="unsafe")
        self.copying += perf_counter() - began

    def _check_ids(self, narrow: NDArray[Any], pieces: RowPieces) -> None:
        rows = np.repeat(np.arange(len(pieces.counts)), pieces.counts)
        sizes = pieces.sizes + pieces.goes_on
        before = np.cumsum(sizes) - sizes
        first = np.cumsum(pieces.counts) - pieces.counts
        columns = before - before[first][rows]
        wanted = narrow.reshape(-1)[spread(rows * narrow.shape[1] + columns, sizes)]  # without surplus tokens
        places = spread(pieces.starts, sizes)
        self.tokens.check(wanted, lambda index: int(places[index]))
        self.check_fits(wanted)

    def _same_data(self, x: NDArray[Any], pieces: RowPieces, closing: Numbers) -> None:
        """Documents must end with their eot; otherwise the file was changed after it was packed."""
        wrong = np.flatnonzero(x.reshape(-1)[closing] != self._eot)
        whole = np.flatnonzero(~pieces.goes_on)
        ends = pieces.starts[whole[wrong]] + pieces.sizes[whole[wrong]]
        wrong = wrong[(ends != self.tokens.last) & (ends != self.tokens.layout.shape[0])]
        if len(wrong):
            found = int(x.reshape(-1)[closing[wrong[0]]])
            path, offset = self.tokens.place(int(pieces.starts[whole[wrong[0]]] + pieces.sizes[whole[wrong[0]]] - 1))
            raise FormatError(
                f"{path}: expected {self._marks} at the end of a document (byte {offset}), got {found}: the tokens "
                f"have changed since their documents were indexed. Delete {self.rows.kept.path} and its index."
            )

    # What it is and costs

    def places(self, numbers: Numbers) -> list[Place]:
        pieces = self.rows.pieces_of(numbers)
        documents = [
            DocumentPlace(*self.tokens.place(start), size)
            for start, size in zip(pieces.starts.tolist(), pieces.sizes.tolist(), strict=True)
        ]
        bounds = np.cumsum(pieces.counts).tolist()
        rows = (tuple(documents[a:b]) for a, b in zip([0, *bounds], bounds, strict=False))
        return [Place(row[0].file, row[0].offset, documents=row) for row in rows]

    def settings(self) -> dict[str, Any]:
        return {"length": self.length, "cut": "packed", "documents_by": str(self._marks)}
