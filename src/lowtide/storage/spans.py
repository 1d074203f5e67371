"""Where bytes are: turns logical positions, with all data of a store laid end to end, into files and offsets.

A *span* is a run of bytes read as one. Only this file knows extents and merges neighbours. Pure functions on
integers; reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.machine import PAGE
from lowtide.storage.watched_files import Extent

Offsets = NDArray[np.int64]
Lengths = int | Offsets  # one for all, or one for each
# Files (one for all spans, or one for each), numbers, stride, shift, lengths: span i is the bytes of ``files[i]`` from
# ``numbers[i] * stride + shift`` on. A plain tuple, because one is made for every call.
Spans = tuple[int | list[int], Offsets, int, int, Lengths]

# Two spans this close are read as one: a read costs as much as copying 4 KiB; over a network, a round trip.
GAP = PAGE
NETWORK_GAP = 256 * 1024
# Spans this long gain nothing from being merged: the read itself dominates.
MERGE_BELOW = 64 * 1024


def total_of(spans: Spans) -> int:
    """Bytes of all spans."""
    length = spans[4]
    return length * len(spans[1]) if isinstance(length, int) else int(length.sum())


def place_of(spans: Spans, number: int) -> tuple[int, int, int]:
    """File, offset and length of one span."""
    files, numbers, stride, shift, length = spans
    return (
        files if isinstance(files, int) else files[number],
        int(numbers[number]) * stride + shift,
        length if isinstance(length, int) else int(length[number]),
    )


def each_of(spans: Spans) -> Iterator[tuple[int, int, int]]:
    """File, offset and length of every span."""
    return (place_of(spans, number) for number in range(len(spans[1])))


def placed(spans: Spans, lengths: Offsets, places: Offsets) -> Offsets:
    """Where each of these spans goes: those of ``lengths`` bytes go to ``places``, and some may be cut since."""
    parts = np.broadcast_to(spans[4], len(spans[1]))
    begins, wholes = np.cumsum(parts) - parts, np.cumsum(lengths) - lengths
    which = np.searchsorted(wholes, begins, side="right") - 1
    found: Offsets = places[which] + begins - wholes[which]
    return found


def few_files(spans: Spans, most: int) -> Iterator[tuple[Spans, int]]:
    """The same spans in turns of at most ``most`` files, each turn with the number of its first span."""
    files, numbers, stride, shift, length = spans
    if isinstance(files, int) or len(set(files)) <= most:
        yield spans, 0
        return
    first = 0
    while first < len(files):
        seen: set[int] = set()
        last = first
        while last < len(files) and (files[last] in seen or len(seen) < most):
            seen.add(files[last])
            last += 1
        part = length if isinstance(length, int) else length[first:last]
        yield (files[first:last], numbers[first:last], stride, shift, part), first
        first = last


class Located:
    """The logical byte space of a store's extents; ``which``: the file of each."""

    def __init__(self, extents: tuple[Extent, ...], which: NDArray[np.int32]) -> None:
        lengths = np.array([extent.length for extent in extents], np.int64)
        offsets = np.array([extent.offset for extent in extents], np.int64)
        if any(extent.pieces is not None for extent in extents):
            which, offsets, lengths = _in_pieces(extents, which)
        self.which = which
        self.ends = np.cumsum(lengths, dtype=np.int64)
        # file offset = logical offset + shift of its extent
        self.shift = offsets - (self.ends - lengths)
        self.total = int(self.ends[-1]) if len(lengths) else 0
        self.single = int(self.shift[0]) if len(lengths) == 1 else None  # the shift, if there is one extent

    @property
    def nbytes(self) -> int:
        """Of the tables: little, but for data in a million pieces."""
        return int(self.which.nbytes + self.ends.nbytes + self.shift.nbytes)

    def spans(self, numbers: Offsets, stride: int, length: Lengths) -> Spans:
        """Where the bytes at ``number * stride`` are, cut where they reach into the next extent."""
        if self.single is not None:
            return 0, numbers, stride, self.single, length
        offsets = numbers * stride
        inside = np.searchsorted(self.ends, offsets, side="right")
        if (offsets + length > self.ends[np.minimum(inside, len(self.ends) - 1)]).any():
            return self._cut(offsets, np.broadcast_to(length, len(offsets)))
        return self.which[inside].tolist(), offsets + self.shift[inside], 1, 0, length

    def _cut(self, offsets: Offsets, lengths: Offsets) -> Spans:
        files, starts, parts = [], [], []
        for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
            extent = int(np.searchsorted(self.ends, offset, side="right"))
            while length > 0:
                part = min(length, int(self.ends[extent]) - offset)
                if part > 0:  # an extent may hold no data at all
                    files.append(int(self.which[extent]))
                    starts.append(offset + int(self.shift[extent]))
                    parts.append(part)
                offset, length, extent = offset + part, length - part, extent + 1
        return files, np.array(starts, np.int64), 1, 0, np.array(parts, np.int64)


