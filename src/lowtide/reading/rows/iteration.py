"""Every way to iterate over rows: in order, shuffled, in an order of your own, drawn at random.

A way of iterating is a choice of row numbers; who turns them into batches - one array, a part of it, several arrays
together - is the reader's business. ``Array`` and ``Together`` have these calls from here and so mean the same.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lowtide.arguments import at_least, whole_number
from lowtide.order import rank_slice
from lowtide.order.steps import EpochSteps
from lowtide.order.streams import Drawn, Given, InOrder, Shuffled, Stream
from lowtide.reading.admission import admit
from lowtide.reading.ahead import Follower, Reader
from lowtide.reading.cursor import Cursor
from lowtide.reading.html_table import html_table
from lowtide.reading.rows.indexing import inside, select
from lowtide.reading.rows.reader import ROWS_AT_ONCE, RowReader
from lowtide.reading.state import VERSION, check_state
from lowtide.reading.stretches import follow
from lowtide.storage import Budget
from lowtide.units import MIB, parse_size

LARGEST_CHUNK = 8 * MIB  # enough to keep a disk busy; more only costs memory
SPARSE_FROM = 64  # an array this many times longer than a batch holds few neighbours of it


class RowsReader(Reader, Protocol):
    """A reader of ``count`` rows of ``row_bytes`` bytes each."""

    @property
    def count(self) -> int: ...
    @property
    def row_bytes(self) -> int: ...
    def scattered(self) -> RowsReader:
        """The same rows, for numbers with few neighbours."""
        ...


class BatchIterator(Cursor):
    """Batches of rows, lent until you drop them. ``position`` counts this rank's rows over all epochs: pass it as
    ``start=`` to resume.

    Each epoch ends with its own short batch. ``len(it)`` is the number of batches left; an endless iterator raises
    ``TypeError``. ``next`` raises ``ReadError`` or ``BudgetError`` without moving: ask again and the same batch comes.

    >>> it = a.shuffled(4096, seed=0)
    >>> rows = next(it)
    >>> it.position, len(it)
    """

    def __init__(
        self,
        reader: Reader,
        stream: Stream,
        steps: EpochSteps,
        follower: Follower | None = None,
        *,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__(reader, stream, steps, follower)
        self._epochs = steps
        self._rank = rank
        self.world = world  # how many ranks share the rows
        self.order = stream.order  # "chunks", "shuffled", "gather" or "sample"

    def __len__(self) -> int:
        """Batches left."""
        left = self._epochs.left(self.position)
        if left is None:
            raise TypeError(
                "len: expected an iterator with an end, got an endless one. Count batches yourself, or state epochs=1."
            )
        return left

    def __length_hint__(self) -> int:
        return 0 if self._epochs.stop is None else len(self)

    @property
    def epoch(self) -> int:
        """Epochs finished."""
        return self.position // self._epochs.rows if self._epochs.rows else 0

    def state_dict(self) -> dict[str, Any]:
        """Where this iterator is, and of which data and order: a few integers and a fingerprint, safe for JSON.

        >>> state = a.shuffled(4096, seed=0).state_dict()
        """
        return {
            "lowtide": VERSION,
            "position": self.position,
            "rank": self._rank,
            "world": self.world,
            **self._stream.settings(),
            "data": self.fingerprint(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to where the state was. ``StateError``, naming what differs, if it is of other data, another order or
        rank.

        >>> it = a.shuffled(4096, seed=0)
        >>> it.load_state_dict(a.shuffled(4096, seed=0, start=8192).state_dict())
        """
        mine = self.state_dict()
        self.position = check_state(state, mine, position="position", maker="iterator", most=self._epochs.stop)

    def begin(self, start: int) -> None:
        """At ``start``, if there is such a position."""
        number, stop = whole_number("start", start), self._epochs.stop
        if number < 0 or (stop is not None and number > stop):
            rows = "0 or more" if stop is None else f"0 to {stop}"
            raise ValueError(
                f"start: expected {rows} (rows already received), got {start}. Use start=0 for the beginning."
            )
        self.position = number

    def __repr__(self) -> str:
        return f"<lowtide iterator {self.order} batch={self._epochs.batch} rows={self._progress()}>"

    def _repr_html_(self) -> str:
        facts = {"order": self.order, "batch": f"{self._epochs.batch:,} rows", "received": f"{self._progress()} rows"}
        if self._epochs.stop is not None:
            facts["batches left"] = f"{len(self):,}"
        if self.world > 1:
            facts["rank"] = f"{self._rank} of {self.world}"
        return html_table("lowtide iterator", facts)

    def _progress(self) -> str:
        stop = self._epochs.stop
        return f"{self.position:,}" + (" (endless)" if stop is None else f" of {stop:,}")


