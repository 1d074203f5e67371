"""Strategies ``remap``, ``advise`` and ``map``: both known cures and the plain map, behind the call of ``read``.

One idea: copy out of a mapping a bounded piece at a time and take the pages back behind it - by dropping the mapping
(``remap``), by ``madvise(DONTNEED)`` on it (``advise``), or not at all (``map``, the negative control).

Costs: a fault may map the whole 2 MiB that its page table covers, where the page cache holds large folios. So both
cures copy in rounds that touch no more of these than their allowance pays for, whatever the last faults did.

**Danger**: a file truncated while it is mapped kills the process with SIGBUS. The size is checked before every round,
but nothing can check it during one. ``read`` has no such danger.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from lowtide import _native
from lowtide.errors import ReadError
from lowtide.machine import PAGE
from lowtide.storage.buffers import Buffer
from lowtide.storage.descriptors import KEPT, Descriptor, Files
from lowtide.storage.forks import Turn, renew_in_children
from lowtide.storage.read import NOWAIT, announce, drop_pages
from lowtide.storage.spans import Ahead, Spans

TABLE = 512 * PAGE  # the largest folio, and what one page table covers: no fault maps pages beyond either
FAULT_AROUND = 64 * 1024  # the kernel's fault_around_bytes (only debugfs can change it): may reach past a folio's end
PROBES = 4  # rows looked at to guess whether a call's data is cached


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
        if stride == out.shape[1] and out.flags.c_contiguous:  # whole rows: one take, straight into the buffer
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


class Mappings:
    """Mappings of a store's files that are kept; beyond the process's cap the oldest go."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self._kept: dict[Any, Mapping] = {}
        renew_in_children(self)

    def get(self, key: Any) -> Mapping | None:
        mapping = self._kept.get(key)
        if mapping is not None:
            KEPT.used(self, key)
        return mapping

    def keep(self, key: Any, mapping: Mapping) -> Mapping:
        self._kept[key] = mapping
        KEPT.add(self, key)  # Python's mmap holds a descriptor of its own
        return mapping

    def make(self, file: int, descriptor: Descriptor, *, advice: int | None = None) -> Mapping:
        """A new mapping; what the system refuses is a ``ReadError`` with the file's path."""
        extent = self.files.extents[file]
        try:
            return Mapping(descriptor, extent.size, advice=advice)
        except ValueError:  # "mmap length is greater than file size": it was truncated since the last look
            raise self.files.changed(file, os.fstat(descriptor.number)) from None
        except OSError as problem:
            raise ReadError(
                f"{extent.path}: expected to map the file, got {problem.strerror}. Use strategy='read'.",
                path=extent.path,
                offset=extent.offset,
                errno=problem.errno,
            ) from problem

    def let_go(self, key: Any) -> None:
        self._kept.pop(key, None)

    def clear(self) -> None:
        self._kept = {}

    def renew_after_fork(self) -> None:
        self._kept = {}


class Map:
    """Strategy ``map``: one kept mapping per file, nothing taken back."""

    name = "map"
    merges = False  # merging saves reads, and a mapping makes none

    def __init__(self, files: Files, engine: _native.Engine, *, drop: bool) -> None:
        self.files = files
        self.engine = engine
        self.widens = engine.name == "native"
        self.rung = "none: pages of a kept mapping cannot be dropped" if drop else "keep"
        self._mappings = Mappings(files)

    def fill(self, spans: Spans, buffer: Buffer, *, ahead: Ahead = None, scattered: bool) -> None:  # noqa: ARG002
        """Copy every span into ``buffer``, or raise."""
        self.files.counters.read += spans.total
        if self.widens and len(spans.files) == 1:
            lengths: Any = spans.length if spans.lengths is None else np.array(spans.lengths, np.int64)
            runs = _native.Runs(-1, np.ascontiguousarray(spans.numbers), lengths, None, None, spans.stride, spans.shift)
            self.engine.gather_mapped(self._mapping(spans.files[0]).bytes, runs, buffer.bytes)
            return
        for file, some, out in tables(spans, buffer):
            self._mapping(file).copy(some, out)

    def fetch(self, spans: Spans) -> NDArray[np.uint8] | None:
        """Equal runs of one file in an array of their own, without a buffer between; None for others."""
        if spans.lengths is not None or len(spans.files) != 1:
            return None
        self.files.counters.read += spans.total
        table = self._mapping(spans.files[0]).every_run(spans.stride, spans.shift, spans.length)
        return table[spans.numbers]

    def windows(self, spans: Spans, pair: _native.Pair, *, ahead: Ahead = None) -> bool:  # noqa: ARG002
        """Widen windows straight from the mapping; False where an id is not one of the vocabulary, or does not fit."""
        self.files.counters.read += spans.total
        runs = _native.Runs(
            -1, np.ascontiguousarray(spans.numbers), spans.length, None, None, spans.stride, spans.shift
        )
        return self.engine.windows_mapped(self._mapping(spans.files[0]).bytes, runs, pair) is None

    def _mapping(self, file: int) -> Mapping:
        descriptor = self.files.descriptor(file)
        return self._mappings.get(file) or self._mappings.keep(file, self._mappings.make(file, descriptor))

    def close(self) -> None:
        self._mappings.clear()


