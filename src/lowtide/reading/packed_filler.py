"""Rows of packed documents as x, y and docs.

One idea: a row's pieces are read one behind the other, and its last run goes on over tokens nobody asked for until the
row is full; so a batch is one call of unequal runs into rows of ``length + 1`` tokens, and padding is written over
them. y is x one column on, but for the last tokens of documents.

Costs one read per piece; without the native engine also scratch for the narrow tokens. No Python per document.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lowtide import _native
from lowtide._native.documented import spread
from lowtide._native.planned import RowPieces
from lowtide.errors import FormatError
from lowtide.reading.boundaries import padding_id, required_marks
from lowtide.reading.docs import DocsFiller, checked_size
from lowtide.reading.packed_plan import PackedPlan, PackedPlanner
from lowtide.reading.packed_rows import PackedRows
from lowtide.reading.token_range import TokenRange
from lowtide.reading.upcoming import Numbers
from lowtide.reading.window_filler import Pair, WindowFiller
from lowtide.storage.budget import whole_pages
from lowtide.storage.unequal import read_unequal, widen_unequal


class PackedFiller:
    """Reads batches of rows of one packing."""

    def __init__(
        self, tokens: TokenRange, rows: PackedRows, dtype: DTypeLike = "int64", *, documents: bool = False
    ) -> None:
        self.tokens = tokens
        self.rows = rows
        self.length = rows.length
        self.windows = WindowFiller(tokens, rows.length, dtype)  # knows sizes and checks the dtype
        self.dtype = self.windows.dtype
        self.padding = padding_id(tokens)
        self.documents = documents
        self.docs = DocsFiller(rows.length, rows.most_runs)
        self._planner = PackedPlanner(tokens, rows)
        self._marks = required_marks(tokens)
        self._eot = self._marks.id if self._marks.by == "eot" else None
        self._source = tokens.dtype.name
        self._narrows = not np.can_cast(tokens.dtype, self.dtype, "safe")
        if self.padding > np.iinfo(self.dtype).max:
            raise ValueError(
                f"dtype: expected a type that holds the padding id {self.padding}, got {self.dtype}. Use dtype='int64'."
            )

    def nbytes(self, rows: int) -> tuple[int, int]:
        """Bytes of the batch (x, y and docs) and of the scratch they are widened from."""
        pair, scratch = self.windows.nbytes(rows)
        return pair + (self.docs.nbytes(rows) if self.documents else 0), scratch

    def admit(self, rows: int) -> None:
        """Two batches and the scratch must fit the budget."""
        admit_batches(self.tokens, self.length, rows, self.nbytes)

    def read(self, numbers: Numbers, *, rows: int, ahead: Callable[[], Numbers] | None = None) -> Any:
        """x, y and, where asked for, docs of these rows; ``rows``: how many a batch usually has."""
        store = self.tokens.store
        usual = max(len(numbers), rows, 1)
        size, scratch_size = self.windows.nbytes(usual)
        half, shape = size // 2, (len(numbers), self.length)
        plan = self._planner.plan(numbers)
        with store.filling(self.nbytes(usual)[0]) as out:  # before reading: what there is no room for is refused unread
            x, y = out.lend(shape, self.dtype), out.lend(shape, self.dtype, half)
            self._read((x, y), plan, numbers, scratch_size, ahead)
            if store.engine.packed_close(x, y, plan[2:], self.padding, self._eot) >= 0:
                self._same_data(x, self.rows.pieces_of(numbers), plan.closing)
            if not self.documents:
                return x, y
            return x, y, self.docs.fill(lambda to: store.engine.documents_given(to, *plan[2:]), len(numbers), out, size)

    def _read(
        self, pair: Pair, plan: PackedPlan, numbers: Numbers, scratch_size: int, ahead: Callable[[], Numbers] | None
    ) -> None:
        """The tokens of rows, padding not yet written: in one native pass, or through scratch."""
        tokens, store = self.tokens, self.tokens.store
        later = None if ahead is None else lambda: self._planner.plan(ahead())[:2]
        if self.windows.widens and len(plan.offsets):
            native = _native.Pair(*pair, self.length, self._source, tokens.vocab)
            if widen_unequal(store, plan[:2], native, ahead=later):
                return
        with store.filling(scratch_size) as scratch:
            read_unequal(store, plan[:2], scratch.buffer, ahead=later)
            shape = (len(numbers), self.length + 1)
            narrow: NDArray[Any] = np.ndarray(shape, tokens.dtype, scratch.buffer.view)
            if tokens.vocab is not None or self._narrows:
                self._check(narrow, self.rows.pieces_of(numbers))
            np.copyto(pair[0], narrow[:, :-1], casting="unsafe")
            np.copyto(pair[1], narrow[:, 1:], casting="unsafe")

    def _check(self, narrow: NDArray[Any], pieces: RowPieces) -> None:
        rows = np.repeat(np.arange(len(pieces.counts)), pieces.counts)
        sizes = pieces.sizes + pieces.goes_on
        before = np.cumsum(sizes) - sizes
        first = np.cumsum(pieces.counts) - pieces.counts
        columns = before - before[first][rows]
        wanted = narrow.reshape(-1)[spread(rows * narrow.shape[1] + columns, sizes)]  # without what only fills rows up
        places = spread(pieces.starts, sizes)
        self.tokens.check(wanted, lambda index: int(places[index]))
        limits = np.iinfo(self.dtype)
        if self._narrows and wanted.size and not limits.min <= int(wanted.min()) <= int(wanted.max()) <= limits.max:
            found = int(wanted.max()) if int(wanted.max()) > limits.max else int(wanted.min())
            where = self.tokens.store.where
            raise FormatError(f"{where}: expected ids that fit {self.dtype}, got {found}. Use dtype='int64'.")

    def _same_data(self, x: NDArray[Any], pieces: RowPieces, closing: Numbers) -> None:
        """Documents must end with their eot, or the packing is of a file as it was before somebody wrote into it."""
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


def admit_batches(tokens: TokenRange, length: int, rows: int, nbytes: Callable[[int], tuple[int, int]]) -> None:
    """Refuse batches of which two, and the scratch they are widened from, do not fit the budget."""
    checked_size(rows, length)
    store = tokens.store

    def needed(count: int) -> int:
        batch, scratch = nbytes(count)
        return 2 * batch + whole_pages(scratch)

    size, extra = nbytes(rows)
    fits = bisect_right(range(1, rows), store.budget.limit - store.budget.aside, key=needed)
    store.budget.admit(
        size,
        copies=2,
        extra=extra,
        where=f"{store.where}: batches of {rows} x {length} per rank",
        smaller=f"use a batch of {fits} per rank" if fits else "",
    )
