"""A disk that fails on purpose: stands between Lowtide and the system's reads and spoils the n-th one.

The operating system is the seam: nothing of ours is replaced, so what is tested is what runs. Where ``faulty_disk.c``
was loaded before libc (``make test`` does that for the files of faults), it stands below both engines. Elsewhere
``os.preadv`` is replaced, which only the Python engine calls.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Preadv = Callable[..., int]

REAL: Preadv = os.preadv


def fails_with(code: int) -> Preadv:
    def fail(number: int, views: list[Any], offset: int, flags: int = 0) -> int:
        raise OSError(code, os.strerror(code))

    return fail


def interrupted(number: int, views: list[Any], offset: int, flags: int = 0) -> int:
    raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))


def comes_short(number: int, views: list[Any], offset: int, flags: int = 0) -> int:
    """Half of what there is, at least one byte, and nothing written behind it."""
    view = memoryview(views[0]).cast("B")
    whole = mmap.mmap(-1, len(view))  # aligned, and as long as was asked for, as direct reads want it
    half = max(1, REAL(number, [whole], offset, flags) // 2)
    view[:half] = whole[:half]
    return half


def gives_nothing(number: int, views: list[Any], offset: int, flags: int = 0) -> int:
    return 0


FAULTS: dict[str, Preadv] = {
    "EIO": fails_with(errno.EIO),
    "ESTALE": fails_with(errno.ESTALE),
    "EINTR": interrupted,
    "short": comes_short,
    "nothing": gives_nothing,
}
_LIBRARY = ctypes.CDLL(None)
BELOW_BOTH = hasattr(_LIBRARY, "faulty_disk_arm")  # the shim is loaded
_FAILS, _SHORT, _NOTHING = 1, 2, 3
_SHIMMED: dict[Preadv, tuple[int, int]] = {
    FAULTS["EIO"]: (_FAILS, errno.EIO),
    FAULTS["ESTALE"]: (_FAILS, errno.ESTALE),
    FAULTS["EINTR"]: (_FAILS, errno.EINTR),
    FAULTS["short"]: (_SHORT, 0),
    FAULTS["nothing"]: (_NOTHING, 0),
}
HARMLESS = ("EINTR", "short")  # must be continued: the caller never learns of them
NAMED = {"EIO": errno.EIO, "ESTALE": errno.ESTALE}


class Disk:
    """Counts calls; spoils call ``at`` (counted from 1), or every call from it on."""

    def __init__(self, fault: Preadv | None = None, *, at: int = 0, persistent: bool = False) -> None:
        self._calls = 0
        self._fired = 0
        self.healed = False
        self._armed = False
        self._fault = fault
        self._at = at
        self._persistent = persistent
        self._lock = threading.Lock()  # the direct strategy reads from several threads

    def preadv(self, number: int, views: list[Any], offset: int, flags: int = 0) -> int:
        with self._lock:
            self._calls += 1
            hit = self._calls == self._at or (self._persistent and self._calls > self._at)
            spoiled = self._fault is not None and hit and not self.healed
            self._fired += spoiled
        if spoiled and self._fault is not None:
            return self._fault(number, views, offset, flags)
        return REAL(number, views, offset, flags)

    def heal(self) -> None:
        """From now on every read succeeds."""
        self.healed = True
        if BELOW_BOTH:
            _LIBRARY.faulty_disk_heal()

    @property
    def below_both(self) -> bool:
        """Whether the shim knows this fault."""
        return BELOW_BOTH and (self._fault is None or self._fault in _SHIMMED)

    @property
    def calls(self) -> int:
        """Reads made through it."""
        return int(_LIBRARY.faulty_disk_calls()) if self._armed else self._calls

    @property
    def fired(self) -> int:
        """Reads it has spoiled."""
        return int(_LIBRARY.faulty_disk_fired()) if self._armed else self._fired

    def arm(self) -> None:
        self._armed = True
        if self._fault is None:
            _LIBRARY.faulty_disk_watch()
        else:
            _LIBRARY.faulty_disk_arm(*_SHIMMED[self._fault], ctypes.c_long(self._at), int(self._persistent))

    def disarm(self) -> None:
        _LIBRARY.faulty_disk_heal()
        self._calls, self._fired = self.calls, self.fired
        self._armed = False


@contextmanager
def reading_from(disk: Disk) -> Iterator[Disk]:
    """All reads of this process go through ``disk`` meanwhile."""
    if disk.below_both:
        disk.arm()
        try:
            yield disk
        finally:
            disk.disarm()
        return
    os.preadv = disk.preadv  # type: ignore[assignment]
    try:
        yield disk
    finally:
        os.preadv = REAL
