"""A disk that fails on purpose: stands between Lowtide and ``os.preadv`` and spoils the n-th call.

One idea: the operating system is the seam. Nothing of ours is replaced, so what is tested is what runs.
"""

from __future__ import annotations

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
HARMLESS = ("EINTR", "short")  # must be continued: the caller never learns of them
NAMED = {"EIO": errno.EIO, "ESTALE": errno.ESTALE}


class Disk:
    """Counts calls; spoils call ``at`` (counted from 1), or every call from it on."""

    def __init__(self, fault: Preadv | None = None, *, at: int = 0, persistent: bool = False) -> None:
        self.calls = 0
        self.fired = 0
        self.healed = False
        self._fault = fault
        self._at = at
        self._persistent = persistent
        self._lock = threading.Lock()  # the direct strategy reads from several threads

    def preadv(self, number: int, views: list[Any], offset: int, flags: int = 0) -> int:
        with self._lock:
            self.calls += 1
            hit = self.calls == self._at or (self._persistent and self.calls > self._at)
            spoiled = self._fault is not None and hit and not self.healed
            self.fired += spoiled
        if spoiled and self._fault is not None:
            return self._fault(number, views, offset, flags)
        return REAL(number, views, offset, flags)

    def heal(self) -> None:
        """From now on every read succeeds."""
        self.healed = True


@contextmanager
def reading_from(disk: Disk) -> Iterator[Disk]:
    """All reads of this process go through ``disk`` meanwhile."""
    os.preadv = disk.preadv  # type: ignore[assignment]
    try:
        yield disk
    finally:
        os.preadv = REAL
