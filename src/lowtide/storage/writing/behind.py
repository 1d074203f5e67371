"""Writing with bounded dirty pages: the disk starts on a piece while the caller makes the next one.

A written piece is handed to the disk at once, and if too many are on their way, the next write waits for the oldest. So
at most ``most`` bytes of the file are ever dirty, on their way or - when dropping - in the page cache, and the
``fsync`` at the end does not have to write gigabytes.

Costs two system calls per piece (``sync_file_range``; if there is none, ``fdatasync`` at about half the speed).
Threads take turns: the kernel lets one at a time write to a file anyway. Does not make the data durable:
``fsync`` does, at the end.
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
_WAIT_BEFORE, START, _WAIT_AFTER = 1, 2, 4  # of sync_file_range


@dataclass(eq=False)
class _Stretch:
    """Bytes ``[start, end)`` of the file, ``size`` of which were written since the disk was last asked."""

    start: int
    end: int
    size: int

    def take_in(self, other: _Stretch) -> None:
        # A write that continues here touches the last page again: rows of 8 bytes must not count as pages.
        self.size += min(other.size, _up(other.end) - _up(self.end)) if other.start == self.end else other.size
        self.start = min(self.start, other.start)
        self.end = max(self.end, other.end)


class WriteBehind:
    """Writes to the descriptor ``number``, ``piece`` bytes at a time, never ahead of the disk by more than ``most``.

    ``keep``: bytes that may stay in the page cache; once more than that is written, everything is dropped.
    """

    def __init__(self, number: int, *, most: int, piece: int, keep: int | None) -> None:
        self.piece = piece
        self._number, self._most, self._keep = number, most, keep
        self._written = 0
        self._dropping = keep == 0
        self._over = False
        self._range = sync_file_range()
        self._dirty: deque[_Stretch] = deque()  # oldest first; the last one is not yet handed to the disk
        self._asked = True  # whether the last one was handed over
        self._lock = threading.RLock()

    def write(self, parts: list[memoryview], offset: int) -> None:
        """Write ``parts`` in turn at ``offset``, together at most one piece; returns once the next may follow."""
        length = sum(len(part) for part in parts)
        new = _Stretch(offset, offset + length, _up(offset + length) - offset // PAGE * PAGE)
        with self._lock:
            if self._over:
                raise ValueError("expected a file that is being written, got a finished one. Create it again.")
            while self._dirty and sum(one.size for one in self._dirty) + new.size > self._most:
                self._settle(self._dirty[0])
            # Counted before it is written: an interrupt half-way loses no count.
            if self._asked or not self._dirty:
                self._dirty.append(new)
                self._asked = False
            else:
                self._dirty[-1].take_in(new)
            self._written += new.size
            self._put(parts, offset, length)
            if self._dirty[-1].size >= self.piece:
                self._asked = True
                self._sync(self._dirty[-1], START)  # the disk may start; returns before it is done

    def finish(self) -> None:
        """Let no more writes begin, and wait for the current one: the descriptor may then be closed."""
        with self._lock:
            self._over = True

    def leave_cache(self) -> None:
        """After ``fsync``: drop what may not stay."""
        if self._dropping:
            _drop(self._number, 0, 0)

    def _put(self, parts: list[memoryview], offset: int, length: int) -> None:
        """Write all of it, however short the single writes are."""
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
        """False if the filesystem, or a sandbox around us, has no ``sync_file_range``."""
        if self._range is not None and not self._range(self._number, stretch.start, stretch.end - stretch.start, flags):
            self._range = None
        return self._range is not None

    def _settle(self, stretch: _Stretch) -> None:
        """Wait until the disk has the oldest, then drop it if it may not stay."""
        if self._sync(stretch, _WAIT_BEFORE | START | _WAIT_AFTER):
            arrived = [stretch]
        else:  # fdatasync is for all
            arrived = list(self._dirty)
            getattr(os, "fdatasync", os.fsync)(self._number)
        if self._dropping:
            start = min(one.start for one in arrived) // FOLIO * FOLIO
            _drop(self._number, start, -(-max(one.end for one in arrived) // FOLIO) * FOLIO - start)
        elif self._keep is not None and self._written > self._keep:
            self._dropping = True
            _drop(self._number, 0, 0)
        self._dirty = deque(one for one in self._dirty if one not in arrived)


def _up(offset: int) -> int:
    return -(-offset // PAGE) * PAGE


def _drop(number: int, offset: int, length: int) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(number, offset, length, os.POSIX_FADV_DONTNEED)


def sync_file_range() -> Callable[[int, int, int, int], bool] | None:
    """``sync_file_range``, which Python does not offer; None if the system has none."""
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
