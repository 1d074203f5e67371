"""Many runs of bytes, as the strategies want them: which file, where, how long; packed one after the other when read.

One idea: positions above this room are *logical* - all data bytes of all files laid end to end - and this file is the
only one that turns them into files and offsets, or merges neighbours. Pure functions on integers; reads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowtide.machine import PAGE
from lowtide.storage.buffers import Buffer
from lowtide.storage.descriptors import Extent

Offsets = NDArray[np.int64]

# Two runs this close are read as one. A read costs as much as copying 4 KiB; over a network, a round trip.
GAP = PAGE
NETWORK_GAP = 256 * 1024
# Runs this long gain nothing from being merged: the read itself dominates.
MERGE_BELOW = 64 * 1024


class Spans(NamedTuple):
    """Runs of bytes: run i lies in ``files[i]`` (one entry: all in that file) at byte ``numbers[i] * stride + shift``.

    All are ``length`` bytes long, or run i ``lengths[i]``. A named tuple, because one is made for every call.
    """

    files: list[int]
    numbers: Offsets
    stride: int
    shift: int
    length: int
    lengths: list[int] | None = None

    @property
    def offsets(self) -> Offsets:
        """Where each run begins in its file."""
        return self.numbers * self.stride + self.shift

    @property
    def total(self) -> int:
        return self.length * len(self.numbers) if self.lengths is None else sum(self.lengths)

    def file_of_each(self) -> list[int]:
        return self.files * len(self.numbers) if len(self.files) == 1 else self.files

    def length_of_each(self) -> list[int]:
        return [self.length] * len(self.numbers) if self.lengths is None else self.lengths

    def few_files(self, most: int) -> Iterator[tuple[Spans, int]]:
        """The same runs in parts of at most ``most`` files, each with the byte of the buffer where it begins."""
        if len(self.files) <= most or len(set(self.files)) <= most:
            yield self, 0
            return
        first, start, lengths = 0, 0, self.length_of_each()
        while first < len(self.files):
            seen: set[int] = set()
            last = first
            while last < len(self.files) and (self.files[last] in seen or len(seen) < most):
                seen.add(self.files[last])
                last += 1
            part = None if self.lengths is None else lengths[first:last]
            yield Spans(self.files[first:last], self.numbers[first:last], *self[2:5], part), start
            start += sum(lengths[first:last])
            first = last

    def targets(self, buffer: Buffer) -> list[list[memoryview]]:
        """Where each run goes: one after the other from the buffer's start."""
        if self.lengths is None:
            return buffer.slots(self.length, len(self.numbers))
        found, start = [], 0
        for length in self.lengths:
            found.append([buffer.view[start : start + length]])
            start += length
        return found


Ahead = Callable[[], Spans] | None  # what the next call will want; a function, since cached data never asks


class Located:
    """The logical byte space of a store's extents."""

    def __init__(self, extents: tuple[Extent, ...]) -> None:
        lengths = np.array([extent.length for extent in extents], np.int64)
        self.ends = np.cumsum(lengths, dtype=np.int64)
        # file offset = logical offset + shift of its extent
        self.shift = np.array([extent.offset for extent in extents], np.int64) - (self.ends - lengths)
        self.total = int(self.ends[-1]) if len(lengths) else 0
        self._single = int(self.shift[0]) if len(lengths) == 1 else None

    def spans(self, numbers: Offsets, stride: int, length: int) -> Spans:
        """Where the runs of ``length`` bytes at ``number * stride`` lie, cut where they cross into the next file."""
        if self._single is not None:
            return Spans([0], numbers, stride, self._single, length)
        offsets = numbers * stride
        files = np.searchsorted(self.ends, offsets, side="right")
        if (offsets + length > self.ends[files]).any():
            return self.unequal(offsets, np.full(len(offsets), length, np.int64))
        return Spans(files.tolist(), offsets + self.shift[files], 1, 0, length)

    def unequal(self, offsets: Offsets, lengths: Offsets) -> Spans:
        if self._single is not None:
            return Spans([0], offsets, 1, self._single, 0, lengths.tolist())
        inside = np.searchsorted(self.ends, offsets, side="right")
        if not (offsets + lengths > self.ends[inside]).any():  # none crosses into the next file
            return Spans(inside.tolist(), offsets + self.shift[inside], 1, 0, 0, lengths.tolist())
        files, starts, parts = [], [], []
        for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
            file = int(np.searchsorted(self.ends, offset, side="right"))
            while length > 0:
                part = min(length, int(self.ends[file]) - offset)
                if part > 0:  # a file may hold no data at all
                    files.append(file)
                    starts.append(offset + int(self.shift[file]))
                    parts.append(part)
                offset, length, file = offset + part, length - part, file + 1
        return Spans(files, np.array(starts, np.int64), 1, 0, 0, parts)


@dataclass(frozen=True, slots=True)
class Round:
    """Neighbouring runs merged into fewer: read ``lengths[k]`` bytes at ``starts[k]``, packed; run ``runs[i]`` then
    lies at byte ``inside[i]`` of what was read."""

    starts: Offsets
    lengths: Offsets
    runs: NDArray[np.intp]
    inside: Offsets


def merge(offsets: Offsets, length: int, *, gap: int, most: int) -> list[Round] | None:
    """Merge runs within ``gap`` bytes of each other; each round reads at most ``2 * most`` bytes (``most >= length``).

    None when merging would not save at least a quarter of the reads: then one read per run is the faster way.
    """
    count = len(offsets)
    if count < 2 or length >= MERGE_BELOW:
        return None
    ordered = np.sort(offsets)
    apart = ordered[1:] - ordered[:-1] > length + gap
    if 4 * (int(np.count_nonzero(apart)) + 1) > 3 * count:
        return None
    order = np.argsort(offsets, kind="stable")
    group = np.concatenate(([0], np.cumsum(apart)))
    first = np.flatnonzero(np.concatenate(([True], apart)))
    # A group longer than `most` is cut: runs whose distance from its start falls in the same step stay together.
    step = (ordered - ordered[first][group]) // max(most - length, 1)
    cut = np.concatenate(([True], apart | (step[1:] != step[:-1])))
    first = np.flatnonzero(cut)
    last = np.concatenate((first[1:], [count])) - 1
    starts = ordered[first]
    lengths = ordered[last] + length - starts
    base = np.cumsum(lengths) - lengths  # where each merged run begins when all are packed
    inside = base[np.cumsum(cut) - 1] + ordered - starts[np.cumsum(cut) - 1]
    rounds = []
    turn = base // most
    bounds = [*np.flatnonzero(np.concatenate(([True], turn[1:] != turn[:-1]))).tolist(), len(first)]
    for a, b in pairwise(bounds):
        runs = slice(int(first[a]), int(last[b - 1]) + 1)
        rounds.append(Round(starts[a:b], lengths[a:b], order[runs], inside[runs] - base[a]))
    return rounds
