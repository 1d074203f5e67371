"""A file opened for its first bytes only.

Its stat is checked before it is opened, it is opened without waiting, and read no further than asked. A FIFO, socket,
device or directory is refused from its stat, so that nothing hangs and no device is touched. Costs one stat, one open,
one fstat. An address is an object of a store, read through its local blocks: one request. Data is read by ``storage/``.
"""

from __future__ import annotations

import errno
import os
import stat

from lowtide.blocks.objects import Made, MadeFile, listed, normal_address, object_size, open_object
from lowtide.errors import FormatError, ReadError
from lowtide.storage.watched_files import Extent

# safetensors' own bound, the largest of any header here; a parser that asks for more is wrong.
MOST_HEADER_BYTES = 100_000_000

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


class HeaderFile:
    """A regular file of ``size`` bytes, to read its header. ``made``: what was opened before, if not a local file."""

    def __init__(self, path: str, made: Made | None = None) -> None:
        self._made: MadeFile | None = None
        self._fd = -1
        address = normal_address(path) if made is None else path
        if address is not None:
            self._made = MadeFile(open_object(address) if made is None else made)
            self.path, self.size = self._made.made.name, self._made.made.size
            return
        self.path = os.path.abspath(path)  # noqa: PTH100 - a Path would cost more than the stat
        try:
            _refuse_special(os.stat(self.path), self.path)  # noqa: PTH116
            # O_NONBLOCK: if the name became a FIFO since the stat, open returns at once and fstat refuses it.
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{self.path}: expected a file, got nothing of that name. Check the path."
            ) from None
        except PermissionError:
            raise PermissionError(
                f"{self.path}: expected a file this user may read, got permission denied. Check it with ls -l."
            ) from None
        try:
            status = os.fstat(self._fd)
            _refuse_special(status, self.path)
        except BaseException:
            os.close(self._fd)
            raise
        self.size = status.st_size

    def read(self, offset: int, length: int) -> bytes:
        """The bytes at ``offset``; fewer than ``length`` only if the file ends first."""
        if not 0 <= length <= MOST_HEADER_BYTES:
            raise ValueError(f"{self.path}: expected at most {MOST_HEADER_BYTES} header bytes, got {length}.")
        length = max(0, min(length, self.size - offset))  # no buffer larger than the rest of the file
        if self._made is not None:
            return self._made.read(offset, length) if length else b""
        parts = []
        while length:
            try:
                part = os.pread(self._fd, length, offset)
            except OSError as error:
                raise ReadError(
                    f"{self.path}: expected {length} header bytes at {offset}, got {error.strerror}. Check the disk.",
                    path=self.path,
                    offset=offset,
                    errno=error.errno,
                ) from error
            if not part:
                break
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return b"".join(parts)

    def read_exactly(self, offset: int, length: int) -> bytes:
        """All the bytes at ``offset``; ReadError if the file has become shorter."""
        data = self.read(offset, length)
        if len(data) != length:
            raise ReadError(
                f"{self.path}: expected {length} bytes at {offset}, got {len(data)}. It was cut: open it again.",
                path=self.path,
                offset=offset,
            )
        return data

    def extent(self, offset: int, length: int) -> Extent:
        return Extent(path=self.path, offset=offset, length=length, size=self.size, made=self.made)

    @property
    def made(self) -> Made | None:
        """What its bytes are made of, where it does not lie here."""
        return None if self._made is None else self._made.made

    def part(self, name: str, offset: int, size: int) -> FilePart:
        """A run of bytes that is itself a file, such as a member of an archive."""
        return FilePart(self, f"{self.path}, {name}", offset, size)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> HeaderFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FilePart:
    """A file inside a file, with the same methods; offsets count from its beginning. ``path`` names both in errors."""

    def __init__(self, file: HeaderFile, path: str, offset: int, size: int) -> None:
        self._file = file
        self._offset = offset
        self.path = path
        self.size = size

    def read(self, offset: int, length: int) -> bytes:
        return self._file.read(self._offset + offset, min(length, max(0, self.size - offset)))

    def extent(self, offset: int, length: int) -> Extent:
        return self._file.extent(self._offset + offset, length)


def contents_of(path: str) -> bytes:
    """All bytes of a small file or object."""
    with HeaderFile(path) as file:
        return file.read(0, file.size)


def is_file(path: str) -> bool:
    """Whether a regular file is there, or an object; never opens it."""
    address = normal_address(path)
    if address is not None:
        return object_size(address) is not None
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116
    except OSError:
        return False


def lies_beside(path: str) -> bool:
    """Whether a file is there that nobody named. An object that may not be looked at is none: stores refuse to say that
    there is nothing to those who may not list, and the signature of one address is none for another."""
    try:
        return is_file(path)
    except ReadError as problem:
        if problem.errno == errno.EACCES:
            return False
        raise


def is_directory(path: str) -> bool:
    """Whether a directory is there. Of addresses: those that end in a slash, or whose last part has no suffix and that
    lead to a manifest or to objects below."""
    address = normal_address(path)
    if address is None:
        return os.path.isdir(path)  # noqa: PTH112
    if address.startswith("http") and "?" in address:
        return False  # what is signed is one object: names of files cannot follow a query
    if address.endswith("/"):
        return True
    last = address.partition("://")[2].rpartition("/")[2]
    return "." not in last and object_size(address) is None


def names_in(path: str) -> list[str]:
    """What lies in a directory; of addresses: everything below up to the next slash, each name once."""
    address = normal_address(path)
    if address is None:
        return os.listdir(path)  # noqa: PTH208
    below = address.rstrip("/") + "/"
    if address.startswith("http"):
        raise FormatError(
            f"{address}: expected a manifest.json in a directory of a web server, which lists nothing, got none. "
            "Name the files."
        )
    return list(dict.fromkeys(one[len(below) :].partition("/")[0] for one, _ in listed(below)))


def size_of(path: str) -> int:
    """Bytes of a file or object; -1 where there is none."""
    address = normal_address(path)
    if address is not None:
        found = object_size(address)
        return -1 if found is None else found
    return os.path.getsize(path) if is_file(path) else -1  # noqa: PTH202


def refuse_empty(file: HeaderFile) -> None:
    if file.size == 0:
        raise FormatError(f"{file.path}: expected data, got an empty file. Write it again or leave it out.")


def _refuse_special(status: os.stat_result, path: str) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(
            f"{path}: expected a file, got a directory. Name a file or a glob inside it; "
            "open_tokens takes a corpus directory."
        )
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
    raise FormatError(f"{path}: expected a regular file, got {kind}. Copy its bytes into a file first.")
