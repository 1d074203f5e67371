"""Arrays that are computed once and kept in a file: beside the data, or in the user's cache directory.

The builder appends to a few growing streams and, last, to a ledger that says how much of each stream is complete. So a
build that was stopped continues where its ledger ends. The finished file is one header and the arrays; it gets its name
in one step, and names the data it was made from. Of several processes one builds; the others wait for its lock.

Costs the arrays on disk, and while building twice that. Finished arrays are read when needed, never mapped: a
file that somebody cuts is a ``ReadError`` and not the end of the process. Those that fit are held in memory, counted
against the budget, as long as the room is not needed. Knows nothing of tokens; ``storage/own_files.py`` decides which
directories and files can be trusted.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from lowtide.blocks.objects import normal_address
from lowtide.engine import KEEP, Engine, Numbers, Problem
from lowtide.errors import FormatError, ReadError
from lowtide.machine import Descriptor
from lowtide.storage.budget import Budget, Holding
from lowtide.storage.forks import renew_in_children
from lowtide.storage.own_files import OwnDirectory, beside_or_cache, seal, telling, user_cache, wait_for_lock
from lowtide.storage.read import read_all, read_failed

MAGIC = b"LOWTIDE\x01"
ALIGNED = 64
MOST_HEADER = 1 << 20
COPIED = 4 << 20  # bytes copied at a time when streams become one file
LARGEST_SHARE = 4  # a quarter of the budget may hold arrays that make reading faster
FOLDER = ".lowtide"  # hidden: a corpus is opened by its directory, and this is not part of it


@dataclass(frozen=True)
class KeptFile:
    """What to keep: its file name, the data and settings it belongs to, and the data file it is kept beside."""

    name: str
    identity: Mapping[str, Any]  # safe for JSON
    beside: str

    def places(self, *, make: bool) -> Iterator[OwnDirectory]:
        """Directories it may be in, best first. Nothing lies here beside data that has an address."""
        here = normal_address(self.beside) is None
        return beside_or_cache(Path(self.beside).parent / FOLDER if here else None, make=make)


@dataclass(frozen=True)
class KeptArray:
    """One array of a finished file, on disk; ``at``: its first byte."""

    path: str
    file: Descriptor
    kind: np.dtype[Any]
    count: int
    at: int

    def __len__(self) -> int:
        return self.count

    @property
    def nbytes(self) -> int:
        return self.count * self.kind.itemsize

    def part(self, first: int = 0, last: int | None = None) -> NDArray[Any]:
        """The items from ``first`` to ``last``, in memory."""
        last = self.count if last is None else last
        found: Any = np.empty(last - first, self.kind)
        offset = self.at + first * self.kind.itemsize
        try:
            read_all(self.path, self.file.number, offset, memoryview(found.view(np.uint8)))
        except ReadError as problem:
            raise _failed(self.path, self.file, offset, problem.errno or 0) from problem
        array: NDArray[Any] = found
        return array

    def runs(self, firsts: Numbers, counts: Numbers) -> tuple[Numbers, Numbers]:
        """Bytes of the file that hold ``counts`` items from ``firsts`` on: offsets and lengths for ``read_runs``."""
        return self.at + firsts * self.kind.itemsize, counts * self.kind.itemsize


class KeptArrays:
    """A finished file: ``facts``, and arrays by name."""

    def __init__(self, path: str, identity: Mapping[str, Any]) -> None:
        import json  # here: it takes 1.5 ms, and only documents need it

        self.path = path
        self.identity = dict(identity)
        directory, name = Path(path).parent, Path(path).name
        self._file = file = OwnDirectory(directory, make=False).open(name)  # closed with its last reference
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
        self.arrays = {name: KeptArray(path, file, *part) for name, part in parts.items()}

    def read_runs(self, offsets: Numbers, lengths: Numbers, engine: Engine) -> NDArray[np.uint8]:
        """Many runs of bytes of the file, one after the other, by one call of the engine."""
        found: NDArray[np.uint8] = np.empty(int(lengths.sum()), np.uint8)
        runs = (self._file.number, offsets, lengths, None, None, 1, 0)
        # A queue costs less than a run or two, and one per call is shared with nobody: no locks, no care about forks.
        told = engine.queue("announce").fill(runs, found, KEEP)
        if not isinstance(told, int):
            problem = Problem(*told)
            raise _failed(self.path, self._file, int(offsets[problem.run]) + problem.at, problem.value)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptArrays, (self.path, self.identity)


class HeldArrays:
    """Some arrays of a file in memory, while the budget has room; others need not wait for that room."""

    def __init__(self, arrays: tuple[KeptArray, ...], budget: Budget) -> None:
        self._arrays, self._budget = arrays, budget
        self.nbytes = sum(one.nbytes for one in arrays)
        self._held: tuple[tuple[NDArray[Any], ...], Holding, dict[Any, Any]] | None = None
        self._given_up = False
        budget.may_shrink(self)
        renew_in_children(self)

    def fits(self, batches: int) -> bool:
        """Whether they will be held beside so many bytes of batches: they may take a quarter of the budget."""
        limit = self._budget.limit
        most = min(limit // LARGEST_SHARE, limit - self._budget.aside - batches)
        return not self._given_up and self.nbytes <= most

    def get(self, batches: Callable[[], int] = lambda: 0) -> tuple[NDArray[Any], ...] | None:
        """The arrays; None if they are to be read from the file instead, part by part. ``batches``: bytes they need
        of the same budget."""
        held = self._held
        if held is None and self.fits(batches()):
            holding = self._budget.reserve(self.nbytes)
            if holding is None:
                self._given_up = True
            else:
                self._held = held = tuple(one.part() for one in self._arrays), holding, {}
        return None if held is None else held[0]

    def made(self, make: Callable[..., Any], *settings: Any) -> Any:
        """What ``make(*arrays, *settings)`` gives, made once and kept as long as the arrays are; None: they are not."""
        held = self._held
        if held is None:
            return None
        found = held[2].get(settings)
        if found is None:
            held[2][settings] = found = make(*held[0], *settings)
        return found

    def shrink(self) -> None:
        """Give the room back: it is needed."""
        if self._held is not None:
            self._held, self._given_up = None, True

    def renew_after_fork(self) -> None:
        """What a child inherits belongs to the parent's count, so it reads its own."""
        self._held = None


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
        """Wait until no other process builds the same; without a lock if the filesystem has none."""
        wait_for_lock(self._files[self.ledger].fileno())

    def entries(self) -> NDArray[Any]:
        """The ledger so far, whole entries of ``kinds`` only."""
        file, kind = self._files[self.ledger], self.kinds[self.ledger]
        count = os.fstat(file.fileno()).st_size // kind.itemsize
        file.seek(0)
        return np.frombuffer(file.read(count * kind.itemsize), kind)

    def keep(self, counts: Mapping[str, int]) -> bool:
        """Go back to this many items per stream; False if a stream has fewer, so that nothing can be kept."""
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
        """Give the lock up; ``discard``: the streams are no longer needed."""
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
    """The finished arrays: existing ones, or built now by this process or by another that has already begun."""
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
        f"one that cannot be written or is not yours alone; {user_cache()} does not work either. "
        "Set XDG_CACHE_HOME to a directory of your own."
    )


def _failed(path: str, file: Descriptor, offset: int, number: int) -> ReadError:
    """``number``: the errno of the read; 0: the file ended."""
    if number:
        return read_failed(path, offset, OSError(number, os.strerror(number)))
    was, now = file.status.st_size, os.fstat(file.number).st_size
    return ReadError(
        f"{path}: expected the {was} bytes that were opened, got {now}: it was cut or written to meanwhile. "
        "Delete it and open the data again: it will be rebuilt.",
        path=path,
        offset=offset,
    )


def damaged(path: str, expected: str, got: str) -> FormatError:
    return FormatError(f"{path}: expected {expected}, got {got}. Delete it: it will be rebuilt.")
