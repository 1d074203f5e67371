"""Windows of tokens as ``x`` and ``y``: read once, widened twice.

A window of ``length + 1`` tokens is read as it lies on disk and widened into two contiguous arrays on one buffer, ``y``
one token ahead of ``x``, in one call of the engine. Windows that follow one another (a ``range`` of them) are one long
read; those, and types the engine does not widen, pass through a scratch buffer of narrow tokens. Nothing is converted
on disk. Costs a dozen Python calls per batch.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import DTypeLike, NDArray

from lowtide.engine import SOURCES, Numbers
from lowtide.errors import FormatError
from lowtide.machine import PAGE
from lowtide.reading.ahead import Batch, Later, prepared_ahead
from lowtide.reading.places import Place
from lowtide.reading.plan import Plan, project
from lowtide.reading.token_range import TokenRange
from lowtide.storage import RESIDENT, SCATTERED, SEQUENTIAL, Bytes
from lowtide.storage.budget import whole_pages
from lowtide.storage.store import StartedReads
from lowtide.units import format_size

Starts = Numbers | range  # first tokens, counted from the range's beginning; a range: of windows that follow another
XY = tuple[NDArray[Any], NDArray[Any]]


class WindowReader:
    """Reads batches of windows of one length from one range of tokens."""

    def __init__(self, tokens: TokenRange, length: int, dtype: DTypeLike = "int64") -> None:
        self.tokens = tokens
        self.length = length
        self.dtype = np.dtype(dtype)
        if self.dtype.kind not in "iu" or not self.dtype.isnative:
            raise ValueError(f"dtype: expected a native integer type for tokens, got {dtype}. Use dtype='int64'.")
        self.store = store = tokens.store
        self.stores = (store,)
        self.pools = (store.pool,)
        self.temperatures = (store.temperature,)
        self.where = store.where
        self.budget = store.budget
        self.how = SCATTERED
        self.first = tokens.first
        self.item = tokens.dtype.itemsize
        self.window = (length + 1) * self.item  # bytes on disk
        self.source = tokens.dtype.name  # asked once: NumPy works a name out anew every time
        self.widens = tokens.dtype.isnative and self.source in SOURCES and self.dtype.name in ("int32", "int64")
        # Ids that might not fit are looked at, batch by batch, instead of being wrapped.
        self.narrows = not np.can_cast(tokens.dtype, self.dtype, "safe")
        self._known = -1, 0  # rows of the last batch, and the bytes of its x

    def __reduce__(self) -> tuple[Any, ...]:
        return _window_reader, (type(self), self.tokens, self.length, self.dtype, self.how)

    def resident(self) -> WindowReader:
        """The same windows, for tokens that somebody else announces and drops: a local shuffle."""
        found = copy.copy(self)
        found.how = RESIDENT
        return found

    def scattered(self) -> WindowReader:
        """The same windows, which nobody else announces."""
        found = copy.copy(self)
        found.how = SCATTERED
        return found

    def shorter(self, tokens: int) -> WindowReader:
        """Windows of fewer tokens: the one row that a finite order ends with."""
        return WindowReader(self.tokens, tokens, self.dtype)

    # Batches, lent

    def start(self, numbers: Starts, early: bool = False) -> Batch:
        rows, store = len(numbers), self.store
        if type(numbers) is range or not self.widens:
            return self._start_narrow(numbers, early)
        known, half = self._known
        if known != rows:
            half = whole_pages(rows * self.length * self.dtype.itemsize)
            self._known = rows, half
        if early:
            root = store.pool.try_take(2 * half) if store.prepares else None
            if root is None:
                return self.announced(numbers)
        else:
            root = store.pool.take(2 * half)
        shape = rows, self.length
        x: NDArray[Any] = np.ndarray(shape, self.dtype, root)
        y: NDArray[Any] = np.ndarray(shape, self.dtype, root, half)
        if self.first:
            numbers = numbers + self.first
        pair = x, y, self.length, self.source, self.tokens.vocab, None, 0
        return WindowBatch(self, store.start(numbers, self.item, self.window, pair, self.how, early), x, y)

    def announced(self, numbers: Starts) -> Batch:
        """Only tell the kernel. What comes next in order it finds out by itself, and a local shuffle's it was told."""
        if isinstance(numbers, range) or self.how == RESIDENT:
            return Later(self, numbers)
        self.store.announce(numbers + self.first, self.item, self.window)
        return Later(self, numbers, announced=True)

    def room(self, size: int, early: bool) -> Bytes | None:
        """A buffer from the pool; None where an early batch must not be refused but only announced."""
        pool = self.store.pool
        if early:
            return pool.try_take(size) if self.store.prepares else None
        return pool.take(size)

    def _start_narrow(self, numbers: Starts, early: bool) -> Batch:
        root = self.room(self.nbytes(len(numbers)), early)
        batch = None if root is None else self.narrow_in(root, numbers, early)
        return self.announced(numbers) if batch is None else batch

    def narrow_in(self, root: Bytes, numbers: Starts, early: bool) -> NarrowBatch | None:
        """x and y at the beginning of ``root``, widened by NumPy from the tokens as they lie on disk; None: no room."""
        rows, item = len(numbers), self.item
        scratch = self.room(rows * self.window, early)
        if scratch is None:
            return None
        x: NDArray[Any] = np.ndarray((rows, self.length), self.dtype, root)
        y: NDArray[Any] = np.ndarray((rows, self.length), self.dtype, root, WindowReader.nbytes(self, rows) // 2)
        narrow: NDArray[Any] = np.ndarray((rows, self.length + 1), self.tokens.dtype, scratch)
        reads: StartedReads | None = None
        if rows and isinstance(numbers, range):
            first = np.array([numbers.start + self.first], np.int64)
            size = (rows * self.length + 1) * item
            narrow = as_strided(narrow, narrow.shape, (self.length * item, item), writeable=False)
            reads = self.store.start(first, item, size, scratch[:size], SEQUENTIAL, early)
        elif isinstance(numbers, np.ndarray) and rows:
            target = scratch[: rows * self.window]
            reads = self.store.start(numbers + self.first, item, self.window, target, self.how, early)
        return NarrowBatch(self, numbers, (reads, narrow), x, y)

    # What it refuses

    def refused(self, problem: tuple[int, str, int]) -> FormatError:
        """The error for an id that may not be there: outside the vocabulary, or too large for the dtype asked for."""
        value, path, offset = problem
        vocab = self.tokens.vocab
        if vocab is not None and not 0 <= value < vocab:
            return self.tokens.refused(value, path, offset)
        return FormatError(f"{self.store.where}: expected ids that fit {self.dtype}, got {value}. Use dtype='int64'.")

    def check(self, narrow: NDArray[Any], numbers: Starts) -> None:
        """The same for tokens as they lie on disk, of windows at these numbers."""
        if not self.narrows and self.tokens.vocab is None:
            return

        def position(index: int) -> int:
            row, column = divmod(index, self.length + 1)
            return int(numbers[row]) + self.first + column

        self.tokens.check(narrow, position)
        self.check_fits(narrow)

    def check_fits(self, narrow: NDArray[Any]) -> None:
        """Refuse ids that the dtype asked for does not hold."""
        if self.narrows and narrow.size:
            low, high, limits = int(narrow.min()), int(narrow.max()), np.iinfo(self.dtype)
            if low < limits.min or high > limits.max:
                raise self.refused((low if low < limits.min else high, "", 0))

    # What it is and costs

    def nbytes(self, rows: int) -> int:
        """Of x and y."""
        return 2 * whole_pages(rows * self.length * self.dtype.itemsize)

    def scratch(self, rows: int) -> int:
        """Of the narrow tokens they are widened from."""
        return rows * self.window

    def places(self, numbers: Numbers) -> list[Place]:
        return [Place(*self.tokens.place(int(start) + self.first)) for start in numbers]

    def settings(self) -> dict[str, Any]:
        """What fixes the rows beside the data and their order, safe for JSON."""
        return {"length": self.length}

    def fingerprint(self) -> dict[str, Any]:
        return self.tokens.fingerprint()

    def plan(self, rows: int) -> Plan:
        size, scratch = self.nbytes(rows), self.scratch(rows)
        why = f"batches of {format_size(size)}, one held and one being filled, widened from {format_size(scratch)}"
        prepared, staging = prepared_ahead(self.store)
        if prepared:
            why += f"; {prepared} more are prepared in advance while data is cold, where the budget has room"
        held = (2 + prepared) * size + whole_pages(scratch) + staging
        return project(self.store, held, announced=2 * rows * (self.window + 2 * PAGE), why=(why,))


def _window_reader(
    kind: type[WindowReader], tokens: TokenRange, length: int, dtype: np.dtype[Any], how: int
) -> WindowReader:
    found = kind(tokens, length, dtype)
    found.how = how
    return found


class WindowBatch:
    """Windows under way, widened by the engine."""

    __slots__ = ("_reader", "_reads", "_x", "_y")

    def __init__(self, reader: WindowReader, reads: StartedReads, x: NDArray[Any], y: NDArray[Any]) -> None:
        self._reader, self._reads, self._x, self._y = reader, reads, x, y

    def finish(self) -> XY:
        problem = self._reads.finish()
        if problem is not None:
            raise self._reader.refused(problem)
        return self._x, self._y


class NarrowBatch:
    """Windows under way into scratch, widened by NumPy."""

    __slots__ = ("_narrow", "_numbers", "_reader", "_reads", "_x", "_y")

    def __init__(
        self,
        reader: WindowReader,
        numbers: Starts,
        narrow: tuple[StartedReads | None, NDArray[Any]],
        x: NDArray[Any],
        y: NDArray[Any],
    ) -> None:
        self._reader, self._numbers, self._x, self._y = reader, numbers, x, y
        self._reads, self._narrow = narrow

    def finish(self) -> XY:
        narrow = self._narrow
        if self._reads is not None:
            self._reads.finish()
            self._reader.check(narrow, self._numbers)
            np.copyto(self._x, narrow[:, :-1], casting="unsafe")
            np.copyto(self._y, narrow[:, 1:], casting="unsafe")
        return self._x, self._y
