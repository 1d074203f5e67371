"""What is measured: patterns of reading, ways to do each, and one job for every pair.

A job is everything a fresh process needs to measure one way, as plain JSON-safe values, so that the
measuring process shares nothing with its parent. Pure; reads nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from lowtide.blocks.objects import fetched
from lowtide.formats import Layout
from lowtide.machine import PAGE
from lowtide.storage.budget import AUTO_BUDGET
from lowtide.storage.watched_files import Extent
from lowtide.survey.subject import in_rows
from lowtide.units import KIB, MIB, format_size, parse_size

READING_PATTERNS = ("chunks", "rows", "windows")
MOST_CHUNK_BYTES = 8 * MIB
BATCH = 64  # rows or windows, unless stated
ROW_BYTES = 2 * KIB  # a row of one-dimensional numbers, unless stated


@dataclass(frozen=True)
class Way:
    """One way to read: Lowtide with a strategy and a cache policy, or np.memmap as people use it."""

    name: str
    strategy: str | None = None
    cache: str = "keep"
    patterns: tuple[str, ...] = READING_PATTERNS

    @property
    def ours(self) -> bool:
        return self.strategy is not None

    @property
    def warm(self) -> bool:
        """Whether it can be measured on cached data: a way that drops what it reads makes the data cold again."""
        return self.cache == "keep"


# The most telling first: if time is short, the last ones are not measured.
READING_WAYS = (
    Way("np.memmap"),
    Way("read, keep", "read", "keep"),
    Way("np.memmap recreated"),
    Way("read, drop", "read", "drop"),
    Way("nanoGPT's loop", patterns=("windows",)),
    Way("map, keep", "map", "keep"),
    Way("remap, keep", "remap", "keep"),
    Way("advise, keep", "advise", "keep"),
    Way("remap, drop", "remap", "drop"),
    Way("advise, drop", "advise", "drop"),
)
BASELINE = "np.memmap"  # kept open, one gather per batch: every ratio compares with it
BOUNDED_BASELINE = "np.memmap recreated"


@dataclass(frozen=True)
class Ask:
    """What the user wants measured; 0 or None: what suits the data."""

    batch: int = 0
    row: int = 0
    length: int = 1024
    budget: int | str = "auto"
    seconds: float = 1.0
    rounds: int = 3
    warm_bytes: int = 512 * MIB  # read again and again for the warm figures
    drop: bool = True  # whether the file may be evicted from the page cache
    total_seconds: float | None = None


def quick(ask: Ask) -> Ask:
    """The same in one round of at most half a minute, whatever the file's size."""
    return replace(ask, seconds=min(ask.seconds, 0.2), rounds=1, warm_bytes=64 * MIB, total_seconds=26.0)


@dataclass(frozen=True)
class Job:
    """One way and one pattern over one file."""

    way: str
    pattern: str
    path: str
    offset: int
    size: int  # of the file
    dtype: str
    shape: tuple[int, ...]
    fortran: bool
    batch: int  # rows, windows, or rows of a chunk
    length: int  # tokens of a window
    budget: int | str
    seconds: float
    cold: bool
    warm_rows: int  # leading rows that the warm part reads; 0: no warm part
    seed: int = 0

    @property
    def way_itself(self) -> Way:
        return next(way for way in READING_WAYS if way.name == self.way)


def one_file(layout: Layout) -> Layout:
    """The layout of the largest file alone, or of its longest run if it is in pieces: np.memmap opens no more, and
    every way must read the same bytes."""
    largest = max(layout.extents, key=lambda extent: extent.length)
    if largest.pieces is not None:
        offset, length = max(largest.runs(), key=lambda run: run[1])
        largest = replace(largest, offset=offset, length=length, pieces=None)
    elif len(layout.extents) == 1:
        return layout
    rows = largest.length // max(1, layout.row_nbytes) if layout.row_nbytes else layout.rows[0]
    shape = (rows, *layout.shape[1:])
    return replace(layout, extents=(largest,), rows=(rows,), shape=shape, documents=None)