def _in_pieces(extents: tuple[Extent, ...], which: NDArray[np.int32]) -> tuple[NDArray[np.int32], Offsets, Offsets]:
    """The file, offset and length of every piece: each then is an extent of its own."""
    offsets, lengths = [], []
    for extent in extents:
        found = extent.pieces
        offsets.append(np.array([extent.offset]) if found is None else found.offsets)
        lengths.append(np.array([extent.length]) if found is None else np.diff(found.ends, prepend=0))
    counts = [len(each) for each in offsets]
    return np.repeat(which, counts), np.concatenate(offsets), np.concatenate(lengths)


@dataclass(frozen=True, slots=True)
class MergedRound:
    """Neighbouring spans merged into fewer: read ``lengths[k]`` bytes at ``starts[k]``, packed; span ``numbers[i]``
    is then at byte ``inside[i]`` of what was read."""

    starts: Offsets
    lengths: Offsets
    numbers: NDArray[np.intp]
    inside: Offsets


def each_once(numbers: Offsets) -> Offsets:
    """Each of them once, ascending."""
    # Not np.unique: its first call imports numpy.ma, which takes 6 ms, and a child forked meanwhile waits for ever.
    numbers = np.sort(numbers)
    kept = np.ones(len(numbers), bool)
    np.not_equal(numbers[1:], numbers[:-1], out=kept[1:])
    return numbers[kept]


def is_dense(numbers: Offsets, stride: int, gap: int) -> bool:
    """Whether numbers grow, with gaps of less than ``gap`` bytes on average between those that follow one another."""
    apart = numbers[1:] - numbers[:-1]
    gaps = int(np.count_nonzero(apart != 1))
    missing = int(numbers[-1]) - int(numbers[0]) + 1 - len(numbers) if gaps else 0
    return 0 < missing * stride <= gaps * gap and int(apart.min()) > 0


def joined(numbers: Offsets, stride: int, least: int) -> tuple[Offsets, int, Offsets] | None:
    """Numbers that follow one another joined into runs: the first of each, ``stride``, and the bytes of each.

    What comes in its order needs no scratch. None where nothing is saved, or runs are shorter than ``least`` bytes on
    average: then reading over the gaps between them costs less than a read for each.
    """
    breaks = (numbers[1:] - numbers[:-1] != 1).nonzero()[0]
    if len(breaks) + 1 >= len(numbers) or len(numbers) * stride < least * (len(breaks) + 1):
        return None
    bounds = np.empty(len(breaks) + 2, np.int64)
    bounds[0], bounds[-1] = 0, len(numbers)
    np.add(breaks, 1, out=bounds[1:-1])
    return numbers[bounds[:-1]], stride, (bounds[1:] - bounds[:-1]) * stride


def merge(offsets: Offsets, length: int, *, gap: int, most: int) -> list[MergedRound] | None:
    """Merge spans within ``gap`` bytes of each other; each round reads at most ``2 * most`` bytes (``most >= length``).

    None if merging would not save at least a quarter of the reads: then one read per span is faster.
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
    # A group longer than `most` is cut: spans whose distance from its start falls in the same step stay together.
    step = (ordered - ordered[first][group]) // max(most - length, 1)
    cut = np.concatenate(([True], apart | (step[1:] != step[:-1])))
    first = np.flatnonzero(cut)
    last = np.concatenate((first[1:], [count])) - 1
    starts = ordered[first]
    lengths = ordered[last] + length - starts
    base = np.cumsum(lengths) - lengths  # where each merged span begins when all are packed
    inside = base[np.cumsum(cut) - 1] + ordered - starts[np.cumsum(cut) - 1]
    rounds = []
    turn = base // most
    bounds: list[Any] = [*np.flatnonzero(np.concatenate(([True], turn[1:] != turn[:-1]))).tolist(), len(first)]
    for a, b in pairwise(bounds):
        some = slice(int(first[a]), int(last[b - 1]) + 1)
        rounds.append(MergedRound(starts[a:b], lengths[a:b], order[some], inside[some] - base[a]))
    return rounds
