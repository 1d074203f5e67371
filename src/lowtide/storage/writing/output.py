"""The bytes of a new file, appended or put in place inside a budget; the file gets its name once it is complete.

Small appends gather in one buffer, large ones go to the file as they are, and both are cut at the edges of
pieces, so that whole folios are written out - and dropped - together. ``behind.py`` keeps the disk close behind,
``unfinished.py`` withholds the name until the end.

Costs the buffer and the pages on their way to the disk: together at most the budget. Knows no dtypes or rows.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

from lowtide.errors import BudgetError
from lowtide.machine import room_for_cache
from lowtide.storage.budget import AUTO_BUDGET
from lowtide.storage.buffers import allocate_anonymous
from lowtide.storage.own_files import write_failed
from lowtide.storage.writing.behind import WriteBehind
from lowtide.storage.writing.unfinished import Unfinished
from lowtide.units import KIB, MIB, format_size, parse_size

LEAST_BUDGET = MIB
LEAST_PIECE, MOST_PIECE = 128 * KIB, 8 * MIB  # smaller ones cost system calls; larger ones gain nothing
SHARES = 8  # pieces in a budget: one buffer, one copy of rows that are not contiguous, six on their way to the disk


class Output:
    """A new file of ``head`` bytes, left for ``finish`` to fill, followed by the data.

    ``length``: bytes of data if that is known; then ``put`` may write anywhere inside them.
    """

    def __init__(
        self,
        path: str,
        *,
        budget: int | str = "auto",
        cache: str = "auto",
        overwrite: bool = False,
        head: int = 0,
        length: int | None = None,
    ) -> None:
        self._file: Unfinished | None = None
        self.where = path
        self.process = os.getpid()
        limit = _limit(budget, path)
        self.piece = min(max(1 << ((limit // SHARES).bit_length() - 1), LEAST_PIECE), MOST_PIECE)
        self._head = head
        self._length = length
        # Bytes [_base, _end) are in the buffer, those before _base in the file. Each changes in one store, so that an
        # interrupt finds either the state before an append or the state after it.
        self._base = self._end = head
        self._turn = threading.RLock()
        self._buffer = memoryview(allocate_anonymous(self.piece))
        self._file = Unfinished(path, overwrite=overwrite)
        number = self._file.number
        self._behind = WriteBehind(number, most=limit - 2 * self.piece, piece=self.piece, keep=_keep(cache, length))
        if length is not None:
            self._to_disk(os.ftruncate, number, head + length)

    @property
    def closed(self) -> bool:
        return self._file is None

    @property
    def appended(self) -> int:
        """Bytes of data appended so far."""
        return self._end - self._head

    def append(self, views: Iterable[memoryview]) -> None:
        """Append all of ``views``; if that fails or is interrupted, none of them."""
        with self._turn:
            self.require()
            if self._base > self._end:  # an append was interrupted after part of it had reached the file
                self._base = self._end
            position = self._end
            for view in views:
                position = self._to_disk(self._take_in, view, position)
            self._end = position

    def put(self, view: memoryview, offset: int) -> None:
        """Bytes at ``offset`` of the data, from any thread."""
        self.require()
        offset += self._head
        while len(view):
            length = min(len(view), self._room(offset))
            self._to_disk(self._behind.write, [view[:length]], offset)
            view, offset = view[length:], offset + length

    def finish(self, head: bytes = b"") -> None:
        """Fill in the head, make all of it durable and give it its name; if that fails, nothing is left."""
        with self._turn:
            self.require()
            try:
                self._to_disk(self._complete, head)
            except BaseException:
                self.discard()
                raise

    def discard(self) -> None:
        """Give up: the unfinished file is removed and the name stays as it was."""
        with self._turn:
            if self._file is not None:
                if self.process == os.getpid():
                    self._behind.finish()
                self._file.discard()
                self._file = None  # last, so that it can be repeated if interrupted before

    def require(self) -> None:
        """ValueError unless it is open, in the process that opened it."""
        if self._file is None:
            raise ValueError(f"{self.where}: expected an open file, got a closed one. Create it again.")
        if self.process != os.getpid():
            raise ValueError(
                f"{self.where}: expected to be written by the process that created it, got its child. "
                "Write one file per process; lowtide.open takes a list of them as one array."
            )

    def _take_in(self, view: memoryview, position: int) -> int:
        """Put bytes at ``position``: whole pieces to the file, the rest into the buffer."""
        while len(view):
            kept = position - self._base
            room = self._room(position)
            if len(view) < room:
                self._buffer[kept : kept + len(view)] = view
                return position + len(view)
            parts = [self._buffer[:kept], view[:room]] if kept else [view[:room]]
            self._behind.write(parts, self._base)
            position += room
            self._base = position
            view = view[room:]
        return position

    def _room(self, position: int) -> int:
        """Bytes up to the next edge of a piece."""
        return self.piece - position % self.piece

    def _complete(self, head: bytes) -> None:
        file = self._file
        assert file is not None
        if self._base < self._end:
            self._behind.write([self._buffer[: self._end - self._base]], self._base)
            self._base = self._end
        if head:
            self._behind.write([memoryview(head)], 0)
        self._behind.finish()
        if self._length is None:
            os.ftruncate(file.number, self._end)  # an interrupted append may have left bytes after it
        os.fsync(file.number)
        self._behind.leave_cache()
        file.finish()
        self._file = None

    def _to_disk(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Around a call that writes: if the disk refuses, nothing is left of the file."""
        try:
            return call(*arguments)
        except OSError as problem:
            if self._file is None or problem.errno is None or problem.strerror is None:  # the message is ours already
                self.discard()
                raise
            size, more = (self.appended, " and more") if self._length is None else (self._length, "")
            told = write_failed(self.where, problem, size, more=more, left="; nothing was left behind")
            self.discard()
            raise told from problem


def _limit(budget: int | str, where: str) -> int:
    limit = AUTO_BUDGET if budget == "auto" else parse_size(budget, what="budget")
    if limit < LEAST_BUDGET:
        raise BudgetError(
            f"{where}: expected a budget of {format_size(LEAST_BUDGET)} or more for writing, got {format_size(limit)}. "
            f"Use budget={LEAST_BUDGET}."
        )
    return limit


def _keep(cache: str, length: int | None) -> int | None:
    """Bytes of the file that may stay in the page cache; None: all of them."""
    if cache != "auto":
        return 0 if cache == "drop" else None
    room = room_for_cache()[0] // 2
    if length is None:
        return room
    return None if length <= room else 0
