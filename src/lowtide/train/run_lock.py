"""One run per out directory, and what a run says when the disk refuses to take its files.

One idea: the lock is a POSIX record lock on ``.lock``, which belongs to the process and not to the file: however a run
ends, SIGKILL and a power failure included, the kernel drops it, so a dead run never blocks the next. The file itself
stays and holds the name of the last run, for the message. Where a file system has no locks, runs go without one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from lowtide.errors import LowtideError

LOCK = ".lock"
_held: set[Path] = set()  # a record lock does not keep its own process out


class DirectoryInUseError(LowtideError):
    """Another run is writing into the out directory."""


class SaveError(LowtideError, OSError):
    """A checkpoint or a ledger line could not be written; what was there before is still there."""

    def __init__(self, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.errno = number

    def __str__(self) -> str:
        return str(self.args[0])


def reason(problem: OSError) -> str:
    """What the system says, such as 'No space left on device'."""
    return repr(os.strerror(problem.errno) if problem.errno else str(problem))


@contextlib.contextmanager
def only_run(directory: Path) -> Iterator[None]:
    """Hold the directory for this process; DirectoryInUseError, naming the other run, when it is taken."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory.resolve() / LOCK
    if path in _held:  # and must not be opened: closing it would drop the lock that is there
        raise _in_use(directory, f"process {os.getpid()}, this one")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _lock(descriptor, directory)
        _held.add(path)
        yield
    finally:
        _held.discard(path)
        os.close(descriptor)


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in (errno.EACCES, errno.EAGAIN):
            holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
            raise _in_use(directory, holder) from problem
        return  # no locks here: some network and FUSE file systems
    with contextlib.suppress(OSError):  # a full disk: the lock holds, only its name is missing
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def _in_use(directory: Path, holder: str) -> DirectoryInUseError:
    return DirectoryInUseError(
        f"{directory}: expected a directory that no other run is using, got one in use by {holder}. "
        "Use another --out-dir, or end that run first."
    )
