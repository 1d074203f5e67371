"""Token files of other projects, byte for byte as their own tools write them.

    nanogpt    train.bin: uint16 ids and nothing else
    llmc       NAME_000000.bin ...: int32[256] header (magic, version, tokens), then uint16 or uint32 ids
    megatron   NAME.bin: ids; NAME.idx: dtype, lengths, pointers and document boundaries

Each takes ids in order, can record how far it is and be cut back to that, and names files only when they are complete,
as our own shards do. An id that does not fit the format's dtype is refused, never
wrapped. Costs a block per open file; Megatron's index is built from a table on disk.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lowtide.corpus.shards import GrowingFile, ShardWriter
from lowtide.errors import FormatError
from lowtide.formats.tokens.llmc import HEADER
from lowtide.formats.tokens.manifest import ShardEntry
from lowtide.formats.tokens.megatron import MAGIC
from lowtide.storage.own_files import sync_directory

_STEP = 1 << 18  # entries of a table processed at a time


@dataclass(frozen=True)
class Target:
    """Where files go, where they are made, and what is known of the ids in advance."""

    directory: Path
    work: Path
    name: str
    tokens: int
    itemsize: int  # of the ids as they were read
    vocab: int | None
    shard_tokens: int


class Sink(Protocol):
    """A format in the making. ``shards``: the complete files, for a manifest; ``ids``: their dtype."""

    shards: list[ShardEntry]
    ids: str

    def add(self, ids: NDArray[Any], ends: NDArray[np.int64]) -> int: ...
    def checkpoint(self) -> dict[str, Any]: ...
    def settle(self) -> None: ...
    def end(self) -> None: ...
    def close(self) -> None: ...


class Flat:
    """Ids without documents: nanoGPT's one file, which has no header, or llm.c's shards of ``shard_tokens`` each."""

    def __init__(self, target: Target, state: dict[str, Any], *, llmc: bool) -> None:
        if not llmc and target.vocab is not None and target.vocab > 2**16:
            raise FormatError(
                f"{target.directory}: expected at most {2**16} ids for nanogpt, got a vocabulary of {target.vocab}. "
                "Use --to llmc, megatron or lowtide."
            )
        self._target, self._llmc = target, llmc
        wide = llmc and (target.vocab > 2**16 if target.vocab is not None else target.itemsize > 2)
        self._dtype, self._magic, self._version = ("<u4", 20240801, 7) if wide else ("<u2", 20240520, 1)
        self.ids = np.dtype(self._dtype).name
        self._most = target.shard_tokens if llmc else target.tokens
        self.shards = [ShardEntry(**entry) for entry in state.get("shards", ())]
        self.settle()
        self._file = GrowingFile(target.work / self._name(len(self.shards)), state["bin"]) if "bin" in state else None

    def _name(self, number: int) -> str:
        return f"{self._target.name}_{number:06d}.bin" if self._llmc else f"{self._target.name}.bin"

    def _open(self) -> GrowingFile:
        """A new file with its header; the number of ids it will hold is known."""
        file = GrowingFile(self._target.work / self._name(len(self.shards)))
        if self._llmc:
            count = min(self._most, self._target.tokens - len(self.shards) * self._most)
            header = struct.pack("<3i", self._magic, self._version, count)
            file.append(memoryview(header + bytes(HEADER - len(header))))
        return file

    def add(self, ids: NDArray[Any], ends: NDArray[np.int64]) -> int:  # noqa: ARG002 - the formats know no documents
        before = len(self.shards)
        while len(ids):
            self._file = self._file or self._open()
            room = self._most - self._held(self._file)
            self._file.append(_as_bytes(_fitting(ids[:room], self._dtype, self._target)))
            if len(ids) >= room:
                self.end()
            ids = ids[room:]
        return len(self.shards) - before

    def _held(self, file: GrowingFile) -> int:
        return (file.length - (HEADER if self._llmc else 0)) // np.dtype(self._dtype).itemsize

    def checkpoint(self) -> dict[str, Any]:
        growing = {} if self._file is None else {"bin": self._file.checkpoint()}
        return {"shards": [shard.as_dict() for shard in self.shards], **growing}

    def end(self) -> None:
        if self._file is not None:
            self._file.sync()
            self._file.close()
            name = self._name(len(self.shards))
            self.shards.append(ShardEntry(name, self._held(self._file), self._file.sums()))
            self._file = None

    def settle(self) -> None:
        for shard in self.shards:
            _named(self._target, shard.file)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Megatron:
    """``NAME.bin`` and ``NAME.idx``, one sequence for each document."""

    def __init__(self, target: Target, state: dict[str, Any]) -> None:
        self._target = target
        # Megatron's own rule for the dtype: see DType.optimal_dtype in its indexed_dataset.py.
        narrow = target.vocab < 65_500 if target.vocab is not None else target.itemsize == 2
        self._dtype, self._code = ("<u2", 8) if narrow else ("<i4", 4)
        self.ids = np.dtype(self._dtype).name
        self.shards = [ShardEntry(**entry) for entry in state.get("shards", ())]
        self.settle()
        self._open = int(state.get("open", 0))  # ids of the document that has not ended
        self._files: list[GrowingFile] = []
        if not self.shards:
            self._files = [GrowingFile(self._grown(what), state.get(what)) for what in ("bin", "lengths")]

    def _grown(self, what: str) -> Path:
        return self._target.work / f"{self._target.name}.{what}"

    def add(self, ids: NDArray[Any], ends: NDArray[np.int64]) -> int:
        self._files[0].append(_as_bytes(_fitting(ids, self._dtype, self._target)))
        lengths = np.diff(ends, prepend=np.int64(-self._open))
        if lengths.size and int(lengths.max()) > 2**31 - 1:
            raise FormatError(
                f"{self._target.directory}: expected documents of fewer than 2**31 tokens for megatron, got one of "
                f"{int(lengths.max())}. Use another format."
            )
        self._files[1].append(_as_bytes(lengths.astype("<i4")))
        self._open = len(ids) - int(ends[-1]) if len(ends) else self._open + len(ids)
        return 0

    def checkpoint(self) -> dict[str, Any]:
        if self.shards:
            return {"shards": [shard.as_dict() for shard in self.shards]}
        states = [file.checkpoint() for file in self._files]
        return {"open": self._open, "bin": states[0], "lengths": states[1]}

    def end(self) -> None:
        if self._open:
            none = np.empty(0, "<u2")
            self.add(none, np.array([0], np.int64))  # tokens after the last boundary are a document too
        for file in self._files:
            file.sync()
            file.close()
        self._write_index()
        self.shards.append(ShardEntry(f"{self._target.name}.bin", self._target.tokens, self._files[0].sums()))
        self._files = []

    def _write_index(self) -> None:
        lengths = np.memmap(self._grown("lengths"), "<i4", "r")
        count, size = len(lengths), np.dtype(self._dtype).itemsize
        with self._grown("idx").open("wb") as file:
            file.write(MAGIC + struct.pack("<QBQQ", 1, self._code, count, count + 1))
            for at in range(0, count, _STEP):
                file.write(lengths[at : at + _STEP].tobytes())
            before = 0
            for at in range(0, count, _STEP):
                ends = np.cumsum(lengths[at : at + _STEP], dtype=np.int64) * size + before
                file.write(np.concatenate([[before], ends[:-1]]).astype("<i8").tobytes())
                before = int(ends[-1])
            for at in range(0, count + 1, _STEP):
                file.write(np.arange(at, min(at + _STEP, count + 1), dtype="<i8").tobytes())
            file.flush()
            os.fsync(file.fileno())

    def settle(self) -> None:
        if self.shards:
            for what in ("bin", "idx"):
                _named(self._target, f"{self._target.name}.{what}")

    def close(self) -> None:
        for file in self._files:
            file.close()


def make_sink(to: str, target: Target, state: dict[str, Any], dtype: str) -> Sink:
    """The writer of a format, continuing from ``state``."""
    if to == "lowtide":
        return ShardWriter(target.directory, target.work, dtype, target.shard_tokens, state)
    return Megatron(target, state) if to == "megatron" else Flat(target, state, llmc=to == "llmc")


def _fitting(ids: NDArray[Any], dtype: str, target: Target) -> NDArray[Any]:
    """``ids`` in ``dtype``; FormatError for one that does not fit."""
    bounds = np.iinfo(dtype)
    if ids.dtype.itemsize > np.dtype(dtype).itemsize or ids.dtype.kind != np.dtype(dtype).kind:
        low, high = (int(ids.min()), int(ids.max())) if ids.size else (0, 0)
        if high > bounds.max or low < bounds.min:
            wrong = high if high > bounds.max else low
            raise FormatError(
                f"{target.directory}: expected ids from 0 to {bounds.max} for this format, got {wrong}. "
                "Use a format with wider ids, such as --to lowtide."
            )
    return ids.astype(dtype, copy=False)


def _as_bytes(ids: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(ids).data.cast("B") if len(ids) else memoryview(b"")


def _named(target: Target, name: str) -> None:
    source = target.work / name
    if source.exists():
        target.directory.mkdir(parents=True, exist_ok=True)
        source.replace(target.directory / name)
        sync_directory(target.directory)
