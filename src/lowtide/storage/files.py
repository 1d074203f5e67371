"""The open files of one store: descriptors on demand, closed when safe, and a watch on what happens to the files.

One idea: a descriptor is an object that closes itself when the last reader lets go, so that evicting one (thousands of
shards, 256 descriptors) can never make another thread read from a reused number.

Costs one ``fstat`` per file and call (0.5 microseconds). Does not read data.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from lowtide.errors import ReadError
from lowtide.units import format_size

MOST_OPEN = 256  # below the usual 1,024 of RLIMIT_NOFILE, also with several stores in one process
MOST_TOGETHER = 64  # files one call reads from at a time: it keeps their descriptors, whatever else is closed meanwhile

Identity = tuple[int, int]  # device and inode


@dataclass(frozen=True)
class Extent:
    """A run of data bytes in one file; ``size`` is the whole file's when its header was read."""

    path: str
    offset: int
    length: int
    size: int


def identities_of(extents: tuple[Extent, ...]) -> dict[int, Identity]:
    """Which files these are now; one that is missing is left out and reported when it is read."""
    found = {}
    for index, extent in enumerate(extents):
        with contextlib.suppress(OSError):
            status = os.stat(extent.path)  # noqa: PTH116
            found[index] = (status.st_dev, status.st_ino)
    return found


class Descriptor:
    """One open file. Closes itself with its last reference."""

    __slots__ = ("identity", "linked", "number")

    def __init__(self, path: str, flags: int) -> None:
        self.number = -1
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
        status = os.fstat(self.number)
        self.identity = (status.st_dev, status.st_ino)
        self.linked = status.st_nlink > 0

    def __del__(self) -> None:
        if self.number >= 0:
            with contextlib.suppress(OSError):
                os.close(self.number)


class Files:
    """Descriptors of a store's files, opened at first use; those not used for longest are closed beyond ``most``.

    ``identities`` are the files' own, as the store found them: one put in their place is not theirs.
    """

    def __init__(self, extents: tuple[Extent, ...], identities: dict[int, Identity], *, most: int = MOST_OPEN) -> None:
        self.extents = extents
        self._identities = identities
        self._most = most
        self.closed = False
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[int, bool, int], Descriptor] = OrderedDict()

    def descriptor(self, index: int, *, scattered: bool = False, flags: int = 0) -> Descriptor:
        """The file's descriptor; scattered reads have one of their own, told not to read ahead.

        Checks on every call that the file still is what was opened.
        """
        if self.closed:
            raise ValueError(f"{self.extents[index].path}: expected an open store, got a closed one. Open it again.")
        key = (index, scattered, flags)
        descriptor = self._open.get(key)
        if descriptor is None:
            descriptor = self._open_file(key)
        elif len(self._open) > self._most // 2:  # where some may have to go, the order of use matters
            with self._lock:
                self._open[key] = descriptor
                self._open.move_to_end(key)
        status = os.fstat(descriptor.number)
        if status.st_size != self.extents[index].size or (status.st_nlink == 0 and descriptor.linked):
            raise self._changed(index, status.st_size)
        return descriptor

    def descriptors(self, files: list[int], *, scattered: bool) -> dict[int, Descriptor]:
        """Those of all these files, each checked once."""
        if len(files) == 1:
            return {files[0]: self.descriptor(files[0], scattered=scattered)}
        return {file: self.descriptor(file, scattered=scattered) for file in set(files)}

    def _open_file(self, key: tuple[int, bool, int]) -> Descriptor:
        index, scattered, flags = key
        extent = self.extents[index]
        try:
            descriptor = Descriptor(extent.path, flags)
        except OSError as problem:
            raise ReadError(
                f"{extent.path}: expected to open it again, got {problem.strerror}. Put it back and open it anew.",
                path=extent.path,
                offset=extent.offset,
                errno=problem.errno,
            ) from problem
        if self._identities.setdefault(index, descriptor.identity) != descriptor.identity:
            raise self._changed(index, os.fstat(descriptor.number).st_size)
        if scattered and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor.number, 0, 0, os.POSIX_FADV_RANDOM)
        with self._lock:
            self._open[key] = descriptor
            while len(self._open) > self._most:
                self._open.popitem(last=False)
        return descriptor

    def _changed(self, index: int, size: int) -> ReadError:
        extent = self.extents[index]
        if size < extent.size:
            event = f"truncated to {format_size(size)} ({size} bytes)"
        elif size > extent.size:
            event = f"grown to {format_size(size)} ({size} bytes)"
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

    def close(self) -> None:
        self.closed = True
        with self._lock:
            self._open.clear()