def as_rows(layout: Layout, ask: Ask) -> Layout:
    """One axis of numbers as rows; anything else as it is."""
    if len(layout.shape) > 1 and not ask.row:
        return layout
    width = ask.row or (ask.length if layout.dtype.kind in "iu" else max(1, ROW_BYTES // layout.dtype.itemsize))
    return in_rows(layout, width)


def jobs_for(layout: Layout, ask: Ask, *, cold: bool) -> list[Job]:
    """Every way and pattern for one file, the most telling first."""
    patterns = READING_PATTERNS if len(layout.shape) == 1 and layout.dtype.kind in "iu" else READING_PATTERNS[:2]
    if "windows" in patterns:
        _batch("windows", layout, ask)  # first: that a length is too large is the clearer error
    rows = as_rows(layout, ask)
    ways = [way for way in READING_WAYS if cold or way.warm]
    pairs = [(way, pattern) for way in ways for pattern in patterns if pattern in way.patterns]
    return [_job(way, pattern, layout if pattern == "windows" else rows, ask, cold=cold) for way, pattern in pairs]


def layout_here(layout: Layout) -> Layout:
    """The same bytes in files of this machine: of an object the file of its blocks, all of which are fetched."""
    return replace(layout, extents=tuple(_here(extent) for extent in layout.extents))


def _here(extent: Extent) -> Extent:
    return extent if extent.made is None else replace(extent, path=fetched(extent.made), may_change=True, made=None)


def _job(way: Way, pattern: str, layout: Layout, ask: Ask, *, cold: bool) -> Job:
    extent = layout.extents[0]
    batch = _batch(pattern, layout, ask)
    return Job(
        way=way.name,
        pattern=pattern,
        path=extent.path,
        offset=extent.offset,
        size=extent.size,
        dtype=layout.dtype.str,
        shape=layout.shape,
        fortran=layout.fortran,
        batch=batch,
        length=ask.length,
        budget=ask.budget,
        seconds=ask.seconds,
        cold=cold,
        warm_rows=_warm_rows(layout, ask, _needed(pattern, batch, ask.length)) if way.warm else 0,
    )


def _batch(pattern: str, layout: Layout, ask: Ask) -> int:
    """Rows per batch, checked against the rows in the file."""
    row = max(1, layout.row_nbytes)
    if pattern == "chunks":
        size = min(MOST_CHUNK_BYTES, _comfortable(ask.budget, 8))
        return max(1, min(size // row, layout.shape[0]))
    batch = ask.batch or (max(1, min(BATCH, _comfortable(ask.budget, 4) // row)) if pattern == "rows" else BATCH)
    needed, what = _needed(pattern, batch, ask.length), "rows" if pattern == "rows" else "tokens"
    if layout.shape[0] < needed:
        fits = layout.shape[0] // (2 * ask.length) if pattern == "windows" else layout.shape[0]
        way_out = f"Use --batch {fits}" if fits else f"Use --length {max(1, layout.shape[0] // (2 * batch))}"
        raise ValueError(
            f"{layout.extents[0].path}: expected {needed} {what} or more for a batch of {batch}, got {layout.shape[0]} "
            f"({format_size(layout.nbytes)}). {way_out} or a larger file."
        )
    return batch


def _needed(pattern: str, batch: int, length: int) -> int:
    return 2 * batch * length if pattern == "windows" else batch


def _warm_rows(layout: Layout, ask: Ask, least: int) -> int:
    """As many leading rows as fit the warm part; a Fortran-ordered file has no leading part, so all or nothing."""
    if layout.fortran:
        return layout.shape[0] if layout.nbytes <= 8 * ask.warm_bytes else 0
    return max(least, min(layout.shape[0], ask.warm_bytes // max(1, layout.row_nbytes)))


def useful_bytes(job: Job) -> int:
    """Bytes of one item as the user counts it: a row, or a window of ``length + 1`` tokens."""
    item = np.dtype(job.dtype).itemsize
    if job.pattern == "windows":
        return (job.length + 1) * item
    return math.prod(job.shape[1:]) * item


def data_bytes(job: Job) -> int:
    """Bytes of the data, without a header."""
    return math.prod(job.shape) * np.dtype(job.dtype).itemsize


def most_cold(job: Job) -> int | None:
    """Items after which scattered reads of a cold file would too often find pages that they cached themselves."""
    if job.pattern == "chunks":
        return None
    pages = -(-useful_bytes(job) // PAGE) + 1
    return max(job.batch, job.size // 4 // (pages * PAGE))


def _comfortable(budget: int | str, share: int) -> int:
    limit = AUTO_BUDGET if budget == "auto" else parse_size(budget, what="--budget")
    return limit // share
