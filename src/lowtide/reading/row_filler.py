"""Rows of a layout, read through a store into buffers: where bytes become rows.

One idea: a C-ordered row is one run of bytes, so rows are runs; a Fortran-ordered row is one item out of every column,
so its items are gathered column by column and turned. Everything above asks for rows and never knows which, nor
whether they are those of the whole file or of a part of it: numbers are translated here, just before they are read.

Costs nothing beyond the store for C order. Fortran order needs a second buffer of the batch's size and one read per
column: right, but slower; ``plan()`` says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.errors import BudgetError
from lowtide.formats import Layout
from lowtide.machine import PAGE
from lowtide.reading.fingerprint import hash_of_blocks, hash_of_sizes
from lowtide.reading.indexing import Selection
from lowtide.reading.parts import Part, Stretch, chained, lists_of
from lowtide.reading.passes import Pass
from lowtide.reading.prefetch import Arrays, Following, NativeThread
from lowtide.reading.upcoming import BLOCK, Numbers, Upcoming
from lowtide.storage import Budget, Buffer, Filling, Pool, Store
from lowtide.storage.buffers import wrap
from lowtide.units import MIB, format_size

ALIGN_FROM = 256 * 1024  # smaller results are not worth the page that aligning them costs
COLUMNS_AT_ONCE = 1 << 16  # offsets computed at a time for scattered Fortran rows: half a MiB of them
SPARSE_FROM = 64  # an array this many times longer than a batch holds few neighbours of it
_BYTE = np.dtype(np.uint8)
SCRATCH = 8 * MIB  # most bytes of whole rows read at a time where only a part of each row is wanted


class RowFiller:
    """``count`` rows of ``shape`` and ``dtype``: ``block`` and ``at`` fill buffers, ``read`` lends batches."""

    def __init__(self, layout: Layout, store: Store, part: Part | None = None) -> None:
        self.store = store
        self.layout = layout
        self.part = part
        self.dtype = layout.dtype
        self.count = layout.shape[0] if part is None else part.count
        self.shape = layout.shape[1:]
        self.nbytes = math.prod(self.shape) * layout.dtype.itemsize
        self.fortran = layout.fortran
        self._ends = np.cumsum(layout.rows, dtype=np.int64)
        self._fingerprint: dict[str, Any] | None = None
        for index in lists_of(part):
            index.hold(store.budget, store.where)

    @property
    def where(self) -> str:
        return self.store.where

    @property
    def budget(self) -> Budget:
        return self.store.budget

    @property
    def stores(self) -> tuple[Store, ...]:
        return (self.store,)

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Where its batches' buffers come from."""
        return (self.store.pool,)

    @property
    def copies(self) -> int:
        """Buffers an iterator needs at once: one in the user's hands, one being filled, one to turn columns in."""
        return 3 if self.fortran else 2

    def admit(self, call: str, batch: int) -> None:
        """Refuse batches of which the budget cannot hold as many as iterating needs; ``call`` is what was called."""
        self.store.require_open()  # a closed store is refused here, not at the first batch
        pages = (self.budget.limit - self.budget.aside) // self.copies // PAGE  # buffers are whole pages
        fits = pages * PAGE // max(1, self.nbytes)
        self.budget.admit(
            batch * self.nbytes,
            copies=self.copies,
            where=f"{self.where}: {call}({batch})",
            smaller=f"use {call}({fits})" if fits > 0 else "",
        )

    def fingerprint(self) -> dict[str, Any]:
        """What makes these rows these rows, wherever the file is copied: never path, time or inode."""
        if self._fingerprint is None:
            self._fingerprint = {
                "dtype": self.dtype.str,
                "shape": list(self.layout.shape),
                "files": hash_of_sizes(extent.size for extent in self.layout.extents),
                "blocks": hash_of_blocks(self.store, 1, 0, self.layout.nbytes),
                "part": None if self.part is None else self.part.settings(),
            }
        return dict(self._fingerprint)

    def part_of(self, part: Part) -> RowFiller:
        """The rows of ``part`` of these rows, from the same store."""
        return RowFiller(self.layout, self.store, chained(part, self.part))

    def __reduce__(self) -> tuple[object, ...]:
        return RowFiller, (self.layout, self.store, self.part)

    # Batches, lent

    def read(
        self,
        order: Pass,
        upcoming: Upcoming,
        first: int,
        count: int,
        room: int,
        following: Following | None = None,
    ) -> NDArray[Any]:
        """Rows at positions ``[first, first + count)``, lent; ``room``: the usual number of rows of a batch.

        A short batch uses a buffer of the usual size, which is there already. ``following``: the batches after this
        one, which may be prepared meanwhile.
        """
        store = self.store
        # Of rows drawn from all over a much longer array hardly two are neighbours.
        sparse = order.scattered and min(room, BLOCK) * SPARSE_FROM < self.count
        prefetch = None if following is None or not sparse or self.fortran or room > BLOCK else following.prefetch
        ready = None if prefetch is None else prefetch.take(store, first)
        with store.filling(room * self.nbytes) if ready is None else ready.filling as out:
            if ready is not None:
                rows = ready.arrays[0]
                store.prefetched(count, self.nbytes, ready.hits)
            else:
                rows = out.lend((count, *self.shape), self.dtype)
                if order.consecutive and (self.part is None or isinstance(self.part, Stretch)):
                    self.block(int(upcoming.at(first, 1)[0]), count, out.buffer)
                else:
                    self._fill(upcoming, first, count, room, out.buffer, sparse)
            if prefetch is not None and following is not None and store.cold:
                prefetch.keep_ahead(store, following, room * self.nbytes, self._begin)
            return rows

    def _begin(self, thread: NativeThread, filling: Filling, numbers: Numbers) -> tuple[Arrays, Any] | None:
        """Let a native thread fill a batch. As long as it may write, the buffer is lent, whatever happens to us."""
        spans = self.store.startable(
            numbers if self.part is None else self.part.rows(numbers), self.nbytes, self.nbytes
        )
        if spans is None or self.nbytes == 0:
            return None
        rows = filling.lend((len(numbers), *self.shape), self.dtype)
        into = filling.lend((spans.total,), _BYTE)
        return (rows,), self.store.start_gather(thread.fills, spans, into)

    def _fill(self, upcoming: Upcoming, first: int, count: int, room: int, buffer: Buffer, sparse: bool) -> None:
        """In steps of at most ``BLOCK`` rows, so that what a huge batch needs beside its buffer stays small."""
        if self.fortran:  # every step passes over all columns: one step
            steps = [upcoming.at(first + done, min(BLOCK, count - done)) for done in range(0, count, BLOCK)]
            self.at(np.concatenate(steps), buffer)
            return
        for done in range(0, count, BLOCK):
            size = min(BLOCK, count - done)
            later = partial(upcoming.at, first + done + size, min(room, BLOCK))
            self.at(upcoming.at(first + done, size), buffer.after(done * self.nbytes), ahead=later, sparse=sparse)

    # Buffers, filled

    def block(self, first: int, count: int, buffer: Buffer) -> None:
        """Consecutive rows."""
        if isinstance(self.part, Stretch):
            first += self.part.first
        elif self.part is not None:
            self._translated(lambda done, size: np.arange(first + done, first + done + size), count, buffer)
            return
        if self.fortran:
            self._turned(np.arange(first, first + count), buffer)
        else:
            self.store.run(first * self.nbytes, count * self.nbytes, buffer)

    def at(
        self, numbers: Numbers, buffer: Buffer, *, ahead: Callable[[], Numbers] | None = None, sparse: bool = False
    ) -> None:
        """These rows, in this order; ``ahead`` gives the next call's, ``sparse`` says that few are neighbours."""
        if self.part is not None:
            if len(numbers) > BLOCK:
                self._translated(lambda done, size: numbers[done : done + size], len(numbers), buffer)
                return
            rows, later = self.part.rows, ahead
            numbers = rows(numbers)
            ahead = None if later is None else lambda: rows(later())
        if self.fortran:
            self._turned(numbers, buffer)
        else:
            self.store.gather(numbers, self.nbytes, self.nbytes, buffer, ahead=ahead, sparse=sparse)

    def _translated(self, numbers: Callable[[int, int], Numbers], count: int, buffer: Buffer) -> None:
        """Rows of a part, in steps, so that translating many of them needs little beside the buffer."""
        assert self.part is not None
        if self.fortran:  # every step passes over all columns: one step
            self._turned(self.part.rows(numbers(0, count)), buffer)
            return
        for done in range(0, count, BLOCK):
            self.at(numbers(done, min(BLOCK, count - done)), buffer.after(done * self.nbytes))

    # Arrays of the caller's own

    def select(self, selection: Selection) -> Any:
        """What NumPy would give for a key: whole rows in one read, parts of rows a bounded piece at a time."""
        if selection.rest is None:
            return self.own(selection.rows)
        if not selection.divides or len(selection.rows) <= self._piece():
            rows = self.own(selection.rows)
            result = rows[selection.rest]
            if isinstance(result, np.ndarray) and result.base is not None and result.nbytes < rows.nbytes:
                return result.copy()  # a small view would keep all rows that were read alive
            return result
        return self._select_in_pieces(selection)

    def own(self, numbers: range | Numbers) -> NDArray[Any]:
        """These rows in an ordinary array of the caller's own."""
        size = len(numbers) * self.nbytes
        self._fits(size, f"{len(numbers)} rows")
        if self.fortran:  # columns are turned in a buffer as large as the result
            where = f"{self.store.where}: {len(numbers)} rows of a file in Fortran order"
            self.store.budget.admit(size, copies=1, where=where, smaller="read fewer rows")
        out = empty((len(numbers), *self.shape), self.dtype)
        self._into(numbers, wrap(out))
        return out

    def _into(self, numbers: range | Numbers, buffer: Buffer) -> None:
        if isinstance(numbers, range):
            self.block(numbers.start, len(numbers), buffer)
        else:
            self.at(numbers, buffer)

    def _select_in_pieces(self, selection: Selection) -> NDArray[Any]:
        piece, total, done = self._piece(), len(selection.rows), 0
        out: NDArray[Any] | None = None
        with self.store.filling(piece * self.nbytes) as scratch:
            for first in range(0, total, piece):
                last = min(first + piece, total)
                self._into(selection.rows[first:last], scratch.buffer)
                rows: NDArray[Any] = np.ndarray((last - first, *self.shape), self.dtype, scratch.buffer.view)
                found = rows[selection.rest_of(first, last)]
                if out is None:
                    shape = (selection.length(), *found.shape[1:])
                    self._fits(math.prod(shape) * self.dtype.itemsize, f"a selection of {total} rows")
                    out = np.empty(shape, found.dtype)
                out[done : done + len(found)] = found
                done += len(found)
        assert out is not None  # there is more than one piece
        return out

    def _piece(self) -> int:
        """Rows read at a time where only a part of each is wanted: a quarter of the budget, 8 MiB at most."""
        return max(1, min(SCRATCH, self.store.budget.limit // 4) // max(1, self.nbytes))

    def _fits(self, size: int, what: str) -> None:
        budget = self.store.budget
        if budget.stated and size > budget.limit:
            raise BudgetError(
                f"{self.store.where}: expected at most {format_size(budget.limit)} (the budget) at once, got a "
                f"request for {what}, {format_size(size)}. Read fewer rows, iterate, or open with budget={size}."
            )

    # Fortran order

    def _turned(self, numbers: Numbers, buffer: Buffer) -> None:
        """Rows of Fortran-ordered extents: read by columns, then turn."""
        out: NDArray[Any] = np.ndarray((len(numbers), *self.shape), self.dtype, buffer.view)
        files = np.searchsorted(self._ends, numbers, side="right")
        with self.store.filling(max(len(numbers) * self.nbytes, 1)) as scratch:
            # Not np.unique: its first call imports numpy.ma, and a child forked meanwhile would wait for that for ever.
            for file in sorted(set(files.tolist())):
                mine = files == file
                rows = self.layout.rows[file]
                first = int(self._ends[file]) - rows
                out[mine] = self._columns(numbers[mine] - first, first * self.nbytes, rows, scratch.buffer)

    def _columns(self, numbers: Numbers, base: int, rows: int, scratch: Buffer) -> NDArray[Any]:
        item = self.dtype.itemsize
        columns = math.prod(self.shape)
        consecutive = len(numbers) == 1 or bool((numbers[1:] - numbers[:-1] == 1).all())
        step = columns if consecutive else max(1, COLUMNS_AT_ONCE // len(numbers))
        for first in range(0, columns, step):
            some = np.arange(first, min(first + step, columns), dtype=np.int64)
            part = scratch.after(first * len(numbers) * item)
            if consecutive:
                self.store.gather(base // item + some * rows + numbers[0], item, len(numbers) * item, part)
            else:
                self.store.gather((base // item + some[:, None] * rows + numbers).reshape(-1), item, item, part)
        # Axes come back reversed: the first axis varies fastest on disk.
        turned: NDArray[Any] = np.ndarray((*reversed(self.shape), len(numbers)), self.dtype, scratch.view)
        return turned.transpose()


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Like np.empty, page-aligned when large: the kernel copies up to five times faster into such memory."""
    size = math.prod(shape) * dtype.itemsize
    if size < ALIGN_FROM:
        return np.empty(shape, dtype)
    memory = np.empty(size + PAGE, np.uint8)
    aligned = -memory.ctypes.data % PAGE
    return np.ndarray(shape, dtype, memory, offset=aligned)
