"""Strategies ``remap``, ``advise`` and ``map``: the known cures and the disease, behind the same call as ``read``.

One idea: copy out of a mapping a bounded piece at a time and take the pages back behind it - by dropping the mapping
(``remap``), by ``madvise(DONTNEED)`` on it (``advise``), or not at all (``map``, the negative control).

Costs: a fault maps up to 64 KiB around itself, so a row of 2 KiB may hold 128 KiB of mapped pages until they are taken
back; both cures work in rounds that keep this inside the budget. A file truncated while mapped kills a process with
SIGBUS: the size is checked before every call, which leaves a small race that ``read`` does not have.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from lowtide.machine import PAGE
from lowtide.storage.buffers import Buffer
from lowtide.storage.cold import NOWAIT
from lowtide.storage.files import Descriptor, Files
from lowtide.storage.pread import announce, drop_pages
from lowtide.storage.spans import Spans

FAULT_AROUND = 64 * 1024  # the kernel's fault_around_bytes; only debugfs can change it
TABLE = 512 * PAGE  # what one page table covers: no fault maps pages beyond its own table
PROBES = 4  # rows looked at to guess whether a call's data is cached


class Mapping:
    """One file mapped read-only, as bytes."""

    def __init__(self, descriptor: Descriptor, size: int, *, advice: int | None = None) -> None:
        self.map = mmap.mmap(descriptor.number, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        self.bytes: NDArray[np.uint8] = np.frombuffer(self.map, np.uint8)
        self.address = self.bytes.ctypes.data
        if advice is not None:
            self.map.madvise(advice)

    def copy(self, offsets: NDArray[np.int64], length: int, out: NDArray[np.uint8]) -> None:
        """Runs of ``length`` bytes into the rows of ``out``."""
        if len(offsets) == 1:
            start = int(offsets[0])
            out[0] = self.bytes[start : start + length]
            return
        first = int(offsets[0]) % length
        numbers, rest = np.divmod(offsets - first, length)
        if not rest.any():  # whole rows of a table: one take, straight into the buffer
            table = self.bytes[first:]
            table = table[: len(table) // length * length].reshape(-1, length)
            table.take(numbers, 0, out, "clip")  # "raise" would go through a copy; the offsets are in range
        else:
            anywhere = as_strided(self.bytes, (len(self.bytes) - length + 1, length), (1, 1), writeable=False)
            out[:] = anywhere[offsets]

    def take_back(self, offsets: NDArray[np.int64], length: int) -> None:
        """Unmap the pages of these runs and whatever faults mapped around them: every page table they touch, whole."""
        first = (offsets + self.address) // TABLE * TABLE
        last = -(-(offsets + (self.address + length)) // TABLE) * TABLE
        order = np.argsort(first)
        end = self.address + len(self.map)
        done = self.address
        for start, stop in zip(first[order].tolist(), last[order].tolist(), strict=True):
            start, stop = max(start, done), min(stop, end)
            if start < stop:
                self.map.madvise(mmap.MADV_DONTNEED, start - self.address, stop - start)
                done = stop


class Mapped:
    """Reads spans by copying from mappings; ``allowance`` is the most mapped bytes at any moment (``map``: no bound)."""

    def __init__(self, files: Files, *, name: str, drop: bool, allowance: int) -> None:
        self.name = name
        self.files = files
        self.drop = drop
        self.allowance = allowance
        self._kept: dict[tuple[int, bool], Mapping] = {}
        self._turn = threading.Lock()

    def fill(self, spans: Spans, buffer: Buffer, *, ahead: Spans | None = None, scattered: bool) -> None:
        """Copy every span into ``buffer``, or raise; tell the kernel of ``ahead`` while data is not cached."""
        held = {file: self.files.descriptor(file, scattered=scattered) for file in set(spans.files)}
        if self.name != "map" and scattered and not probably_cached(held, spans):
            announce(held, spans)
            if ahead is not None:
                held = held | {file: self.files.descriptor(file, scattered=True) for file in set(ahead.files)}
                announce(held, ahead)
        out = np.frombuffer(buffer.view, np.uint8)
        if spans.lengths is None and len(spans.files) == 1:
            self._table(
                spans.files[0], spans.offsets, out[: spans.total].reshape(-1, spans.length), scattered
            )
            return
        start = 0
        for file, offset, length in zip(
            spans.file_of_each(), spans.offsets, spans.length_of_each(), strict=True
        ):
            self._table(file, np.array([offset]), out[start : start + length].reshape(1, -1), scattered)
            start += length

    def _table(self, file: int, offsets: NDArray[np.int64], out: NDArray[np.uint8], scattered: bool) -> None:
        """Equal runs of one file, in rounds that stay inside the allowance."""
        for rows, columns in self._rounds(len(offsets), out.shape[1]):
            part, length = offsets[rows] + columns.start, columns.stop - columns.start
            if self.name == "map":
                self._mapping(file, scattered).copy(part, length, out[rows, columns])
                continue
            with (
                self._turn
            ):  # one round at a time, whatever the number of threads: the allowance is for all of them
                mapping = self._mapping(file, scattered)
                mapping.copy(part, length, out[rows, columns])
                if self.name == "advise":
                    mapping.take_back(part, length)
                del mapping  # the last reference to a remapped file, and the mapping goes with it
            if self.drop:
                number = self.files.descriptor(file, scattered=scattered).number
                for offset in part.tolist():
                    drop_pages(number, offset, length)

    def _rounds(self, count: int, length: int) -> Iterator[tuple[slice, slice]]:
        """Which rows, and which of their bytes, to copy before pages are taken back."""
        if self.name == "map":
            yield slice(0, count), slice(0, length)
            return
        at_once = self.allowance - 2 * FAULT_AROUND
        if length > at_once:
            for row in range(count):
                for start in range(0, length, at_once):
                    yield slice(row, row + 1), slice(start, min(start + at_once, length))
            return
        rows = max(1, self.allowance // (length + 2 * FAULT_AROUND))
        for row in range(0, count, rows):
            yield slice(row, min(row + rows, count)), slice(0, length)

    def _mapping(self, file: int, scattered: bool) -> Mapping:
        size = self.files.extents[file].size
        descriptor = self.files.descriptor(file, scattered=scattered)
        if self.name == "remap":
            return Mapping(descriptor, size, advice=mmap.MADV_RANDOM if scattered else None)
        key = (file, scattered and self.name == "advise")
        mapping = self._kept.get(key)
        if mapping is None:
            mapping = Mapping(descriptor, size)
            if self.name == "advise":
                mapping.map.madvise(mmap.MADV_DONTDUMP)
                mapping.map.madvise(mmap.MADV_RANDOM if scattered else mmap.MADV_NORMAL)
            self._kept[key] = mapping
        return mapping

    @property
    def rung(self) -> str:
        if not self.drop:
            return "keep"
        if self.name == "map":
            return "none: pages of a kept mapping cannot be dropped"
        return (
            "madvise(DONTNEED), then fadvise(DONTNEED)"
            if self.name == "advise"
            else "munmap, then fadvise(DONTNEED)"
        )

    def close(self) -> None:
        self._kept.clear()
        self.files.close()


def probably_cached(held: dict[int, Descriptor], spans: Spans) -> bool:
    """Look at a few runs with reads that refuse to wait."""
    if not NOWAIT:
        return False
    files = spans.file_of_each()
    step = max(1, len(files) // PROBES)
    probe = bytearray(1)
    try:
        for file, offset in zip(files[::step], spans.offsets[::step].tolist(), strict=True):
            os.preadv(held[file].number, [probe], offset, NOWAIT)
    except OSError:
        return False
    return True
