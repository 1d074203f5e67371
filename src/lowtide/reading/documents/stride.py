"""Windows at a stride, with the documents in them.

The windows are those of the plain reader, read the same way. Where documents end is noted while tokens are widened,
where an id marks them, and searched for in the index where only the format knows. The order is that of plain windows,
so ``documents=True`` never changes which tokens come. Costs 9 bytes per token, and one pass over them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lowtide.engine import Planes, run_begins
from lowtide.errors import FormatError
from lowtide.machine import PAGE
from lowtide.reading.ahead import Batch, prepared_ahead
from lowtide.reading.documents.boundaries import required_marks
from lowtide.reading.documents.boundary_index import BoundaryIndex
from lowtide.reading.documents.docs import Docs, DocsFiller
from lowtide.reading.plan import Plan, project
from lowtide.reading.token_range import TokenRange
from lowtide.reading.window_reader import XY, NarrowBatch, Starts, WindowBatch, WindowReader
from lowtide.storage import Bytes
from lowtide.storage.budget import whole_pages
from lowtide.units import format_size

Noted = NDArray[np.int64] | None  # where the id stands, if reading noted it


class DocumentedWindows(WindowReader):
    """``WindowReader`` that gives docs as well; ``most_runs``: of any window of this length."""

    def __init__(
        self, tokens: TokenRange, length: int, dtype: DTypeLike, *, index: BoundaryIndex, most_runs: int
    ) -> None:
        super().__init__(tokens, length, dtype)
        self._marks = required_marks(tokens)
        self._index = index
        self._most_runs = most_runs
        self.docs = DocsFiller(length, most_runs)

    def __reduce__(self) -> tuple[Any, ...]:
        own = self.tokens, self.length, self.dtype, self.how, self._index, self._most_runs
        return _documented_windows, own

    def shorter(self, tokens: int) -> DocumentedWindows:
        return DocumentedWindows(self.tokens, tokens, self.dtype, index=self._index, most_runs=self._most_runs)

    def start(self, numbers: Starts, early: bool = False) -> Batch:
        rows, size = len(numbers), WindowReader.nbytes(self, len(numbers))
        more = self.docs.nbytes(rows)
        root = self.room(size + more, early)
        if root is None:
            return self.announced(numbers)
        if isinstance(numbers, range) or not self.widens or rows == 0:
            narrow = self.narrow_in(root, numbers, early)
            return self.announced(numbers) if narrow is None else DocumentedBatch(self, numbers, narrow, None, root)
        x: NDArray[Any] = np.ndarray((rows, self.length), self.dtype, root)
        y: NDArray[Any] = np.ndarray((rows, self.length), self.dtype, root, size // 2)
        noted: Noted = None
        if self._marks.id is not None:  # noted where docs will be written, which are not there yet
            noted = np.ndarray((more // 8,), np.int64, root, size)
        pair = x, y, self.length, self.source, self.tokens.vocab, noted, self._marks.id or 0
        reads = self.store.start(numbers + self.first, self.item, self.window, pair, self.how, early)
        return DocumentedBatch(self, numbers, WindowBatch(self, reads, x, y), noted, root)

    def documents(self, numbers: Starts, pair: XY, noted: Noted, root: Bytes) -> Docs:
        """The docs of these windows, behind x and y."""
        rows = len(numbers)
        base = WindowReader.nbytes(self, rows)
        return self.docs.fill(partial(self._write, numbers, pair, noted), rows, root, base)

    def _write(self, numbers: Starts, pair: XY, noted: Noted, planes: Planes) -> int:
        marks, engine, length = self._marks, self.store.engine, planes.length
        try:
            if noted is not None:  # the usual case: seen while the tokens were widened
                longest = engine.documents_noted(planes, noted, begins=marks.by == "bos")
                if longest is not None:
                    return longest
            if marks.id is not None:
                return engine.documents_marked(planes, *pair, marks.id, begins=marks.by == "bos")
            starts = np.asarray(numbers, np.int64) + self.first
            rows, behind = self._index.inside(starts, length)
            closing = rows * length + behind - 1
            return engine.documents_given(planes, run_begins(closing, len(starts) * length, length), closing)
        except ValueError as problem:  # more runs than any window had
            raise FormatError(
                f"{self.where}: expected at most {self._most_runs} documents in a window, got more: the tokens have "
                f"changed since their documents were indexed. Delete {Path(self._index.kept.path).parent}."
            ) from problem

    def nbytes(self, rows: int) -> int:
        """Of x, y and docs."""
        return super().nbytes(rows) + self.docs.nbytes(rows)

    def plan(self, rows: int) -> Plan:
        size = self.nbytes(rows)
        prepared, staging = prepared_ahead(self.store)
        why = f"batches of {format_size(size)} with their documents, one held and one being filled"
        if prepared:
            why += f"; {prepared} more are prepared in advance while data is cold, where the budget has room"
        held = (2 + prepared) * size + whole_pages(self.scratch(rows)) + staging
        mapped = self._index.kept.nbytes if self._marks.by == "offsets" else 0
        announced = 2 * rows * (self.window + 2 * PAGE)
        return project(self.store, held, announced=announced, why=(why,), mapped=mapped)


def _documented_windows(
    tokens: TokenRange, length: int, dtype: np.dtype[Any], how: int, index: BoundaryIndex, most_runs: int
) -> DocumentedWindows:
    found = DocumentedWindows(tokens, length, dtype, index=index, most_runs=most_runs)
    found.how = how
    return found


class DocumentedBatch:
    """Windows under way; their documents are written once they are there."""

    __slots__ = ("_batch", "_noted", "_numbers", "_reader", "_root")

    def __init__(
        self,
        reader: DocumentedWindows,
        numbers: Starts,
        batch: WindowBatch | NarrowBatch,
        noted: Noted,
        root: Bytes,
    ) -> None:
        self._reader, self._numbers, self._batch, self._noted, self._root = reader, numbers, batch, noted, root

    def finish(self) -> tuple[NDArray[Any], NDArray[Any], Docs]:
        pair = self._batch.finish()
        return *pair, self._reader.documents(self._numbers, pair, self._noted, self._root)
