"""Every way to iterate over rows: in order, shuffled, in an order of your own, drawn at random.

A way of iterating is a choice of row numbers; the reader - of one array, a part of it, several arrays together - turns
them into batches. ``Array`` and ``Together`` both get these calls from here, so they mean the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, Self

import numpy as np

from lowtide.arguments import array_of, at_least, whole_number
from lowtide.order import rank_slice
from lowtide.order.locality import Stated, locality_of
from lowtide.order.steps import MOST_ROWS, EpochSteps
from lowtide.order.streams import Drawn, Given, InOrder, Shuffled, Stream
from lowtide.reading.admission import admit
from lowtide.reading.ahead import Reader
from lowtide.reading.blocks_ahead import BlockFollower, FollowersTogether, PlannedFollower, follow
from lowtide.reading.cursor import Cursor
from lowtide.reading.habits import answers_habits
from lowtide.reading.opened import Opened, html_table
from lowtide.reading.plan import Plan
from lowtide.reading.rows.indexing import ONE_AXIS, ends_inside, inside, refuse_axes, select
from lowtide.reading.rows.parts import Part
from lowtide.reading.rows.reader import ROWS_AT_ONCE, RowReader
from lowtide.reading.rows.stratified import split_parts
from lowtide.storage.budget import Budget
from lowtide.storage.store import Store
from lowtide.units import MIB

LARGEST_CHUNK = 8 * MIB  # enough to keep a disk busy; more only costs memory
CHECKED = 1 << 20  # indices checked at a time: few, even for a memmap of them
SPARSE_FROM = 64  # a batch from an array this many times longer has few neighbours


class RowsReader(Reader, Protocol):
    """A reader of ``count`` rows of ``row_bytes`` bytes each."""

    @property
    def count(self) -> int: ...
    @property
    def row_bytes(self) -> int: ...
    def scattered(self) -> RowsReader:
        """The same rows, for numbers with few neighbours."""
        ...

    def each(self, call: Callable[[RowReader], RowReader]) -> RowsReader:
        """The same rows, with every reader of a file in it as ``call`` returns it."""
        ...

    def plan(self, batch: int, held: int | None = None) -> Plan:
        """Of batches of so many rows; ``held``: bytes of buffers at once, where they are not those of such batches."""
        ...


class BatchIterator(Cursor):
    """Batches of rows, lent until you drop them. ``position`` counts this rank's rows over all epochs: pass it as
    ``start=`` to resume.

    Each epoch ends with its own short batch. ``len(it)`` is the number of batches left; an endless iterator raises
    ``TypeError``. ``next`` raises ``ReadError`` or ``BudgetError`` without moving: ask again for the same batch.

    >>> it = a.shuffled(4096, seed=0)
    >>> rows = next(it)
    >>> it.position, len(it)
    """

    _steps: EpochSteps

    def __init__(
        self,
        reader: RowsReader,
        stream: Stream,
        steps: EpochSteps,
        follower: PlannedFollower | None,
        rank: int,
        world: int,
    ) -> None:
        super().__init__(reader, stream, steps, follower)
        self._rows, self._follower = reader, follower
        self._rank = rank
        self.world = world  # how many ranks share the rows
        self.order = stream.order  # "chunks", "shuffled", "gather" or "sample"

    def __len__(self) -> int:
        """Batches left."""
        left = self._steps.left(self.position)
        if left is None:
            way = "Count batches yourself" if self.order == "sample" else "Count batches yourself, or state epochs=1"
            raise TypeError(f"len: expected an iterator with an end, got {self.order}(), which has none here. {way}.")
        return left

    def __length_hint__(self) -> int:
        return 0 if self._steps.stop is None else len(self)

    @property
    def epoch(self) -> int:
        """Epochs finished."""
        return self.position // self._steps.rows if self._steps.rows else 0

    def plan(self) -> Plan:
        """Projected bytes by kind and how reading happens, and why; of a local shuffle, how well it mixes."""
        found = self._rows.plan(self._steps.batch)
        found = replace(found, why=(*found.why, *self._stream.notes()))
        return found if self._follower is None else self._follower.adjusted(found)

    def _settings(self, position: int) -> dict[str, Any]:  # noqa: ARG002
        return {"rank": self._rank, "world": self.world, **self._stream.settings()}

    def _end(self) -> int | None:
        return self._steps.stop

    def __repr__(self) -> str:
        return f"<lowtide iterator {self.order} batch={self._steps.batch} rows={self._progress()}>"

    def _repr_html_(self) -> str:
        facts = {"order": self.order, "batch": f"{self._steps.batch:,} rows", "received": f"{self._progress()} rows"}
        if self._steps.stop is not None:
            facts["batches left"] = f"{len(self):,}"
        if self.world > 1:
            facts["rank"] = f"{self._rank} of {self.world}"
        return html_table("lowtide iterator", facts)

    def _progress(self) -> str:
        stop = self._steps.stop
        return f"{self.position:,}" + (" (endless)" if stop is None else f" of {stop:,}")


class RowIteration(Opened):
    """``chunks``, ``shuffled``, ``gather`` and ``sample`` over the rows of a reader."""

    def __init__(self, rows: RowsReader) -> None:
        self._all_rows = rows

    def __len__(self) -> int:
        return self._all_rows.count

    @property
    def stores(self) -> tuple[Store, ...]:
        return self._all_rows.stores

    @property
    def where(self) -> str:
        """What it reads: the file, or the first of several."""
        return self._all_rows.where

    @property
    def budget(self) -> Budget:
        """The budget that it shares with its parts and iterators."""
        return self._all_rows.budget

    @answers_habits
    def chunks(
        self, rows: int | None = None, *, start: int = 0, epochs: int | None = 1, rank: int = 0, world: int = 1
    ) -> BatchIterator:
        """Every row once, in order, ``rows`` at a time (default: as the budget allows); the last may be short.

        ``start``: rows this rank has already received. ``rank`` of ``world`` receives its own stretch of the rows. Two
        chunks must fit the budget, else ``BudgetError`` before a byte is read.

        >>> for chunk in a.chunks(4096): ...
        """
        stream = InOrder(len(self), finite=False)
        return self._iterate(stream, self._comfortable() if rows is None else rows, start, epochs, rank, world)

    @answers_habits
    def shuffled(
        self,
        batch: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        epochs: int | None = 1,
        start: int = 0,
        locality: Stated | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> BatchIterator:
        """Every row exactly once, in an order that ``(seed, epoch)`` fix, in batches of ``batch`` rows.

        ``epochs``: passes to make, each in its own order; None: endless. ``start``: rows this rank has already
        received, over all epochs. ``rank`` of ``world`` receives its own slice of the order. ``locality``: for
        disks that are slow at scattered reads: bytes that are mixed at a time, as whole blocks (1 MiB unless stated:
        ``("64MiB", "256KiB")``) from all over the rows.

        Costs no index: 16 to 35 ns per row for the order, whatever the size. Two batches must fit the budget, else
        ``BudgetError`` before a byte is read.

        >>> for rows in a.shuffled(4096, seed=0, epochs=2): ...
        """
        near = locality_of(locality, self._all_rows.row_bytes)
        numbers = whole_number("seed", seed), whole_number("epoch", epoch)
        stream = Shuffled(len(self), *numbers, locality=near)
        return self._iterate(stream, batch, start, epochs, rank, world)

    @answers_habits
    def gather(self, indices: Any, batch: int, *, start: int = 0, epochs: int | None = 1) -> BatchIterator:
        """Your rows in your order, ``batch`` at a time. ``indices``: integers (negative from the end) or a mask.

        Keeps ``indices`` as they are (a memmap of them is fine). Raises ``IndexError`` before a byte is read.

        >>> for rows in a.gather([7, 3, 9], 2): ...
        """
        if isinstance(indices, range) and indices:  # kept as it is too
            ends_inside(indices, len(self))
            return self._iterate(Given(indices, len(self)), batch, start, epochs)
        wanted = array_of("gather", indices, ONE_AXIS)
        refuse_axes("gather", wanted, len(self))
        if wanted.dtype == bool or wanted.size == 0:
            wanted = np.asarray(select(wanted, (len(self),)).rows, np.int64)
        for first in range(0, len(wanted), CHECKED):
            inside(np.asarray(wanted[first : first + CHECKED]), len(self))
        return self._iterate(Given(wanted, len(self)), batch, start, epochs)

    @answers_habits
    def sample(self, batch: int, *, seed: int = 0, start: int = 0) -> BatchIterator:
        """Rows drawn with replacement, endlessly; ``start``: rows already received. Raises ``ValueError`` for an
        empty array.

        >>> rows = next(a.sample(4096, seed=0))
        """
        if len(self) == 0:
            raise ValueError(
                f"{self._all_rows.where}: expected rows to sample from, got an empty array. Use another file."
            )
        return self._iterate(Drawn(len(self), whole_number("seed", seed)), batch, start)

    def split(self, val: float | int = 0.1, *, seed: int | None = None) -> tuple[Self, Self]:
        """Two parts, training and validation: ``val`` is the share (below 1) or the number of rows of the second.

        Without a seed the second part is the tail. With one, the seed picks the same share of rows from every run of
        1,024; both parts stay in file order, and no index is kept.
        """
        train, held_out = (self._of(part) for part in split_parts(len(self), val, seed))
        return train, held_out

    def _of(self, part: Part) -> Self:
        """The rows of ``part`` of these rows."""
        raise NotImplementedError

    def fingerprint(self) -> dict[str, Any]:
        """What identifies this data wherever it is copied: dtype, shape, sizes and sampled blocks; never path, time or
        inode.

        Reads 16 blocks of 4 KiB, once.
        """
        return self._all_rows.fingerprint()

    def _iterate(
        self, stream: Stream, batch: int, start: int, epochs: int | None = 1, rank: int = 0, world: int = 1
    ) -> BatchIterator:
        """Batches of this rank's slice of every epoch, if the budget can hold them, from position ``start`` on."""
        reader, call, total = self._all_rows, stream.order, stream.epoch
        batch = counted_batch(call, batch)
        rows = stop = None
        first, most = 0, MOST_ROWS
        if total is not None:
            first, last = rank_slice(total, rank, world)
            rows = last - first
            batch = min(batch, max(1, rows))
            epochs = _counted_epochs(epochs, total)
            most = MOST_ROWS // max(1, total) * rows
            stop = 0 if rows == 0 else None if epochs is None else rows * epochs  # 0: endless epochs of nothing end too
        admit(reader, batch, f"{reader.where}: {call}({batch})", lambda rows: f"use {call}({rows})")
        for store in self.stores:
            store.keep_for_ranks(world)
        position = whole_number("start", start)
        most = most if stop is None else stop
        if not 0 <= position <= most:
            raise ValueError(
                f"start: expected 0 to {most} (rows already received), got {start}. Use start=0 for the beginning."
            )
        steps = EpochSteps(rows, batch, stop, first, total)
        # Among rows drawn from many more, hardly any are neighbours.
        if min(batch, ROWS_AT_ONCE) * SPARSE_FROM < stream.among:
            reader = reader.scattered()
        reader, follower = _followed(reader, stream, world, steps)
        found = BatchIterator(reader, stream, steps, follower, rank, world)
        found.position = position
        return found

    def _comfortable(self) -> int:
        """Rows whose bytes are an eighth of the budget, at most 8 MiB."""
        size = min(LARGEST_CHUNK, self._all_rows.budget.limit // 8)
        return max(1, size // max(1, self._all_rows.row_bytes))


def _followed(
    reader: RowsReader, stream: Stream, world: int, steps: EpochSteps
) -> tuple[RowsReader, PlannedFollower | None]:
    """The reader to use, and what announces the blocks of a local shuffle: of every file, or of none."""
    followers: list[BlockFollower | None] = []

    def one(rows: RowReader) -> RowReader:
        told, follower = follow(rows, stream, world, rows.row_bytes, steps=steps) if rows.follows else (rows, None)
        followers.append(follower)
        return told

    told = reader.each(one)
    found = tuple(follower for follower in followers if follower is not None)
    if not found or len(found) < len(followers):
        return reader, None
    if len(found) > 1:
        return told, FollowersTogether(found)
    if isinstance(told, RowReader) and isinstance(reader, RowReader):
        told = found[0].swept_by(reader, told, steps.share)
    return told, found[0]


def _counted_epochs(epochs: int | None, total: int) -> int | None:
    """``epochs`` as a number of passes over ``total`` rows, which positions can count; None: endless."""
    if epochs is None:
        return None
    example, most = "epochs=1, or None for no end", MOST_ROWS // max(1, total)
    number = at_least("epochs", epochs, 1, example=example)
    if number > most:
        raise ValueError(f"epochs: expected 1 to {most} passes over {total} rows, got {number}. Use {example}.")
    return number


def counted_batch(call: str, batch: int) -> int:
    """``batch`` as a number of rows, 1 or more."""
    return at_least(call, batch, 1, example=f"{call}(4096)")
