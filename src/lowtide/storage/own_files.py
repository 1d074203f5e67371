"""Files of ours beside other people's data: made, opened and trusted only where nobody else could have put them.

A data directory may be one that everybody writes to. So what we keep there is in a directory that is ours and that
nobody else may write to, opened once and checked by its descriptor. Everything inside is opened from that descriptor,
never through a link, and is checked - a regular file, ours, with one name - before a byte of it is trusted or written.
If there can be no such directory, the user's own cache directory is used instead. New files are made under a random
name that nobody can have taken (O_EXCL), reach the disk, and only then get their own name: no reader ever sees half a
file, even after a crash or on a full disk.

Costs a few system calls per file, and two fsyncs per file written. A refusal of the disk is a ``WriteError``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import stat
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from lowtide.errors import WriteError
from lowtide.machine import Descriptor, owned
from lowtide.units import format_size

REFUSED_BY_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)  # Lustre without -o flock, some FUSE
_OTHERS_MAY_WRITE = 0o022


class NotOursError(PermissionError):
    """Somebody else's, a link, or open to others: neither read nor written."""


class OwnDirectory:
    """A directory that is ours and that nobody else may write to, held open; ``make``: make it if there is none.

    ``NotOursError`` if it is a link, somebody else's, or open to others; other refusals are the system's own.
    """

    def __init__(self, path: str | os.PathLike[str], *, make: bool = True) -> None:
        self.path = Path(path)
        if make:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(0o700)
        try:
            self.number = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as problem:
            if problem.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            raise _not_ours(self.path, "a directory of yours", "a link or a file") from None
        weakref.finalize(self, os.close, self.number).atexit = False
        status = os.fstat(self.number)
        if status.st_uid != os.geteuid():
            raise _not_ours(self.path, "a directory of yours", f"one of user {status.st_uid}")
        if status.st_mode & _OTHERS_MAY_WRITE:
            raise _not_ours(self.path, "a directory that only you may write to", f"mode {status.st_mode & 0o777:o}")

    def open(self, name: str, flags: int = os.O_RDONLY) -> Descriptor:
        """A file of ours; FileNotFoundError if there is none."""
        return _opened(self.path / name, name, flags, 0o600, self.number, (os.geteuid(),))

    def has(self, name: str) -> bool:
        """Whether there is a file of ours of that name."""
        try:
            self.open(name)
        except OSError:
            return False
        return True

    @contextlib.contextmanager
    def write(self, name: str) -> Iterator[BinaryIO]:
        """A binary file that gets its name when the block ends well, and vanishes when it does not."""
        with _replacing(self.path / name, self.number, 0o600) as file:
            yield file

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.number)


def beside_or_cache(beside: str | os.PathLike[str] | None, *, make: bool) -> Iterator[OwnDirectory]:
    """The directory ``beside`` if there is one and it is ours or can be made, then the user's own cache directory."""
    for place in (user_cache(),) if beside is None else (Path(beside), user_cache()):
        with contextlib.suppress(OSError):
            yield OwnDirectory(place, make=make)


def user_cache() -> Path:
    """The user's own cache directory: ``$XDG_CACHE_HOME/lowtide`` or ``~/.cache/lowtide``."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if Path(home).is_absolute() else Path.home() / ".cache") / "lowtide"


def open_own(path: str | os.PathLike[str], flags: int) -> Descriptor:
    """A file of ours in a directory that the user named (a lock, a log): never through a link, and only if its owner
    is this user, or the directory's owner, who may sometimes run as another user."""
    owners = (os.geteuid(), os.stat(Path(path).parent).st_uid)  # noqa: PTH116
    return _opened(Path(path), path, flags, 0o644, None, owners)