class Cured:
    """Strategies ``remap`` and ``advise``; ``allowance`` is the most bytes of pages they hold mapped at any moment."""

    merges = True
    widens = False

    def __init__(self, files: Files, *, name: str, drop: bool, allowance: int) -> None:
        self.name = name
        self.files = files
        self.drop = drop
        # Folios that may be mapped at once. Two at least: one run may lie across two of them.
        self.folios = max(2, allowance // (TABLE + FAULT_AROUND))
        self.rung = "keep"
        if drop:
            self.rung = ("madvise(DONTNEED)" if name == "advise" else "munmap") + ", then fadvise(DONTNEED)"
        self._mappings = Mappings(files)
        self._turn = Turn()

    def fill(self, spans: Spans, buffer: Buffer, *, ahead: Ahead = None, scattered: bool) -> None:
        """Copy every span into ``buffer``, or raise; tell the kernel of ``ahead`` while data is not cached."""
        self.files.counters.read += spans.total
        held = self.files.descriptors(spans.files, scattered=scattered)
        if scattered and not probably_cached(held, spans):
            announce(held, spans)
            if ahead is not None:
                later = ahead()
                announce(self.files.descriptors(later.files, scattered=True), later)
        for file, (numbers, stride, shift), out in tables(spans, buffer):
            length = out.shape[1]
            most = (self.folios - 1) * TABLE  # of one run at a time: it may begin in the middle of a folio
            for start in range(0, length, most):
                piece = out[:, start : start + most]
                for part in rounds(numbers * stride + (shift + start), piece.shape[1], self.folios):
                    self._round(file, (numbers[part], stride, shift + start), piece[part], scattered)

    def fetch(self, spans: Spans) -> NDArray[np.uint8] | None:  # noqa: ARG002
        """No way without a buffer."""
        return None

    def _round(self, file: int, runs: Runs, out: NDArray[np.uint8], scattered: bool) -> None:
        descriptor = self.files.descriptor(file, scattered=scattered)
        offsets = runs[0] * runs[1] + runs[2]
        with self._turn.lock:  # one round at a time, whatever the number of threads: the allowance is for all of them
            mapping = self._mapping(file, descriptor, scattered)
            try:
                mapping.copy(runs, out)
            finally:
                if self.name == "advise":
                    mapping.take_back(offsets, out.shape[1])
                del mapping  # the last reference to a remapped file, and the mapping goes with it
        if self.drop:
            for offset in offsets.tolist():
                drop_pages(descriptor.number, offset, out.shape[1], sequential=not scattered)

    def _mapping(self, file: int, descriptor: Descriptor, scattered: bool) -> Mapping:
        if self.name == "remap":
            return self._mappings.make(file, descriptor, advice=mmap.MADV_RANDOM if scattered else None)
        mapping = self._mappings.get((file, scattered))
        if mapping is None:
            advice = mmap.MADV_RANDOM if scattered else mmap.MADV_NORMAL
            mapping = self._mappings.make(file, descriptor, advice=advice)
            mapping.map.madvise(mmap.MADV_DONTDUMP)  # keeps it out of core files; frees nothing
            self._mappings.keep((file, scattered), mapping)
        return mapping

    def close(self) -> None:
        self._mappings.clear()


def rounds(offsets: NDArray[np.int64], length: int, most: int) -> Iterator[slice]:
    """Consecutive stretches of these runs that touch at most ``most`` folios of 2 MiB each (one run always passes)."""
    if len(offsets) == 1:
        yield slice(0, 1)
        return
    first, last = offsets // TABLE, (offsets + (length - 1)) // TABLE
    # What a run adds to the run before it, where that came just before it in the file.
    follows = (first[1:] >= first[:-1]) & (first[1:] <= last[:-1])
    added = last - first + 1
    added[1:][follows] = np.maximum(0, last[1:] - last[:-1])[follows]
    total = np.cumsum(added)
    start = 0
    while start < len(offsets):
        before = int(total[start]) - int(last[start] - first[start] + 1)
        stop = max(start + 1, int(np.searchsorted(total, before + most, side="right")))
        yield slice(start, stop)
        start = stop


def tables(spans: Spans, buffer: Buffer) -> Iterator[tuple[int, Runs, NDArray[np.uint8]]]:
    """Spans as (file, runs, rows of the buffer): one table for equal runs of one file, else one per run."""
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
