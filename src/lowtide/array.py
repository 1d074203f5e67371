"""``lowtide.open`` and ``Array``: typed rows on disk, read in order, shuffled or at random inside a budget.

An array is a layout, a store and perhaps a part of its rows; every way of reading it is a choice of rows. Opening
reads headers only. Indexing gives ordinary arrays you own; iterating lends batches from a pool that never holds more
than the budget.

Works across fork, threads and pickle: each process reopens the files, and there are no file positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lowtide.blocks.block_store import open_store
from lowtide.blocks.objects import reaching
from lowtide.formats import Layout, layout_of
from lowtide.reading.habits import ROW_NAMES, OnDisk, answers_habits
from lowtide.reading.opened import html_table
from lowtide.reading.plan import Plan
from lowtide.reading.rows.column_stats import ColumnStats, stats_of
from lowtide.reading.rows.indexing import refuse_name, select, whole
from lowtide.reading.rows.iteration import RowIteration, counted_batch
from lowtide.reading.rows.parts import Part, chained, subset_of
from lowtide.reading.rows.reader import RowReader
from lowtide.storage.budget import Budget
from lowtide.storage.store import Store
from lowtide.units import format_size

Source = str | PathLike[str] | NDArray[Any] | Sequence[str | PathLike[str] | NDArray[Any]]


@answers_habits
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
    disk: int | str = "auto",
    cache_dir: str | PathLike[str] | None = None,
    remote: dict[str, Any] | None = None,
) -> Array:
    """Open a ``.npy`` file, raw numbers, a memmap, or a list or glob of them; also one array - ``tensor`` - of a
    ``.safetensors``, ``.npz`` or HDF5 file.

    ``dtype``, ``shape`` (one axis may be -1) and ``offset`` describe a file without a header. ``budget`` is the most
    bytes the array may hold at once, such as ``"64MiB"``. ``strategy``, ``cache`` and ``engine`` choose how bytes are
    read; ``plan()`` says what was chosen and why.

    An address - ``s3://``, ``gs://``, ``az://``, ``https://`` or ``http://`` - is read through blocks that are fetched
    when they are first needed and kept in ``cache_dir`` (``~/.cache/lowtide`` unless stated), at most ``disk`` bytes of
    them over all processes; ``remote`` passes options to the store's client.

    Reads headers only: about a millisecond for a file of any size. Raises ``FileNotFoundError``, or ``FormatError`` if
    it is not an array.

    >>> a = lowtide.open("features.npy", budget="64MiB")
    >>> for rows in a.shuffled(4096, seed=0): ...
    """
    with reaching(disk, cache_dir, remote):
        layout = layout_of(source, dtype=dtype, shape=shape, offset=offset, tensor=tensor)
    return Array(layout, open_store(layout.extents, strategy=strategy, cache=cache, budget=budget, engine=engine))


class Array(RowIteration, OnDisk):
    """Rows on disk. ``a[...]`` gives arrays you own; ``chunks``, ``shuffled``, ``gather`` and ``sample`` iterate.

    Holds no data, only what its iterators lend, at most the budget. May be used by several threads, after a fork, and
    pickled. A read that fails raises ``ReadError`` with path and offset; holding more batches than the budget allows
    raises ``BudgetError``.

    >>> a = lowtide.open("features.npy")
    >>> a.shape, a.dtype, len(a), a.nbytes
    """

    not_here = ROW_NAMES

    def __init__(self, layout: Layout, store: Store, part: Part | None = None) -> None:
        self.layout = layout  # of the whole file, even if this is a part of it
        self._store = store
        self._part = part
        self._rows = RowReader(layout, store, part)
        super().__init__(self._rows)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self._rows.count, *self._rows.shape)

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
        return self._rows.nbytes(self._rows.count)

    def __repr__(self) -> str:
        part = "" if self._part is None else f" part of {self.layout.shape[0]:,} rows"
        facts = f"{self.where} shape={self.shape} dtype={self.dtype} {format_size(self.nbytes)}{part}"
        return f"<lowtide.Array {'; '.join([facts, *self.layout.notes])}>"

    def _repr_html_(self) -> str:
        facts = {"file": self.where, "shape": str(self.shape), "dtype": str(self.dtype)}
        if self._part is not None:
            facts["part of"] = f"{self.layout.shape[0]:,} rows"
        facts |= {"bytes": format_size(self.nbytes), "budget": format_size(self.budget.limit)}
        return html_table("lowtide.Array", facts)

    # One read

    def __getitem__(self, key: Any) -> Any:
        """Rows, as NumPy would index them: an ordinary array you own, never a view of a mapping.

        Neighbouring rows are read together. Raises ``IndexError``, or ``BudgetError`` if one request exceeds
        a stated budget.

        >>> a[5], a[10:20], a[[7, 3, 9]], a[a[:, 0] > 0]
        """
        if type(key) is int:
            return self._rows.row(key)
        if isinstance(key, str):
            refuse_name(key, self.dtype.names or (), "X[10:20]")
        return self._rows.select(select(key, self.shape))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return whole(self, dtype, copy)

    # Many reads: chunks, shuffled, gather and sample come from RowIteration

    def __iter__(self) -> Any:
        """Row by row, read in chunks; each row is an array of its own."""
        for chunk in self.chunks():
            for row in chunk:
                yield row.copy()

    def stats(self) -> ColumnStats:
        """For every column, in float64, in one pass: count, mean, std, min and max of the numbers, and how many NaN.

        Costs one pass over the file and a few numbers per column. Raises ``TypeError`` for a dtype without numbers.

        >>> a.stats().mean
        """
        return stats_of(self, self._rows.shape, self.dtype, self._store.engine, self.where)

    # Parts

    def subset(self, which: Any) -> Array:
        """Some of the rows as another array: row numbers in any order, a mask, or a slice.

        Shares files and budget with this one. An index of 4 bytes per row counts against the budget; a slice
        without a step needs none. Raises ``IndexError`` for rows that do not exist.

        >>> a.subset(slice(0, 1000)), a.subset([3, 1, 2])
        """
        part = subset_of(which, self._part, self.layout.shape[0], self.budget, self.where)
        return Array(self.layout, self._store, part)

    def _of(self, part: Part) -> Self:
        return type(self)(self.layout, self._store, chained(part, self._part))

    # What it costs

    def plan(self, batch: int | None = None) -> Plan:
        """Projected bytes by kind, how rows are read, and why: for batches of ``batch`` rows, or the most that any
        batch may take. Reads nothing.

        >>> print(a.plan(4096))
        """
        if batch is None:
            return self._rows.plan(self._comfortable(), self.budget.limit)
        return self._rows.plan(counted_batch("plan", batch))

    def __reduce__(self) -> tuple[Any, ...]:
        return Array, (self.layout, self._store, self._part)

    def reader(self, budget: Budget) -> RowReader:
        """The same rows through a separate store that counts against ``budget``."""
        self._store.require_open()
        strategy, cache, engine = self._store.asked
        store = open_store(self.layout.extents, strategy=strategy, cache=cache, budget=budget, engine=engine)
        return RowReader(self.layout, store, self._part)
