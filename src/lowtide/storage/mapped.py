"""Strategies ``remap``, ``advise`` and ``map``: the known cures and the disease, behind the same call as ``read``.

One idea: copy out of a mapping a bounded piece at a time and take the pages back behind it - by dropping the mapping
(``remap``), by ``madvise(DONTNEED)`` on it (``advise``), or not at all (``map``, the negative control).

Costs: a fault maps 64 KiB around itself and more where the page cache holds large folios (200 to 400 KiB a row were
seen), until the pages are taken back; both cures work in rounds, sized by what earlier rounds mapped, that keep this
inside the budget. A file truncated while mapped kills a process with
SIGBUS: the size is checked before every call, which leaves a small race that ``read`` does not have.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from lowtide.machine import PAGE
from lowtide.storage.buffers import Buffer
from lowtide.storage.cold import NOWAIT
from lowtide.storage.files import Descriptor, Files
from lowtide.storage.pread import announce, drop_pages
from lowtide.storage.spans import Ahead, Spans

FAULT_AROUND = 64 * 1024  # the kernel's fault_around_bytes; only debugfs can change it
TABLE = 512 * PAGE  # what one page table covers: no fault maps pages beyond its own table
PROBES = 4  # rows looked at to guess whether a call's data is cached
MOST_MAPPED = 128  # files kept mapped at once: Python's mmap holds a descriptor of its own for each


Runs = tuple[NDArray[np.int64], int, int]  # (numbers, stride, shift): run i begins at numbers[i] * stride + shift


class Mapping:
    """One file mapped read-only, as bytes."""

    def __init__(self, descriptor: Descriptor, size: int, *, advice: int | None = None) -> None:
        self.map = mmap.mmap(descriptor.number, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        self.bytes: NDArray[np.uint8] = np.frombuffer(self.map, np.uint8)
        self.address = self.bytes.ctypes.data
        self._known = (0, 0, 0), self.bytes
        if advice is not None:
            self.map.madvise(advice)

    def copy(self, runs: Runs, out: NDArray[np.uint8]) -> None:
        """These runs into the rows of ``out``."""
        numbers, stride, shift = runs
        table = self.every_run(stride, shift, out.shape[1])
        if stride == out.shape[1]:  # whole rows: one take, straight into the buffer
            # "raise" would go through a second copy, and the numbers are in range
            table.take(numbers, 0, out, "clip")
        else:
            out[:] = table[numbers]

    def every_run(self, stride: int, shift: int, length: int) -> NDArray[np.uint8]:
        """Row i is the run of ``length`` bytes at ``i * stride + shift``: a view of the mapping."""
        wanted = (stride, shift, length)
        key, table = self._known  # one value, so that threads never see the table of another key
        if key != wanted:
            count = (len(self.bytes) - shift - length) // stride + 1
            table = as_strided(self.bytes[shift:], (count, length), (stride, 1), writeable=False)
            self._known = wanted, table
        return table

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


class Map:
    """Strategy ``map``: one kept mapping a file, nothing taken back."""

    name = "map"

    def __init__(self, files: Files, *, drop: bool) -> None:
        self.files = files
        self.rung = "none: pages of a kept mapping cannot be dropped" if drop else "keep"
        self._kept: dict[int, Mapping] = {}

    def fill(self, spans: Spans, buffer: Buffer, *, ahead: Ahead = None, scattered: bool) -> None:  # noqa: ARG002
        """Copy every span into ``buffer``, or raise."""
        for file, runs, out in tables(spans, buffer):
            self._mapping(file).copy(runs, out)

    def fetch(self, spans: Spans) -> NDArray[np.uint8] | None:
        """Equal runs of one file in an array of their own, without a buffer between; None for others."""
        if spans.lengths is not None or len(spans.files) != 1:
            return None
        table = self._mapping(spans.files[0]).every_run(spans.stride, spans.shift, spans.length)
        return table[spans.numbers]

    def _mapping(self, file: int) -> Mapping:
        descriptor = self.files.descriptor(file)
        mapping = self._kept.get(file)
        if mapping is None:
            mapping = Mapping(descriptor, self.files.extents[file].size)
            keep(self._kept, file, mapping)
        return mapping

    def close(self) -> None:
        self._kept.clear()
        self.files.close()


class Cured:
    """Strategies ``remap`` and ``advise``; ``allowance`` is the most bytes of pages they hold mapped at any moment."""

    def __init__(self, files: Files, *, name: str, drop: bool, allowance: int) -> None:
        self.name = name
        self.files = files
        self.drop = drop
        self.allowance = allowance
        self.rung = "keep"
        if drop:
            self.rung = ("madvise(DONTNEED)" if name == "advise" else "munmap") + ", then fadvise(DONTNEED)"
        self._kept: dict[tuple[int, bool], Mapping] = {}
        self._turn = threading.Lock()
        self._around = TABLE  # bytes a fault maps beside its run: at most, until the first rounds have shown how many

    def fill(self, spans: Spans, buffer: Buffer, *, ahead: Ahead = None, scattered: bool) -> None:
        """Copy every span into ``buffer``, or raise; tell the kernel of ``ahead`` while data is not cached."""
        held = self.files.descriptors(spans.files, scattered=scattered)
        if scattered and not probably_cached(held, spans):
            announce(held, spans)
            if ahead is not None:
                later = ahead()
                announce(self.files.descriptors(later.files, scattered=True), later)
        for file, (numbers, stride, shift), out in tables(spans, buffer):
            done, length = 0, out.shape[1]
            while done < len(numbers):
                rows, columns = self._next_round(length)
                part = slice(done, done + rows)
                for start in range(0, length, columns):
                    piece = out[part, start : start + columns]
                    self._round(file, (numbers[part], stride, shift + start), piece, scattered)
                done += rows

    def _round(self, file: int, runs: Runs, out: NDArray[np.uint8], scattered: bool) -> None:
        descriptor = self.files.descriptor(file, scattered=scattered)
        with self._turn:  # one round at a time, whatever the number of threads: the allowance is for all of them
            before = mapped_bytes()
            mapping = self._mapping(file, descriptor, scattered)
            mapping.copy(runs, out)
            self._learn(mapped_bytes() - before, len(out), out.shape[1])
            offsets = runs[0] * runs[1] + runs[2]
            if self.name == "advise":
                mapping.take_back(offsets, out.shape[1])
            del mapping  # the last reference to a remapped file, and the mapping goes with it
        if self.drop:
            for offset in offsets.tolist():
                drop_pages(descriptor.number, offset, out.shape[1], sequential=not scattered)

    def _next_round(self, length: int) -> tuple[int, int]:
        """How many runs, and how many bytes of each, to copy before pages are taken back."""
        around = min(self._around, self.allowance // 2)
        if length > self.allowance - around:
            return 1, self.allowance - around
        # One table's worth is kept free: a run may lie across two of them.
        return max(1, (self.allowance - min(TABLE, self.allowance // 2)) // (length + around)), length

    def _learn(self, mapped: int, rows: int, length: int) -> None:
        """What a fault maps beside its run depends on how the page cache holds the file: look, and leave room."""
        seen = 2 * max(0, mapped // rows - length)
        # Up at once, down slowly: one generous round must not be followed by one too large.
        around = max(seen, (7 * self._around + seen) // 8, 2 * FAULT_AROUND)
        self._around = min(around, TABLE if length <= FAULT_AROUND else 2 * TABLE)

    def _mapping(self, file: int, descriptor: Descriptor, scattered: bool) -> Mapping:
        size = self.files.extents[file].size
        if self.name == "remap":
            return Mapping(descriptor, size, advice=mmap.MADV_RANDOM if scattered else None)
        mapping = self._kept.get((file, scattered))
        if mapping is None:
            mapping = Mapping(descriptor, size, advice=mmap.MADV_RANDOM if scattered else mmap.MADV_NORMAL)
            mapping.map.madvise(mmap.MADV_DONTDUMP)  # keeps it out of core files; frees nothing
            keep(self._kept, (file, scattered), mapping)
        return mapping

    def close(self) -> None:
        self._kept.clear()
        self.files.close()


def keep(kept: dict[Any, Mapping], key: object, mapping: Mapping) -> None:
    """Remember a mapping; the oldest goes where there are too many."""
    kept[key] = mapping
    while len(kept) > MOST_MAPPED:
        kept.pop(next(iter(kept)), None)


def mapped_bytes() -> int:
    """File pages this process has mapped now: 5 microseconds, and right to a few hundred KiB."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123 - half the cost of Path.open
            return int(file.read(64).split()[2]) * PAGE
    except OSError:
        return 0


def tables(spans: Spans, buffer: Buffer) -> Iterator[tuple[int, Runs, NDArray[np.uint8]]]:
    """Spans as (file, runs, rows of the buffer): one table for equal runs of one file, else one a run."""
    if spans.lengths is None and len(spans.files) == 1:
        rows = buffer.table(spans.length, len(spans.numbers))
        yield spans.files[0], (spans.numbers, spans.stride, spans.shift), rows
        return
    start = 0
    nothing = np.zeros(1, np.int64)
    for file, offset, length in zip(spans.file_of_each(), spans.offsets.tolist(), spans.length_of_each(), strict=True):
        yield file, (nothing, length, offset), buffer.bytes[start : start + length].reshape(1, -1)
        start += length


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
