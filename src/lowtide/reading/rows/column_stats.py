"""Count, mean, standard deviation, minimum, maximum and NaN of every column, in one pass and constant memory.

Numbers are widened to float64 and summed by one native call per chunk. A guess of each column's mean (that of the first
rows) is subtracted first, so that few digits cancel: if later rows are far from the first ones, their distance is
itself part of the spread. Narrow rows are folded, several side by side, into one wide line, so that every operation
runs over long runs of memory.

A few threads take chunks in turn, one computing while another reads; chunks are added up in file order, so equal data
gives equal bits. NaNs are left out and counted; infinities are numbers and make a mean infinite or NaN, as in NumPy.
"""

from __future__ import annotations

import _thread
import contextlib
import math
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lowtide.engine import ColumnSums, Engine, blank_sums
from lowtide.units import MIB

Floats = NDArray[np.float64]

FOLDED = 512  # narrow rows are laid side by side until a line is about this wide
BESIDE = 8  # columns that the C core sums at a time: lines are a multiple of it
GUESS_ROWS = 256  # rows whose mean is the guess
SHOWN = 4  # columns at either end that a table shows
MOST_THREADS = 4  # more would wait for the one that reads
MOST_SUMS = 64 * MIB  # of all threads together, unless one has more


class Chunked(Protocol):
    """Something that gives its rows in chunks."""

    def chunks(self) -> Iterator[NDArray[Any]]: ...


@dataclass(frozen=True, repr=False)
class ColumnStats:
    """Each field has the shape of one row. ``count``: numbers that are not NaN; ``std``: of the population.

    A column without a number has NaN for mean, std, min and max.
    """

    count: NDArray[np.int64]
    mean: Floats
    std: Floats
    min: Floats
    max: Floats
    nan: NDArray[np.int64]

    def __repr__(self) -> str:
        """A table of the first and last columns; all of them are in the fields."""
        names = [one.name for one in fields(self)]
        columns, values = self.count.size, [getattr(self, name).reshape(-1).tolist() for name in names]
        shown = range(columns) if columns <= 2 * SHOWN else (*range(SHOWN), None, *range(columns - SHOWN, columns))
        lines = [f"<lowtide.ColumnStats of {columns:,} columns>", "column" + "".join(f"{name:>13}" for name in names)]
        lines += [
            "..." if column is None else f"{column:6}" + "".join(f"{one[column]:13.6g}" for one in values)
            for column in shown
        ]
        return "\n".join(lines)


