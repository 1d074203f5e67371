"""Rows of a layout, read through a store into buffers: where bytes become rows.

One idea: a C-ordered row is one run of bytes, so rows are runs; a Fortran-ordered row is one item out of every column,
so its items are gathered column by column and turned. Everything above asks for rows and never knows which.

Costs nothing beyond the store for C order. Fortran order needs a second buffer of the batch's size and one read a
column: right, but slower; ``plan()`` says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.errors import BudgetError
from lowtide.formats import Layout
from lowtide.machine import PAGE
from lowtide.storage import Buffer, Store
from lowtide.storage.buffers import wrap
from lowtide.units import format_size

Numbers = NDArray[np.int64]

ALIGN_FROM = 256 * 1024  # smaller results are not worth the page that aligning them costs
COLUMNS_AT_ONCE = 1 << 16  # offsets computed at a time for scattered Fortran rows: half a MiB of them


class Rows:
    """``count`` rows of ``shape`` and ``dtype``; ``block`` and ``at`` fill buffers with them."""

    def __init__(self, layout: Layout, store: Store) -> None:
        self.store = store
        self.layout = layout
        self.dtype = layout.dtype
        self.count = layout.shape[0]
        self.shape = layout.shape[1:]
        self.nbytes = math.prod(self.shape) * layout.dtype.itemsize
        self.fortran = layout.fortran
        self._ends = np.cumsum(layout.rows, dtype=np.int64)

    @property
    def copies(self) -> int:
        """Buffers an iterator needs at once: one in the user's hands, one being filled, one to turn columns in."""
        return 3 if self.fortran else 2

    def block(self, first: int, count: int, buffer: Buffer) -> None:
        """Consecutive rows."""
        if self.fortran:
            self._turned(np.arange(first, first + count), buffer)
        else:
            self.store.run(first * self.nbytes, count * self.nbytes, buffer)

    def at(
        self, numbers: Numbers, buffer: Buffer, *, ahead: Callable[[], Numbers] | None = None, sparse: bool = False
    ) -> None:
        """These rows, in this order; ``ahead`` gives the next call's, ``sparse`` says that few are neighbours."""
        if self.fortran:
            self._turned(numbers, buffer)
        else:
            self.store.gather(numbers, self.nbytes, self.nbytes, buffer, ahead=ahead, sparse=sparse)

    def array(self, buffer: Buffer, count: int) -> NDArray[Any]:
        """The filled buffer as rows, lent to the user."""
        return self.store.lend(buffer, (count, *self.shape), self.dtype)

    def own(self, numbers: range | Numbers) -> NDArray[Any]:
        """These rows in an ordinary array of the caller's own."""
        size = len(numbers) * self.nbytes
        budget = self.store.budget
        if budget.stated and size > budget.limit:
            raise BudgetError(
                f"{self.store.where}: expected at most {format_size(budget.limit)} (the budget) at once, got a "
                f"request for {len(numbers)} rows, {format_size(size)}. Read fewer rows, iterate, or open with "
                f"budget={size}."
            )
        if self.fortran:  # columns are turned in a buffer as large as the result
            where = f"{self.store.where}: {len(numbers)} rows of a file in Fortran order"
            budget.admit(size, copies=1, where=where, smaller="read fewer rows")
        out = _empty((len(numbers), *self.shape), self.dtype)
        buffer = wrap(out)
        if isinstance(numbers, range):
            self.block(numbers.start, len(numbers), buffer)
        else:
            self.at(numbers, buffer)
        return out

    def _turned(self, numbers: Numbers, buffer: Buffer) -> None:
        """Rows of Fortran-ordered extents: read by columns, then turn."""
        out: NDArray[Any] = np.ndarray((len(numbers), *self.shape), self.dtype, buffer.view)
        files = np.searchsorted(self._ends, numbers, side="right")
        scratch = self.store.take(max(len(numbers) * self.nbytes, 1))
        try:
            # Not np.unique: its first call imports numpy.ma, and a child forked meanwhile would wait for that for ever.
            for file in sorted(set(files.tolist())):
                mine = files == file
                rows = self.layout.rows[file]
                first = int(self._ends[file]) - rows
                out[mine] = self._columns(numbers[mine] - first, first * self.nbytes, rows, scratch)
        finally:
            self.store.pool.give(scratch)

    def _columns(self, numbers: Numbers, base: int, rows: int, scratch: Buffer) -> NDArray[Any]:
        item = self.dtype.itemsize
        columns = math.prod(self.shape)
        consecutive = len(numbers) == 1 or bool((numbers[1:] - numbers[:-1] == 1).all())
        step = columns if consecutive else max(1, COLUMNS_AT_ONCE // len(numbers))
        view = scratch.view
        for first in range(0, columns, step):
            some = np.arange(first, min(first + step, columns), dtype=np.int64)
            part = Buffer(view[first * len(numbers) * item :], 0)
            if consecutive:
                self.store.gather(base // item + some * rows + numbers[0], item, len(numbers) * item, part)
            else:
                self.store.gather((base // item + some[:, None] * rows + numbers).reshape(-1), item, item, part)
        # Axes come back reversed: the first axis varies fastest on disk.
        turned: NDArray[Any] = np.ndarray((*reversed(self.shape), len(numbers)), self.dtype, view)
        return turned.transpose()


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Like np.empty, page-aligned when large: the kernel copies up to five times faster into such memory."""
    size = math.prod(shape) * dtype.itemsize
    if size < ALIGN_FROM:
        return np.empty(shape, dtype)
    memory = np.empty(size + PAGE, np.uint8)
    aligned = -memory.ctypes.data % PAGE
    return np.ndarray(shape, dtype, memory, offset=aligned)
