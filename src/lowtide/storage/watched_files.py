"""Open files: descriptors on demand, one cap for the whole process, and a watch on what happens to the files.

A store's data lies in extents, and any number of extents may lie in one file: files are opened, counted and checked
once each. A descriptor is an object that closes itself when the last reader lets go, so closing one (thousands of
shards, a few hundred descriptors) can never make another thread read from a reused number.

Costs one ``fstat`` per file and call (0.5 microseconds): it tells a file that was truncated, grown, rewritten, replaced
or deleted. Reads no data.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lowtide.engine import Engine, WatchedFiles
from lowtide.errors import ReadError
from lowtide.machine import file_kind
from lowtide.storage.forks import Turn, renew_in_children
from lowtide.units import format_size

MOST_TOGETHER = 64  # files one call reads from at a time: it keeps their descriptors, whatever else is closed meanwhile
MOST_KEPT = 2048  # descriptors and mappings kept open, however many the process may have
FEW = 64  # kept things among which none will have to go for long: their order of use is not followed
MOST_WATCHED = 256  # files of a store, up to which all of them are open before long
TOLD_EVERY = 64  # batches after which watched descriptors are marked as used

OpenKey = tuple[int, bool, int]  # file, scattered, flags


@dataclass(frozen=True)
class Extent:
    """Data bytes that follow one another in a file; ``size`` is the whole file's when its header was read.

    ``may_change``: the caller may write to the file meanwhile (a memmap opened for writing), so times prove nothing.
    """

    path: str
    offset: int
    length: int
    size: int
    may_change: bool = False


@dataclass(frozen=True)
class FileIdentity:
    """Which file it is, and when it was last written."""

    device: int
    inode: int
    modified: int  # nanoseconds

    @staticmethod
    def of(status: os.stat_result) -> FileIdentity:
        return FileIdentity(status.st_dev, status.st_ino, status.st_mtime_ns)


@dataclass(slots=True)
class ReadCounts:
    """Bytes a store was asked for and read. Races between threads may lose a count, never invent one."""

    asked: int = 0
    read: int = 0  # left the files, the gaps between merged neighbours included
    cached: int = 0  # of those, known to have come from the page cache


class Descriptor:
    """One open file. Closes itself with its last reference."""

    __slots__ = ("linked", "number", "status")

    def __init__(self, path: str, flags: int) -> None:
        self.number = -1
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
        self.status = os.fstat(self.number)
        self.linked = self.status.st_nlink > 0

    def __del__(self) -> None:
        if self.number >= 0:
            with contextlib.suppress(OSError):
                os.close(self.number)


class Keeper(Protocol):
    """Somebody who keeps things open and can let go of them; one still in use stays open until its reader is done."""

    def let_go(self, key: Any) -> None: ...


class KeptDescriptors:
    """What this process keeps open, over all stores: beyond ``most``, what was not used for longest is let go.

    Knows who keeps what, not the things themselves: a store that dies closes its own.
    """

    def __init__(self) -> None:
        self._turn = Turn()
        self._order: OrderedDict[tuple[int, Any], weakref.ref[Keeper]] = OrderedDict()
        self.crowded = False  # enough is open that the order of use matters
        renew_in_children(self)

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
        """``keeper`` opened something; the oldest go where there are too many."""
        most = self.most
        with self._turn.lock:
            self._order[id(keeper), key] = weakref.ref(keeper)
            self.crowded = len(self._order) > min(FEW, most // 2)
            oldest = [self._order.popitem(last=False) for _ in range(len(self._order) - most)]
        _let_go(oldest)

    def used(self, keeper: Keeper, key: Any) -> None:
        """Mark as used last."""
        with self._turn.lock:
            if (id(keeper), key) in self._order:
                self._order.move_to_end((id(keeper), key))

    def make_room(self) -> None:
        """Let go of everything: descriptors are needed elsewhere."""
        with self._turn.lock:
            everything, self._order = list(self._order.items()), OrderedDict()
        _let_go(everything)

    def renew_after_fork(self) -> None:
        self._order = OrderedDict()


def _let_go(entries: list[tuple[tuple[int, Any], weakref.ref[Keeper]]]) -> None:
    for (_, key), reference in entries:
        keeper = reference()
        if keeper is not None:
            keeper.let_go(key)


KEPT = KeptDescriptors()


class Files:
    """The files of a store, opened at first use. A file that is no longer what was opened is a ``ReadError``.

    ``which[e]`` is the file in which extent e lies.
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
        self.closed = False
        self.counters = ReadCounts()
        self._unchanged = engine.unchanged
        self._open: dict[OpenKey, Descriptor] = {}
        self._watched: tuple[WatchedFiles, tuple[Descriptor, ...]] | None = None
        self._uses = 0
        self._identities: dict[int, FileIdentity] = {}
        devices: dict[int, bool] = {}
        for file, path in enumerate(self.paths):
            with contextlib.suppress(OSError):  # one that is missing is reported when it is read
                status = os.stat(path)  # noqa: PTH116
                self._identities[file] = FileIdentity.of(status)
                if status.st_dev not in devices:
                    devices[status.st_dev] = file_kind(path).memory
        known = self._identities
        self._modified = [known[file].modified if file in known else -1 for file in range(len(self.paths))]
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
        descriptor = self._open.get(key)
        if descriptor is None:
            descriptor = self._open_file(key)
        elif KEPT.crowded:
            KEPT.used(self, key)
        if not self._unchanged(descriptor.number, self.sizes[file], self._modified[file]):
            self._check(file, descriptor)
        return descriptor

    def descriptors(self, files: list[int], scattered: bool, flags: int = 0) -> dict[int, Descriptor]:
        """Those of all these files, each checked once."""
        return {file: self.descriptor(file, scattered, flags) for file in set(files)}

    def watched(self, ends: Any, shift: Any) -> tuple[WatchedFiles, tuple[Descriptor, ...]]:
        """What is open, as the arrays that ``Engine.locate`` wants, and the descriptors, which stay open with it."""
        self._uses += 1
        known = self._watched
        if known is None:
            opened = list(self._open.items())
            held = {file: found for (file, scattered, flags), found in opened if scattered and not flags}
            fds = np.full(len(self.paths), -1, np.int32)
            for file, descriptor in held.items():
                fds[file] = descriptor.number
            # -1, which no file has, where the time proves nothing
            modified = [-1 if one.may_change else time for one, time in zip(self.extents, self._modified, strict=True)]
            sizes = np.array(self.sizes, np.int64)
            files = WatchedFiles(ends, shift, self.which, sizes, np.array(modified, np.int64), fds)
            self._watched = known = files, tuple(held.values())
        elif self._uses % TOLD_EVERY == 0 and KEPT.crowded:
            for key in list(self._open):
                KEPT.used(self, key)
        return known

    def changed(self, file: int, status: os.stat_result) -> ReadError:
        """The error that says what happened to a file."""
        extent, size = self.extents[file], status.st_size
        if size < extent.size:
            event = f"truncated to {format_size(size)} ({size} bytes)"
        elif size > extent.size:
            event = f"grown to {format_size(size)} ({size} bytes)"
        elif self._rewritten(file, status):
            event = "rewritten in place (its modification time changed)"
        elif Path(extent.path).exists():
            event = "replaced by another file"
        else:
            event = "deleted"
        return ReadError(
            f"{extent.path}: expected the file of {extent.size} bytes that was opened, got it {event} meanwhile. "
            "Open it again once it is complete.",
            path=extent.path,
            offset=extent.offset,
        )

    def _check(self, file: int, descriptor: Descriptor) -> None:
        status, extent = os.fstat(descriptor.number), self.extents[file]
        unlinked = status.st_nlink == 0 and descriptor.linked
        if status.st_size != extent.size or unlinked or self._rewritten(file, status):
            raise self.changed(file, status)

    def _rewritten(self, file: int, status: os.stat_result) -> bool:
        identity = self._identities[file]
        return (
            status.st_mtime_ns != identity.modified
            and status.st_ino == identity.inode
            and status.st_dev == identity.device
            and not self.extents[file].may_change
        )

    def _open_file(self, key: OpenKey) -> Descriptor:
        file, scattered, flags = key
        extent = self.extents[file]
        if self.closed:
            raise ValueError(f"{extent.path}: expected an open store, got a closed one. Open it again.")
        try:
            descriptor = _opened(extent.path, flags)
        except OSError as problem:
            raise _cannot_open(extent, problem) from problem
        found = FileIdentity.of(descriptor.status)
        known = self._identities.setdefault(file, found)
        if (known.device, known.inode) != (found.device, found.inode):
            raise self.changed(file, descriptor.status)
        self._modified[file] = known.modified
        if scattered and hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):  # a hint, no more
                os.posix_fadvise(descriptor.number, 0, 0, os.POSIX_FADV_RANDOM)
        self._open[key] = descriptor
        self._watched = None
        KEPT.add(self, key)
        return descriptor

    def let_go(self, key: OpenKey) -> None:
        self._open.pop(key, None)
        self._watched = None

    def close(self) -> None:
        self.closed = True
        self.renew_after_fork()

    def renew_after_fork(self) -> None:
        self._open = {}  # a child opens its own
        self._watched = None


def _opened(path: str, flags: int) -> Descriptor:
    try:
        return Descriptor(path, flags)
    except OSError as problem:
        if problem.errno not in (errno.EMFILE, errno.ENFILE):
            raise
    KEPT.make_room()  # somebody else in this process has taken what was left: ours can all be opened again
    return Descriptor(path, flags)


def _cannot_open(extent: Extent, problem: OSError) -> ReadError:
    way_out = "Put it back and open it anew"
    if problem.errno in (errno.EMFILE, errno.ENFILE):
        way_out = "Close files this program no longer needs, or raise the limit (ulimit -n)"
    elif problem.errno in (errno.EACCES, errno.EPERM):
        way_out = "Let this user read it"
    return ReadError(
        f"{extent.path}: expected to open it again, got {problem.strerror}. {way_out}.",
        path=extent.path,
        offset=extent.offset,
        errno=problem.errno,
    )
