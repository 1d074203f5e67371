"""``lowtide.together``: arrays of equal length - features and labels, say - read row by row.

One order for all members: every batch asks each of them for the same row numbers. One budget counts the buffers of all,
and members that fit into half of it are read once and kept in memory, since reading labels of 8 bytes one by one costs
more than the rows they belong to.

Members keep their own strategy and cache. The arrays given stay as they are: each member has its own store.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lowtide.arguments import array_of
from lowtide.array import Array, open
from lowtide.reading.habits import TOGETHER_NAMES, OnDisk
from lowtide.reading.opened import html_table
from lowtide.reading.plan import Plan
from lowtide.reading.rows.indexing import refuse_name, select
from lowtide.reading.rows.iteration import RowIteration, counted_batch
from lowtide.reading.rows.member_rows import Column, Member, MemberRows
from lowtide.reading.rows.parts import Part, subset_of
from lowtide.reading.rows.reader import RowReader
from lowtide.reading.rows.resident import GivenArray, ResidentRows, RowMemory
from lowtide.storage.budget import Budget
from lowtide.units import format_size

Readable = Array | str | PathLike[str] | NDArray[Any] | Sequence[str | PathLike[str]]  # as a member


def together(*arrays: Readable, budget: int | str = "auto", **named: Readable) -> Together:
    """Arrays of equal length as one: batches are tuples, or dicts if the arrays are given by name.

    Members are opened arrays and parts of them, paths, memmaps, or ordinary arrays in memory. ``budget`` is for all of
    them together; by default it is the sum of theirs. A member that fits in half of it is read once and kept. Raises
    ``ValueError``, with both numbers, if lengths differ.

    >>> both = lowtide.together(features=a, labels=np.zeros(len(a)))
    >>> for batch in both.shuffled(256, seed=0): ...
    """
    if arrays and named:
        raise TypeError(
            f"together: expected arrays either in order or by name, got {len(arrays)} in order and {len(named)} by "
            "name. Name all of them."
        )
    given = [*arrays, *named.values()]
    if not given:
        raise ValueError("together: expected one array or more, got none. Use together(X, y).")
    for one in given:
        named_files = isinstance(one, (list, tuple)) and all(isinstance(name, (str, PathLike)) for name in one)
        if not isinstance(one, (Array, str, PathLike, np.ndarray)) and not named_files:
            way = "Open its file with lowtide.open" if isinstance(one, OnDisk) else "Use np.asarray(...) of numbers"
            raise TypeError(f"together: expected arrays, or paths of them, got {type(one).__name__}. {way}.")
        if isinstance(one, np.ndarray):
            array_of("together", one, "")  # refuses what has a mask
    opened = [one if isinstance(one, Array) or _in_memory(one) else open(one) for one in given]
    _refuse_unequal(opened, [*named] or None)
    shared = _shared_budget([one for one in opened if isinstance(one, Array)], budget)
    members = [_source(one, k, shared) for k, one in enumerate(opened)]
    return Together(_with_small_ones_kept(members, shared), tuple(named) or None, shared)


class Together(RowIteration, OnDisk):
    """Members of equal length. ``both[...]``, ``chunks``, ``shuffled``, ``gather`` and ``sample`` give all of them.

    Costs one read per member and batch. Raises the same errors as ``Array``.

    >>> x, y = lowtide.together(a, np.zeros(len(a)))[:100]
    """

    not_here = TOGETHER_NAMES

    def __init__(self, members: tuple[Member, ...], names: tuple[str, ...] | None, budget: Budget) -> None:
        self.names = names
        self._members = MemberRows(members, names, budget)
        super().__init__(self._members)

    @property
    def nbytes(self) -> int:
        return len(self) * self._members.row_bytes

    def __getitem__(self, key: Any) -> Any:
        """Rows of every member, in arrays you own: a row number, a slice, row numbers or a mask of rows."""
        if isinstance(key, tuple) or key is None:
            raise IndexError(
                "together: expected a row number, a slice, row numbers or a mask, got an index of several axes. "
                "Take the rows first, then index each array."
            )
        if isinstance(key, str):
            refuse_name(key, self.names or (), "both[10:20]")
        rows = self._members
        return rows.packed([one.select(select(key, (one.count, *one.shape))) for one in rows.members])

    def columns(self) -> dict[str, Column]:
        """Every member by its name or number, for Dask and Ray, which index each separately."""
        return dict(zip(self._members.called, map(Column, self._members.members), strict=True))

    def __iter__(self) -> Any:
        """Row by row, read in chunks."""
        pack = self._members.packed
        for batch in self.chunks():
            for row in zip(*(batch.values() if isinstance(batch, dict) else batch), strict=True):
                yield pack([np.array(one) for one in row])

    def subset(self, which: Any) -> Together:
        """Some of the rows of every member: row numbers in any order, a mask, or a slice. One index serves all."""
        return self._of(subset_of(which, None, len(self), self.budget, self.where))

    def _of(self, part: Part) -> Self:
        return type(self)(tuple(one.part_of(part) for one in self._members.members), self.names, self.budget)

    def plan(self, batch: int | None = None) -> Plan:
        """Projected bytes by kind, all members together, and how each is read."""
        if batch is None:
            return self._members.plan(self._comfortable(), self.budget.limit)
        return self._members.plan(counted_batch("plan", batch))

    def __repr__(self) -> str:
        return f"<lowtide.Together {len(self):,} rows of {', '.join(self._described())}>"

    def _repr_html_(self) -> str:
        facts = {"rows": f"{len(self):,}", "budget": format_size(self.budget.limit)}
        names = self._members.called
        return html_table("lowtide.Together", {**facts, **dict(zip(names, self._described(), strict=True))})

    def _described(self) -> list[str]:
        return [f"{one.where} {one.dtype}{list(one.shape) if one.shape else ''}" for one in self._members.members]

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self._members,)


def _rebuilt(rows: MemberRows) -> Together:
    return Together(rows.members, rows.names, rows.budget)


def _in_memory(one: object) -> bool:
    """An ordinary array: anything but a memmap or a view of one, which has a file."""
    base: Any = one
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            return False
        base = base.base
    return isinstance(one, np.ndarray)


def _source(one: Any, number: int, budget: Budget) -> RowReader | GivenArray:
    if isinstance(one, Array):
        return one.reader(budget)
    return GivenArray(one, budget, f"array {number} in memory")


def _refuse_unequal(arrays: Sequence[Any], names: Sequence[str] | None) -> None:
    def called(number: int) -> str:
        if names is not None:
            return names[number]
        one = arrays[number]
        return one.where if isinstance(one, Array) else f"array {number} in memory"

    for number, one in enumerate(arrays):
        if not isinstance(one, Array) and one.ndim == 0:
            raise ValueError("together: expected arrays of rows, got a single number. Use together(X, y).")
        if one.dtype.hasobject:
            raise TypeError(
                f"together: expected items of plain bytes, got {called(number)} of dtype {one.dtype}. "
                "Use numbers, or text of a size: rows.astype('S16')."
            )
        if len(one) != len(arrays[0]):
            short, long = sorted((0, number), key=lambda k: len(arrays[k]))
            raise ValueError(
                f"together: expected as many rows in {called(number)} as in {called(0)}, {len(arrays[0])}, got "
                f"{len(one)}. Check which rows belong together; {called(long)}'s first are "
                f"subset(slice({len(arrays[short])}))."
            )


def _shared_budget(arrays: Sequence[Array], budget: int | str) -> Budget:
    """The stated budget, or the sum of the members', which is strict if one of theirs is."""
    shared = Budget(budget)
    if not shared.stated and arrays:
        shared.limit = sum(one.budget.limit for one in arrays)
        shared.stated = any(one.budget.stated for one in arrays)
    return shared


def _with_small_ones_kept(sources: Sequence[RowReader | GivenArray], budget: Budget) -> tuple[Member, ...]:
    """Members that fit into half of the budget, the smallest first, as rows to keep."""
    members: list[Member] = list(sources)
    room = (budget.limit - budget.aside) // 2
    files = [(k, RowMemory(one)) for k, one in enumerate(sources) if isinstance(one, RowReader)]
    files.sort(key=lambda found: found[1].size)
    budget.keepable = tuple(memory.size for _, memory in files)
    for k, memory in files:
        if 0 < memory.size <= room and memory.hold():
            members[k] = ResidentRows(memory)
            room -= memory.size
    return tuple(members)
