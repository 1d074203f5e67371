"""Shards in the making: ids and document ends appended, checksummed, and named only when they are whole.

One idea: a shard grows under a temporary name in the work directory, block by block of `CHECKED` bytes with a CRC-32
each. A checkpoint puts everything on disk and says how long it is; a run that goes on cuts the temporary files back to
that. Finished shards take their final names after the checkpoint that counts them, so that a kill between the two loses
nothing: `settle` names them again. A shard ends with the first document that reaches the wanted number of tokens, so
that no document crosses two files. Costs one block for the ids and one for the ends.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from lowtide.formats.manifest import CHECKED


@dataclass(frozen=True)
class Shard:
    """A finished shard, as the manifest names it."""

    file: str
    tokens: int
    documents: int
    ends: str
    crc32: str  # of each CHECKED bytes, eight hexadecimal digits a block
    ends_crc32: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "tokens": self.tokens,
            "crc32": self.crc32,
            "documents": self.documents,
            "ends": self.ends,
            "ends_crc32": self.ends_crc32,
        }


class Growing:
    """A file that grows in checked blocks and can be cut back to a checkpoint."""

    def __init__(self, path: Path, length: int = 0, sums: str = "") -> None:
        path.touch()
        self.path = path
        self._file: BinaryIO = path.open("r+b", buffering=0)
        self._buffer = bytearray(CHECKED)
        self._view = memoryview(self._buffer)
        full = length // CHECKED * CHECKED
        self._sums = [sums[place : place + 8] for place in range(0, full // CHECKED * 8, 8)]
        self._file.seek(full)
        self._held = self._file.readinto(self._view[: length - full]) if length > full else 0
        if self._held != length - full:
            raise OSError(f"{path}: expected {length} bytes from before, got {full + self._held}. Start again.")
        self._file.truncate(length)
        self._file.seek(full)

    @property
    def length(self) -> int:
        return len(self._sums) * CHECKED + self._held

    def append(self, data: memoryview) -> None:
        done, size = 0, len(data)
        while done < size:
            if self._held == 0 and size - done >= CHECKED:  # a whole block goes straight to the file
                self._write(data[done : done + CHECKED])
                done += CHECKED
                continue
            take = min(CHECKED - self._held, size - done)
            self._view[self._held : self._held + take] = data[done : done + take]
            self._held += take
            done += take
            if self._held == CHECKED:
                self._write(self._view)
                self._held = 0

    def _write(self, block: memoryview) -> None:
        _write_all(self._file, block, self.path)
        self._sums.append(f"{zlib.crc32(block):08x}")

    def sync(self) -> None:
        """All of it on disk; the block in the buffer is written where it will be written again."""
        at = self._file.tell()
        if self._held:
            _write_all(self._file, self._view[: self._held], self.path)
            self._file.seek(at)
        os.fdatasync(self._file.fileno())

    def sums(self) -> str:
        """Checksums of the whole blocks, and of the one in the buffer."""
        last = [f"{zlib.crc32(self._view[: self._held]):08x}"] if self._held else []
        return "".join([*self._sums, *last])

    def checkpoint(self) -> dict[str, Any]:
        self.sync()
        return {"length": self.length, "crc32": "".join(self._sums)}

    def close(self) -> None:
        self._file.close()


class ShardWriter:
    """One corpus in the making: ``add`` documents, ``checkpoint`` now and then, ``finish``."""

    def __init__(self, directory: Path, work: Path, dtype: str, shard_tokens: int, state: dict[str, Any]) -> None:
        self.directory, self._work = directory, work
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._wanted = shard_tokens
        self.shards = [Shard(**entry) for entry in state.get("shards", ())]
        self._tokens = int(state.get("tokens", 0))
        self._documents = int(state.get("documents", 0))
        self.settle()
        self._ids = self._open("bin", state)
        self._ends = self._open("ends", state)

    def _growing(self, number: int, what: str) -> Path:
        return self._work / f"{self.directory.name}-{number:05d}.{what}"

    def _open(self, what: str, state: dict[str, Any]) -> Growing:
        before = state.get(what, {"length": 0, "crc32": ""})
        return Growing(self._growing(len(self.shards), what), before["length"], before["crc32"])

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards) + self._tokens

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards) + self._documents

    def add(self, ids: NDArray[Any], ends: NDArray[np.int64]) -> int:
        """Append documents; ids behind the last end belong to a document that goes on. Shards finished by it."""
        finished = 0
        while True:
            # The first end that fills the shard closes it; the rest goes into the next one.
            place = int(np.searchsorted(ends, self._wanted - self._tokens))
            if place >= len(ends):
                break
            stop = int(ends[place])
            self._append(ids[:stop], ends[: place + 1])
            self._close()
            finished += 1
            ids, ends = ids[stop:], ends[place + 1 :] - stop
        self._append(ids, ends)
        return finished

    def checkpoint(self) -> dict[str, Any]:
        """All that is needed to go on from here, JSON-safe."""
        return {
            "shards": [vars(shard) for shard in self.shards],
            "tokens": self._tokens,
            "documents": self._documents,
            "bin": self._ids.checkpoint(),
            "ends": self._ends.checkpoint(),
        }

    def settle(self) -> None:
        """Give finished shards their names; called when the journal counts them."""
        named = False
        for number, shard in enumerate(self.shards):
            # The ends first: whoever finds a shard finds its ends beside it.
            for what, name in (("ends", shard.ends), ("bin", shard.file)):
                grown = self._growing(number, what)
                if grown.exists():
                    self.directory.mkdir(parents=True, exist_ok=True)
                    grown.replace(self.directory / name)
                    named = True
        if named:
            sync_directory(self.directory)

    def end(self) -> None:
        """Close the last shard."""
        if self._tokens:
            self._close()

    def close(self) -> None:
        self._ids.close()
        self._ends.close()

    def _append(self, ids: NDArray[Any], ends: NDArray[np.int64]) -> None:
        if len(ids):
            self._ids.append(np.ascontiguousarray(ids, self._dtype).data.cast("B"))
        if len(ends):
            self._ends.append((ends + self._tokens).astype("<u8").data.cast("B"))
        self._tokens += len(ids)
        self._documents += len(ends)

    def _close(self) -> None:
        name = f"shard-{len(self.shards):05d}"
        sums = self._ids.sums(), self._ends.sums()
        for growing in (self._ends, self._ids):
            growing.sync()
            growing.close()
        self.shards.append(Shard(f"{name}.bin", self._tokens, self._documents, f"{name}.ends", *sums))
        self._tokens = self._documents = 0
        self._ids, self._ends = self._open("bin", {}), self._open("ends", {})


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable, where the filesystem can."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _write_all(file: BinaryIO, data: memoryview, path: Path) -> None:
    done = 0
    try:
        while done < len(data):
            done += file.write(data[done:])
    except OSError as problem:
        failed = OSError(
            f"{path}: expected room for {len(data) - done} more bytes, got: {problem.strerror}. "
            "Make space and run the same command again: it goes on where it stopped."
        )
        failed.errno = problem.errno
        raise failed from problem
