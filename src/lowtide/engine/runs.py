"""What both engines are asked: runs of bytes, where they go, and the first problem on the way.

Plain tuples of the same shape work as well as the named ones. The native engine checks its arguments in C, where a
wrong number would mean a write past a buffer; the Python twin, which cannot do that, checks here that every run has its
place. Nothing in this file reads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

WAYS = ("read", "announce", "aio", "uring")
SOURCES = ("uint8", "uint16", "uint32", "int32", "int64")
# What happens to the page cache after the reads; NEAR: runs that lie near one another may be read as one. SEQUENTIAL:
# run after run, and the kernel's own read-ahead does the rest.
KEEP, DROP, DROP_SEQUENTIAL, KEEP_NEAR, KEEP_SEQUENTIAL = range(5)
PAGE = 4096


class Runs(NamedTuple):
    """Runs of bytes in files. Descriptors and lengths are one for all runs, or one per run."""

    fds: Any  # int, or an array of int32
    offsets: Any  # an array of int64: run i begins at byte offsets[i] * stride + shift
    lengths: Any  # int, or an array of int64: bytes
    targets: Any = None  # an array of int64: bytes into the buffer, or tokens of rows x (length + 1); None: packed
    direct: Any = None  # the same files opened with O_DIRECT, in the shape of fds: misses are read through these
    stride: int = 1
    shift: int = 0


class WatchedFiles(NamedTuple):
    """Extents of files laid end to end, as ``locate`` wants them; a file may have many extents."""

    ends: Any  # int64, one per extent: logical byte after it
    shift: Any  # int64, one per extent: offset in the file = logical offset + shift
    which: Any  # int32, one per extent: its file
    sizes: Any  # int64, one per file: when it was opened
    changed: Any  # int64, one per file: nanoseconds
    fds: Any  # int32, one per file; -1: not open


class Pair(NamedTuple):
    """Where windows go: columns 0 .. length-1 of every row into x, columns 1 .. length into y."""

    x: Any  # an array of int32 or int64, rows x length; None: nothing is kept, and marks count tokens of all runs
    y: Any
    length: int
    source: str  # the type of the tokens on disk, one of SOURCES
    vocab: int | None = None  # ids must be below it; None: every id that x can hold
    marks: Any = None  # an array of int64 for where an id occurs: a count, then tokens of rows x (length + 1)
    mark: int = 0  # that id


class Problem(NamedTuple):
    """What went wrong first. ``read``: ``at`` bytes of the run came, then errno ``value``, or the end of the file (0).

    ``token``: the id ``value``, ``at`` bytes into the run, is outside the vocabulary or the type of x.
    """

    kind: str
    run: int
    at: int
    value: int


class Placed(NamedTuple):
    """Runs with one entry each in every list."""

    fds: list[int]
    offsets: list[int]
    lengths: list[int]  # bytes
    targets: Numbers  # bytes or tokens


def place(runs: Any, capacity: int, item: int) -> Placed:
    """The runs, every one inside ``capacity`` items of ``item`` bytes."""
    fds, offsets, lengths, targets, _, stride, shift = runs
    count = len(offsets)
    sizes = np.full(count, lengths, np.int64) if isinstance(lengths, int) else lengths
    many = sizes // item
    places = np.cumsum(many) - many if targets is None else np.array(targets)
    outside = (places < 0) | (places > capacity - many)
    if outside.any():
        raise bad_value("targets", "every run inside the target", int(places[outside][0]))
    numbers = [fds] * count if isinstance(fds, int) else fds.tolist()
    return Placed(numbers, (offsets * stride + shift).tolist(), sizes.tolist(), places)


def bad_value(name: str, expected: str, got: int) -> ValueError:
    return ValueError(f"{name}: expected {expected}, got {got}. Check the numbers of this call.")
