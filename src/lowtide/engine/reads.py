"""Reading in Python: the C core's queue and what belongs to it, with the same bytes and the same problems.

It runs if the extension was not built, and the tests compare the C core with it. The reads of a call are one C-level
``map`` of ``os.preadv``, at the cost of a bare loop (about a microsecond per cached read); misses, short reads and
errors are handled only if fewer bytes came than were asked for. Has the ways ``read`` and ``announce``; kernel queues,
O_DIRECT and threads that read ahead need the native engine.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from lowtide.engine.runs import (
    DROP_SEQUENTIAL,
    KEEP,
    KEEP_NEAR,
    KEEP_SEQUENTIAL,
    PAGE,
    WAYS,
    Problem,
    Runs,
    WatchedFiles,
    place,
)
from lowtide.engine.sinks import SCRATCH, ByteSink, sink_of

FOLIO = 512 * PAGE  # the largest unit the page cache holds file data in
NOWAIT = getattr(os, "RWF_NOWAIT", 0)
DONTCACHE = 0x80  # RWF_DONTCACHE, Linux 6.14
COPIED_AT_ONCE = 256 * 1024  # bytes of a temporary
_UNSUPPORTED = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}

Found = int | tuple[str, int, int, int]


class Queue:
    """Reads many runs per call, one after the other, for one thread; a signal handler may call in between."""

    def __init__(self, way: str, *_: int) -> None:
        self.way = way
        self._scratch: memoryview | None = None
        self._nowait, self._dontcache = bool(NOWAIT), True

    def fill(self, runs: Runs, target: Any, drop: int) -> Found:
        """Fill the target; returns how many runs were cached, or the first problem, which leaves it undefined."""
        in_order = drop in (DROP_SEQUENTIAL, KEEP_SEQUENTIAL)
        drop = KEEP if drop in (KEEP_NEAR, KEEP_SEQUENTIAL) else drop  # here every run is a read of its own
        sink = sink_of(runs, target)
        # Taken away while in use: a signal handler in the middle of a call finds none and makes its own.
        scratch, self._scratch = self._scratch, None
        if scratch is None or len(scratch) < sink.needs:
            scratch = memoryview(bytearray(sink.needs))
        sink.scratch = scratch
        found = 0
        wanted: Sequence[int] = range(len(sink.offsets))
        if self.way == "announce" and not in_order:
            missing = self._from_cache(sink)
            found = len(wanted) - len(missing)
            announce_runs(sink, missing)
            if drop and found:
                gone = set(missing)
                drop_runs(sink, [run for run in wanted if run not in gone], sequential=False)
            wanted = missing
        self._in_turn(sink, wanted, drop)
        if len(scratch) <= SCRATCH:
            self._scratch = scratch
        return found if sink.problem is None else sink.problem

    def close(self) -> None:
        """Give everything back."""
        self._scratch = None

    def _from_cache(self, sink: ByteSink) -> list[int]:
        """Deliver what the page cache has; returns the runs it does not have."""
        if not self._nowait:
            return [run for run, length in enumerate(sink.lengths) if length]
        missing: list[int] = []
        for some in sink.chunks(range(len(sink.offsets))):
            buffers = sink.buffers(some)
            got = _read_all(sink, some, buffers, NOWAIT)
            whole = []
            for turn, run in enumerate(some):
                came = got[turn] if turn < len(got) else self._try(sink.fds[run], buffers[turn], sink.offsets[run])
                if came == sink.lengths[run]:
                    whole.append(turn)
                else:
                    missing.append(run)
            sink.deliver([some[turn] for turn in whole], whole)
        return missing

    def _try(self, fd: int, buffers: list[memoryview], offset: int) -> int:
        try:
            return os.preadv(fd, buffers, offset, NOWAIT)
        except OSError as problem:
            if problem.errno in _UNSUPPORTED:
                self._nowait = False
            return -1

    def _in_turn(self, sink: ByteSink, wanted: Sequence[int], drop: int) -> None:
        """Read these runs one after the other, up to the first that fails, and drop them afterwards."""
        flags = DONTCACHE if drop == DROP_SEQUENTIAL and self._dontcache else 0
        for some in sink.chunks(wanted):
            if sink.problem is not None and some[0] > sink.problem.run:
                return
            buffers = sink.buffers(some)
            got = _read_all(sink, some, buffers, flags)
            if got == [sink.lengths[run] for run in some]:
                sink.deliver(some)
            else:
                self._carefully(sink, some, buffers, got, flags)
            if drop:
                drop_runs(sink, some, sequential=drop == DROP_SEQUENTIAL)

    def _carefully(self, sink: ByteSink, some: Sequence[int], buffers: Any, got: list[int], flags: int) -> None:
        """Continue short reads and make those that are missing; the first that fails ends it."""
        for turn, run in enumerate(some):
            length, error = sink.lengths[run], 0
            done = got[turn] if turn < len(got) else 0
            while done < length and not error:
                try:
                    more = os.preadv(sink.fds[run], [buffers[turn][0][done:]], sink.offsets[run] + done, flags)
                except OSError as problem:
                    if flags and problem.errno in _UNSUPPORTED:  # no RWF_DONTCACHE here: the drop afterwards is left
                        self._dontcache, flags = False, 0
                        continue
                    error = problem.errno or errno.EIO
                else:
                    if more == 0:
                        break
                    done += more
            if done == length:
                sink.deliver([run], [turn])
            else:
                sink.note("read", run, done, error)
                sink.deliver_some(run, turn, done)
                return


def _read_all(sink: ByteSink, some: Sequence[int], buffers: list[list[memoryview]], flags: int) -> list[int]:
    """Bytes read of each run, up to the first that failed; the caller repeats that one carefully."""
    got: list[int] = []
    fds, offsets = (sink.fds[run] for run in some), (sink.offsets[run] for run in some)
    with contextlib.suppress(OSError):
        got.extend(map(os.preadv, fds, buffers, offsets, repeat(flags)))
    return got


def fill_mapped(mapping: Any, runs: Runs, target: Any) -> Problem | None:
    """Runs of a mapping, copied or widened; None, or the first problem."""
    source = memoryview(mapping).cast("B")
    sink = sink_of(runs, target)
    # All at once: every call of ``buffers`` looks at the places of all runs.
    buffers = [] if sink.needs else sink.buffers(range(len(sink.offsets)))
    for run, (offset, length) in enumerate(zip(sink.offsets, sink.lengths, strict=True)):
        if offset + length > len(source):
            sink.note("read", run, max(0, len(source) - offset), 0)
        elif sink.needs:
            sink.scratch, sink.longest = source[offset : offset + length], length
            sink.deliver([run])
        else:
            buffers[run][0][:] = source[offset : offset + length]
        if sink.problem is not None:
            return sink.problem
    return None


def announce(runs: Runs) -> None:
    """Tell the kernel of reads to come."""
    placed = place((*runs[:3], None, None, *runs[5:]), 2**62, 1)
    announce_runs(placed, range(len(placed.offsets)))


def announce_runs(placed: Any, which: Sequence[int]) -> None:
    """The same for some of these runs; the kernel starts reading them all at once."""
    fds, offsets, lengths = ([many[run] for run in which] for many in (placed.fds, placed.offsets, placed.lengths))
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):  # a hint: the read itself will say what is wrong
            deque(map(os.posix_fadvise, fds, offsets, lengths, repeat(os.POSIX_FADV_WILLNEED)), maxlen=0)


def drop_runs(sink: ByteSink, which: Sequence[int], *, sequential: bool) -> None:
    """Evict the pages of these runs, rounded out to whole ones; after sequential reads to whole folios."""
    if hasattr(os, "posix_fadvise"):
        unit = FOLIO if sequential else PAGE
        for run in which:
            first = sink.offsets[run] // unit * unit
            last = -(-(sink.offsets[run] + sink.lengths[run]) // PAGE) * PAGE
            with contextlib.suppress(OSError):  # a real problem was reported by the read
                os.posix_fadvise(sink.fds[run], first, last - first, os.POSIX_FADV_DONTNEED)


def unchanged(fd: int, size: int, changed: int) -> bool:
    """Whether the file is still that long, has not been written since, and still has a name."""
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return found.st_size == size and found.st_nlink > 0 and found.st_ctime_ns == changed


def locate(files: WatchedFiles, numbers: Any, stride: int, lengths: Any, fds: Any, offsets: Any, look: bool) -> bool:
    """Which file each run is in, and where; False if one crosses extents, or a file is not open or, if they are to be
    looked at, has changed."""
    ends, shift, which, sizes, changed, numbers_of_files = files
    places = numbers * stride
    extents = np.searchsorted(ends, places, side="right")
    if (extents == len(ends)).any() or (places < 0).any() or (places + lengths > ends[extents]).any():
        return False
    used = which[extents]
    for file in set(used.tolist()):
        number = int(numbers_of_files[file])
        if number < 0 or (look and not unchanged(number, int(sizes[file]), int(changed[file]))):
            return False
    fds[:], offsets[:] = numbers_of_files[used], places + shift[extents]
    return True


def unavailable() -> dict[str, str]:
    """Each way, and why it is unavailable ('': available)."""
    why = "queues of the kernel need the native engine"
    return {way: why if way in ("aio", "uring") else "" for way in WAYS}


def copy_rows(source: Any, offsets: Any, length: int, into: Any, places: Any) -> None:
    """``length`` bytes from each of ``offsets`` to rows of ``into``, in steps with small temporaries."""
    anywhere = as_strided(source, (len(source) - length + 1, length), (1, 1), writeable=False)
    rows = into[: len(into) // length * length].reshape(-1, length)
    step = max(1, COPIED_AT_ONCE // length)
    for first in range(0, len(offsets), step):
        part = slice(first, min(first + step, len(offsets)))
        rows[part if places is None else places[part]] = anywhere[offsets[part]]