def locked(file: Descriptor) -> bool:
    """Take the lock of an open file for as long as it is open; False if another process has it. If the
    filesystem has no locks, it counts as taken by us."""
    try:
        fcntl.flock(file.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as problem:
        if problem.errno not in NO_LOCKS:
            raise
    return True


def wait_for_lock(number: int) -> None:
    """The same, however long it takes; without a lock if the filesystem has none."""
    with contextlib.suppress(OSError):
        fcntl.flock(number, fcntl.LOCK_EX)


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file that becomes ``path`` when the block ends well, and vanishes when it does not. Of two writers the
    last one wins, with its whole file."""
    directory = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _replacing(Path(path), directory, 0o666) as file:
            yield file
    finally:
        os.close(directory)


def sync_directory(directory: Path) -> None:
    """Make a rename itself durable; filesystems that cannot sync a directory are left as they are."""
    number = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(number)
    finally:
        os.close(number)


def seal(kind: str, made_of: Any) -> str:
    """A digest of what a file of ours was made from, keyed by its kind and its user, which the file itself records."""
    import hashlib  # both here: they take milliseconds, and most programs keep nothing
    import json

    said = json.dumps(made_of, sort_keys=True).encode()
    return hashlib.blake2b(said, key=f"lowtide {kind} {os.geteuid()}".encode(), digest_size=16).hexdigest()


@contextlib.contextmanager
def telling(path: str | os.PathLike[str], wanted: int | None = None) -> Iterator[None]:
    """A refusal of the disk inside the block becomes a ``WriteError`` of ``path``, with both numbers."""
    try:
        yield
    except WriteError:
        raise
    except OSError as problem:
        if problem.errno not in REFUSED_BY_DISK:
            raise
        raise write_failed(path, problem, wanted) from problem


def write_failed(
    path: str | os.PathLike[str], problem: OSError, wanted: int | None = None, *, more: str = "", left: str = ""
) -> WriteError:
    """The disk's refusal in our words: path, bytes wanted (and ``more``), bytes free, what to do, what is ``left``."""
    where, free = os.fspath(path), None
    got = problem.strerror or str(problem)
    parent = Path(os.path.realpath(where)).parent
    full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
    with contextlib.suppress(OSError):
        status = os.statvfs(parent)
        free = status.f_bavail * status.f_frsize
        got += f" ({format_size(free)} free on {parent})" if full else ""
    size = "it" if wanted is None else format_size(wanted)
    advice = "Free some space or write elsewhere" if full else "Check the disk and write it again"
    return WriteError(
        f"{where}: expected to write {size}{more}, got {got}. {advice}{left}.",
        path=where,
        wanted=wanted,
        free=free,
        errno=problem.errno,
        strerror=problem.strerror or "",
    )


@contextlib.contextmanager
def _replacing(target: Path, directory: int, mode: int) -> Iterator[BinaryIO]:
    # Each writer has its own name: two processes that save the same target must not share a temporary file.
    temporary = f".{target.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with telling(target):
        try:
            with io.BufferedWriter(owned(temporary, flags, mode, directory)) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target.name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
            raise
        with contextlib.suppress(OSError):
            os.fsync(directory)


def _opened(
    path: Path, name: str | os.PathLike[str], flags: int, mode: int, directory: int | None, owners: tuple[int, ...]
) -> Descriptor:
    try:
        file = owned(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode, directory)
    except OSError as problem:
        refused = problem.errno == errno.EACCES and path.is_symlink()  # fs.protected_symlinks refused first
        if problem.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR) and not refused:
            raise
        raise _not_ours(path, "a file of yours", "a link, a pipe or a directory") from None
    status = file.status
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        got = "one with several names" if stat.S_ISREG(status.st_mode) else "a pipe or a device"
        raise _not_ours(path, "a file of yours", got)
    if status.st_uid not in owners:
        raise _not_ours(path, "a file of yours", f"one of user {status.st_uid}")
    if directory is not None and status.st_mode & _OTHERS_MAY_WRITE:
        raise _not_ours(path, "a file that only you may write to", f"mode {status.st_mode & 0o777:o}")
    os.set_blocking(file.number, True)
    return file


def _not_ours(path: Path, expected: str, got: str) -> NotOursError:
    return NotOursError(
        f"{path}: expected {expected}, got {got}. Remove it, or choose a directory that only you may write to."
    )
