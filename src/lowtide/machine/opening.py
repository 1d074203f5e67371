"""Opening files: only regular ones, each owned by one object from the system call on.

A path may have become a FIFO since it was checked, and opening or reading one waits for ever. So files are opened
without waiting, and what was opened is checked before anybody reads. The descriptor belongs to an object before a line
of Python can run, so an interrupt at any moment closes it; C code closes it, so the end of the interpreter does too.
Costs three small system calls more than a bare ``open``.
"""

from __future__ import annotations

import io
import os
import stat
from functools import partial

from lowtide.errors import ReadError

_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
_ACCESS = {os.O_RDONLY: "r", os.O_WRONLY: "w", os.O_RDWR: "r+"}


class Descriptor(io.FileIO):
    """One open file, closed with its last reference: keep the object for as long as you read by its number."""

    # FileIO warns about unclosed files once its `_finalizing` is set; this slot of the same name prevents that.
    __slots__ = ("_finalizing", "number", "status")
    number: int
    status: os.stat_result  # when it was opened


def owned(path: str | os.PathLike[str], flags: int, mode: int = 0o666, dir_fd: int | None = None) -> Descriptor:
    """``os.open`` of a file, whose result has an owner at once: both calls are one step of the interpreter, and no
    signal handler can run between them."""
    call = os.open if dir_fd is None else partial(os.open, dir_fd=dir_fd)
    opened = map(call, (path,), (flags | os.O_CLOEXEC,), (mode,))
    (made,) = map(Descriptor, opened, (_ACCESS[flags & os.O_ACCMODE],))
    made.number = made.fileno()
    made.status = os.fstat(made.number)
    return made


def open_regular(path: str | os.PathLike[str], flags: int = 0) -> Descriptor:
    """Open a file to read it, without ever waiting; anything but a regular file is a ``ReadError``."""
    _refuse_other(path, os.stat(path))  # noqa: PTH116 - a directory is not even opened
    made = owned(path, os.O_RDONLY | os.O_NONBLOCK | flags)
    _refuse_other(path, made.status)
    os.set_blocking(made.number, True)  # io_uring would take the flag to mean: do not wait for the disk
    return made


def _refuse_other(path: str | os.PathLike[str], status: os.stat_result) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        got = "a directory" if kind == stat.S_IFDIR else _KINDS.get(kind, "something else")
        raise ReadError(
            f"{os.fspath(path)}: expected a regular file, got {got}. Name a file that holds the data.",
            path=os.fspath(path),
            offset=0,
        )
