"""Every way to iterate over rows: in order, shuffled, in an order of your own, drawn at random.

One idea: a way of iterating is a choice of row numbers; who turns them into batches - one array, a part of it, several
arrays together - is the filler's business. ``Array`` and ``Together`` have these calls from here and so mean the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lowtide.arguments import at_least, whole_number
from lowtide.order import rank_slice
from lowtide.reading.indexing import inside, select
from lowtide.reading.iterators import BatchIterator, Filler, Share
from lowtide.reading.passes import DrawnRows, GivenRows, InFileOrder, Pass, ShuffledRows
from lowtide.reading.run_ahead import RunAhead
from lowtide.storage import Budget, Store
from lowtide.units import MIB, parse_size

LARGEST_CHUNK = 8 * MIB  # enough to keep a disk busy; more only costs memory


class Rows(Filler, Protocol):
    """A filler of ``count`` rows of ``nbytes`` bytes each."""

    @property
    def count(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def where(self) -> str: ...
    @property
    def budget(self) -> Budget: ...
    @property
    def stores(self) -> tuple[Store, ...]: ...
    @property
    def fingerprint(self) -> Callable[[], dict[str, Any]]: ...
    def admit(self, call: str, batch: int) -> None: ...


class RowIteration:
    """``chunks``, ``shuffled``, ``gather`` and ``sample`` over the rows of a filler."""

    def __init__(self, rows: Rows) -> None:
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
        return self._iterate(InFileOrder(first, last), size, start, Share(_epochs(epochs), rank, world))

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
        order = ShuffledRows(len(self), first, last, *numbers, self._neighbours(locality))
        return self._iterate(order, size, start, Share(_epochs(epochs), rank, world))

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
        return self._iterate(GivenRows(wanted, len(self)), size, start, Share(_epochs(epochs)))

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
        return self._iterate(DrawnRows(len(self), whole_number("seed", seed)), size, start, Share(None))

    def fingerprint(self) -> dict[str, Any]:
        """What identifies this data wherever it is copied: dtype, shape, sizes and sampled blocks; never path, time or
        inode.

        Reads 16 blocks of 4 KiB, once.
        """
        return self._all_rows.fingerprint()

    def _iterate(self, order: Pass, batch: int, start: int, share: Share) -> BatchIterator:
        rows, runs = self._in_stretches(order, share)
        fingerprint = self._all_rows.fingerprint
        iterator = BatchIterator(rows, order, batch, share=share, fingerprint=fingerprint, runs=runs)
        iterator.position = iterator.checked_start(start)
        return iterator

    def _in_stretches(self, order: Pass, share: Share) -> tuple[Filler, RunAhead | None]:  # noqa: ARG002
        """The rows as this order reads them, and what announces the stretches of a local shuffle."""
        return self._all_rows, None

    def _keep_for_ranks(self, world: int) -> None:
        for store in self._all_rows.stores:
            store.keep_for_ranks(world)

    def _neighbours(self, locality: int | str | None) -> int | None:
        if locality is None:
            return None
        return max(1, parse_size(locality, what="locality") // max(1, self._all_rows.nbytes))

    def _comfortable(self) -> int:
        """Rows whose bytes are an eighth of the budget, or 8 MiB where that is less."""
        size = min(LARGEST_CHUNK, self._all_rows.budget.limit // 8)
        return max(1, size // max(1, self._all_rows.nbytes))

    def _admit(self, call: str, batch: int, rows_left: int | None) -> int:
        """The batch size to use - no more than there are rows - if the budget can hold such batches."""
        batch = counted_batch(call, batch)
        batch = batch if rows_left is None else min(batch, max(1, rows_left))
        self._all_rows.admit(call, batch)
        return batch


def counted_batch(call: str, batch: int) -> int:
    """``batch`` as a number of rows, 1 or more."""
    return at_least(call, batch, 1, example=f"{call}(4096)")


def _epochs(epochs: int | None) -> int | None:
    return None if epochs is None else at_least("epochs", epochs, 1, example="epochs=1, or None for no end")


def _check_all(numbers: NDArray[Any], count: int) -> None:
    """Refuse indices outside before a byte is read, in steps that stay small also for a memmap of indices."""
    for first in range(0, len(numbers), 1 << 20):
        inside(np.asarray(numbers[first : first + (1 << 20)]), count)
