"""Windows of tokens as ``x`` and ``y``: read once, widened twice.

A window of ``length + 1`` tokens is read as it is on disk and widened into two contiguous arrays on one buffer, ``y``
one token ahead of ``x``, in one call of the engine. Consecutive windows (a ``range`` of them) are one long read; they,
and types the engine does not widen, pass through a scratch buffer of narrow tokens. Nothing is converted
on disk. Costs a dozen Python calls per batch.
"""

from __future__ import annotations

import copy
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import DTypeLike, NDArray

from lowtide.engine import SOURCES, Numbers
from lowtide.errors import FormatError
from lowtide.machine import PAGE
from lowtide.reading.ahead import Batch, Later, prepared_ahead
from lowtide.reading.documents.docs import DocsFiller
from lowtide.reading.documents.kept_arrays import HeldArrays
from lowtide.reading.places import Place
from lowtide.reading.plan import Plan, project
from lowtide.reading.token_range import TokenRange
from lowtide.storage.budget import whole_pages
from lowtide.storage.buffers import Bytes
from lowtide.storage.read import RESIDENT, SCATTERED, SEQUENTIAL
from lowtide.storage.store import StartedReads
from lowtide.units import format_size

Starts = Numbers | range  # first tokens, counted from the range's beginning; a range: of consecutive windows
XY = tuple[NDArray[Any], NDArray[Any]]
Noted = NDArray[np.int64] | None  # where the id that marks documents occurs, if reading noted it


