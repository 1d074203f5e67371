"""Count, mean, standard deviation, minimum, maximum and NaN of every column, in one pass and constant memory.

Pieces that fit the CPU's cache are widened to float64 there and summed. Where a column's mean is far from
zero beside its spread, a guess of the mean (that of the first rows) is taken off first, so that no digits cancel.
Narrow rows are folded, several side by side, into one wide line, so that every operation runs over long runs of memory.

A few threads take chunks in turn, since NumPy computes while another thread reads; chunks are added up in file order,
so equal data gives equal bits. NaN are left out and counted; infinities are numbers, and make a mean infinite or NaN as
NumPy's would be.
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

Floats = NDArray[np.float64]

PIECE = 65536  # items at a time: 512 KiB as float64
FOLDED = 512  # narrow rows are laid side by side until a line is about this wide
GUESS_ROWS = 256  # rows whose mean is the guess
FAR = 100  # a mean this many times the spread costs squares 4 of their 16 digits; beyond, the guess is taken off
SHOWN = 4  # columns at either end that a table shows
MOST_THREADS = 4  # more would wait for the one that reads


class Chunked(Protocol):
    """Something that gives its rows in chunks."""

    def chunks(self) -> Iterator[NDArray[Any]]: ...


@dataclass(frozen=True, repr=False)
class ColumnStats:
    """Each field has the shape of one row. ``count``: numbers, NaN not among them; ``std``: of the population.

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


def stats_of(array: Chunked, shape: tuple[int, ...], dtype: np.dtype[Any], where: str) -> ColumnStats:
    """One pass over ``array``, whose rows have ``shape`` and ``dtype``."""
    if dtype.kind not in "biuf":
        raise TypeError(f"{where}: expected columns of real numbers for stats(), got {dtype}. Convert them first.")
    columns = math.prod(shape)
    with np.errstate(invalid="ignore", over="ignore"):
        if columns == 0:
            return _FoldedSums(columns, np.zeros(0)).result(shape)
        chunks = array.chunks()
        first = next(chunks, None)
        if first is None:
            return _FoldedSums(columns, np.zeros(columns)).result(shape)
        work = _Work(chunks, columns, _guess(first[:GUESS_ROWS].reshape(-1, columns)))
        work.add(0, first)
        del first  # its buffer is free for the chunks to come
    work.run(min(MOST_THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1))
    with np.errstate(invalid="ignore", over="ignore"):
        return work.sums.result(shape)


def _guess(rows: NDArray[Any]) -> Floats:
    """What to take off each column: the mean of its first rows where that is far from zero beside their spread."""
    some = rows.astype(np.float64)
    usual = np.isfinite(some)
    count = np.maximum(usual.sum(axis=0), 1)
    mean = np.where(usual, some, 0.0).sum(axis=0) / count
    spread = np.sqrt((np.where(usual, some - mean, 0.0) ** 2).sum(axis=0) / count)
    return np.where(np.abs(mean) > FAR * spread, mean, 0.0)


class _Work:
    """Chunks, and threads that take them in turn."""

    def __init__(self, chunks: Iterator[NDArray[Any]], columns: int, guess: Floats) -> None:
        self.sums = _FoldedSums(columns, guess)
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
        with contextlib.suppress(RuntimeError):  # no thread to be had: this one does it all
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
            with np.errstate(invalid="ignore", over="ignore"):
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
        """Sum a chunk; what was summed is added up in the order of the file."""
        mine = _FoldedSums(self.sums.columns, self.sums.guess)
        mine.add(chunk.reshape(len(chunk), -1))
        with self._adding:
            self._done[number] = mine
            while self._added in self._done:
                self.sums.merge(self._done.pop(self._added))
                self._added += 1


class _FoldedSums:
    """Sums of columns; ``wide`` of folded rows, ``rest`` of the rows that did not fill a fold."""

    def __init__(self, columns: int, guess: Floats) -> None:
        self.columns = columns
        self.fold = max(1, FOLDED // max(1, columns))
        self.guess = guess
        self.wide = _LineSums(np.tile(guess, self.fold))
        self.rest = _LineSums(guess)

    def add(self, rows: NDArray[Any]) -> None:
        whole = len(rows) // self.fold * self.fold
        self.wide.add(rows[:whole].reshape(-1, self.columns * self.fold))
        self.rest.add(rows[whole:])

    def merge(self, other: _FoldedSums) -> None:
        self.wide.merge(other.wide)
        self.rest.merge(other.rest)

    def result(self, shape: tuple[int, ...]) -> ColumnStats:
        folded, rest = self.wide, self.rest
        by_fold = (self.fold, self.columns)
        total = folded.total.reshape(by_fold).sum(axis=0) + rest.total
        squares = folded.squares.reshape(by_fold).sum(axis=0) + rest.squares
        nan = folded.nan.reshape(by_fold).sum(axis=0) + rest.nan
        count = folded.rows * self.fold + rest.rows - nan
        some = np.where(count > 0, count, 1)
        none = count == 0
        apart = total / some
        spread = np.maximum(squares / some - apart * apart, 0.0)
        lowest = np.minimum(folded.lowest.reshape(by_fold).min(axis=0), rest.lowest)
        highest = np.maximum(folded.highest.reshape(by_fold).max(axis=0), rest.highest)
        floats = (self.guess + apart, np.sqrt(spread), lowest, highest)
        mean, std, least, most = (np.where(none, np.nan, each).reshape(shape) for each in floats)
        return ColumnStats(count.reshape(shape), mean, std, least, most, nan.reshape(shape))


class _LineSums:
    """Sums over lines of one width."""

    def __init__(self, guess: Floats) -> None:
        self.width = len(guess)
        self.rows = 0
        self.guess = guess if guess.any() else None
        self.total, self.squares = np.zeros(self.width), np.zeros(self.width)
        self.lowest, self.highest = np.full(self.width, np.inf), np.full(self.width, -np.inf)
        self.nan = np.zeros(self.width, np.int64)

    def add(self, lines: NDArray[Any]) -> None:
        step = max(8, PIECE // max(1, self.width))
        apart = np.empty((min(step, len(lines)), self.width))
        for first in range(0, len(lines), step):
            piece = lines[first : first + step]
            self._add(piece, apart[: len(piece)])

    def _add(self, piece: NDArray[Any], apart: Floats) -> None:
        self.rows += len(piece)
        low, high = np.minimum.reduce(piece), np.maximum.reduce(piece)
        np.copyto(apart, piece)
        if self.guess is not None:
            apart -= self.guess
        if (low != low).any():  # the minimum of a column with a NaN is NaN: so looking costs next to nothing
            missing = np.isnan(piece)
            self.nan += np.count_nonzero(missing, axis=0)
            apart[missing] = 0.0
            low, high = np.fmin.reduce(piece), np.fmax.reduce(piece)
        np.fmin(self.lowest, low, out=self.lowest)
        np.fmax(self.highest, high, out=self.highest)
        self.total += np.add.reduce(apart)
        self.squares += np.einsum("ij,ij->j", apart, apart)

    def merge(self, other: _LineSums) -> None:
        self.rows += other.rows
        self.total += other.total
        self.squares += other.squares
        self.nan += other.nan
        np.minimum(self.lowest, other.lowest, out=self.lowest)
        np.maximum(self.highest, other.highest, out=self.highest)
