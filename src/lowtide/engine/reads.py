"""Reading in Python: the queue, the lane and what belongs to them, as the C core has them; the same bytes and problems.

It is what runs where the extension was not built, and what the tests hold the C core against. Reads of a call are one
C-level ``map`` of ``os.preadv``, at the price of a bare loop (about a microsecond per cached read); everything careful
- misses, short reads, errors - happens only where the bytes that came are not those that were asked for. Tokens are
widened through a scratch buffer of 64 KiB, or of one run where that is longer. Has the ways ``read`` and ``announce``;
queues of the kernel and O_DIRECT need the native engine.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import deque
from collections.abc import Sequence
from itertools import repeat
from operator import index
from typing import Any

import numpy as np

from lowtide.engine.runs import (
    DROP,
    DROP_SEQUENTIAL,
    KEEP,
    MOST_DEPTH,
    PAGE,
    WAYS,
    Placed,
    Problem,
    Runs,
    WatchedFiles,
    bad_value,
    place,
)
from lowtide.engine.sinks import SCRATCH, ByteSink, WindowSink, sink_of

FOLIO = 512 * PAGE  # the largest unit the page cache holds file data in
NOWAIT = getattr(os, "RWF_NOWAIT", 0)
DONTCACHE = 0x80  # RWF_DONTCACHE, Linux 6.14
TRUSTED = 256  # so many runs found in the page cache in a row: the next ones are taken to be there too
PROBE = 16  # one in so many of those still asks; a miss ends the trust
_UNSUPPORTED = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}

Target = Any  # a writable buffer, or a Pair
Found = int | tuple[str, int, int, int]


class Queue:
    """Reads many runs per call, one after the other. One call at a time; a signal handler may call in between."""

    def __init__(self, way: str, depth: int = 64, staging: int = 1 << 20, alignment: int = PAGE) -> None:
        check_settings(way, depth, staging, alignment)
        self.way = way
        self.closed = False
        self._scratch: memoryview | None = None
        self._lock, self._owner, self._busy = threading.RLock(), os.getpid(), False
        self._warm = 0  # runs found in the page cache since one was not
        self._nowait, self._dontcache = bool(NOWAIT), True

    def fill(self, runs: Runs, target: Target, drop: int) -> Found:
        """Fill the target: how many runs the page cache had, or the first problem, after which it holds anything."""
        sink = sink_of(runs, target)
        check_drop(drop)
        if self.closed:
            raise ValueError("queue: expected an open queue, got a closed one. Open it again.")
        if self._owner != os.getpid():
            self._owner, self._lock, self._busy = os.getpid(), threading.RLock(), False
        with self._lock:
            # A signal handler in the middle of a call comes here again: the scratch is then in use.
            before, self._busy = self._busy, True
            try:
                sink.scratch = self._room(sink.needs, fresh=before)
                return self._fill(sink, drop)
            finally:
                self._busy = before

    def close(self) -> None:
        """Give everything back; a call under way keeps what it uses until it is over."""
        self.closed, self._scratch = True, None

    def _room(self, needs: int, *, fresh: bool) -> memoryview:
        scratch = self._scratch
        if fresh or scratch is None or len(scratch) < needs:
            scratch = memoryview(bytearray(needs))
            if not fresh and not self.closed:
                self._scratch = scratch if needs <= SCRATCH else None
        return scratch

    def _fill(self, sink: ByteSink, drop: int) -> Found:
        found = 0
        wanted: Sequence[int] = range(len(sink.offsets))
        if self.way == "announce" and drop != DROP_SEQUENTIAL:
            missing = self._from_cache(sink, trusting=drop == KEEP)
            found = len(wanted) - len(missing)
            announce_runs(sink.placed, missing)
            if drop and found:
                gone = set(missing)
                drop_runs(sink.placed, [run for run in wanted if run not in gone], sequential=False)
            wanted = missing
        self._in_turn(sink, wanted, drop)
        return found if sink.problem is None else sink.problem

    def _from_cache(self, sink: ByteSink, *, trusting: bool) -> list[int]:
        """Deliver what the page cache has; the runs that it has not."""
        count = len(sink.offsets)
        if not self._nowait:
            return [run for run in range(count) if sink.lengths[run]]
        missing: list[int] = []
        for some in sink.chunks(range(count)):
            flags = [NOWAIT] * len(some)
            if trusting and self._warm >= TRUSTED:
                flags = [0 if (self._warm + turn) % PROBE else NOWAIT for turn in range(len(some))]
            buffers, got = sink.buffers(some), list[int]()
            with contextlib.suppress(OSError):  # a miss; a real failure shows again when it is read
                got.extend(map(os.preadv, sink.fds_of(some), buffers, sink.offsets_of(some), flags))
            wanted = sink.lengths_of(some)
            if got == wanted:  # the usual case
                self._warm += len(some)
                sink.deliver(some)
                continue
            whole = []
            for turn, run in enumerate(some):
                came = got[turn] if turn < len(got) else self._try(sink.fds[run], buffers[turn], sink.offsets[run])
                if came == wanted[turn]:
                    self._warm += 1
                    whole.append(turn)
                else:
                    self._warm = 0
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
        """Read these runs one after the other, up to the first that fails, and drop them behind."""
        flags = DONTCACHE if drop == DROP_SEQUENTIAL and self._dontcache else 0
        for some in sink.chunks(wanted):
            if sink.problem is not None and some[0] > sink.problem[1]:
                return
            buffers, got = sink.buffers(some), list[int]()
            with contextlib.suppress(OSError):  # made again below, where it is told
                got.extend(map(os.preadv, sink.fds_of(some), buffers, sink.offsets_of(some), repeat(flags)))
            if got == sink.lengths_of(some):
                sink.deliver(some)
            else:
                self._carefully(sink, some, buffers, got, flags)
            if drop:
                drop_runs(sink.placed, some, sequential=drop == DROP_SEQUENTIAL)
            if sink.problem is not None and sink.problem[1] <= some[-1]:
                return

    def _carefully(
        self, sink: ByteSink, some: Sequence[int], buffers: list[list[memoryview]], got: list[int], flags: int
    ) -> None:
        """Go on with what came short and read what was not read; the first that fails ends it."""
        for turn, run in enumerate(some):
            length, error = sink.lengths[run], 0
            done = got[turn] if turn < len(got) else 0
            while done < length and not error:
                try:
                    more = os.preadv(sink.fds[run], [buffers[turn][0][done:]], sink.offsets[run] + done, flags)
                except OSError as problem:
                    if flags and problem.errno in _UNSUPPORTED:  # no RWF_DONTCACHE here: the drop afterwards remains
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


class Lane:
    """A queue whose next fill is announced at ``start`` and made at ``wait``: no thread, nothing to end."""

    def __init__(self, way: str, depth: int = 64, staging: int = 1 << 20, alignment: int = PAGE) -> None:
        self._queue = Queue(way, depth, staging, alignment)
        self._work: tuple[Runs, Target, int] | None = None
        self._owner = os.getpid()

    def start(self, runs: Runs, target: Target, drop: int) -> None:
        """``Queue.fill`` of these, later."""
        self._left_behind()
        sink = sink_of(runs, target)
        check_drop(drop)
        if self._queue.closed:
            raise ValueError("queue: expected an open queue, got a closed one. Open it again.")
        if self._work is not None:
            raise RuntimeError("lane: expected nothing under way, got a second start. Call wait() first.")
        # Copies: the caller may use its arrays again before wait().
        copies: list[Any] = [np.array(part) if hasattr(part, "__len__") else part for part in runs]
        self._work = (Runs(*copies), target, drop)
        announce_runs(sink.placed, range(len(sink.offsets)))

    def wait(self) -> Found:
        """Make the reads that were started; their result. Where a signal handler raises, wait again."""
        if self._left_behind():
            raise RuntimeError(
                "lane: expected a batch started in this process, got one of the process it was forked from. "
                "Start it again."
            )
        if self._work is None:
            raise RuntimeError("lane: expected something under way, got nothing to wait for. Start it first.")
        found = self._queue.fill(*self._work)
        self._work = None
        return found

    def close(self) -> None:
        """Forget what was started."""
        self._work = None
        self._queue.close()

    def _left_behind(self) -> bool:
        """In a child of fork what the parent started is not ours."""
        if self._owner == os.getpid():
            return False
        had, self._work, self._owner = self._work is not None, None, os.getpid()
        return had


def fill_mapped(mapping: Any, runs: Runs, target: Target) -> Problem | None:
    """Runs of a mapping, copied or widened; None, or the first problem."""
    source = memoryview(mapping).cast("B")
    sink = sink_of(runs, target, needs_fds=False)
    for run, (offset, length) in enumerate(zip(sink.offsets, sink.lengths, strict=True)):
        if offset + length > len(source):
            sink.note("read", run, max(0, len(source) - offset), 0)
        elif isinstance(sink, WindowSink):
            sink.scratch, sink.longest = source[offset : offset + length], length
            sink.deliver([run])
        else:
            sink.buffers([run])[0][0][:] = source[offset : offset + length]
        if sink.problem is not None:
            return sink.problem
    return None


def announce(runs: Runs) -> None:
    """Tell the kernel of reads to come."""
    placed = place((*runs[:3], None, None, *runs[5:]), 2**62, 1)  # type: ignore[arg-type]
    announce_runs(placed, range(len(placed.offsets)))


def announce_runs(placed: Placed, which: Sequence[int]) -> None:
    """The same of some of these runs; the kernel starts reading them all at once."""
    if len(which) and hasattr(os, "posix_fadvise"):
        fds = placed.fds if len(which) == len(placed.fds) else [placed.fds[run] for run in which]
        some = np.asarray(which)
        offsets, lengths = placed.offsets[some].tolist(), placed.lengths[some].tolist()
        with contextlib.suppress(OSError):  # a hint: the read itself will say what is wrong
            deque(map(os.posix_fadvise, fds, offsets, lengths, repeat(os.POSIX_FADV_WILLNEED)), maxlen=0)


def drop_runs(placed: Placed, which: Sequence[int], *, sequential: bool) -> None:
    """Evict the pages of these runs, rounded out to whole ones; behind sequential reads to whole folios."""
    if hasattr(os, "posix_fadvise"):
        unit = FOLIO if sequential else PAGE
        for run in which:
            offset, length = int(placed.offsets[run]), int(placed.lengths[run])
            first = offset // unit * unit
            last = -(-(offset + length) // PAGE) * PAGE
            with contextlib.suppress(OSError):  # what cannot be dropped was reported when it was read
                os.posix_fadvise(placed.fds[run], first, last - first, os.POSIX_FADV_DONTNEED)


def unchanged(fd: int, size: int, modified: int) -> bool:
    """Whether the file still is that long, was not written since, and has a name."""
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return found.st_size == size and found.st_nlink > 0 and found.st_mtime_ns == modified


def locate(files: WatchedFiles, numbers: Any, stride: int, lengths: Any, fds: Any, offsets: Any) -> bool:
    """Which file each run lies in, and where; False where one crosses extents, or a file is not open or changed."""
    ends, shift, which, sizes, modified, numbers_of_files = files
    places = numbers * stride
    extents = np.searchsorted(ends, places, side="right")
    if (extents == len(ends)).any() or (places < 0).any() or (places + lengths > ends[extents]).any():
        return False
    used = which[extents]
    for file in np.unique(used).tolist():
        if not 0 <= file < len(numbers_of_files) or numbers_of_files[file] < 0:
            return False
        if not unchanged(int(numbers_of_files[file]), int(sizes[file]), int(modified[file])):
            return False
    fds[:], offsets[:] = numbers_of_files[used], places + shift[extents]
    return True


def unavailable() -> dict[str, str]:
    """Each way, and why it cannot be had ('': it can)."""
    why = "queues of the kernel need the native engine"
    return {way: why if way in ("aio", "uring") else "" for way in WAYS}


def check_drop(drop: int) -> None:
    value = index(drop)
    if value not in (KEEP, DROP, DROP_SEQUENTIAL):
        raise bad_value("drop", "0, 1 or 2", value)


def check_settings(way: str, depth: int, staging: int, alignment: int) -> None:
    """Refuse what the native engine refuses, and the ways that only it has."""
    if way not in WAYS:
        raise ValueError("way: expected read, announce, aio or uring, got another one. Use read.")
    if not 1 <= depth <= MOST_DEPTH:
        raise bad_value("depth", "1 to 4096", depth)
    if not 512 <= alignment <= 65536 or alignment & (alignment - 1):
        raise bad_value("alignment", "a power of two from 512 to 65536", alignment)
    least = 8 * (PAGE + 2 * alignment) if way in ("aio", "uring") else 0
    if not least <= staging <= 2**30:
        raise bad_value("staging", "room for 8 reads", staging)
    why = unavailable()[way]
    if why:
        raise OSError(errno.ENOSYS, f"way: expected one that this machine allows, got {way}: {why}. Use announce.")
