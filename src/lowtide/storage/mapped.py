"""Strategies ``remap``, ``advise`` and ``map``: both known cures and the plain map, with the same methods as ``read``.

Bytes are copied out of a mapping, and its pages are given back after the copy: by dropping the mapping (``remap``), by
``madvise(DONTNEED)`` on it (``advise``), or not at all (``map``, the negative control).

The cures map at an address that is not congruent to the file offset modulo 2 MiB, so that no fault maps a folio of 2
MiB at once: 60 to 220 KiB per random row were measured, against 230 to 2,048. No fault maps beyond a page table, so
the most that a round of copying may map follows from its spans.

**Danger**: a file truncated while it is mapped kills the process with SIGBUS. The size is checked before every round,
but nothing can check it during one. ``read`` has no such danger.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from lowtide.engine import FAULT_MOST, Engine, FileMapping
from lowtide.errors import ReadError
from lowtide.machine import PAGE, Descriptor
from lowtide.storage.forks import Turn, renew_in_children
from lowtide.storage.read import SCATTERED, SEQUENTIAL, Refused, Temperature, announce_now, came_short, drop_pages
from lowtide.storage.spans import Spans, place_of, total_of
from lowtide.storage.watched_files import KEPT, Files

NOWAIT = getattr(os, "RWF_NOWAIT", 0)
PROBES = 4  # spans looked at to guess whether a call's data is cached


class MappedReads:
    """Copies out of a mapping, which ``finish`` makes."""

    __slots__ = ("_how", "_places", "_spans", "_strategy", "_target")

    def __init__(self, strategy: Mapped, spans: Spans, target: Any, how: int, places: Any) -> None:
        self._strategy, self._spans, self._target, self._how, self._places = strategy, spans, target, how, places

    def finish(self) -> Refused | None:
        return self._strategy.copy(self._spans, self._target, self._how, self._places)


class Mapped:
    """Strategy ``map``: one kept mapping per file, no pages given back; and the cures ``remap`` and ``advise``, which
    never hold more than ``allowance`` bytes of pages mapped."""

    prepares = False
    staging = 0
    note = ""

    def __init__(
        self, files: Files, engine: Engine, temperature: Temperature, *, name: str, drop: bool, allowance: int = 0
    ) -> None:
        self.files, self.engine, self.temperature = files, engine, temperature
        self.name, self.drop, self.allowance, self.cured = name, drop, allowance, name != "map"
        self.rung = "keep"
        if drop:
            how = {"remap": "munmap", "advise": "madvise(DONTNEED)"}.get(name)
            self.rung = f"{how}, then fadvise(DONTNEED)" if how else "none: pages of a kept mapping cannot be dropped"
        self._turn = Turn()
        self.close()
        renew_in_children(self)

    def start(self, spans: Spans, target: Any, how: int, early: bool, places: Any = None) -> MappedReads:  # noqa: ARG002
        return MappedReads(self, spans, target, how, places)

    def announce(self, spans: Spans) -> bool:
        """Tell the kernel of reads to come; a kept mapping is read where it lies."""
        if self.cured:
            announce_now(self.files, spans)
        return self.cured and not self.files.in_memory

    def read_at(self, file: int, offset: int, view: Any) -> None:
        bytes_ = memoryview(view).cast("B")
        one: Spans = file, np.array([offset], np.int64), 1, 0, len(bytes_)
        self.copy(one, bytes_, SCATTERED)

    def copy(self, spans: Spans, target: Any, how: int, places: Any = None) -> Refused | None:
        """Fill ``target`` with every span, or raise; returns an id that was refused."""
        if self.cured and how == SCATTERED:
            self.temperature.cold = not self._probably_cached(spans)
            if self.temperature.cold:
                announce_now(self.files, spans)
        total = total_of(spans)
        self.files.counters.asked += total
        self.files.counters.read += total
        calls = 0
        for some, runs, file in copies(spans, target, places):
            for part in rounds(some, runs, item_of(target), self.allowance) if self.cured else (runs,):
                descriptor = self.files.descriptor(file, how != SEQUENTIAL)
                refused = (self._round if self.cured else self._copied)(file, descriptor, some, part, target, how)
                self.files.still(file, descriptor)
                if refused is not None:
                    return refused
                calls += 1
        if calls > 1:
            forget_marks(target)
        return None

    def _copied(
        self, file: int, descriptor: Descriptor, spans: Spans, runs: Any, target: Any, how: int
    ) -> Refused | None:
        mapping = self._made(file, descriptor, how) if self.name == "remap" else self._kept(file, descriptor, how)
        try:
            found = self.engine.fill_mapped(mapping, runs, target)
        finally:
            if self.name == "advise":
                for offset, length in _bytes_of(runs):
                    mapping.take_back(offset, length)
            del mapping  # the last reference to a remapped file, which unmaps it
        if found is None:
            return None
        kind, number, at, value = found
        file, offset, length = place_of(spans, number)
        if kind == "token":
            return value, self.files.paths[file], offset + at
        raise came_short(self.files.paths[file], offset, length, at)

    def _round(
        self, file: int, descriptor: Descriptor, spans: Spans, runs: Any, target: Any, how: int
    ) -> Refused | None:
        with self._turn.lock:  # one round at a time, whatever the number of threads: the allowance is for all of them
            refused = self._copied(file, descriptor, spans, runs, target, how)
        if self.drop:
            for offset, length in _bytes_of(runs):
                drop_pages(descriptor.number, offset, length, sequential=how == SEQUENTIAL)
        return refused

    def _probably_cached(self, spans: Spans) -> bool:
        """Whether a few spans are cached, by reads that do not wait."""
        probe, count = bytearray(1), len(spans[1])
        try:
            for number in range(0, count, max(1, count // PROBES)):
                file, offset, _ = place_of(spans, number)
                descriptor = self.files.descriptor(file, True)
                os.preadv(descriptor.number, (probe,), offset, NOWAIT)
        except OSError:
            return False
        return True

    def _kept(self, file: int, descriptor: Descriptor, how: int) -> FileMapping:
        key = (file, how != SEQUENTIAL)
        found = self._mappings.get(key)
        if found is None:
            self._mappings[key] = found = self._made(file, descriptor, how)
            KEPT.add(self, key)  # address space is bounded too
        return found

    def _made(self, file: int, descriptor: Descriptor, how: int) -> FileMapping:
        """A new mapping; a refusal of the system is a ``ReadError`` with the file's path."""
        number, scattered = descriptor.number, how != SEQUENTIAL and self.cured
        try:
            return self.engine.mapping(number, self.files.sizes[file], self.cured, scattered)
        except ValueError:  # longer than the file: it was truncated since the last look
            raise self.files.changed(file, os.fstat(number)) from None
        except OSError as problem:
            path = self.files.paths[file]
            raise ReadError(
                f"{path}: expected to map the file, got {problem.strerror}. Use strategy='read'.",
                path=path,
                offset=0,
                errno=problem.errno,
            ) from problem

    def let_go(self, key: Any) -> None:
        self._mappings.pop(key, None)

    def shrink(self) -> None:
        """Holds nothing of the budget that it could do without."""

    def close(self) -> None:
        self._mappings: dict[Any, FileMapping] = {}

    renew_after_fork = close


