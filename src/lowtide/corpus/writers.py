"""Token files of other projects, byte for byte as their own tools write them.

    nanogpt    train.bin: uint16 ids and nothing else
    llmc       NAME_000000.bin ...: int32[256] header (magic, version, tokens), then uint16 or uint32 ids
    megatron   NAME.bin: ids; NAME.idx: dtype, lengths, pointers and document boundaries

Each takes ids in order, can say how far it is and be cut back to that, and gives files their names only when
they are whole - the same manners as a shard of ours. An id that does not fit the format's dtype is refused, never
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
from lowtide.formats.tokens.megatron import MAGIC
from lowtide.storage.own_files import sync_directory

_STEP = 1 << 18  # entries of a table worked on at a time


@dataclass(frozen=True)
class Target:
    """Where files go, where they grow, and what is known of the ids before they come."""

    directory: Path
    work: Path
    name: str
    tokens: int
    itemsize: int  # of the ids as they were read
    vocab: int | None
    shard_tokens: int


class Sink(Protocol):
    """A format in the making."""

    def add(self, ids: NDArray[Any], ends: NDArray[np.int64]) -> int: ...
    def checkpoint(self) -> dict[str, Any]: ...
    def settle(self) -> None: ...
    def end(self) -> None: ...
    def close(self) -> None: ...


class NanoGPT:
    """One file of uint16 ids."""

    def __init__(self, target: Target, state: dict[str, Any]) -> None:
        _refuse_wide(target, "nanogpt", 2**16)
        self._target = target
        self._ended = bool(state.get("ended"))
        self.settle()
        self._file = None if self._ended else GrowingFile(self._grown, state.get("bin"))

    @property
    def _grown(self) -> Path:
        return self._target.work / f"{self._target.name}.bin"

    def add(self, ids: NDArray[Any], ends: NDArray[np.int64]) -> int:  # noqa: ARG002 - the format knows no documents
        assert self._file is not None
        self._file.append(_as_bytes(_fitting(ids, "<u2", self._target)))
        return 0

    def checkpoint(self) -> dict[str, Any]:
        return {"ended": True} if self._file is None else {"bin": self._file.checkpoint()}

    def end(self) -> None:
        if self._file is not None:
            self._file.sync()
            self._file.close()
            self._file, self._ended = None, True

    def settle(self) -> None:
        if self._ended:
            _named(self._target, f"{self._target.name}.bin", f"{self._target.name}.bin")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class LLMC:
    """Shards of exactly ``shard_tokens`` ids behind a header of 1,024 bytes; documents may cross them."""

    def __init__(self, target: Target, state: dict[str, Any]) -> None:
        self._target = target
        wide = target.vocab > 2**16 if target.vocab is not None else target.itemsize > 2
        self._dtype, self._magic, self._version = ("<u4", 20240801, 7) if wide else ("<u2", 20240520, 1)
        self._finished = int(state.get("finished", 0))
        self.settle()
        self._file: GrowingFile | None = None
        if "bin" in state:
            self._file = GrowingFile(self._grown(self._finished), state["bin"])

    def _grown(self, number: int) -> Path:
        return self._target.work / self._name(number)

    def _name(self, number: int) -> str:
        return f"{self._target.name}_{number:06d}.bin"

    def _open(self) -> GrowingFile:
        """A new shard with its header: how many ids it will hold is known."""
        file = GrowingFile(self._grown(self._finished))
        before = self._finished * self._target.shard_tokens
        count = min(self._target.shard_tokens, self._target.tokens - before)
        header = struct.pack("<3i", self._magic, self._version, count)
        file.append(memoryview(header + bytes(HEADER - len(header))))
        return file

    def add(self, ids: NDArray[Any], ends: NDArray[np.int64]) -> int:  # noqa: ARG002 - the format knows no documents
        finished = 0
        size = np.dtype(self._dtype).itemsize
        while len(ids):
            self._file = self._file or self._open()
            room = self._target.shard_tokens - (self._file.length - HEADER) // size
            self._file.append(_as_bytes(_fitting(ids[:room], self._dtype, self._target)))
            if len(ids) >= room:
                self._close_shard()
                finished += 1
            ids = ids[room:]
        return finished

    def _close_shard(self) -> None:
        assert self._file is not None
        self._file.sync()
        self._file.close()
        self._file = None
        self._finished += 1

    def checkpoint(self) -> dict[str, Any]:
        growing = {} if self._file is None else {"bin": self._file.checkpoint()}
        return {"finished": self._finished, **growing}

    def end(self) -> None:
        if self._file is not None:
            self._close_shard()

    def settle(self) -> None:
        for number in range(self._finished):
            _named(self._target, self._name(number), self._name(number))

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
        self._ended = bool(state.get("ended"))
        self.settle()
        self._open = int(state.get("open", 0))  # ids of the document that is not at its end
        self._files: list[GrowingFile] = []
        if not self._ended:
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
        if self._ended:
            return {"ended": True}
        states = [file.checkpoint() for file in self._files]
        return {"open": self._open, "bin": states[0], "lengths": states[1]}

    def end(self) -> None:
        if self._open:
            none = np.empty(0, "<u2")
            self.add(none, np.array([0], np.int64))  # tokens behind the last boundary are a document too
        for file in self._files:
            file.sync()
            file.close()
        self._write_index()
        self._files, self._ended = [], True

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
        if self._ended:
            for what in ("bin", "idx"):
                _named(self._target, f"{self._target.name}.{what}", f"{self._target.name}.{what}")

    def close(self) -> None:
        for file in self._files:
            file.close()


def make_sink(to: str, target: Target, state: dict[str, Any], dtype: str) -> Sink:
    """The writer of a format, from where ``state`` says it was."""
    if to == "lowtide":
        return ShardWriter(target.directory, target.work, dtype, target.shard_tokens, state)
    if to == "nanogpt":
        return NanoGPT(target, state)
    return LLMC(target, state) if to == "llmc" else Megatron(target, state)


def _fitting(ids: NDArray[Any], dtype: str, target: Target) -> NDArray[Any]:
    """``ids`` in ``dtype``; FormatError for one that does not fit."""
    bounds = np.iinfo(dtype)
    if ids.dtype.itemsize > np.dtype(dtype).itemsize or ids.dtype.kind != np.dtype(dtype).kind:
        low, high = (int(ids.min()), int(ids.max())) if ids.size else (0, 0)
        if high > bounds.max or low < bounds.min:
            wrong = high if high > bounds.max else low
            raise FormatError(
                f"{target.directory}: expected ids of 0 to {bounds.max} for this format, got {wrong}. "
                "Use a format with wider ids, such as --to lowtide."
            )
    return ids.astype(dtype, copy=False)


def _refuse_wide(target: Target, format: str, most: int) -> None:
    if target.vocab is not None and target.vocab > most:
        raise FormatError(
            f"{target.directory}: expected at most {most} ids for {format}, got a vocabulary of {target.vocab}. "
            "Use --to llmc, megatron or lowtide."
        )


def _as_bytes(ids: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(ids).data.cast("B") if len(ids) else memoryview(b"")


def _named(target: Target, grown: str, name: str) -> None:
    source = target.work / grown
    if source.exists():
        target.directory.mkdir(parents=True, exist_ok=True)
        source.replace(target.directory / name)
        sync_directory(target.directory)