class WindowReader:
    """Reads batches of windows of one length from one range of tokens; ``how``: as the store has it."""

    docs: DocsFiller | None = None  # for readers that tell which document a token belongs to
    copying = 0.0  # seconds that widening took, if the engine did not do it while reading
    held: HeldArrays | None = None  # the tables that such a reader uses

    def __init__(self, tokens: TokenRange, length: int, dtype: DTypeLike = "int64", *, how: int = SCATTERED) -> None:
        self.tokens = tokens
        self.length = length
        self.dtype = _native_integers(dtype)
        self.store = store = tokens.store
        self.stores, self.pools, self.temperatures = (store,), (store.pool,), (store.temperature,)
        self.where, self.budget = store.where, store.budget
        self.how = how
        self.first = tokens.first
        self.item = tokens.dtype.itemsize
        self.window = (length + 1) * self.item  # bytes on disk
        self.source = tokens.dtype.name  # asked once: NumPy computes the name every time
        self.widens = tokens.dtype.isnative and self.source in SOURCES and self.dtype.name in ("int32", "int64")
        # Ids that might not fit are checked in every batch, so that none wraps.
        self.narrows = not np.can_cast(tokens.dtype, self.dtype, "safe")
        self._known = -1, 0, 0  # rows of the last batch, the bytes of its x, and of all of it

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), how=self.how), (self.tokens, self.length, self.dtype)

    def read_as(self, how: int) -> WindowReader:
        """The same windows: ``RESIDENT`` for tokens that a local shuffle announces and drops, else ``SCATTERED``."""
        found = copy.copy(self)
        found.how = how
        return found

    def shorter(self, tokens: int) -> WindowReader:
        """A reader of shorter windows, for the one short row at the end of a finite order."""
        return WindowReader(self.tokens, tokens, self.dtype)

    # Batches, lent

    def start(self, numbers: Starts, early: bool = False) -> Batch:
        rows, store = len(numbers), self.store
        half, size = self.sizes(rows)
        root = self.room(size) if early else store.pool.take(size)
        if root is None:
            return self.announced(numbers)
        x: NDArray[Any] = np.ndarray((rows, self.length), self.dtype, root)
        y: NDArray[Any] = np.ndarray((rows, self.length), self.dtype, root, half)
        if type(numbers) is range or not self.widens or not rows:
            return self._start_narrow(numbers, early, (x, y), root)
        noted, mark = (None, 0) if self.docs is None else self.notes(root, 2 * half, size)
        starts = numbers + self.first if self.first else numbers
        target = x, y, self.length, self.source, self.tokens.vocab, noted, mark
        reads = store.start(starts, self.item, self.window, target, self.how, early)
        return Batch(self._widened, numbers, reads, (x, y), noted, root)

    def _widened(self, numbers: Starts, reads: StartedReads, pair: XY, noted: Noted, root: Bytes) -> Any:
        problem = reads.finish()
        if problem is not None:
            raise self.refused(problem)
        return pair if self.docs is None else self.documented(numbers, pair, noted, root)

    def announced(self, numbers: Starts) -> Batch:
        """Only tell the kernel, unless it sees the order by itself or a local shuffle has told it."""
        if isinstance(numbers, range) or self.how == RESIDENT:
            return Later(self, numbers)
        self.store.announce(numbers + self.first, self.item, self.window)
        return Later(self, numbers, announced=True)

    def room(self, size: int) -> Bytes | None:
        """A buffer for an early batch; None if it may only be announced yet."""
        return self.store.pool.try_take(size) if self.store.prepares else None

    def _start_narrow(self, numbers: Starts, early: bool, pair: XY, root: Bytes) -> Batch:
        """x and y, widened by NumPy from the tokens as they are on disk."""
        rows, item = len(numbers), self.item
        scratch = self.room(rows * self.window) if early else self.store.pool.take(rows * self.window)
        if scratch is None:
            return self.announced(numbers)
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
        return Batch(self._widened_here, numbers, reads, narrow, pair, root)

    def _widened_here(
        self, numbers: Starts, reads: StartedReads | None, narrow: NDArray[Any], pair: XY, root: Bytes
    ) -> Any:
        if reads is not None:
            reads.finish()
            self.check(narrow, numbers)
            began = perf_counter()
            np.copyto(pair[0], narrow[:, :-1], casting="unsafe")
            np.copyto(pair[1], narrow[:, 1:], casting="unsafe")
            self.copying += perf_counter() - began
        return pair if self.docs is None else self.documented(numbers, pair, None, root)

    # Documents, for readers that have them

    def notes(self, root: Bytes, first: int, last: int) -> tuple[Noted, int]:  # noqa: ARG002
        """Where in the buffer the ends of documents are noted while tokens are widened, and by which id."""
        return None, 0

    def documented(self, numbers: Starts, pair: XY, noted: Noted, root: Bytes) -> Any:  # noqa: ARG002
        """The batch with its documents, which follow x and y in the buffer."""
        return pair

    # What it refuses

    def refused(self, problem: tuple[int, str, int]) -> FormatError:
        """The error for a refused id: outside the vocabulary, or too large for the dtype asked for."""
        value, path, offset = problem
        vocab = self.tokens.vocab
        if vocab is not None and not 0 <= value < vocab:
            return self.tokens.refused(value, path, offset)
        return FormatError(f"{self.store.where}: expected ids that fit {self.dtype}, got {value}. Use dtype='int64'.")

    def check(self, narrow: NDArray[Any], numbers: Starts) -> None:
        """The same for tokens as they are on disk, of windows at these numbers."""

        def position(index: int) -> int:
            row, column = divmod(index, self.length + 1)
            return int(numbers[row]) + self.first + column

        self.tokens.check(narrow, position)
        self.check_fits(narrow)

    def check_fits(self, narrow: NDArray[Any]) -> None:
        """Refuse ids that the dtype asked for cannot hold."""
        if self.narrows and narrow.size:
            low, high, limits = int(narrow.min()), int(narrow.max()), np.iinfo(self.dtype)
            if low < limits.min or high > limits.max:
                raise self.refused((low if low < limits.min else high, "", 0))

    # What it is and costs

    def sizes(self, rows: int) -> tuple[int, int]:
        """Bytes of x (y has as many), and of x, y and docs."""
        if self._known[0] == rows:
            return self._known[1:]
        half = whole_pages(rows * self.length * self.dtype.itemsize)
        size = 2 * half + (0 if self.docs is None else self.docs.nbytes(rows))
        self._known = rows, half, size
        return half, size

    def nbytes(self, rows: int) -> int:
        return self.sizes(rows)[1]

    def scratch(self, rows: int) -> int:
        """Bytes of the narrow tokens that x and y are widened from."""
        return rows * self.window

    def places(self, numbers: Numbers) -> list[Place]:
        return [Place(*self.tokens.place(int(start) + self.first)) for start in numbers]

    def settings(self) -> dict[str, Any]:
        """What fixes the rows, apart from the data and their order, safe for JSON."""
        return {"length": self.length}

    def fingerprint(self) -> dict[str, Any]:
        return self.tokens.fingerprint()

    def needs(self, rows: int) -> int:
        """Bytes of the budget that batches of so many rows use, if there is room."""
        prepared, staging = prepared_ahead(self.store)
        return (2 + prepared) * self.nbytes(rows) + whole_pages(self.scratch(rows)) + staging

    def plan(self, rows: int) -> Plan:
        size, scratch, held = self.nbytes(rows), self.scratch(rows), self.needs(rows)
        why = [f"batches of {format_size(size)}, one held and one being filled, widened from {format_size(scratch)}"]
        prepared, _ = prepared_ahead(self.store)
        if prepared:
            why[0] += f"; {prepared} more are prepared in advance while data is cold, if the budget has room"
        if self.held is not None:
            fits = self.held.fits(held)
            how = "are held in memory" if fits else "are read batch by batch: they do not fit the budget"
            why.append(f"the index's tables, {format_size(self.held.nbytes)}, {how}")
            held += self.held.nbytes if fits else 0
        return project(self.store, held, announced=2 * rows * (self.window + 2 * PAGE), why=tuple(why))


def _native_integers(stated: DTypeLike) -> np.dtype[Any]:
    try:
        dtype = np.dtype(stated)
    except (TypeError, ValueError, SyntaxError):
        raise TypeError(
            f"dtype: expected a native integer type for tokens, got {stated!r}. Use dtype='int64'."
        ) from None
    if dtype.kind not in "iu" or not dtype.isnative:
        raise ValueError(f"dtype: expected a native integer type for tokens, got {stated}. Use dtype='int64'.")
    return dtype
