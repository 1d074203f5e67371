"""Windows at a stride, with the documents in them.

One idea: the windows are those of the plain cut, read the same way; where documents end is seen in x and y themselves
where an id marks them, and searched for in the index where only the format knows. The order is that of the plain cut,
so ``documents=True`` never changes which tokens come.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide._native import Planes
from lowtide._native.documented import run_begins
from lowtide.errors import FormatError
from lowtide.reading.boundaries import Marks
from lowtide.reading.boundary_index import BoundaryIndex
from lowtide.reading.cuts import StrideCut
from lowtide.reading.docs import DocsFiller
from lowtide.reading.packed_filler import admit_batches
from lowtide.reading.plan import Plan, project
from lowtide.reading.run_ahead import Announcer
from lowtide.reading.streams import Stream
from lowtide.reading.upcoming import Numbers
from lowtide.reading.window_filler import Pair, WindowFiller
from lowtide.storage import Filling
from lowtide.storage.budget import whole_pages
from lowtide.units import format_size

Noted = NDArray[np.int64] | None  # where the id stands, if reading noted it


class StrideDocumentsCut(StrideCut):
    """``StrideCut`` that gives docs as well; ``most_runs``: of any window of this length."""

    def __init__(
        self,
        windows: WindowFiller,
        stream: Stream,
        *,
        marks: Marks,
        index: BoundaryIndex,
        most_runs: int,
        runs: Announcer | None = None,
    ) -> None:
        super().__init__(windows, stream, runs)
        self._marks = marks
        self._index = index
        self._most_runs = most_runs
        self._docs = DocsFiller(self.length, most_runs)

    def read(
        self, numbers: Numbers, *, rows: int, ahead: Callable[[], Numbers] | None = None, tail: bool = False
    ) -> Any:
        windows, docs = self._windows, self._docs
        if tail:
            windows, docs = self.shorter(), DocsFiller(self.tail, self._most_runs)
        more = docs.nbytes(max(len(numbers), rows, 1))

        def then(pair: Pair, noted: Noted, out: Filling, base: int) -> Any:
            return *pair, docs.fill(partial(self._write, numbers, pair, noted), len(numbers), out, base)

        return windows.read(numbers, rows=rows, ahead=ahead, more=more, then=then, mark=self._marks.id)

    def admit(self, rows: int) -> None:
        """Two batches with their docs, and the scratch, must fit the budget."""
        admit_batches(self.tokens, self.length, rows, self._nbytes)

    def plan(self, rows: int) -> Plan:
        plain = super().plan(rows)
        size, scratch = self._nbytes(rows)
        why = f"batches of {format_size(size)} with their documents, one held and one being filled"
        make = partial(project, self.tokens.store, 2 * size + whole_pages(scratch), announced=plain.cache)
        found = make(why=(why,), mapped=self._index.kept.nbytes if self._marks.by == "offsets" else 0)
        return found if self.runs is None else self.runs.adjusted(found)

    def _nbytes(self, rows: int) -> tuple[int, int]:
        pair, scratch = self._windows.nbytes(rows)
        return pair + self._docs.nbytes(rows), scratch

    def _write(self, starts: Numbers, pair: Pair, noted: Noted, planes: Planes) -> int:
        marks, engine, length = self._marks, self.tokens.store.engine, planes.length
        try:
            if noted is not None:  # the usual case: seen while the tokens were widened
                longest = engine.documents_noted(planes, noted, begins=marks.by == "bos")
                if longest is not None:
                    return longest
            if marks.id is not None:
                return engine.documents_marked(planes, *pair, marks.id, begins=marks.by == "bos")
            rows, behind = self._index.inside(starts, length)
            closing = rows * length + behind - 1
            return engine.documents_given(planes, run_begins(closing, len(starts) * length, length), closing)
        except ValueError as problem:  # more runs than any window had
            raise FormatError(
                f"{self.where}: expected at most {self._most_runs} documents in a window, got more: the tokens have "
                f"changed since their documents were indexed. Delete {Path(self._index.kept.path).parent}."
            ) from problem