def stats_of(array: Chunked, shape: tuple[int, ...], dtype: np.dtype[Any], engine: Engine, where: str) -> ColumnStats:
    """One pass over ``array``, whose rows have ``shape`` and ``dtype``."""
    if dtype.kind not in "biuf":
        raise TypeError(f"{where}: expected columns of real numbers for stats(), got {dtype}. Convert them first.")
    columns = math.prod(shape)
    if columns == 0:
        return _FoldedSums(columns, np.zeros(0), engine).result(shape)
    chunks = array.chunks()
    first = next(chunks, None)
    if first is None:
        return _FoldedSums(columns, np.zeros(columns), engine).result(shape)
    work = _Work(chunks, _FoldedSums(columns, _guess(first[:GUESS_ROWS].reshape(-1, columns)), engine))
    work.add(0, first)
    del first  # its buffer is free for the chunks to come
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    work.run(max(1, min(MOST_THREADS, cores, MOST_SUMS // work.sums.nbytes)))
    return work.sums.result(shape)


def _guess(rows: NDArray[Any]) -> Floats:
    """What to subtract from each column: the mean of its first rows without infinities and NaN; 0 if there is none."""
    some = rows.astype(np.float64)
    usual = np.isfinite(some)
    with np.errstate(over="ignore"):
        mean = np.where(usual, some, 0.0).sum(axis=0) / np.maximum(usual.sum(axis=0), 1)
    found: Floats = np.where(np.isfinite(mean), mean, 0.0)
    return found


class _Work:
    """Chunks, and threads that take them in turn."""

    def __init__(self, chunks: Iterator[NDArray[Any]], sums: _FoldedSums) -> None:
        self.sums = sums
        self._chunks = chunks
        self._taken = 1  # the first chunk is the caller's
        self._added = 0
        self._done: dict[int, _FoldedSums] = {}
        self._taking, self._adding = threading.Lock(), threading.Lock()
        self._problem: BaseException | None = None

    def run(self, threads: int) -> None:
        """All chunks that are left; the first problem of any thread is raised here."""
        others = []

        def take(over: _thread.LockType) -> None:
            self._take_all()
            over.release()

        # Not threading.Thread: an interrupt while it starts comes out of it as a KeyError.
        with contextlib.suppress(RuntimeError):  # no thread can be started: this one does it all
            for _ in range(threads - 1):
                over = _thread.allocate_lock()
                over.acquire()
                _thread.start_new_thread(take, (over,))
                others.append(over)
        self._take_all()
        for over in others:
            over.acquire()
        if self._problem is not None:
            raise self._problem

    def _take_all(self) -> None:
        try:
            while self._problem is None and self._take_one():
                pass
        except BaseException as problem:  # run() raises it
            self._problem = self._problem or problem

    def _take_one(self) -> bool:
        with self._taking:
            chunk = next(self._chunks, None)
            number, self._taken = self._taken, self._taken + 1
        if chunk is None:
            return False
        self.add(number, chunk)
        return True

    def add(self, number: int, chunk: NDArray[Any]) -> None:
        """Sum a chunk; the sums are added up in file order."""
        mine = _FoldedSums(self.sums.columns, self.sums.guess, self.sums.engine)
        mine.add(chunk.reshape(len(chunk), -1))
        with self._adding:
            self._done[number] = mine
            while self._added in self._done:
                self.sums.merge(self._done.pop(self._added))
                self._added += 1


class _FoldedSums:
    """Sums of columns; ``wide`` of folded rows, ``rest`` of the rows that did not fill a fold, if rows are folded."""

    def __init__(self, columns: int, guess: Floats, engine: Engine) -> None:
        self.columns, self.guess, self.engine = columns, guess, engine
        step = BESIDE // math.gcd(BESIDE, columns) if columns else 1
        self.fold = step * max(1, FOLDED // (step * columns)) if 0 < columns < FOLDED else 1
        self.rows = 0
        self.wide = blank_sums(np.tile(guess, self.fold))
        self.rest = blank_sums(guess) if self.fold > 1 else None

    @property
    def nbytes(self) -> int:
        """Bytes of the sums of one thread."""
        return sum(each.nbytes for each in (*self.wide, *(self.rest or ())))

    def add(self, rows: NDArray[Any]) -> None:
        self.rows += len(rows)
        whole = len(rows) // self.fold * self.fold
        self.engine.add_columns(self.wide, rows[:whole].reshape(-1, self.columns * self.fold))
        if self.rest is not None and whole < len(rows):
            self.engine.add_columns(self.rest, rows[whole:])

    def merge(self, other: _FoldedSums) -> None:
        self.rows += other.rows
        with np.errstate(invalid="ignore", over="ignore"):
            _merge(self.wide, other.wide)
            if self.rest is not None and other.rest is not None:
                _merge(self.rest, other.rest)

    def result(self, shape: tuple[int, ...]) -> ColumnStats:
        each = [ColumnSums(*(one.reshape(self.fold, self.columns) for one in self.wide))]
        if self.rest is not None:
            each.append(ColumnSums(*(one.reshape(1, self.columns) for one in self.rest)))
        with np.errstate(invalid="ignore", over="ignore"):
            total, squares = sum(one.total.sum(axis=0) for one in each), sum(one.squares.sum(axis=0) for one in each)
            nan = sum(one.nan.sum(axis=0) for one in each)
            count = self.rows - nan
            some = np.where(count > 0, count, 1)
            apart = total / some
            spread = np.maximum(squares / some - apart * apart, 0.0)
            lowest = np.min([one.low.min(axis=0) for one in each], axis=0)
            highest = np.max([one.high.max(axis=0) for one in each], axis=0)
            floats = (self.guess + apart, np.sqrt(spread), lowest, highest)
        mean, std, least, most = (np.where(count == 0, np.nan, each).reshape(shape) for each in floats)
        return ColumnStats(count.reshape(shape), mean, std, least, most, nan.reshape(shape))


def _merge(mine: ColumnSums, theirs: ColumnSums) -> None:
    for total, more in zip(
        (mine.total, mine.squares, mine.nan), (theirs.total, theirs.squares, theirs.nan), strict=True
    ):
        np.add(total, more, out=total)
    np.minimum(mine.low, theirs.low, out=mine.low)
    np.maximum(mine.high, theirs.high, out=mine.high)
