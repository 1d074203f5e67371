"""Arrays that are computed once and kept in a file: beside the data, or in the user's cache directory.

The builder appends to a few growing streams and then, last, to a ledger that says how much of each stream is
whole. So a build that was stopped goes on where its ledger ends. The finished file is one header and the arrays, gets
its name at once, and names the data it was made from. Of several processes one builds; the others wait for its lock.

Costs the arrays on disk, and while building twice that. Finished arrays are mapped read-only: their pages belong to the
page cache and all processes share them; before every use one ``fstat`` says that the file still is what was mapped.
Knows nothing of tokens; who may have made a file, and in which directory, is ``storage/own_files.py``'s to know.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from lowtide.errors import FormatError, ReadError
from lowtide.storage.own_files import OwnDirectory, beside_or_cache, seal, telling, user_cache, wait_for_lock

MAGIC = b"LOWTIDE\x01"
ALIGNED = 64
MOST_HEADER = 1 << 20
COPIED = 4 << 20  # bytes copied at a time when streams become one file
FOLDER = ".lowtide"  # hidden: a corpus is opened by its directory, and this is no part of it


@dataclass(frozen=True)
class KeptFile:
    """What to keep: its file name, the data and settings it belongs to, and which data file it lies beside."""

    name: str
    identity: Mapping[str, Any]  # safe for JSON
    beside: str

    def places(self, *, make: bool) -> Iterator[OwnDirectory]:
        """Directories it may lie in, best first."""
        return beside_or_cache(Path(self.beside).parent / FOLDER, make=make)


class KeptArrays:
    """A finished file: ``facts`` and mapped arrays by name."""

    def __init__(self, path: str, identity: Mapping[str, Any]) -> None:
        import json  # here: 1.5 ms that those who read no documents need not pay

        self.path = path
        self.identity = dict(identity)
        directory, name = Path(path).parent, Path(path).name
        with contextlib.closing(OwnDirectory(directory, make=False).open(name)) as file:
            self._status = file.status
            size = file.status.st_size
            start = file.read(len(MAGIC) + 4)
            length = int.from_bytes(start[len(MAGIC) :], "little")
            if start[: len(MAGIC)] != MAGIC or length > min(size, MOST_HEADER):
                raise damaged(path, "a header of Lowtide", "other bytes")
            try:
                header = json.loads(file.read(length))
                found, self.facts, arrays = header["identity"], dict(header["facts"]), header["arrays"]
                sealed = header.get("seal") == seal("kept", found)
                parts = {name: (np.dtype(kind), int(count), int(at)) for name, (kind, count, at) in arrays.items()}
            except (ValueError, KeyError, TypeError) as problem:
                raise damaged(path, "a header of Lowtide", "one that cannot be read") from problem
            if found != json.loads(json.dumps(identity)):
                other = next(name for name in sorted({*found, *identity}) if found.get(name) != identity.get(name))
                raise damaged(path, f"{other} {identity.get(other)}", f"{found.get(other)}, of other data")
            if not sealed:
                raise damaged(path, "the seal of what it was made from", "another one, or none")
            for kind, count, at in parts.values():
                if kind.kind not in "iu" or count < 0 or at < 0 or at + count * kind.itemsize > size:
                    raise damaged(path, f"arrays inside its {size} bytes", f"{count} items at byte {at}")
            self.nbytes = size
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.arrays: dict[str, NDArray[Any]] = {
            name: np.frombuffer(self._map, kind, count, at) for name, (kind, count, at) in parts.items()
        }

    def check(self) -> None:
        """ReadError where the file is no longer what was mapped: touching a page that is gone would be SIGBUS."""
        try:
            now = os.stat(self.path, follow_symlinks=False)  # noqa: PTH116
        except FileNotFoundError:
            return  # its name is gone, its bytes are ours as long as they are mapped
        if os.path.samestat(now, self._status) and now.st_size != self._status.st_size:
            raise ReadError(
                f"{self.path}: expected the {self._status.st_size} bytes that were opened, got {now.st_size}: it was "
                "cut or written to meanwhile. Delete it and open the data again: it is built anew.",
                path=self.path,
                offset=0,
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptArrays, (self.path, self.identity)


class GrowingArrays:
    """Streams of integers under construction; the ledger is the one named first."""

    def __init__(self, directory: OwnDirectory, name: str, streams: Mapping[str, str]) -> None:
        self.directory, self.name = directory, name
        self.kinds = {name: np.dtype(kind) for name, kind in streams.items()}
        self.ledger = next(iter(streams))
        self._files: dict[str, BinaryIO] = {}
        for name in streams:
            self._files[name] = io.BufferedRandom(directory.open(self._partial(name), os.O_RDWR | os.O_CREAT))

    def lock(self) -> None:
        """Wait until no other process builds the same; where the filesystem has no locks, do without."""
        wait_for_lock(self._files[self.ledger].fileno())

    def entries(self) -> NDArray[Any]:
        """The ledger so far, whole entries of ``kinds`` only."""
        file, kind = self._files[self.ledger], self.kinds[self.ledger]
        count = os.fstat(file.fileno()).st_size // kind.itemsize
        file.seek(0)
        return np.frombuffer(file.read(count * kind.itemsize), kind)

    def keep(self, counts: Mapping[str, int]) -> bool:
        """Go back to this many items per stream; False where a stream has fewer, so that nothing can be kept."""
        for name, count in counts.items():
            file, size = self._files[name], count * self.kinds[name].itemsize
            if os.fstat(file.fileno()).st_size < size:
                for other in self._files.values():
                    other.truncate(0)
                return False
            file.truncate(size)
        return True

    def append(self, **items: NDArray[Any]) -> None:
        """Add to the streams, the ledger last and only once the others are on disk."""
        for name in sorted(items, key=lambda name: name == self.ledger):
            file = self._files[name]
            if name == self.ledger:
                for other in items:
                    if other != name:
                        os.fdatasync(self._files[other].fileno())
            file.seek(0, os.SEEK_END)
            file.write(np.ascontiguousarray(items[name], self.kinds[name]).data)
            file.flush()

    def finish(self, identity: Mapping[str, Any], facts: Mapping[str, Any], kinds: Mapping[str, str]) -> None:
        """One file of all streams, each as the (narrower) kind stated, under its final name."""
        import json  # here, as above

        sizes = {
            name: os.fstat(file.fileno()).st_size // self.kinds[name].itemsize for name, file in self._files.items()
        }
        text, sealed = b"", seal("kept", identity)
        for _ in range(3):  # offsets depend on the header's length, and that on the offsets' digits
            at, table = len(MAGIC) + 4 + len(text), dict[str, tuple[str, int, int]]()
            for name, count in sizes.items():
                at = -(-at // ALIGNED) * ALIGNED
                kind = np.dtype(kinds.get(name, self.kinds[name]))
                table[name] = (kind.str, count, at)
                at += count * kind.itemsize
            text = (
                json.dumps({"identity": identity, "facts": facts, "arrays": table, "seal": sealed})
                .encode()
                .ljust(len(text))
            )
        with self.directory.write(self.name) as out:
            out.write(MAGIC + len(text).to_bytes(4, "little") + text)
            for name, (kind_name, _, at) in table.items():
                out.write(bytes(at - out.tell()))
                for block in self._blocks(name):
                    out.write(block.astype(kind_name).data)

    def close(self, *, discard: bool) -> None:
        """Give the lock up; ``discard``: the streams are of no further use."""
        for name, file in self._files.items():
            if discard:
                self.directory.remove(self._partial(name))
            file.close()

    def _blocks(self, name: str) -> Iterator[NDArray[Any]]:
        self._files[name].seek(0)
        while block := self._files[name].read(COPIED):
            yield np.frombuffer(block, self.kinds[name])

    def _partial(self, name: str) -> str:
        return f"{self.name}.{name}.partial"


def kept(what: KeptFile, streams: Mapping[str, str], build: Callable[[GrowingArrays], None]) -> KeptArrays:
    """The finished arrays: those at hand, or built now by this process or by another one that has begun already."""
    for directory in what.places(make=False):
        if directory.has(what.name):
            return KeptArrays(str(directory.path / what.name), what.identity)
    directory = _writable(what)
    target = directory.path / what.name
    growing = None
    done = False
    with telling(target):  # closing writes too: what is still buffered
        try:
            growing = GrowingArrays(directory, what.name, streams)
            growing.lock()
            if not directory.has(what.name):  # nobody finished it while we waited
                build(growing)
            done = True
        finally:
            if growing is not None:
                growing.close(discard=done)
    return KeptArrays(str(target), what.identity)


def _writable(what: KeptFile) -> OwnDirectory:
    for directory in what.places(make=True):
        if os.access(directory.path, os.W_OK):
            return directory
    raise PermissionError(
        f"{Path(what.beside).parent / FOLDER}: expected a directory of yours to keep an index of documents in, got "
        f"one that cannot be written or is not yours alone, like {user_cache()}. "
        "Set XDG_CACHE_HOME to a directory of yours."
    )


def damaged(path: str, expected: str, got: str) -> FormatError:
    return FormatError(f"{path}: expected {expected}, got {got}. Delete it: it is built again.")
