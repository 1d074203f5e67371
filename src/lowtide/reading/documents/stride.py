"""Windows at a stride, with the documents in them.

The windows are those of the plain reader, read the same way. If an id marks the ends of documents, they are noted while
tokens are widened; if only the format knows them, they are searched for in the index. The order is that of plain
windows, so ``documents=True`` never changes which tokens you get. Costs 9 bytes per token, and one pass over them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from lowtide.engine import Planes, run_begins
from lowtide.errors import FormatError
from lowtide.reading.documents.boundaries import required_marks
from lowtide.reading.documents.boundary_index import BoundaryIndex
from lowtide.reading.documents.docs import Docs, DocsFiller, docs_of
from lowtide.reading.token_range import TokenRange
from lowtide.reading.window_reader import XY, Noted, Starts, WindowReader
from lowtide.storage.buffers import Bytes
from lowtide.storage.read import SCATTERED


class DocumentedWindows(WindowReader):
    """``WindowReader`` that gives docs as well; ``most_runs``: the most in any window of this length."""

    docs: DocsFiller

    def __init__(
        self,
        tokens: TokenRange,
        length: int,
        dtype: DTypeLike,
        *,
        index: BoundaryIndex,
        most_runs: int,
        how: int = SCATTERED,
    ) -> None:
        super().__init__(tokens, length, dtype, how=how)
        self._marks = required_marks(tokens)
        self._begins = self._marks.by == "bos"
        self._index = index
        self.docs = DocsFiller(length, most_runs)
        self.held = index.held if self._marks.by == "offsets" else None

    def __reduce__(self) -> tuple[Any, ...]:
        again = partial(DocumentedWindows, how=self.how, index=self._index, most_runs=self.docs.most_runs)
        return again, (self.tokens, self.length, self.dtype)

    def shorter(self, tokens: int) -> DocumentedWindows:
        return DocumentedWindows(self.tokens, tokens, self.dtype, index=self._index, most_runs=self.docs.most_runs)

    def notes(self, root: Bytes, first: int, last: int) -> tuple[Noted, int]:
        if self._marks.id is None:
            return None, 0
        # Where docs will be written later.
        return np.ndarray(((last - first) // 8,), np.int64, root, first), self._marks.id

    def documented(self, numbers: Starts, pair: XY, noted: Noted, root: Bytes) -> tuple[Any, Any, Docs]:
        rows = len(numbers)
        planes = self.docs.planes(rows, root, 2 * self.sizes(rows)[0])
        try:
            longest = None
            if noted is not None:  # the usual case: seen while the tokens were widened
                longest = self.store.engine.documents_noted(planes, noted, self._begins)
            if longest is None:
                longest = self._looked_for(numbers, pair, planes)
            return *pair, docs_of(planes, longest)
        except ValueError as problem:  # more runs than any window had
            raise FormatError(
                f"{self.where}: expected at most {self.docs.most_runs} documents in a window, got more: the tokens "
                f"have changed since their documents were indexed. Delete {Path(self._index.kept.path).parent}."
            ) from problem

    def _looked_for(self, numbers: Starts, pair: XY, planes: Planes) -> int:
        engine, length = self.store.engine, planes.length
        if self._marks.id is not None:
            return engine.documents_marked(planes, *pair, self._marks.id, begins=self._begins)
        starts = np.asarray(numbers, np.int64) + self.first
        rows, behind = self._index.inside(starts, length, partial(self.needs, len(starts)))
        closing = rows * length + behind - 1
        return engine.documents_given(planes, run_begins(closing, len(starts) * length, length), closing, None)
