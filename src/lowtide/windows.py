"""Windows of tokens as ``x`` and ``y``: read once, widened twice.

One idea: a window of ``length + 1`` tokens is read as it lies on disk and widened into two contiguous arrays that share
one lease, ``y`` one token ahead of ``x``. Costs one scratch buffer of the narrow tokens; nothing is converted on disk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lowtide.corpus import Corpus
from lowtide.errors import FormatError
from lowtide.rows import Numbers
from lowtide.storage import Buffer
from lowtide.storage.buffers import whole_pages

Batch = tuple[NDArray[Any], NDArray[Any]]

_BYTE = np.dtype(np.uint8)


class Windows:
    """Reads batches of windows of one length from one corpus."""

    def __init__(self, tokens: Corpus, length: int, dtype: DTypeLike = "int64") -> None:
        self.tokens = tokens
        self.length = length
        self.dtype = np.dtype(dtype)
        if self.dtype.kind not in "iu":
            raise ValueError(f"dtype: expected an integer type for tokens, got {self.dtype}. Use dtype='int64'.")
        if not self.dtype.isnative:
            raise ValueError(f"dtype: expected this machine's byte order, got {self.dtype.str}. Use dtype='int64'.")
        # Ids that might not fit are looked at, batch by batch, instead of being wrapped.
        self._narrows = not np.can_cast(tokens.dtype, self.dtype, "safe")

    def nbytes(self, rows: int) -> tuple[int, int]:
        """Bytes of the batch (x and y) and of the scratch buffer of ``rows`` windows."""
        half = whole_pages(rows * self.length * self.dtype.itemsize)
        return 2 * half, rows * (self.length + 1) * self.tokens.dtype.itemsize

    def admit(self, rows: int) -> None:
        """Two batches (one held, one being filled) and the scratch they are widened from must fit the budget."""
        size, scratch = self.nbytes(rows)
        store = self.tokens.store
        fits = bisect_right(range(1, rows), store.budget.limit - store.budget.aside, key=self._needed)
        store.budget.admit(
            size,
            copies=2,
            extra=scratch,
            where=f"{store.where}: batches of {rows} x {self.length} per rank",
            smaller=f"use a batch of {fits} per rank" if fits else "",
        )

    def _needed(self, rows: int) -> int:
        size, scratch = self.nbytes(rows)
        return 2 * size + whole_pages(scratch)

    def read(self, starts: Numbers, *, rows: int | None = None, ahead: Callable[[], Numbers] | None = None) -> Batch:
        """x and y of the windows at these tokens (counted from the corpus's beginning), lent until dropped.

        ``rows``: the usual number of windows, so that a short batch uses a buffer of the usual size.
        """
        store = self.tokens.store
        size, scratch_size = self.nbytes(max(len(starts), rows or 0, 1))
        buffer = store.take(size)  # before reading: a batch there is no room for is refused unread
        try:
            self._fill(starts, buffer, size // 2, scratch_size, ahead)
        except BaseException:
            store.pool.give(buffer)
            raise
        root = store.lend(buffer, (buffer.capacity,), _BYTE)
        return self._half(root, 0, len(starts)), self._half(root, size // 2, len(starts))

    def _half(self, memory: Any, offset: int, rows: int) -> NDArray[Any]:
        return np.ndarray((rows, self.length), self.dtype, memory, offset)

    def _fill(
        self, starts: Numbers, buffer: Buffer, half: int, scratch_size: int, ahead: Callable[[], Numbers] | None
    ) -> None:
        store = self.tokens.store
        item = self.tokens.dtype.itemsize
        window = (self.length + 1) * item
        fetched = store.fetch(starts, item, window)
        if fetched is not None:
            self._widen(fetched.view(self.tokens.dtype), starts, buffer, half)
            return
        scratch = store.take(scratch_size)
        try:
            store.gather(starts, item, window, scratch, ahead=ahead, sparse=len(starts) < 4096)
            narrow: NDArray[Any] = np.ndarray((len(starts), self.length + 1), self.tokens.dtype, scratch.view)
            self._widen(narrow, starts, buffer, half)
        finally:
            store.pool.give(scratch)

    def _widen(self, narrow: NDArray[Any], starts: Numbers, buffer: Buffer, half: int) -> None:
        if self._narrows or self.tokens.vocab is not None:
            self._check(narrow, starts)
        np.copyto(self._half(buffer.view, 0, len(starts)), narrow[:, :-1], casting="unsafe")
        np.copyto(self._half(buffer.view, half, len(starts)), narrow[:, 1:], casting="unsafe")

    def _check(self, narrow: NDArray[Any], starts: Numbers) -> None:
        tokens = self.tokens

        def position(index: int) -> int:
            row, column = divmod(index, self.length + 1)
            return int(starts[row]) + column

        tokens.check(narrow, position)
        if self._narrows and narrow.size:
            low, high = int(narrow.min()), int(narrow.max())
            limits = np.iinfo(self.dtype)
            if low < limits.min or high > limits.max:
                found = low if low < limits.min else high
                raise FormatError(
                    f"{tokens.store.where}: expected ids that fit {self.dtype}, got {found}. Use dtype='int64'."
                )
