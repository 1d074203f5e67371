"""Strategy ``direct``: O_DIRECT reads that never enter the page cache.

One idea: direct reads must be aligned, rows are not; so a few threads each read aligned pieces into a staging buffer of
their own and copy out what was asked for. Threads, because direct reads have no read-ahead: somebody must keep several
in flight.

Costs the staging buffers (at most a quarter of the budget) and one copy. Not faster than ``read`` on cached data - it
never uses the cache; worth it where the page cache itself is the problem.
"""

from __future__ import annotations

import os
import threading

import numpy as np

from lowtide.machine import PAGE
from lowtide.storage.buffers import Buffer, allocate_anonymous
from lowtide.storage.files import Files
from lowtide.storage.pread import came_short, read_failed
from lowtide.storage.spans import Ahead, Spans
from lowtide.units import MIB

THREADS = 8
PIECE = MIB  # sequential reads this long reach the device's rate with 8 in flight


class Direct:
    """Reads spans with O_DIRECT; ``allowance`` bounds all staging buffers together."""

    name = "direct"
    rung = "O_DIRECT: nothing enters the page cache"

    def __init__(self, files: Files, *, alignment: int, allowance: int) -> None:
        self.files = files
        self.alignment = max(alignment, 512)
        smallest = 2 * PAGE
        self.threads = max(1, min(THREADS, allowance // smallest))
        self.piece = max(smallest, min(PIECE, allowance // self.threads) // PAGE * PAGE)
        from concurrent.futures import ThreadPoolExecutor, wait  # here: it brings logging, 4 ms at every import

        self._local = threading.local()
        self._wait = wait
        # Threads start with the first read. Every read goes through them: no more staging buffers than counted.
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="lowtide-direct")

    def fill(self, spans: Spans, buffer: Buffer, *, ahead: Ahead = None, scattered: bool) -> None:  # noqa: ARG002
        """Read every span into ``buffer``, or raise. Nothing is announced: there is no cache to announce to."""
        work = self._pieces(spans, buffer)
        shares = [work[start :: self.threads] for start in range(min(self.threads, len(work)))]
        try:
            running = [self._pool.submit(self._read, share) for share in shares]
        except RuntimeError:
            raise ValueError(
                f"{self.files.extents[0].path}: expected an open store, got one closed meanwhile. Open it again."
            ) from None
        # All of them, also when one failed: nobody may write into a buffer that went back to the pool.
        self._wait(running)
        for done in running:
            done.result()

    def _pieces(self, spans: Spans, buffer: Buffer) -> list[tuple[int, int, memoryview]]:
        """(file, offset, target), none longer than fits a staging buffer once widened to aligned bounds."""
        most = self.piece - 2 * self.alignment
        most = most // self.alignment * self.alignment or self.alignment
        work = []
        for file, offset, target in zip(
            spans.file_of_each(), spans.offsets.tolist(), spans.targets(buffer), strict=True
        ):
            view = target[0]
            work += [(file, offset + at, view[at : at + most]) for at in range(0, len(view), most)]
        return work

    def _read(self, share: list[tuple[int, int, memoryview]]) -> None:
        for file, offset, target in share:
            if self._aligned(offset, target):
                self._fetch(file, offset, len(target), target)
                continue
            first = offset // self.alignment * self.alignment
            staging = self._staging()
            self._fetch(file, first, offset + len(target) - first, staging)
            target[:] = staging[offset - first : offset - first + len(target)]

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

    def _staging(self) -> memoryview:
        staging: memoryview | None = getattr(self._local, "staging", None)
        if staging is None:
            staging = self._local.staging = memoryview(allocate_anonymous(self.piece))
        return staging

    def close(self) -> None:
        self._pool.shutdown(wait=False)
        self.files.close()