def _bytes_of(runs: Any) -> list[tuple[int, int]]:
    """Offset and length of each run."""
    offsets, lengths = (runs[1] * runs[5] + runs[6]).tolist(), runs[2]
    return list(zip(offsets, [lengths] * len(offsets) if isinstance(lengths, int) else lengths.tolist(), strict=True))


def copies(spans: Spans, target: Any, places: Any) -> list[tuple[Spans, Any, int]]:
    """For each file, its spans as runs with their places in ``target``, and the file."""
    files, numbers, stride, shift, length = spans
    if isinstance(files, int):
        return [(spans, (-1, np.ascontiguousarray(numbers), length, places, None, stride, shift), files)]
    lengths = np.full(len(numbers), length, np.int64) if isinstance(length, int) else length
    if places is None:
        places = (np.cumsum(lengths) - lengths) // item_of(target)
    owners, found = np.array(files), []
    for file in sorted(set(files)):
        mine = np.flatnonzero(owners == file)
        some: Spans = file, numbers[mine], stride, shift, lengths[mine]
        found.append((some, (-1, some[1], some[4], places[mine], None, stride, shift), file))
    return found


def forget_marks(target: Any) -> None:
    """Each call notes only its own marks: after several there are none for the whole batch."""
    if isinstance(target, tuple) and target[5] is not None:
        target[5][0] = -1


def item_of(target: Any) -> int:
    """Bytes of the unit in which places of the target are counted: a token for windows, else a byte."""
    return np.dtype(target[3]).itemsize if isinstance(target, tuple) else 1


def rounds(spans: Spans, runs: Any, item: int, allowance: int) -> list[Any]:
    """The same runs in rounds that touch no more page tables than ``allowance`` permits; a span too long is cut.

    One span is always let through, even if it lies across two tables: ``plan()`` counts that.
    """
    _, numbers, stride, shift, length = spans
    tables = max(1, allowance // FAULT_MOST)
    if len(numbers) == 1 and isinstance(length, int) and length <= FAULT_MOST:
        return [runs]
    offsets = numbers * stride + shift
    lengths = np.full(len(numbers), length, np.int64) if isinstance(length, int) else length
    places = (np.cumsum(lengths) - lengths) // item if runs[3] is None else runs[3]
    if int(lengths.max(initial=0)) > FAULT_MOST:
        return _cut_rounds((offsets, lengths, places), item, max(1, tables - 1) * FAULT_MOST)
    # Mappings begin one page after a border of tables.
    touched = (offsets + lengths - 1 + PAGE) // FAULT_MOST - (offsets + PAGE) // FAULT_MOST + 1
    upto = np.cumsum(touched)
    found, first = [], 0
    while first < len(offsets):
        before = int(upto[first] - touched[first])
        last = max(first + 1, int(np.searchsorted(upto, before + tables, side="right")))
        found.append((-1, numbers[first:last], lengths[first:last], places[first:last], None, stride, shift))
        first = last
    return found


def _cut_rounds(spans: tuple[Any, Any, Any], item: int, most: int) -> list[Any]:
    """Each span in turns of ``most`` bytes, a whole number of tokens whatever their size."""
    found = []
    for offset, length, place in zip(*(part.tolist() for part in spans), strict=True):
        for at in range(0, length, most):
            size = min(most, length - at)
            found.append((-1, np.array([offset + at]), np.array([size]), np.array([place + at // item]), None, 1, 0))
    return found
