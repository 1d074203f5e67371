"""An object of a store as a file that a decoder can read anywhere: runs in the maker only.

h5py and pyarrow take a Python file. Its reads fetch 256 KiB at a time, patiently and pinned to the version that was
opened (``blocks/remote.py``), and the last few are kept: tables of a file lie close to one another. Whole chunks are
fetched by ``at`` without passing through them. The thread that decodes fetches.
"""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from typing import Any

from lowtide.blocks.remote import RemoteObject
from lowtide.errors import LowtideError

_PIECE = 256 * 1024
_KEPT = 32  # pieces


class LocalBytes:
    """A file of this machine: by its path for decoders, by offset for us."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.problem: LowtideError | OSError | None = None

    @property
    def size(self) -> int:
        return os.stat(self.path).st_size  # noqa: PTH116

    def decoders_file(self) -> Any:
        return self.path

    def at(self, offset: int, length: int) -> bytes:
        """Bytes of the file; fewer where it ends."""
        with open(self.path, "rb", buffering=0) as file:  # noqa: PTH123
            length = max(0, min(length, os.fstat(file.fileno()).st_size - offset))
            return os.pread(file.fileno(), length, offset)


class ObjectBytes:
    """The bytes of an object; ``problem``: what went wrong below a decoder, which tells it in words of its own."""

    def __init__(self, path: str, address: str, options: dict[str, Any], pinned: dict[str, Any]) -> None:
        self.path, self.size = path, int(pinned["size"])
        self.problem: LowtideError | OSError | None = None
        self._object = RemoteObject(address, options, pinned)
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._turn = threading.Lock()

    def decoders_file(self) -> Any:
        return _ObjectFile(self)

    def at(self, offset: int, length: int) -> bytes:
        """Bytes of the object, fetched by one request; fewer where it ends."""
        found = bytearray(max(0, min(length, self.size - offset)))

        def write(place: int, data: Any) -> None:
            view = memoryview(data).cast("B")
            found[place - offset : place - offset + len(view)] = view

        if found:
            try:
                self._object.make(offset, len(found), write)
            except (LowtideError, OSError) as problem:
                self.problem = problem
                raise
        return bytes(found)

    def piece(self, number: int) -> bytes:
        """One of the pieces that are kept for a while."""
        with self._turn:
            found = self._kept.pop(number, None)
            if found is None:
                found = self.at(number * _PIECE, _PIECE)
            self._kept[number] = found
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            return found


class _ObjectFile(io.RawIOBase):
    """An object for a decoder, which closes it when it is done."""

    def __init__(self, object: ObjectBytes) -> None:
        self._object, self._position = object, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._object.size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view) and self._position < self._object.size:
            number, inside = divmod(self._position, _PIECE)
            part = self._object.piece(number)[inside : inside + len(view) - done]
            view[done : done + len(part)] = part
            done += len(part)
            self._position += len(part)
        return done


Bytes = LocalBytes | ObjectBytes


def bytes_of(path: str, source: dict[str, Any] | None) -> Bytes:
    """The bytes that ``source`` (of a ``Made``) names, or those of the file at ``path``."""
    return LocalBytes(path) if source is None else ObjectBytes(path, **source["arguments"])
