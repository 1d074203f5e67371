"""A file that is being written: under a temporary name until it is complete, then under its real one.

The unfinished file has one fixed name per target and is locked by its writer. So a second writer is refused
when it starts, not when it ends, and the next writer removes what a killed one left behind, which it recognises by
the free lock. ``finish`` syncs, renames and syncs the directory; until then nobody sees half a file.

Costs one lock at the start and two fsyncs at the end. ``atomic_write`` is for small files, this
for those that take hours. Does not write the data.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
from pathlib import Path

from lowtide.machine import Descriptor, owned
from lowtide.storage.own_files import NO_LOCKS, REFUSED_BY_DISK, sync_directory, write_failed

LONGEST_NAME = 240  # bytes: with prefix and suffix still below the usual 255


class Unfinished:
    """The open, locked file ``.NAME.unfinished`` beside ``target``."""

    def __init__(self, target: str | os.PathLike[str], *, overwrite: bool) -> None:
        self._file: Descriptor | None = None
        self.where = os.fspath(target)
        # Follow a link to the file itself: the disk it points to is the one with the room.
        self._target = Path(os.path.realpath(self.where))
        self._overwrite = overwrite
        self._process = os.getpid()
        _refuse_place(self._target, self.where, overwrite)
        name = self._target.name
        if len(os.fsencode(name)) > LONGEST_NAME:
            name = hashlib.blake2b(os.fsencode(name), digest_size=16).hexdigest()
        self.path = self._target.with_name(f".{name}.unfinished")
        try:
            self._claim()
        except OSError as problem:
            if problem.errno is None:
                raise
            if problem.errno in REFUSED_BY_DISK:
                raise write_failed(self.where, problem) from problem
            told = type(problem)(
                f"{self.where}: expected to begin a file there, got {problem.strerror or problem}. "
                "Choose a directory you may write to."
            )
            told.errno = problem.errno
            raise told from None

    @property
    def number(self) -> int:
        """Its descriptor; -1 once it is closed."""
        return -1 if self._file is None else self._file.number

    def finish(self) -> None:
        """Make it durable and give it its name; on any failure it is removed instead."""
        try:
            os.fsync(self.number)
            self._name()
        except BaseException:
            self.discard()
            raise
        self._close()
        sync_directory(self._target.parent)

    def discard(self) -> None:
        """Remove it. A forked child only closes its own descriptor."""
        if self.number >= 0 and self._process == os.getpid():
            with contextlib.suppress(OSError):
                if _same_file(self.path, self.number):
                    self.path.unlink()
        self._close()

    def __del__(self) -> None:
        self.discard()

    def _claim(self) -> None:
        """Create and lock it, after removing what a dead writer left."""
        while True:
            fresh = not os.path.lexists(self.path)
            if not fresh and not stat.S_ISREG(self.path.lstat().st_mode):
                raise OSError(errno.EEXIST, f"something else of the name {self.path.name}")
            try:
                file = owned(
                    self.path, os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT | os.O_EXCL if fresh else os.O_NONBLOCK)
                )
            except (FileExistsError, FileNotFoundError):
                if not self._target.parent.is_dir():
                    raise
                continue  # another writer was faster: its lock decides
            with contextlib.ExitStack() as unless_kept:
                unless_kept.callback(file.close)
                locks = self._lock(file.number)
                if not _same_file(self.path, file.number):
                    continue
                if fresh:
                    self._file = file
                    unless_kept.pop_all()
                    if not locks:  # two writers cannot notice each other, so each gets a name of its own
                        self._rename()
                    return
                # Never truncated: after a crash in mid-rename it may be another name of the finished file.
                self.path.unlink()

    def _rename(self) -> None:
        own = self.path.with_suffix(f".{os.getpid()}-{os.urandom(4).hex()}")
        self.path.rename(own)
        self.path = own

    def _lock(self, number: int) -> bool:
        """False if the filesystem has no locks."""
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(
                f"{self.where}: expected to be its only writer, got another one at work ({self.path.name} is locked). "
                "Wait for it, or choose another name."
            ) from None
        except OSError as problem:
            if problem.errno not in NO_LOCKS:
                raise
            return False
        return True

    def _name(self) -> None:
        if not _same_file(self.path, self.number):
            raise FileNotFoundError(
                f"{self.where}: expected the unfinished file {self.path.name}, got another file or none. "
                "Somebody removed it: write it again."
            )
        if self._overwrite:
            self.path.replace(self._target)
            return
        try:
            os.link(self.path, self._target)  # fails, unlike a rename, if the name was taken meanwhile
        except FileExistsError:
            raise _taken(self.where) from None
        except OSError:  # a filesystem without hard links
            if self._target.exists():
                raise _taken(self.where) from None
            self.path.replace(self._target)
            return
        self.path.unlink()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _refuse_place(target: Path, where: str, overwrite: bool) -> None:
    """Errors that can be found before anything is written."""
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"{where}: expected the directory {target.parent}, got nothing of that name. Make it first."
        )
    try:
        kind = target.stat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(f"{where}: expected the name of a file, got a directory. Name a file inside it.")
    if not stat.S_ISREG(kind):
        raise ValueError(f"{where}: expected the name of a file, got a device, pipe or socket. Choose another name.")
    if not overwrite:
        raise _taken(where)


def _taken(where: str) -> FileExistsError:
    return FileExistsError(
        f"{where}: expected a name that is free, got an existing file. Choose another name or pass overwrite=True."
    )


def _same_file(path: Path, number: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(number))
    except FileNotFoundError:
        return False
