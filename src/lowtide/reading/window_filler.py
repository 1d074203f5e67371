"""Windows of tokens as ``x`` and ``y``: read once, widened twice.

One idea: a window of ``length + 1`` tokens is read as it lies on disk and widened into two contiguous arrays that share
one lease, ``y`` one token ahead of ``x``. Costs one scratch buffer of the narrow tokens; nothing is converted on disk.
Windows that follow one another are read as one long run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import DTypeLike, NDArray

from lowtide import _native
from lowtide.errors import FormatError
from lowtide.reading.prefetch import Following, NativeThread
from lowtide.reading.token_range import TokenRange
from lowtide.reading.upcoming import Numbers
from lowtide.storage import Filling
from lowtide.storage.budget import whole_pages

Pair = tuple[NDArray[Any], NDArray[Any]]
Then = Callable[[Pair, NDArray[np.int64] | None, Filling, int], Any]
INT64 = np.dtype(np.int64)


class WindowFiller:
    """Reads batches of windows of one length from one range of tokens.

    ``consecutive``: the windows of a batch follow one another in the corpus.
    """

    def __init__(
        self, tokens: TokenRange, length: int, dtype: DTypeLike = "int64", *, consecutive: bool = False
    ) -> None:
        self.tokens = tokens
        self.length = length
        self.dtype = np.dtype(dtype)
        self.consecutive = consecutive
        if self.dtype.kind not in "iu" or not self.dtype.isnative:
            raise ValueError(f"dtype: expected a native integer type for tokens, got {dtype}. Use dtype='int64'.")
        # Ids that might not fit are looked at, batch by batch, instead of being wrapped.
        self._narrows = not np.can_cast(tokens.dtype, self.dtype, "safe")
        # What the native engine reads and widens in one pass.
        self._source = tokens.dtype.name  # asked once: NumPy works a name out anew every time
        self._item = tokens.dtype.itemsize
        known = tokens.dtype.isnative and self._source in _native.SOURCES
        self.widens = known and self.dtype.name in ("int32", "int64")
        self._sizes = 0, (0, 0)  # rows, and their bytes, of the last batch

    def nbytes(self, rows: int) -> tuple[int, int]:
        """Bytes of the batch (x and y) and of the scratch buffer of ``rows`` windows."""
        known, sizes = self._sizes
        if known != rows:
            half = whole_pages(rows * self.length * self.dtype.itemsize)
            sizes = 2 * half, rows * (self.length + 1) * self._item
            self._sizes = rows, sizes
        return sizes

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

    def read(
        self,
        starts: Numbers,
        *,
        rows: int | None = None,
        ahead: Callable[[], Numbers] | None = None,
        more: int = 0,
        then: Then | None = None,
        mark: int | None = None,
    ) -> Any:
        """x and y of the windows at these tokens (counted from the corpus's beginning), lent until dropped.

        ``rows``: the usual number of windows, so that a short batch uses a buffer of the usual size. ``more``: bytes
        behind x and y for ``then``, which gets the pair, the buffer and where those bytes begin, and gives the batch.
        ``mark``: an id whose places ``then`` also gets, in those bytes, where reading can note them.
        """
        store = self.tokens.store
        size, scratch = self.nbytes(max(len(starts), rows or 0, 1))
        half, shape = size // 2, (len(starts), self.length)
        following = ahead if isinstance(ahead, Following) and self.widens and not self.consecutive else None
        ready = None if following is None else following.prefetch.take(store, following.place)
        # Before reading: a batch there is no room for is refused unread.
        marks = None
        with store.filling(size + more) if ready is None else ready.filling as out:
            if ready is None:
                pair: Any = out.lend(shape, self.dtype), out.lend(shape, self.dtype, half)
                if mark is not None and self.widens:
                    marks = out.lend((more // 8,), INT64, size), mark
                if not self._fill(starts, pair, scratch, ahead, marks):
                    marks = None
            else:
                pair = ready.arrays
                store.prefetched(len(starts), self._item * (self.length + 1), ready.hits)
            if following is not None and store.cold:
                following.prefetch.keep_ahead(store, following, size + more, self._begin)
            return pair if then is None else then(pair, marks and marks[0], out, size)

    def _begin(self, thread: NativeThread, filling: Filling, numbers: Numbers) -> tuple[Pair, Any] | None:
        """Let a native thread fill a batch. As long as it may write, the buffer is lent, whatever happens to us."""
        store = self.tokens.store
        spans = store.startable(numbers, self._item, self._item * (self.length + 1))
        if spans is None:
            return None
        shape, half = (len(numbers), self.length), self.nbytes(len(numbers))[0] // 2
        pair = filling.lend(shape, self.dtype), filling.lend(shape, self.dtype, half)
        target = _native.Pair(*pair, self.length, self._source, self.tokens.vocab)
        return pair, store.start_windows(thread.fills, spans, target)

    def _fill(
        self,
        starts: Numbers,
        pair: Pair,
        scratch_size: int,
        ahead: Callable[[], Numbers] | None,
        marks: tuple[NDArray[np.int64], int] | None = None,
    ) -> bool:
        """Read and widen; whether that was one native pass, which has noted the marks."""
        store, item = self.tokens.store, self._item
        if self.widens and not self.consecutive:
            target = _native.Pair(*pair, self.length, self._source, self.tokens.vocab, *(marks or ()))
            if store.windows(starts, item, target, ahead=ahead):
                return True
        window = (self.length + 1) * item
        if not self.consecutive and store.strategy.name == "map":  # the only one that needs no buffer between
            fetched = store.fetch(starts, item, window)
            if fetched is not None:
                self._widen(fetched.view(self.tokens.dtype), starts, pair)
                return False
        with store.filling(scratch_size) as scratch:
            shape = (len(starts), self.length + 1)
            narrow: NDArray[Any] = np.ndarray(shape, self.tokens.dtype, scratch.buffer.view)
            if self.consecutive and len(starts):
                store.run(int(starts[0]) * item, (len(starts) * self.length + 1) * item, scratch.buffer)
                narrow = as_strided(narrow, shape, (self.length * item, item), writeable=False)
            else:
                store.gather(starts, item, window, scratch.buffer, ahead=ahead, sparse=True)
            self._widen(narrow, starts, pair)
            return False

    def _widen(self, narrow: NDArray[Any], starts: Numbers, pair: Pair) -> None:
        self.check(narrow, starts)
        np.copyto(pair[0], narrow[:, :-1], casting="unsafe")
        np.copyto(pair[1], narrow[:, 1:], casting="unsafe")

    def halves(self, memory: Any, half: int, rows: int) -> Pair:
        """x and y on this memory, y from byte ``half`` on."""
        shape = (rows, self.length)
        return np.ndarray(shape, self.dtype, memory), np.ndarray(shape, self.dtype, memory, half)

    def check(self, narrow: NDArray[Any], starts: Numbers) -> None:
        """Refuse ids outside the vocabulary, and those that do not fit the dtype asked for."""
        tokens = self.tokens
        if not self._narrows and tokens.vocab is None:
            return

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
