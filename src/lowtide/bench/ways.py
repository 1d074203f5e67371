"""The loops that are measured: each an iterator that reads one batch per step and yields its number of items.

Every way delivers the same thing - rows copied into memory of the user's own, windows as two int64 arrays -
and each rival is at its best: one gather per batch, a reused aligned buffer for chunks, an order computed in blocks
instead of a permutation in memory. Only nanoGPT's loop is left as its users run it.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from lowtide.bench.jobs import Job
from lowtide.formats import Extent, Layout
from lowtide.order import Permutation
from lowtide.survey.subject import Opening, opened
from lowtide.tokens import Tokens

ORDER_BLOCK = 8192  # row numbers computed at a time, as Lowtide's own iterators do


def batches(job: Job, rows: int, *, endless: bool) -> Iterator[int]:
    """Items of each batch, read in the job's way over the first ``rows`` rows, once or repeatedly."""
    make = _ours if job.way_itself.ours else _nanogpt if job.way == "nanoGPT's loop" else _THEIRS[job.pattern]
    part = replace(job, shape=(rows, *job.shape[1:]))
    return make(part, count() if endless else range(1))


def _ours(job: Job, epochs: Iterable[int]) -> Iterator[int]:
    layout = layout_of_job(job)
    way = job.way_itself
    with opened(layout, Opening(way.strategy or "auto", way.cache, job.budget)) as data:
        if isinstance(data, Tokens):  # one axis of integers is read as windows; the other patterns read rows
            for x, _ in data.batches(job.batch, length=job.length, seed=job.seed, order="random"):
                yield len(x)
            return
        for epoch in epochs:
            for rows in data.chunks(job.batch) if job.pattern == "chunks" else data.shuffled(job.batch, epoch=epoch):
                yield len(rows)


def layout_of_job(job: Job) -> Layout:
    """The job's rows as a layout of one file; in Fortran order that is always the whole file."""
    dtype = np.dtype(job.dtype)
    length = int(np.prod(job.shape, dtype=object)) * dtype.itemsize
    extent = Extent(job.path, job.offset, length, job.size)
    return Layout("raw", dtype, job.shape, job.fortran, (extent,), (job.shape[0],))


def _map(job: Job) -> NDArray[Any]:
    order = "F" if job.fortran else "C"
    return np.memmap(job.path, np.dtype(job.dtype), "r", job.offset, job.shape, order=order)  # type: ignore[call-overload,no-any-return]


def _maps(job: Job) -> Callable[[], NDArray[Any]]:
    """A function that gives the kept map, or a new one at every call."""
    if job.way != "np.memmap":
        return lambda: _map(job)
    kept = np.asarray(_map(job))  # as a plain array: indexing the subclass costs a few microseconds more
    return lambda: kept


def _their_chunks(job: Job, epochs: Iterable[int]) -> Iterator[int]:
    open_map = _maps(job)
    dtype = np.dtype(job.dtype)
    shape = (job.batch, *job.shape[1:])
    size = max(1, int(np.prod(shape)) * dtype.itemsize)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # page-aligned, as ours are
    buffer: NDArray[Any] = np.ndarray(shape, dtype, memory)
    for _ in epochs:
        for first in range(0, job.shape[0], job.batch):
            chunk = open_map()[first : first + job.batch]
            np.copyto(buffer[: len(chunk)], chunk)
            yield len(chunk)


def _their_rows(job: Job, epochs: Iterable[int]) -> Iterator[int]:
    open_map = _maps(job)
    for epoch in epochs:
        order = Permutation(job.shape[0], seed=job.seed, epoch=epoch)
        for first in range(0, job.shape[0], ORDER_BLOCK):
            block = order.block(first, min(ORDER_BLOCK, job.shape[0] - first))
            for start in range(0, len(block), job.batch):
                yield len(open_map()[block[start : start + job.batch]])


def _their_windows(job: Job, _: Iterable[int]) -> Iterator[int]:
    """One gather of all windows, then widened into x and y."""
    open_map = _maps(job)
    chance = np.random.default_rng(job.seed)
    while True:
        starts = chance.integers(0, job.shape[0] - job.length, job.batch)
        narrow = sliding_window_view(open_map(), job.length + 1)[starts]
        x, y = narrow[:, :-1].astype(np.int64), narrow[:, 1:].astype(np.int64)
        yield len(x) if len(x) == len(y) else 0


def _nanogpt(job: Job, _: Iterable[int]) -> Iterator[int]:
    """nanoGPT's get_batch on NumPy: the map recreated, a slice and a widening for every window, two stacks."""
    chance = np.random.default_rng(job.seed)
    while True:
        data = _map(job)
        starts = chance.integers(0, job.shape[0] - job.length, job.batch)
        x = np.stack([data[i : i + job.length].astype(np.int64) for i in starts])
        y = np.stack([data[i + 1 : i + 1 + job.length].astype(np.int64) for i in starts])
        yield len(x) if len(x) == len(y) else 0


_THEIRS: dict[str, Callable[[Job, Iterable[int]], Iterator[int]]] = {
    "chunks": _their_chunks,
    "rows": _their_rows,
    "windows": _their_windows,
}
