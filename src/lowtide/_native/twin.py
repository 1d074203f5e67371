"""The native engine's twin in Python: the same names, the same bytes, the same problems; NumPy and ``os`` alone.

One idea: what the C core does in one call is written here so that it can be read. It is also what runs where the
extension was not built. Costs Python's time per run (about 1 microsecond cached) and the GIL between reads. Has the
ways ``read``, ``announce`` and ``threads``; queues of the kernel need the native engine. Prefetching and permuting are
in ``later.py`` and ``bijection.py``.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide._native.documented import note_marks
from lowtide._native.runs import (
    DROP_SEQUENTIAL,
    KEEP,
    MOST_DEPTH,
    PAGE,
    WAYS,
    Pair,
    Placed,
    Problem,
    Runs,
    WatchedFiles,
    bad_value,
    place,
    place_windows,
    writable,
)

FOLIO = 512 * PAGE  # the largest unit the page cache holds file data in
NOWAIT = getattr(os, "RWF_NOWAIT", 0)
DONTCACHE = 0x80  # RWF_DONTCACHE, Linux 6.14
_UNSUPPORTED = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}


class Queue:
    """Reads many runs per call, one after the other; ``threads`` reads misses with as many threads as ``depth``."""

    def __init__(self, way: str, depth: int = 64, staging: int = 1 << 20, alignment: int = PAGE) -> None:
        check_settings(way, depth, staging, alignment)
        self.way, self.depth, self.staging, self.alignment = way, depth, staging, alignment
        self.closed = False
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._asked = self._cached = self._moved = 0

    def gather(self, runs: Runs, into: Any, drop: int) -> Problem | None:
        """Fill ``into`` with the runs; None, or the first problem. After a problem its content is undefined."""
        view = writable("into", into).cast("B")
        placed = place(runs, len(view), 1)
        return self._fill(placed, view, drop)

    def windows(self, runs: Runs, pair: Pair, drop: int) -> Problem | None:
        """Fill x and y with windows of tokens; None, or the first problem."""
        placed, x, y = place_windows(runs, pair)
        item = np.dtype(pair.source).itemsize
        narrow = np.empty(len(x) * (pair.length + 1), pair.source)
        scratch = placed._replace(targets=placed.targets * item)
        problem = self._fill(scratch, narrow.view(np.uint8).data, drop)
        note_marks(placed, narrow, pair)
        return _earliest(problem, _widen(placed, narrow, pair, x, y, problem))

    def counters(self) -> tuple[int, int, int]:
        """Runs asked for, runs found in the page cache, bytes read."""
        return self._asked, self._cached, self._moved

    def close(self) -> None:
        """Give everything back."""
        self.closed = True

    def _fill(self, placed: Placed, into: memoryview, drop: int) -> Problem | None:
        if drop not in (KEEP, 1, DROP_SEQUENTIAL):
            raise bad_value("drop", "0, 1 or 2", drop)
        if self.closed:
            raise ValueError("queue: expected an open queue, got a closed one. Open it again.")
        if self._owner != os.getpid():
            self._owner, self._lock = os.getpid(), threading.Lock()
        with self._lock:
            self._asked += len(placed.offsets)
            # A direct read must not be preceded by a refused NOWAIT read: that starts a read into the page cache.
            missing = [run for run, length in enumerate(placed.lengths.tolist()) if length]
            if self.way != "read" and placed.direct is None:
                missing = [run for run in missing if not self._from_cache(placed, into, run)]
                self._cached += len(placed.offsets) - len(missing)
            if self.way == "announce":
                announce_placed(placed, missing)
            if self.way == "threads" and len(missing) > 1:
                problem = self._together(placed, into, missing, drop)
            else:
                problem = _in_turn(placed, into, missing, drop, self.alignment)
            if drop and placed.direct is None:
                for run in range(len(placed.offsets)):
                    drop_run(placed, run, sequential=drop == DROP_SEQUENTIAL)
            self._moved += int(placed.lengths.sum())
        return problem

    def _from_cache(self, placed: Placed, into: memoryview, run: int) -> bool:
        target = _target(placed, into, run)
        try:
            return bool(NOWAIT) and os.preadv(placed.fds[run], [target], placed.offsets[run], NOWAIT) == len(target)
        except OSError:  # a miss; a real failure shows again when it is read
            return False

    def _together(self, placed: Placed, into: memoryview, missing: list[int], drop: int) -> Problem | None:
        shares = [missing[first :: self.depth] for first in range(min(self.depth, len(missing)))]
        problems: list[Problem | None] = [None] * len(shares)

        def work(number: int) -> None:
            problems[number] = _in_turn(placed, into, shares[number], drop, self.alignment)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(shares))]
        started: list[threading.Thread] = []
        try:
            for thread in threads:
                thread.start()
                started.append(thread)
        finally:
            # All of them, also after an exception: nobody may write into the target once this call has returned.
            _join(started)
        return _earliest(*problems)


def gather_mapped(mapping: Any, runs: Runs, into: Any) -> Problem | None:
    """The runs of a mapping into ``into``."""
    view = writable("into", into).cast("B")
    placed = place(runs, len(view), 1, needs_fds=False)
    return _copy_mapped(mapping, placed, view)


def windows_mapped(mapping: Any, runs: Runs, pair: Pair) -> Problem | None:
    """The windows of a mapping into x and y."""
    placed, x, y = place_windows(runs, pair, needs_fds=False)
    narrow = np.empty(len(x) * (pair.length + 1), pair.source)
    scratch = placed._replace(targets=placed.targets * narrow.itemsize)
    problem = _copy_mapped(mapping, scratch, narrow.view(np.uint8).data)
    note_marks(placed, narrow, pair)
    return _earliest(problem, _widen(placed, narrow, pair, x, y, problem))


def announce(runs: Runs) -> None:
    """Tell the kernel of reads to come; it starts them all at once."""
    placed = place(runs._replace(targets=None), 2**62, 1)
    announce_placed(placed, range(len(placed.offsets)))


def unchanged(fd: int, size: int, modified: int) -> bool:
    """Whether the file still is that long, was not written since, and has a name."""
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return found.st_size == size and found.st_nlink > 0 and found.st_mtime_ns == modified


def unavailable() -> dict[str, str]:
    """Each way, and why it cannot be had ('': it can)."""
    why = "queues of the kernel need the native engine"
    return {way: why if way in ("aio", "uring") else "" for way in WAYS}


def drop_run(placed: Placed, run: int, *, sequential: bool) -> None:
    """Evict a run's pages, rounded out to whole ones; behind sequential reads to whole folios."""
    if hasattr(os, "posix_fadvise"):
        offset, length, unit = int(placed.offsets[run]), int(placed.lengths[run]), FOLIO if sequential else PAGE
        first = offset // unit * unit
        try:
            os.posix_fadvise(
                placed.fds[run], first, -(-(offset + length) // PAGE) * PAGE - first, os.POSIX_FADV_DONTNEED
            )
        except OSError:
            return  # what cannot be dropped was reported when it was read


def locate(files: WatchedFiles, numbers: Any, stride: int, lengths: Any, fds: Any, offsets: Any) -> bool:
    """Which file each run lies in, and where; False where one crosses files, or a file is not open or changed."""
    places = numbers * stride
    which = np.searchsorted(files.ends, places, side="right")
    if (which == len(files.ends)).any() or (places + lengths > files.ends[which]).any():
        return False
    for file in set(which.tolist()):
        number = int(files.fds[file])
        if number < 0 or not unchanged(number, int(files.sizes[file]), int(files.modified[file])):
            return False
    fds[:], offsets[:] = files.fds[which], places + files.shift[which]
    return True


def check_settings(way: str, depth: int, staging: int, alignment: int) -> None:
    if way not in WAYS:
        raise ValueError("way: expected read, announce, threads, aio or uring, got another one. Use read.")
    if not 1 <= depth <= MOST_DEPTH:
        raise bad_value("depth", "1 to 4096", depth)
    if not 512 <= alignment <= 65536 or alignment & (alignment - 1):
        raise bad_value("alignment", "a power of two from 512 to 65536", alignment)
    queues = {"threads": depth, "aio": 8, "uring": 8}
    if not queues.get(way, 0) * (PAGE + 2 * alignment) <= staging <= 2**30:
        raise bad_value("staging", "room for a page per thread, or for 8 reads", staging)
    why = unavailable()[way]
    if why:
        raise OSError(f"way: expected one that this machine allows, got {way}: {why}. Use announce.")


def _target(placed: Placed, into: memoryview, run: int) -> memoryview:
    first = int(placed.targets[run])
    return into[first : first + int(placed.lengths[run])]


def announce_placed(placed: Placed, which: Iterable[int]) -> None:
    if hasattr(os, "posix_fadvise"):
        for run in which:
            try:
                offset, length = int(placed.offsets[run]), int(placed.lengths[run])
                os.posix_fadvise(placed.fds[run], offset, length, os.POSIX_FADV_WILLNEED)
            except OSError:
                return  # the read itself will say what is wrong


def _in_turn(placed: Placed, into: memoryview, which: list[int], drop: int, alignment: int) -> Problem | None:
    """Read these runs one after the other, up to the first that fails."""
    staging = None if placed.direct is None else memoryview(mmap.mmap(-1, 1 << 20))
    flags = DONTCACHE if drop == DROP_SEQUENTIAL else 0
    for run in which:
        target, offset = _target(placed, into, run), int(placed.offsets[run])
        if staging is not None and placed.direct is not None:
            got, error = _read_direct(placed.direct[run], target, offset, staging, alignment)
        else:
            got, error = _read(placed.fds[run], target, offset, flags)
            if error in _UNSUPPORTED and flags:  # this file system has no RWF_DONTCACHE: the drop afterwards remains
                flags = 0
                got, error = _read(placed.fds[run], target, offset, 0)
        if got < len(target):
            return Problem("read", run, got, error)
    return None


def _read(fd: int, target: memoryview, offset: int, flags: int) -> tuple[int, int]:
    """Bytes that came, and errno: 0 when all came or the file ended. ``os.preadv`` itself goes on after signals."""
    got = 0
    while got < len(target):
        try:
            more = os.preadv(fd, [target[got:]], offset + got, flags)
        except OSError as problem:
            return got, problem.errno or errno.EIO
        if more == 0:
            break
        got += more
    return got, 0


def _read_direct(fd: int, target: memoryview, offset: int, staging: memoryview, alignment: int) -> tuple[int, int]:
    """The same through aligned memory: direct reads begin, end and land on multiples of ``alignment``."""
    done = 0
    while done < len(target):
        first = (offset + done) // alignment * alignment
        skip = offset + done - first
        many = min(len(target) - done, len(staging) - skip)
        span = -(-(skip + many) // alignment) * alignment
        try:
            more = os.preadv(fd, [staging[:span]], first)
        except OSError as problem:
            return done, problem.errno or errno.EIO
        came = min(more - skip, many)
        if came <= 0:
            break
        target[done : done + came] = staging[skip : skip + came]
        done += came
    return done, 0


def _join(threads: list[threading.Thread]) -> None:
    """Wait for all of them; an interrupt meanwhile is raised once the last one has put its run down."""
    interrupted: BaseException | None = None
    for thread in threads:
        while thread.is_alive():
            try:
                thread.join()
            except BaseException as problem:
                interrupted = problem
    if interrupted is not None:
        raise interrupted


def _copy_mapped(mapping: Any, placed: Placed, into: memoryview) -> Problem | None:
    source = memoryview(mapping).cast("B")
    for run, (offset, length) in enumerate(zip(placed.offsets.tolist(), placed.lengths.tolist(), strict=True)):
        if offset + length > len(source):
            return Problem("read", run, max(0, len(source) - offset), 0)
        _target(placed, into, run)[:] = source[offset : offset + length]
    return None


def _widen(
    placed: Placed, narrow: NDArray[Any], pair: Pair, x: NDArray[Any], y: NDArray[Any], problem: Problem | None
) -> Problem | None:
    """Tokens of the runs before ``problem`` to x and y; the first id that may not be there."""
    columns, item = pair.length + 1, narrow.itemsize
    refused = _refused(narrow, pair.vocab, x.dtype)
    found = None
    if problem is None and (refused is None or not refused.any()) and _whole_rows(placed, columns, len(x), item):
        tokens = narrow.reshape(len(x), columns)
        np.copyto(x, tokens[:, :-1], casting="unsafe")
        np.copyto(y, tokens[:, 1:], casting="unsafe")
        return None
    for run, (token, size) in enumerate(zip(placed.targets.tolist(), placed.lengths.tolist(), strict=True)):
        if problem is not None and run >= problem.run:
            size = problem.at if run == problem.run else 0  # only what came
        here = slice(token, token + size // item)
        if found is None and refused is not None and refused[here].any():
            index = int(np.argmax(refused[here]))
            found = Problem("token", run, index * item, int(narrow[token + index]))
        if problem is None and found is None:
            row, first = divmod(token, columns)
            last = first + size // item
            x[row, first : min(last, pair.length)] = narrow[here][: pair.length - first].astype(x.dtype)
            y[row, max(first, 1) - 1 : max(last - 1, 0)] = narrow[here][first == 0 :].astype(y.dtype)
    return found


def _whole_rows(placed: Placed, columns: int, rows: int, item: int) -> bool:
    """Whether run i is row i and whole: the usual case, which needs no look at each run."""
    starts = np.arange(rows, dtype=np.int64) * columns
    return np.array_equal(placed.targets, starts) and bool((placed.lengths == columns * item).all())


def _refused(narrow: NDArray[Any], vocab: int | None, wide: np.dtype[Any]) -> NDArray[np.bool_] | None:
    limits = np.iinfo(wide)
    least, most = (0, min(vocab - 1, int(limits.max))) if vocab is not None else (int(limits.min), int(limits.max))
    mine = np.iinfo(narrow.dtype)
    if least <= mine.min and mine.max <= most:
        return None
    return np.asarray((narrow < max(least, int(mine.min))) | (narrow > min(most, int(mine.max))))


def _earliest(*problems: Problem | None) -> Problem | None:
    return min((one for one in problems if one is not None), key=lambda one: (one.run, one.at), default=None)
