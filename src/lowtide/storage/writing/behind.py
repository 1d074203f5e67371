"""Writing with bounded dirty pages: the disk starts on a piece while the caller makes the next one.

One idea: a written piece is handed to the disk at once, and before another may be written the oldest one must have
arrived. So at most ``most`` bytes of the file are ever dirty, on their way or - when dropping - in the page cache, and
no ``fsync`` at the end has gigabytes to catch up with.

Costs two system calls per piece (``sync_file_range``; ``fdatasync`` where there is none, at about half the speed).
Writes may come from several threads. Knows no dtypes, rows or names of files; does not make the data durable: that is
``fsync``'s, at the end.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lowtide.machine import PAGE
from lowtide.units import MIB

FOLIO = 2 * MIB  # the kernel drops a large folio only when the range names all of it
_WAIT_BEFORE, _WRITE, _WAIT_AFTER = 1, 2, 4  # of sync_file_range


@dataclass
class _Stretch:
    """Bytes ``[start, end)`` of the file, ``size`` of which were written since the disk was last asked."""

    start: int
    end: int
    size: int

    def take_in(self, other: _Stretch) -> None:
        # What goes on where this ends touches its last page again: rows of 8 bytes must not count as pages.
        self.size += min(other.size, _up(other.end) - _up(self.end)) if other.start == self.end else other.size
        self.start = min(self.start, other.start)
        self.end = max(self.end, other.end)


class WriteBehind:
    """Writes to the descriptor ``number``, ``piece`` bytes at a time, never ahead of the disk by more than ``most``.

    ``keep``: bytes that may stay in the page cache; once more than that was written, all of it is dropped behind.
    """

    def __init__(self, number: int, *, most: int, piece: int, keep: int | None) -> None:
        self.piece = piece
        self._number = number
        self._most = most
        self._keep = keep
        self._written = 0
        self._dropping = keep == 0
        self._over = False
        self._range = _sync_file_range()
        # By thread, so that one that was interrupted half-way writes over its own entry instead of leaking it.
        self._writing: dict[int, int] = {}
        self._waiting: dict[int, _Stretch] = {}
        self._open: dict[int, _Stretch] = {}  # written, the disk not yet asked
        self._asked: deque[_Stretch] = deque()
        # Taken as a lock, not through its condition: only then no interrupt falls between taking and entering.
        self._lock = threading.RLock()
        self._change = threading.Condition(self._lock)

    def write(self, parts: list[memoryview], offset: int) -> None:
        """Write ``parts`` in turn at ``offset``, together at most one piece; returns once others may follow."""
        length = sum(len(part) for part in parts)
        me = threading.get_ident()
        try:
            self._make_room(me, _pages(offset, length))
            self._put(parts, offset, length)
        finally:
            try:
                full = self._note(me, offset, length)
                if full is not None:
                    self._sync(full, _WRITE)  # the disk may start; returns before it is done
            finally:
                with self._lock:
                    self._forget(me)

    def finish(self) -> None:
        """No write begins any more, and none is under way: the descriptor may be closed."""
        with self._lock:
            self._over = True
            self._forget(threading.get_ident())
            self._change.wait_for(lambda: not self._writing and not self._waiting)

    def leave_cache(self) -> None:
        """After ``fsync``: drop what may not stay."""
        if self._dropping:
            _drop(self._number, 0, 0)

    # Room

    def _make_room(self, me: int, size: int) -> None:
        while True:
            with self._lock:
                if self._over:
                    raise ValueError("expected a file that is being written, got a finished one. Create it again.")
                self._forget(me)
                self._writing[me] = 0
                held = self._held()
                if held + size <= self._most or not held:
                    self._writing[me] = size
                    return
                oldest = self._oldest()
                if oldest is None:  # all of it is being written or waited for by other threads
                    self._change.wait(1.0)
                    continue
                self._waiting[me] = oldest
            self._settle(oldest)

    def _forget(self, me: int) -> None:
        """This thread neither writes nor waits any more."""
        self._writing.pop(me, None)
        self._waiting.pop(me, None)
        self._change.notify_all()

    def _held(self) -> int:
        """Bytes dirty or on their way."""
        stretches = (*self._waiting.values(), *self._open.values(), *self._asked)
        return sum(self._writing.values()) + sum(stretch.size for stretch in stretches)

    def _oldest(self) -> _Stretch | None:
        """What to wait for next; without ``sync_file_range`` everything at once, since ``fdatasync`` is for all."""
        if not self._asked or self._range is None:
            self._asked.extend(self._open.values())
            self._open.clear()
        if not self._asked:
            return None
        oldest = self._asked.popleft()
        while self._range is None and self._asked:
            oldest.take_in(self._asked.popleft())
        return oldest

    def _note(self, me: int, offset: int, length: int) -> _Stretch | None:
        """Remember what was written; a stretch for the disk to start on, once it is a piece."""
        with self._lock:
            size = self._writing.get(me, 0)
            if me in self._writing:
                self._writing[me] = 0
            self._written += size
            stretch = _Stretch(offset, offset + length, size)
            mine = self._open.setdefault(me, stretch)
            if mine is not stretch:
                mine.take_in(stretch)
            if mine.size < self.piece:
                return None
            self._asked.append(self._open.pop(me))
            return mine

    # The kernel

    def _put(self, parts: list[memoryview], offset: int, length: int) -> None:
        """All of it, however short the single writes are."""
        while length:
            done = os.pwritev(self._number, parts, offset)
            if done <= 0:
                raise OSError(errno.EIO, "nothing was written")
            offset += done
            length -= done
            while parts and done >= len(parts[0]):
                done -= len(parts[0])
                parts = parts[1:]
            if done:
                parts = [parts[0][done:], *parts[1:]]

    def _sync(self, stretch: _Stretch, flags: int) -> bool:
        """False where the filesystem, or a sandbox around us, has no ``sync_file_range``."""
        if self._range is not None and not self._range(self._number, stretch.start, stretch.end - stretch.start, flags):
            self._range = None
        return self._range is not None

    def _settle(self, stretch: _Stretch) -> None:
        """Wait until the disk has it, then drop it if it may not stay."""
        if not self._sync(stretch, _WAIT_BEFORE | _WRITE | _WAIT_AFTER):
            getattr(os, "fdatasync", os.fsync)(self._number)
        if self._dropping:
            start = stretch.start - stretch.start % FOLIO
            _drop(self._number, start, -(-stretch.end // FOLIO) * FOLIO - start)
        elif self._keep is not None and self._written > self._keep:
            self._dropping = True
            _drop(self._number, 0, 0)


def _up(offset: int) -> int:
    return -(-offset // PAGE) * PAGE


def _pages(offset: int, length: int) -> int:
    """Bytes of the pages that a write touches."""
    return _up(offset + length) - offset // PAGE * PAGE


def _drop(number: int, offset: int, length: int) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(number, offset, length, os.POSIX_FADV_DONTNEED)


def _sync_file_range() -> Callable[[int, int, int, int], bool] | None:
    """``sync_file_range``, which Python does not offer; None where the system has none."""
    if sys.platform != "linux":
        return None
    import ctypes

    function: Any = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

    def sync(number: int, offset: int, length: int, flags: int) -> bool:
        if function(number, offset, length, flags) == 0:
            return True
        code = ctypes.get_errno()
        if code in (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP):
            return False
        raise OSError(code, os.strerror(code))

    return sync
