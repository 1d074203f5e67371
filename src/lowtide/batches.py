"""Iterators over rows: which rows come next, read and lent batch by batch.

One idea: the next batch's rows are known before this one is read, because an order is a pure function; so each step
tells the kernel of the following one. A step that fails delivers nothing and can be asked for again.

Costs one block of row numbers (64 KiB) and about 10 microseconds a batch. No threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.rows import Numbers, Rows
from lowtide.storage import Buffer

BLOCK = 8192  # row numbers computed at a time: 64 KiB, and the order's fixed cost spread over many batches


SPARSE_FROM = 64  # an array this many times longer than a batch holds few neighbours of it


class Upcoming:
    """Row numbers of positions ``[start, stop)`` of an order, computed in blocks; ``stop`` None: endless."""

    def __init__(self, compute: Callable[[int, int], Numbers], start: int, stop: int | None) -> None:
        self._compute = compute
        self.position = start
        self.stop = stop
        self._blocks: dict[int, Numbers] = {}

    def left(self, most: int) -> int:
        return most if self.stop is None else max(0, min(most, self.stop - self.position))

    def peek(self, skip: int, count: int) -> Numbers:
        """Up to ``count`` (at most ``BLOCK``) numbers from ``skip`` on, without moving."""
        first = self.position + skip
        last = first + min(count, BLOCK)
        if self.stop is not None:
            last = min(last, self.stop)
        if first >= last:
            return np.empty(0, np.int64)
        index, start = divmod(first, BLOCK)
        if last <= (index + 1) * BLOCK:
            return self._block(index)[start : start + last - first]
        return np.concatenate((self._block(index)[start:], self._block(index + 1)[: last - (index + 1) * BLOCK]))

    def move(self, count: int) -> None:
        self.position += count

    def _block(self, index: int) -> Numbers:
        block = self._blocks.get(index)
        if block is None:
            first = index * BLOCK
            block = self._compute(first, BLOCK if self.stop is None else min(BLOCK, self.stop - first))
            if len(self._blocks) >= 3:  # this batch's, the next one's, and one they both reach into
                del self._blocks[min(self._blocks)]
            self._blocks[index] = block
        return block


class Turn:
    """One thread at a time asks an iterator for its next batch. A forked or unpickled one begins with nobody in it."""

    __slots__ = ("_lock", "_process")

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Turn], tuple[()]]:
        return Turn, ()

    def lock(self) -> threading.Lock:
        """A plain lock: half a microsecond less a batch than a context manager of our own."""
        if self._process != os.getpid():
            self.__init__()  # type: ignore[misc]  # a thread of the parent may hold the inherited lock
        return self._lock


class ChunkIterator:
    """Consecutive rows. ``position`` is the row the next chunk starts at."""

    def __init__(self, rows: Rows, batch: int, start: int, stop: int) -> None:
        self._rows = rows
        self._batch = batch
        self.position = start
        self._stop = stop
        self._turn = Turn()

    def __iter__(self) -> ChunkIterator:
        return self

    def __length_hint__(self) -> int:
        return -(-max(0, self._stop - self.position) // self._batch)

    def __next__(self) -> NDArray[Any]:
        with self._turn.lock():
            return self._next()

    def _next(self) -> NDArray[Any]:
        count = min(self._batch, self._stop - self.position)
        if count <= 0:
            raise StopIteration
        rows = self._rows
        buffer = rows.store.take(self._batch * rows.nbytes)
        try:
            rows.block(self.position, count, buffer)
        except BaseException:
            rows.store.pool.give(buffer)
            raise
        self.position += count
        return rows.array(buffer, count)


class BatchIterator:
    """Gathered rows. ``position`` counts rows since the order's beginning: pass it as ``start=`` to resume."""

    def __init__(self, rows: Rows, batch: int, upcoming: Upcoming, *, base: int = 0, scattered: bool = False) -> None:
        self._rows = rows
        self._batch = batch
        # Of rows drawn from all over a much longer array hardly two are neighbours.
        self._sparse = scattered and min(batch, BLOCK) * SPARSE_FROM < rows.count
        self._upcoming = upcoming
        self._base = base
        self._turn = Turn()

    @property
    def position(self) -> int:
        return self._upcoming.position - self._base

    def __iter__(self) -> BatchIterator:
        return self

    def __length_hint__(self) -> int:
        stop = self._upcoming.stop
        return 0 if stop is None else -(-max(0, stop - self._upcoming.position) // self._batch)

    def __next__(self) -> NDArray[Any]:
        with self._turn.lock():
            return self._next()

    def _next(self) -> NDArray[Any]:
        count = self._upcoming.left(self._batch)
        if count == 0:
            raise StopIteration
        rows = self._rows
        buffer = rows.store.take(self._batch * rows.nbytes)
        try:
            self._fill(buffer, count)
        except BaseException:
            rows.store.pool.give(buffer)
            raise
        self._upcoming.move(count)
        return rows.array(buffer, count)

    def _fill(self, buffer: Buffer, count: int) -> None:
        """In steps of at most ``BLOCK`` rows, so that what a huge batch needs beside its buffer stays small."""
        rows, upcoming = self._rows, self._upcoming
        if rows.fortran:  # every step passes over all columns: one step
            numbers = [upcoming.peek(first, count - first) for first in range(0, count, BLOCK)]
            rows.at(np.concatenate(numbers), buffer)
            return
        for first in range(0, count, BLOCK):
            numbers_now = upcoming.peek(first, count - first)
            part = buffer if first == 0 else Buffer(buffer.view[first * rows.nbytes :], 0)
            after = first + len(numbers_now)
            rows.at(numbers_now, part, ahead=partial(upcoming.peek, after, self._batch), sparse=self._sparse)
