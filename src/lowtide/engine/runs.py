"""What both engines are asked: runs of bytes, where they go, and the first problem on the way.

Values and checks only. The native engine checks the same in C, where a wrong number would be a write past a buffer;
the Python twin checks here. Plain tuples of the same shape are as good as the named ones. Nothing in this file reads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

WAYS = ("read", "announce", "aio", "uring")
SOURCES = ("uint8", "uint16", "uint32", "int32", "int64")
KEEP, DROP, DROP_SEQUENTIAL = 0, 1, 2  # what happens to the page cache behind the reads
MOST_OFFSET = 2**63 - 1 - 2**20  # rounding to pages and blocks must not overflow
MOST_DEPTH = 4096
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

    ends: Any  # int64, one per extent: logical byte behind it
    shift: Any  # int64, one per extent: offset in the file = logical offset + shift
    which: Any  # int32, one per extent: its file
    sizes: Any  # int64, one per file: when it was opened
    modified: Any  # int64, one per file: nanoseconds
    fds: Any  # int32, one per file; -1: not open


class Pair(NamedTuple):
    """Where windows go: columns 0 .. length-1 of every row into x, columns 1 .. length into y."""

    x: Any  # an array of int32 or int64, rows x length
    y: Any
    length: int
    source: str  # the type of the tokens on disk, one of SOURCES
    vocab: int | None = None  # ids must be below it; None: every id that x can hold
    marks: Any = None  # an array of int64 for where an id stands: a count, and tokens of rows x (length + 1) behind it
    mark: int = 0  # that id


class Problem(NamedTuple):
    """What went wrong first. ``read``: ``at`` bytes of the run came, then errno ``value``, or the end of the file (0).

    ``token``: the id ``value`` stands ``at`` bytes into the run and is outside the vocabulary or the type of x.
    """

    kind: str
    run: int
    at: int
    value: int


class Placed(NamedTuple):
    """Checked runs, one entry per run in every array."""

    fds: list[int]
    offsets: Numbers
    lengths: Numbers  # bytes
    targets: Numbers  # bytes or tokens


def bad_value(name: str, expected: str, got: int) -> ValueError:
    return ValueError(f"{name}: expected {expected}, got {got}. Check the numbers of this call.")


def array_of(name: str, thing: Any, letters: str, item: int) -> NDArray[Any]:
    """``thing`` as a one-dimensional array of integers of ``item`` bytes; a view, not a copy."""
    view = memoryview(thing)
    if view.format.lstrip("<=@") not in letters or view.itemsize != item or view.ndim != 1:
        raise TypeError(
            f"{name}: expected a one-dimensional array of {item}-byte integers, got format '{view.format}' in "
            f"{view.ndim} dimensions. Convert it first."
        )
    if not view.c_contiguous:
        raise BufferError(f"{name}: expected a contiguous array, got one with gaps. Copy it first.")
    return np.asarray(view)


def writable(name: str, thing: Any) -> memoryview:
    view = memoryview(thing)
    if view.readonly or not view.c_contiguous:
        raise BufferError(f"{name}: expected a writable contiguous buffer, got another one. Make it with NumPy.")
    return view


def place(runs: Runs, capacity: int, item: int, *, needs_fds: bool = True) -> Placed:
    """The runs, checked: every one inside ``capacity`` items of ``item`` bytes."""
    if not isinstance(runs, tuple) or len(runs) != 7:
        raise TypeError(
            "runs: expected Runs(fds, offsets, lengths, targets, direct, stride, shift), got something else. "
            "Pass a Runs."
        )
    fds, offsets, lengths, targets, direct, stride, shift = runs
    starts = _strided(array_of("offsets", offsets, "lq", 8), stride, shift)
    count = len(starts)
    if direct is not None and needs_fds:
        raise ValueError(
            "direct: expected None, for the Python engine reads through the page cache, got descriptors. "
            "Pass no direct, or use the native engine."
        )
    numbers = _descriptors("fds", fds, count) if needs_fds else []
    if isinstance(lengths, int) and targets is None and count:
        return _packed(numbers, starts, lengths, capacity, item)
    sizes = _one_or_many("lengths", lengths, "lq", 8, count)
    if count and sizes.min() < 0:
        raise bad_value("lengths", "0 or more", int(sizes.min()))
    outside = (starts < 0) | (starts > MOST_OFFSET - sizes)
    if outside.any():
        raise bad_value("offsets", "an offset inside a file", int(starts[outside][0]))
    if (sizes % item).any():
        raise bad_value("lengths", "whole tokens", int(sizes[sizes % item != 0][0]))
    many = sizes // item
    if targets is None:
        # Any run too long for the target is caught before a sum of lengths could overflow.
        too_long = count > 0 and int(many.max()) > capacity
        places = np.zeros(count, np.int64) if too_long else np.cumsum(many) - many
    else:
        places = _one_or_many("targets", targets, "lq", 8, count).copy()
    outside = (places < 0) | (many > capacity) | (places > capacity - many)
    if outside.any():
        raise bad_value("targets", "every run inside the target", int(places[outside][0]))
    return Placed(numbers, starts, sizes, places)


def _packed(numbers: list[int], starts: Numbers, length: int, capacity: int, item: int) -> Placed:
    """The usual runs, of one length and one after the other, with few calls of NumPy."""
    if not 0 <= length <= MOST_OFFSET:
        raise bad_value("lengths", "0 or more", length if -(2**63) <= length < 2**63 else -1)
    for offset in (int(starts.min()), int(starts.max())):
        if not 0 <= offset <= MOST_OFFSET - length:
            raise bad_value("offsets", "an offset inside a file", offset)
    many, rest = divmod(length, item)
    if rest:
        raise bad_value("lengths", "whole tokens", length)
    count = len(starts)
    if many * count > capacity:
        raise bad_value("targets", "every run inside the target", capacity // many * many)
    targets = np.arange(0, count * many, many) if many else np.zeros(count, np.int64)
    return Placed(numbers, starts, np.full(count, length), targets)


def _strided(numbers: Numbers, stride: int, shift: int) -> Numbers:
    for name, value, least in (("stride", stride, 0), ("shift", shift, -MOST_OFFSET)):
        if not isinstance(value, int):
            raise TypeError(f"{name}: expected a whole number, got {type(value).__name__}. Pass an int.")
        if not least <= value <= MOST_OFFSET:
            raise bad_value(name, "a number of bytes inside a file", value if -(2**63) <= value < 2**63 else -1)
    if stride == 1 and shift == 0:
        return numbers.copy()
    for number in (int(numbers.min()), int(numbers.max())) if len(numbers) else ():
        # Python's integers do not overflow, NumPy's would.
        if not all(-(2**63) <= found < 2**63 for found in (number * stride, number * stride + shift)):
            raise bad_value("offsets", "an offset inside a file", number)
    return numbers * stride + shift


def _one_or_many(name: str, thing: Any, letters: str, item: int, count: int) -> Numbers:
    if isinstance(thing, int) and name != "targets":
        return np.full(count, thing if -1 <= thing <= MOST_OFFSET else -1, np.int64)
    many = array_of(name, thing, letters, item)
    if len(many) != count:
        raise bad_value(name, "as many numbers as offsets", len(many))
    return many


def _descriptors(name: str, thing: Any, count: int) -> list[int]:
    if not isinstance(thing, int):
        found: list[int] = _one_or_many(name, thing, "il", 4, count).tolist()
        return found
    if not -1 <= thing < 2**31:
        raise bad_value(name, "a descriptor", thing if abs(thing) < 2**31 else -1)
    return [thing] * count


def place_windows(
    runs: Runs, pair: tuple[Any, ...], *, needs_fds: bool = True
) -> tuple[Placed, NDArray[Any], NDArray[Any]]:
    """The runs of windows, checked, and x and y as arrays of rows."""
    if len(pair) != 7:
        raise TypeError(
            "pair: expected Pair(x, y, length, source, vocab, marks, mark), got something else. Pass a Pair."
        )
    if pair[3] not in SOURCES:
        raise ValueError(
            "source: expected uint8, uint16, uint32, int32 or int64, got another type. "
            "Gather the bytes and widen them with NumPy."
        )
    length, vocab = pair[2], pair[4]
    if not isinstance(length, int) or not isinstance(vocab, int | None):
        raise TypeError(f"pair: expected whole numbers for length and vocab, got {length!r} and {vocab!r}. Use ints.")
    if not 1 <= length <= MOST_OFFSET // 8:
        raise bad_value("length", "1 or more", length)
    if vocab is not None and not 1 <= vocab < 2**63:
        raise bad_value("vocab", "1 or more, or None", vocab)
    x, y = writable("pair", pair[0]), writable("pair", pair[1])
    for view in (x, y):
        if view.format.lstrip("<=@") not in tuple("ilq") or view.itemsize not in (4, 8):
            raise TypeError("pair: expected x and y of int32 or int64, got another type. Make them with NumPy.")
    if x.itemsize != y.itemsize or x.nbytes != y.nbytes or x.nbytes % (length * x.itemsize):
        raise bad_value("pair", "x and y of the same type and whole rows", y.nbytes)
    rows, item, columns = x.nbytes // (length * x.itemsize), np.dtype(pair[3]).itemsize, length + 1
    placed = place(runs, rows * columns, item, needs_fds=needs_fds)
    if not (isinstance(runs[2], int) and runs[2] == columns * item and runs[3] is None):
        many = placed.lengths // item
        beyond = (many > 0) & (placed.targets % columns + many > columns)
        if beyond.any():
            raise bad_value("targets", "every run inside one row", int(placed.targets[beyond][0]))
    return placed, np.asarray(x).reshape(rows, length), np.asarray(y).reshape(rows, length)
