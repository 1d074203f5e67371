"""Strategy ``direct``: O_DIRECT reads that never enter the page cache.

One idea: direct reads must be aligned, rows are not; so aligned pieces are read into one staging buffer, and what was
asked for is copied out of it. A run that is aligned itself goes straight to its place.

Costs the staging buffer (at most a quarter of the budget) and one copy, and waits for one read after another: no thread
writes into anybody's buffer, so nothing has to be waited for when a read is interrupted. The native engine keeps many
reads in flight. Worth it where the page cache itself is the problem.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from lowtide.machine import PAGE
from lowtide.storage.buffers import Buffer, allocate_anonymous
from lowtide.storage.descriptors import Files
from lowtide.storage.forks import Turn
from lowtide.storage.read import came_short, read_failed
from lowtide.storage.spans import Ahead, Spans
from lowtide.units import MIB

PIECE = 4 * MIB  # one read this long reaches most of a device's rate by itself


class Direct:
    """Reads spans with O_DIRECT; ``allowance`` bounds the staging buffer."""

    name = "direct"
    rung = "O_DIRECT: nothing enters the page cache"
    widens = False
    merges = True

    def __init__(self, files: Files, *, alignment: int, allowance: int) -> None:
        self.files = files
        self.alignment = max(alignment, 512)
        # At least one aligned unit of data beside the two that widening to aligned bounds may take.
        smallest = max(2 * PAGE, 4 * self.alignment)
        self.piece = max(smallest, min(PIECE, allowance) // self.alignment * self.alignment)
        self._turn = Turn()
        self._staging: memoryview | None = None

    def fill(self, spans: Spans, buffer: Buffer, *, ahead: Ahead = None, scattered: bool) -> None:  # noqa: ARG002
        """Read every span into ``buffer``, or raise. Nothing is announced: there is no cache to announce to."""
        self.files.counters.read += spans.total
        targets = spans.targets(buffer)
        for file, offset, target in zip(spans.file_of_each(), spans.offsets.tolist(), targets, strict=True):
            self._read(file, offset, target[0])

    def fetch(self, spans: Spans) -> NDArray[np.uint8] | None:  # noqa: ARG002
        """No way without a buffer."""
        return None

    def _read(self, file: int, offset: int, target: memoryview) -> None:
        if self._aligned(offset, target):
            self._fetch(file, offset, len(target), target)
            return
        most = self.piece - 2 * self.alignment
        for at in range(0, len(target), most):
            part = target[at : at + most]
            first = (offset + at) // self.alignment * self.alignment
            skip = offset + at - first
            with self._turn.lock:  # one staging buffer, however many threads
                staging = self._staging
                if staging is None:
                    staging = self._staging = memoryview(allocate_anonymous(self.piece))
                self._fetch(file, first, skip + len(part), staging)
                part[:] = staging[skip : skip + len(part)]

    def _aligned(self, offset: int, target: memoryview) -> bool:
        address: int = np.frombuffer(target, np.uint8).__array_interface__["data"][0]
        return (offset | len(target) | address) % self.alignment == 0

    def _fetch(self, file: int, first: int, wanted: int, into: memoryview) -> None:
        """At least ``wanted`` bytes from an aligned offset into aligned memory."""
        align = self.alignment
        path = self.files.extents[file].path
        descriptor = self.files.descriptor(file, flags=os.O_DIRECT)  # kept: its last reference closes it
        length = -(-wanted // align) * align
        got, stuck = 0, False
        while got < wanted:
            try:
                more = os.preadv(descriptor.number, [into[got:length]], first + got)
            except InterruptedError:
                continue
            except OSError as problem:
                raise read_failed(path, first + got, problem) from problem
            # A short direct read is continued from the last aligned byte it reached. Twice none: the file ends there.
            reached = got + more if got + more >= wanted else (got + more) // align * align
            if more == 0 or (stuck and reached == got):
                raise came_short(path, first, wanted, got + more)
            got, stuck = reached, reached == got

    def close(self) -> None:
        self._staging = None
