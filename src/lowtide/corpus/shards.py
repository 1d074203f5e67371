"""Shards in the making: ids and document ends are appended and checksummed; a shard is named once it is complete.

A shard grows under a temporary name in the work directory, in blocks of `CHECKED` bytes with a CRC-32 each. A
checkpoint puts everything on disk and records the lengths; a resumed run cuts the temporary files back to them.
Finished shards get their final names after the checkpoint that counts them, so that a kill between the two loses
nothing: `settle` then names them. A shard ends with the first document that reaches the wanted number of tokens, so
that no document crosses two files. Costs a MiB for each file that grows.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from lowtide.engine import engine
from lowtide.errors import StateError
from lowtide.formats.tokens.manifest import CHECKED, MANIFEST, ShardEntry, manifest_digest
from lowtide.storage.own_files import atomic_write, sync_directory

OFTEN = 256 * 1024 * 1024  # bytes written between two checkpoints, if shards are larger
_BUFFERED = 1 << 20  # small appends are gathered; larger ones go straight to the file


class GrowingFile:
    """A file that grows, with a CRC-32 for each CHECKED bytes, and can be cut back to a checkpoint."""

    def __init__(self, path: Path, state: dict[str, Any] | None = None) -> None:
        path.touch()
        self.path = path
        self._file: BinaryIO = path.open("r+b", buffering=_BUFFERED)
        before = state or {"length": 0, "crc32": "", "open": 0}
        self.length: int = before["length"]
        sums: str = before["crc32"]
        self._sums = [sums[place : place + 8] for place in range(0, len(sums), 8)]
        self._open: int = before["open"]  # bytes of the block that is not full
        if path.stat().st_size < self.length:
            raise StateError(
                f"{path}: expected {self.length} bytes from before, got {path.stat().st_size}. Remove the output and "
                "start again."
            )
        self._file.truncate(self.length)
        self._file.seek(self.length)
        self._synced = self.length

    def append(self, data: memoryview) -> None:
        while len(data):
            fitting = data[: CHECKED - self.length % CHECKED]
            try:
                self._file.write(fitting)
            except OSError as problem:
                raise _no_room(self.path, problem) from problem
            self._open = engine().crc32(fitting, self._open)
            self.length += len(fitting)
            if self.length % CHECKED == 0:
                self._sums.append(f"{self._open:08x}")
                self._open = 0
                self._start_disk()
            data = data[len(fitting) :]

    def _start_disk(self) -> None:
        """Let the disk begin with a full block while the next one is made. The kernel writes what is dirty before it
        drops what is clean, and waits for neither."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), self.length - CHECKED, CHECKED, os.POSIX_FADV_DONTNEED)

    def sync(self) -> None:
        """Put all of it on disk."""
        if self._synced == self.length:
            return
        try:
            self._file.flush()
            os.fdatasync(self._file.fileno())
        except OSError as problem:
            raise _no_room(self.path, problem) from problem
        self._synced = self.length

    def sums(self) -> str:
        """Checksums of all blocks, including a last one that is not full."""
        return "".join([*self._sums, *([f"{self._open:08x}"] if self.length % CHECKED else [])])

    def checkpoint(self) -> dict[str, Any]:
        self.sync()
        return {"length": self.length, "crc32": "".join(self._sums), "open": self._open}

    def close(self) -> None:
        try:
            self._file.close()
        except OSError:  # a full disk was reported already, and what is missing will be written again
            with contextlib.suppress(OSError):
                self._file.close()


class ShardWriter:
    """One corpus in the making: ``add`` documents, ``checkpoint`` now and then, ``finish``."""

    def __init__(self, directory: Path, work: Path, dtype: str, shard_tokens: int, state: dict[str, Any]) -> None:
        self.directory, self._work = directory, work
        self.ids, self._dtype = dtype, np.dtype(dtype).newbyteorder("<")
        self._wanted = shard_tokens
        self.shards = [ShardEntry(**entry) for entry in state.get("shards", ())]
        self._tokens = int(state.get("tokens", 0))
        self._documents = int(state.get("documents", 0))
        self.settle()
        self._ids = self._open("bin", state)
        self._ends = self._open("ends", state)

    def _growing(self, number: int, what: str) -> Path:
        return self._work / f"{self.directory.name}-{number:05d}.{what}"

    def _open(self, what: str, state: dict[str, Any]) -> GrowingFile:
        return GrowingFile(self._growing(len(self.shards), what), state.get(what))

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards) + self._tokens

    @property
    def documents(self) -> int:
        return sum(shard.documents or 0 for shard in self.shards) + self._documents

    def add(self, ids: NDArray[Any], ends: NDArray[np.int64]) -> int:
        """Append documents; ids after the last end belong to an unfinished one. Returns shards finished."""
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
        """All that is needed to continue from here, JSON-safe."""
        return {
            "shards": [shard.as_dict() for shard in self.shards],
            "tokens": self._tokens,
            "documents": self._documents,
            "bin": self._ids.checkpoint(),
            "ends": self._ends.checkpoint(),
        }

    def settle(self) -> None:
        """Give finished shards their names; called when the journal counts them."""
        named = False
        for number, shard in enumerate(self.shards):
            # The ends first, so that a shard never appears without them.
            for what in ("ends", "bin"):
                grown = self._growing(number, what)
                if grown.exists():
                    self.directory.mkdir(parents=True, exist_ok=True)
                    grown.replace((self.directory / shard.file).with_suffix(f".{what}"))
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
        sums, ends_sums = self._ids.sums(), self._ends.sums()
        for growing in (self._ends, self._ids):
            growing.sync()
            growing.close()
        entry = ShardEntry(f"{name}.bin", self._tokens, sums, self._documents, f"{name}.ends", ends_sums)
        self.shards.append(entry)
        self._tokens = self._documents = 0
        self._ids, self._ends = self._open("bin", {}), self._open("ends", {})


def write_manifest(directory: Path, content: dict[str, Any]) -> None:
    """Write the manifest with its own digest: the last file of a corpus, which makes it complete."""
    signed = {**content, "digest": manifest_digest(content)}
    with atomic_write(directory / MANIFEST) as file:
        file.write(json.dumps(signed, indent=1, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")


def _no_room(path: Path, problem: OSError) -> OSError:
    failed = OSError(
        f"{path}: expected room for more bytes, got: {problem.strerror}. Make space and run the same command again: "
        "it continues where it stopped."
    )
    failed.errno = problem.errno
    return failed
