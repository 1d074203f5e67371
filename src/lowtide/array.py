"""``lowtide.open`` and ``Array``: typed rows on disk, read in order, shuffled or at random inside a budget.

One idea: an array is a layout and a store; every way of reading it is a choice of rows. Opening reads headers only.
Indexing gives ordinary arrays you own; iterating lends batches from a pool that never holds more than the budget.

Crosses fork, threads and pickle: descriptors are opened anew in each process and there are no file positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lowtide.arguments import at_least, whole_number
from lowtide.formats import Layout, layout_of
from lowtide.machine import PAGE
from lowtide.order import rank_slice
from lowtide.reading.fingerprint import hash_of_blocks, hash_of_sizes
from lowtide.reading.indexing import inside, select, whole
from lowtide.reading.iterators import BatchIterator, Share
from lowtide.reading.passes import DrawnRows, GivenRows, InFileOrder, Pass, ShuffledRows
from lowtide.reading.plan import Plan, project
from lowtide.reading.row_filler import RowFiller
from lowtide.storage import Store
from lowtide.storage.budget import whole_pages
from lowtide.units import MIB, format_size, parse_size

Source = str | PathLike[str] | NDArray[Any] | Sequence[str | PathLike[str] | NDArray[Any]]

LARGEST_CHUNK = 8 * MIB  # enough to keep a disk busy; more only costs memory


def open(  # noqa: PLR0913 - keyword-only options of the public surface
    source: Source,
    *,
    dtype: DTypeLike | None = None,
    shape: int | tuple[int, ...] | None = None,
    offset: int = 0,
    tensor: str | None = None,
    strategy: str = "auto",
    cache: str = "auto",
    budget: int | str = "auto",
    engine: str = "auto",
) -> Array:
    """Open a ``.npy`` file, raw numbers, a memmap, or a list or glob of them; also one array - ``tensor`` - of a
    ``.safetensors``, ``.npz`` or HDF5 file.

    ``dtype``, ``shape`` (one axis may be -1) and ``offset`` describe a file without a header. ``budget`` is the most
    bytes the array may hold at once, such as ``"64MiB"``. ``strategy``, ``cache`` and ``engine`` choose how bytes are
    read; ``plan()`` says what was chosen and why.

    Reads headers only: about a millisecond for a file of any size. Raises ``FileNotFoundError``, or ``FormatError`` for
    what is not an array.

    >>> a = lowtide.open("features.npy", budget="64MiB")
    >>> for rows in a.shuffled(4096, seed=0): ...
    """
    layout = layout_of(source, dtype=dtype, shape=shape, offset=offset, tensor=tensor)
    return Array(layout, Store(layout.extents, strategy=strategy, cache=cache, budget=budget, engine=engine))


class Array:
    """Rows on disk. ``a[...]`` gives arrays you own; ``chunks``, ``shuffled``, ``gather`` and ``sample`` iterate.

    Holds no data, only what its iterators lend, at most the budget. May be used by several threads, after a fork, and
    pickled. A read that fails raises ``ReadError`` with path and offset; holding more batches than the budget allows
    raises ``BudgetError``.

    >>> a = lowtide.open("features.npy")
    >>> a.shape, a.dtype, len(a), a.nbytes
    """

    def __init__(self, layout: Layout, store: Store) -> None:
        self.layout = layout
        self._store = store
        self._rows = RowFiller(layout, store)
        self._fingerprint: dict[str, Any] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.layout.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.layout.dtype

    @property
    def ndim(self) -> int:
        return len(self.layout.shape)

    @property
    def size(self) -> int:
        return self.nbytes // self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes

    def __len__(self) -> int:
        return self.layout.shape[0]

    def __repr__(self) -> str:
        return f"<lowtide.Array {self._store.where} shape={self.shape} dtype={self.dtype} {format_size(self.nbytes)}>"

    # One read

    def __getitem__(self, key: Any) -> Any:
        """Rows, as NumPy would index them: an ordinary array you own, never a view of a mapping.

        Costs one read per run of neighbouring rows. Raises ``IndexError``, or ``BudgetError`` where one request exceeds
        a stated budget.

        >>> a[5], a[10:20], a[[7, 3, 9]], a[a[:, 0] > 0]
        """
        return self._rows.select(select(key, self.shape))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return whole(self, dtype, copy)

    # Many reads

    def chunks(
        self, rows: int | None = None, *, start: int = 0, epochs: int | None = 1, rank: int = 0, world: int = 1
    ) -> BatchIterator:
        """Every row once, in order, ``rows`` at a time (default: as the budget allows); the last may be short.

        ``start``: rows this rank has already received. ``rank`` of ``world`` receives its own stretch of the rows.
        """
        first, last = rank_slice(len(self), rank, world)
        size = self._admit("chunks", self._comfortable() if rows is None else rows, last - first)
        self._store.keep_for_ranks(world)
        return self._iterate(InFileOrder(first, last), size, start, Share(_epochs(epochs), rank, world))

    def __iter__(self) -> Any:
        """Row by row, read in chunks; each row is an array of its own."""
        for chunk in self.chunks():
            for row in chunk:
                yield row.copy()

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
        within runs of neighbouring rows of this many bytes (the runs in random order).
        """
        first, last = rank_slice(len(self), rank, world)
        size = self._admit("shuffled", batch, last - first)
        self._store.keep_for_ranks(world)
        numbers = whole_number("seed", seed), whole_number("epoch", epoch)
        order = ShuffledRows(len(self), first, last, *numbers, self._neighbours(locality))
        return self._iterate(order, size, start, Share(_epochs(epochs), rank, world))

    def gather(self, indices: Any, batch: int, *, start: int = 0, epochs: int | None = 1) -> BatchIterator:
        """Your rows in your order, ``batch`` at a time. ``indices``: integers (negative from the end) or a mask."""
        wanted = np.asarray(indices)
        if wanted.ndim != 1:
            raise ValueError(
                f"gather: expected one axis of indices, got shape {wanted.shape}. Use indices.reshape(-1)."
            )
        if wanted.dtype == bool or wanted.size == 0:
            wanted = np.asarray(select(wanted, self.shape).rows, np.int64)
        size = self._admit("gather", batch, len(wanted))
        _check_all(wanted, len(self))
        return self._iterate(GivenRows(wanted, len(self)), size, start, Share(_epochs(epochs)))

    def sample(self, batch: int, *, seed: int = 0, start: int = 0) -> BatchIterator:
        """Rows drawn with replacement, without end; ``start``: rows already received."""
        size = self._admit("sample", batch, None)
        if len(self) == 0:
            raise ValueError(
                f"{self._store.where}: expected rows to sample from, got an empty array. Use another file."
            )
        return self._iterate(DrawnRows(len(self), whole_number("seed", seed)), size, start, Share(None))

    # What it costs

    def plan(self, batch: int | None = None) -> Plan:
        """Projected bytes by kind and how reading happens, and why: for batches of ``batch`` rows, or at most."""
        rows = self._rows
        size = (self._comfortable() if batch is None else _count("plan", batch)) * rows.nbytes
        held = self._store.budget.limit if batch is None else rows.copies * whole_pages(size)
        why = ("the file is in Fortran order: a row is one item of every column, so reads are many and small",)
        return project(self._store, held, announced=2 * size, why=why if rows.fortran else ())

    def fingerprint(self) -> dict[str, Any]:
        """What makes this data this data, wherever it is copied: never path, time or inode."""
        if self._fingerprint is None:
            self._fingerprint = {
                "dtype": self.dtype.str,
                "shape": list(self.shape),
                "files": hash_of_sizes(extent.size for extent in self.layout.extents),
                "blocks": hash_of_blocks(self._store, 1, 0, self.nbytes),
            }
        return dict(self._fingerprint)

    # Life

    def close(self) -> None:
        """Close the files. Arrays already handed out stay valid; closing twice is fine. ``with lowtide.open(...) as
        a:`` does it.

        >>> a.close()
        """
        self._store.close()

    def __enter__(self) -> Array:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return Array, (self.layout, self._store)

    def _iterate(self, order: Pass, batch: int, start: int, share: Share) -> BatchIterator:
        iterator = BatchIterator(self._rows, order, batch, share=share, fingerprint=self.fingerprint)
        iterator.position = iterator.checked_start(start)
        return iterator

    def _neighbours(self, locality: int | str | None) -> int | None:
        if locality is None:
            return None
        return max(1, parse_size(locality, what="locality") // max(1, self._rows.nbytes))

    def _comfortable(self) -> int:
        """Rows whose bytes are an eighth of the budget, or 8 MiB where that is less."""
        size = min(LARGEST_CHUNK, self._store.budget.limit // 8)
        return max(1, size // max(1, self._rows.nbytes))

    def _admit(self, call: str, batch: int, rows_left: int | None) -> int:
        """The batch size to use - no more than there are rows - if the budget can hold such batches."""
        batch = _count(call, batch)
        store, rows = self._store, self._rows
        store.require_open()  # a closed store is refused here, not at the first batch
        batch = batch if rows_left is None else min(batch, max(1, rows_left))
        pages = (store.budget.limit - store.budget.aside) // rows.copies // PAGE  # buffers are whole pages
        fits = pages * PAGE // max(1, rows.nbytes)
        store.budget.admit(
            batch * rows.nbytes,
            copies=rows.copies,
            where=f"{store.where}: {call}({batch})",
            smaller=f"use {call}({fits})" if fits else "",
        )
        return batch


def _count(call: str, batch: int) -> int:
    return at_least(call, batch, 1, example=f"{call}(4096)")


def _epochs(epochs: int | None) -> int | None:
    return None if epochs is None else at_least("epochs", epochs, 1, example="epochs=1, or None for no end")


def _check_all(numbers: NDArray[Any], count: int) -> None:
    """Refuse indices outside before a byte is read, in steps that stay small also for a memmap of indices."""
    for first in range(0, len(numbers), 1 << 20):
        inside(np.asarray(numbers[first : first + (1 << 20)]), count)