class RowIteration:
    """``chunks``, ``shuffled``, ``gather`` and ``sample`` over the rows of a reader."""

    def __init__(self, rows: RowsReader) -> None:
        self._all_rows = rows

    def __len__(self) -> int:
        return self._all_rows.count

    @property
    def where(self) -> str:
        """What it reads: the file, or the first of several."""
        return self._all_rows.where

    @property
    def budget(self) -> Budget:
        """The budget that it shares with its parts and iterators."""
        return self._all_rows.budget

    def chunks(
        self, rows: int | None = None, *, start: int = 0, epochs: int | None = 1, rank: int = 0, world: int = 1
    ) -> BatchIterator:
        """Every row once, in order, ``rows`` at a time (default: as the budget allows); the last may be short.

        ``start``: rows this rank has already received. ``rank`` of ``world`` receives its own stretch of the rows. Two
        chunks must fit the budget, else ``BudgetError`` before a byte is read.

        >>> for chunk in a.chunks(4096): ...
        """
        first, last = rank_slice(len(self), rank, world)
        size = self._admit("chunks", self._comfortable() if rows is None else rows, last - first)
        self._keep_for_ranks(world)
        steps = _steps(last - first, size, epochs, first, len(self))
        return self._iterate(InOrder(len(self), finite=False), steps, start, rank, world)

    def shuffled(
        self,
        batch: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        epochs: int | None = 1,
        start: int = 0,
        locality: int | str | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> BatchIterator:
        """Every row exactly once, in an order that ``(seed, epoch)`` fix, in batches of ``batch`` rows.

        ``epochs``: passes to make, each in its own order; None: without end. ``start``: rows this rank has already
        received, over all epochs. ``rank`` of ``world`` receives its own slice of the order. ``locality``: shuffle only
        within runs of neighbouring rows of this many bytes; the runs come in random order.

        Costs no index: 16 to 35 ns per row for the order, whatever the size. Two batches must fit the budget, else
        ``BudgetError`` before a byte is read.

        >>> for rows in a.shuffled(4096, seed=0, epochs=2): ...
        """
        first, last = rank_slice(len(self), rank, world)
        size = self._admit("shuffled", batch, last - first)
        self._keep_for_ranks(world)
        numbers = whole_number("seed", seed), whole_number("epoch", epoch)
        stream = Shuffled(len(self), *numbers, neighbours=self._neighbours(locality))
        return self._iterate(stream, _steps(last - first, size, epochs, first, len(self)), start, rank, world)

    def gather(self, indices: Any, batch: int, *, start: int = 0, epochs: int | None = 1) -> BatchIterator:
        """Your rows in your order, ``batch`` at a time. ``indices``: integers (negative from the end) or a mask.

        Keeps ``indices`` as they are (a memmap of them is fine). Raises ``IndexError`` before a byte is read.

        >>> for rows in a.gather([7, 3, 9], 2): ...
        """
        wanted = np.asarray(indices)
        if wanted.ndim != 1:
            raise ValueError(
                f"gather: expected one axis of indices, got shape {wanted.shape}. Use indices.reshape(-1)."
            )
        if wanted.dtype == bool or wanted.size == 0:
            wanted = np.asarray(select(wanted, (len(self),)).rows, np.int64)
        size = self._admit("gather", batch, len(wanted))
        _check_all(wanted, len(self))
        return self._iterate(Given(wanted, len(self)), _steps(len(wanted), size, epochs), start)

    def sample(self, batch: int, *, seed: int = 0, start: int = 0) -> BatchIterator:
        """Rows drawn with replacement, without end; ``start``: rows already received. Raises ``ValueError`` for an
        empty array.

        >>> rows = next(a.sample(4096, seed=0))
        """
        size = self._admit("sample", batch, None)
        if len(self) == 0:
            raise ValueError(
                f"{self._all_rows.where}: expected rows to sample from, got an empty array. Use another file."
            )
        stream = Drawn(len(self), whole_number("seed", seed))
        return self._iterate(stream, EpochSteps(None, size, None), start)

    def fingerprint(self) -> dict[str, Any]:
        """What identifies this data wherever it is copied: dtype, shape, sizes and sampled blocks; never path, time or
        inode.

        Reads 16 blocks of 4 KiB, once.
        """
        return self._all_rows.fingerprint()

    def _iterate(self, stream: Stream, steps: EpochSteps, start: int, rank: int = 0, world: int = 1) -> BatchIterator:
        reader = self._all_rows
        # Of rows drawn from all over a much longer array hardly two are neighbours.
        if stream.scattered and min(steps.batch, ROWS_AT_ONCE) * SPARSE_FROM < reader.count:
            reader = reader.scattered()
        follower: Follower | None = None
        if isinstance(reader, RowReader) and reader.follows:
            reader, follower = follow(reader, stream, world, reader.row_bytes, steps=steps)
        iterator = BatchIterator(reader, stream, steps, follower, rank=rank, world=world)
        iterator.begin(start)
        return iterator

    def _keep_for_ranks(self, world: int) -> None:
        for store in self._all_rows.stores:
            store.keep_for_ranks(world)

    def _neighbours(self, locality: int | str | None) -> int | None:
        if locality is None:
            return None
        return max(1, parse_size(locality, what="locality") // max(1, self._all_rows.row_bytes))

    def _comfortable(self) -> int:
        """Rows whose bytes are an eighth of the budget, or 8 MiB where that is less."""
        size = min(LARGEST_CHUNK, self._all_rows.budget.limit // 8)
        return max(1, size // max(1, self._all_rows.row_bytes))

    def _admit(self, call: str, batch: int, rows_left: int | None) -> int:
        """The batch size to use - no more than there are rows - if the budget can hold such batches."""
        batch = counted_batch(call, batch)
        batch = batch if rows_left is None else min(batch, max(1, rows_left))
        reader = self._all_rows
        admit(reader, batch, f"{reader.where}: {call}({batch})", lambda rows: f"use {call}({rows})")
        return batch


def counted_batch(call: str, batch: int) -> int:
    """``batch`` as a number of rows, 1 or more."""
    return at_least(call, batch, 1, example=f"{call}(4096)")


def _steps(rows: int, batch: int, epochs: int | None, first: int = 0, total: int | None = None) -> EpochSteps:
    """So many epochs of ``rows`` each, which begin at position ``first`` of an epoch of ``total``."""
    if epochs is not None:
        epochs = at_least("epochs", epochs, 1, example="epochs=1, or None for no end")
    stop = 0 if rows == 0 else None if epochs is None else rows * epochs  # 0: also of endless epochs of nothing
    return EpochSteps(rows, batch, stop, first, total)


def _check_all(numbers: NDArray[Any], count: int) -> None:
    """Refuse indices outside before a byte is read, in steps that stay small also for a memmap of indices."""
    for first in range(0, len(numbers), 1 << 20):
        inside(np.asarray(numbers[first : first + (1 << 20)]), count)
