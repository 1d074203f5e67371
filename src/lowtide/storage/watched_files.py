"""Open files: descriptors on demand, one cap for the whole process, and a watch on what happens to the files.

A store's data is in extents, and one file may have any number of them: files are opened, counted and checked once each,
and stores of one process that read the same file share its descriptor. A descriptor closes itself when its last reader
lets go, so closing one (thousands of shards, a few hundred descriptors) can never make another thread read from a
reused number.

Costs an ``fstat`` per file before each call and one after it (0.5 microseconds each). The first notices a file that was
truncated, grown, rewritten, replaced or deleted; the second that this happened during the call, when what came may be
of both versions. Reads no data.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lowtide.engine import Engine, WatchedFiles
from lowtide.errors import ReadError
from lowtide.machine import Descriptor, file_kind, open_regular
from lowtide.storage.forks import Turn, renew_in_children
from lowtide.units import format_size

MOST_TOGETHER = 64  # files that one call reads from at a time: it holds their descriptors until it is done
MOST_KEPT = 2048  # descriptors and mappings kept open, however many the process may have
MOST_WATCHED = 256  # a store of at most so many files soon has all of them open

OpenKey = tuple[int, bool, int]  # file, scattered, flags


@dataclass(frozen=True, eq=False)
class FilePieces:
    """Where the pieces of an extent begin in its file, and where each ends in the extent. Arrays, because a file may
    have a million of them: 36 bytes each in an open store."""

    offsets: NDArray[np.int64]
    ends: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        return int(self.offsets.nbytes + self.ends.nbytes)


@dataclass(frozen=True)
class Extent:
    """Data bytes that follow one another in a file; ``size`` is the whole file's when its header was read.

    ``may_change``: the caller may write to the file meanwhile (a memmap opened for writing), so its times prove
    nothing. ``made``: what the bytes are made from, if they are not local; ``path`` then names that for people.
    """

    path: str
    offset: int
    length: int
    size: int
    may_change: bool = False
    pieces: FilePieces | None = None  # where its bytes do not follow one another; ``offset``: of the first
    made: Any = None

    def place(self, at: int) -> int:
        """The byte of the file at which byte ``at`` of the data lies."""
        if self.pieces is None:
            return self.offset + at
        piece = int(np.searchsorted(self.pieces.ends, at, side="right"))
        return int(self.pieces.offsets[piece] + at - (self.pieces.ends[piece - 1] if piece else 0))

    def at(self, place: int) -> int | None:
        """The byte of the data at byte ``place`` of the file; None where that is no data."""
        for first, (offset, length) in zip(self._firsts(), self.runs(), strict=True):
            if offset <= place < offset + length:
                return first + place - offset
        return None

    def runs(self, first: int = 0, length: int | None = None) -> Iterator[tuple[int, int]]:
        """Offset and length of the bytes of the file that hold ``length`` bytes of data from ``first`` on."""
        last = self.length if length is None else min(self.length, first + length)
        if self.pieces is None:
            yield self.offset + first, last - first
            return
        piece = int(np.searchsorted(self.pieces.ends, first, side="right"))
        while first < last:
            end = min(last, int(self.pieces.ends[piece]))
            yield self.place(first), end - first
            first, piece = end, piece + 1

    def _firsts(self) -> list[int]:
        return [0] if self.pieces is None else [0, *self.pieces.ends[:-1].tolist()]


@dataclass(slots=True)
class ReadCounts:
    """Bytes a store was asked for and read. Races between threads may lose a count, never invent one."""

    asked: int = 0
    read: int = 0  # left the files, the gaps between merged neighbours included
    cached: int = 0  # known to have come from the page cache


class Keeper(Protocol):
    """Keeps things open and can let go of them; one still in use stays open until its reader is done."""

    def let_go(self, key: Any) -> None: ...


class KeptDescriptors:
    """What this process keeps open, over all stores: beyond ``most``, those opened first are closed.

    Knows who keeps what, not the things themselves: a store that is dropped closes its own.
    """

    def __init__(self) -> None:
        self._turn = Turn()
        self.renew_after_fork()
        renew_in_children(self)

    def renew_after_fork(self) -> None:
        self._order: OrderedDict[tuple[int, Any], weakref.ref[Keeper]] = OrderedDict()
        self._shared: dict[tuple[str, bool, int], weakref.ref[Descriptor]] = {}

    @property
    def most(self) -> int:
        """Half of what the process may have open now (``ulimit -n``); the rest is for everyone else."""
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return MOST_KEPT if soft == resource.RLIM_INFINITY else max(4, min(MOST_KEPT, soft // 2))

    @property
    def together(self) -> int:
        """Files one call may read from at a time."""
        return max(1, min(MOST_TOGETHER, self.most // 4))

    def add(self, keeper: Keeper, key: Any) -> None:
        """``keeper`` opened something; the oldest are closed if there are too many."""
        self._order[id(keeper), key] = weakref.ref(keeper)
        if len(self._order) > self.most:
            self.make_room(len(self._order) - self.most)

    def share(self, key: tuple[str, bool, int], descriptor: Descriptor) -> None:
        """Share it with other stores of this process for as long as somebody keeps it open."""
        if len(self._shared) > 2 * MOST_KEPT:
            self._shared = {key: one for key, one in list(self._shared.items()) if one() is not None}
        self._shared[key] = weakref.ref(descriptor)

    def shared(self, key: tuple[str, bool, int]) -> Descriptor | None:
        reference = self._shared.get(key)
        found = None if reference is None else reference()
        # While one closes itself other threads run and its weak reference still works, but its number may be reused.
        return None if found is None or found.closed else found

    def make_room(self, count: int | None = None) -> None:
        """Close so many, or all: descriptors are needed elsewhere."""
        with self._turn.lock:
            many = len(self._order) if count is None else count
            oldest = [self._order.popitem(last=False) for _ in range(min(many, len(self._order)))]
        for (_, key), reference in oldest:
            keeper = reference()
            if keeper is not None:
                keeper.let_go(key)


KEPT = KeptDescriptors()
_LOST: list[Descriptor] = []  # closed by others: their numbers may be reused by now, so we must not close them


class Files:
    """The files of a store, opened at first use. A file that is no longer what was opened is a ``ReadError``.

    ``which[e]`` is the file of extent e.
    """

    def __init__(self, extents: tuple[Extent, ...], engine: Engine) -> None:
        numbers: dict[tuple[str, bool], int] = {}
        self.which = np.array(
            [numbers.setdefault((one.path, one.may_change), len(numbers)) for one in extents], np.int32
        )
        first_of = {int(file): extent for file, extent in zip(self.which[::-1], reversed(extents), strict=True)}
        self.extents = [first_of[file] for file in range(len(numbers))]  # the first of each file
        self.paths = [one.path for one in self.extents]
        self.sizes = [one.size for one in self.extents]
        self.settled = not any(one.may_change for one in extents)  # their times prove that nothing was written
        self.watchable = self.settled and len(self.paths) <= MOST_WATCHED
        self.closed = False
        self.counters = ReadCounts()
        self._unchanged = engine.unchanged
        self._open: dict[OpenKey, Descriptor] = {}
        self._watched: tuple[WatchedFiles, tuple[Descriptor, ...]] | None = None
        self._known: dict[int, os.stat_result] = {}  # as each was when the store was made
        self._changed = [-1] * len(self.paths)  # nanoseconds of the last change; -1: unknown
        devices: dict[int, bool] = {}
        for file, path in enumerate(self.paths):
            with contextlib.suppress(OSError):  # a missing file is reported when it is read
                status = os.stat(path)  # noqa: PTH116
                self._is_now(file, status)
                if status.st_dev not in devices:
                    devices[status.st_dev] = file_kind(path).memory
        # Bytes of a filesystem that lives in memory cannot miss and cannot be dropped.
        self.in_memory = bool(devices) and all(devices.values())
        self.partly_in_memory = any(devices.values())
        renew_in_children(self)

    def __len__(self) -> int:
        return len(self.paths)

    def descriptor(self, file: int, scattered: bool = False, flags: int = 0) -> Descriptor:
        """The file's descriptor; scattered reads have one of their own, told not to read ahead.

        Checks on every call that the file still is what was opened.
        """
        key = (file, scattered, flags)
        descriptor = self._open.get(key) or self._open_file(key)
        if not self._unchanged(descriptor.number, self.sizes[file], self._changed[file]):
            descriptor = self._checked(key, descriptor)
        return descriptor

    def still(self, file: int, descriptor: Descriptor) -> None:
        """After a read: nothing is given of a file that was written or cut while it was read."""
        if self._unchanged(descriptor.number, self.sizes[file], self._changed[file]):
            return
        try:
            status = os.fstat(descriptor.number)
        except OSError:
            status = None
        if status is None or not self._same_file(file, status):
            extent = self.extents[file]
            raise ReadError(
                f"{extent.path}: expected the file that was opened, got its descriptor closed during a read. Other "
                "code of this process did that (os.closerange, say): ask again, and it is reopened.",
                path=extent.path,
                offset=extent.offset,
                errno=errno.EBADF,
            )
        self._require_unchanged(file, descriptor, status)

    def descriptors(self, files: list[int], scattered: bool, flags: int = 0) -> dict[int, Descriptor]:
        """The descriptors of these files, each checked once."""
        return {file: self.descriptor(file, scattered, flags) for file in set(files)}

    def watched(self, ends: Any, shift: Any, which: Any) -> tuple[WatchedFiles, tuple[Descriptor, ...]]:
        """The open files as the arrays that ``Engine.locate`` takes, and their descriptors, which it keeps open."""
        known = self._watched
        if known is None:
            opened = list(self._open.items())
            held = {file: found for (file, scattered, flags), found in opened if scattered and not flags}
            fds = np.full(len(self.paths), -1, np.int32)
            for file, descriptor in held.items():
                fds[file] = descriptor.number
            sizes, changed = np.array(self.sizes, np.int64), np.array(self._changed, np.int64)
            files = WatchedFiles(ends, shift, which, sizes, changed, fds)
            self._watched = known = files, tuple(held.values())
        return known

    def changed(self, file: int, status: os.stat_result) -> ReadError:
        """The error that says what happened to a file."""
        extent, size = self.extents[file], status.st_size
        if size < extent.size:
            event = f"truncated to {format_size(size)} ({size} bytes)"
        elif size > extent.size:
            event = f"grown to {format_size(size)} ({size} bytes)"
        elif not self._same_file(file, status) or status.st_nlink == 0:
            event = "replaced by another file" if Path(extent.path).exists() else "deleted"
        elif status.st_mtime_ns != self._known[file].st_mtime_ns:
            event = "rewritten in place (its modification time changed)"
        else:
            event = "rewritten in place (its modification time was put back, the time of its last change was not)"
        return ReadError(
            f"{extent.path}: expected the file of {extent.size} bytes that was opened, got it {event} meanwhile. "
            "Open it again once it is complete.",
            path=extent.path,
            offset=extent.offset,
        )

    def _checked(self, key: OpenKey, descriptor: Descriptor) -> Descriptor:
        """A closer look: files closed by others are reopened; a new name or new permissions are fine."""
        file = key[0]
        try:
            status = os.fstat(descriptor.number)
            lost = not self._same_file(file, status)
        except OSError:
            lost = True
        if lost:
            _LOST.append(descriptor)
            self.let_go(key)
            descriptor = self._open_file(key, anew=True)
            status = os.fstat(descriptor.number)
        self._require_unchanged(file, descriptor, status)
        return descriptor

    def _require_unchanged(self, file: int, descriptor: Descriptor, status: os.stat_result) -> None:
        unlinked = status.st_nlink == 0 and descriptor.status.st_nlink > 0
        if status.st_size != self.sizes[file] or unlinked or self._rewritten(file, status):
            raise self.changed(file, status)

    def _same_file(self, file: int, status: os.stat_result) -> bool:
        return os.path.samestat(status, self._known[file])

    def _rewritten(self, file: int, status: os.stat_result) -> bool:
        known = self._known[file]
        if self.extents[file].may_change or status.st_ctime_ns == known.st_ctime_ns:
            return False
        if status.st_mtime_ns != known.st_mtime_ns:
            return True
        # A change without a write is of names, owner or permissions; otherwise bytes changed and the time was put back.
        rights = (status.st_mode, status.st_uid, status.st_gid, status.st_nlink)
        if rights == (known.st_mode, known.st_uid, known.st_gid, known.st_nlink):
            with contextlib.suppress(OSError):
                return self._same_file(file, os.stat(self.paths[file]))  # noqa: PTH116 - else it was renamed
        self._is_now(file, status)
        return False

    def _is_now(self, file: int, status: os.stat_result) -> None:
        self._known[file] = status
        self._changed[file] = -1 if self.extents[file].may_change else status.st_ctime_ns
        self._watched = None

    def _open_file(self, key: OpenKey, *, anew: bool = False) -> Descriptor:
        file, scattered, flags = key
        extent = self.extents[file]
        if self.closed:
            raise ValueError(f"{extent.path}: expected an open store, got a closed one. Open it again.")
        found = KEPT.shared((extent.path, scattered, flags))
        if found is None or anew or (file in self._known and not self._same_file(file, found.status)):
            found = _opened(extent, flags)
            if scattered and hasattr(os, "posix_fadvise"):
                with contextlib.suppress(OSError):  # a hint, no more
                    os.posix_fadvise(found.number, 0, 0, os.POSIX_FADV_RANDOM)
            KEPT.share((extent.path, scattered, flags), found)
        if file not in self._known:
            self._is_now(file, found.status)
        if not self._same_file(file, found.status):
            raise self.changed(file, found.status)
        self._open[key] = found
        self._watched = None
        KEPT.add(self, key)
        return found

    def let_go(self, key: OpenKey) -> None:
        self._open.pop(key, None)
        self._watched = None

    def close(self) -> None:
        self.closed = True
        self.renew_after_fork()

    def renew_after_fork(self) -> None:
        self._open, self._watched = {}, None  # a child opens its own


def _opened(extent: Extent, flags: int) -> Descriptor:
    try:
        try:
            return open_regular(extent.path, flags)
        except OSError as problem:
            if problem.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            KEPT.make_room()  # others in this process took the last descriptors: ours can all be reopened
            return open_regular(extent.path, flags)
    except ReadError:  # not a regular file: the message is ours already
        raise
    except OSError as problem:
        way_out = "Put it back and open it again"
        if problem.errno in (errno.EMFILE, errno.ENFILE):
            way_out = "Close files this program no longer needs, or raise the limit (ulimit -n)"
        elif problem.errno in (errno.EACCES, errno.EPERM):
            way_out = "Let this user read it"
        raise ReadError(
            f"{extent.path}: expected to open it again, got {problem.strerror}. {way_out}.",
            path=extent.path,
            offset=extent.offset,
            errno=problem.errno,
        ) from problem
