"""Several arrays read row by row: a reader of readers.

Every batch asks each member for the same row numbers, so rows cannot drift apart; one budget counts the buffers of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lowtide.machine import PAGE
from lowtide.reading.ahead import Batch, prepared_ahead
from lowtide.reading.plan import Plan, project
from lowtide.reading.rows.indexing import select
from lowtide.reading.rows.parts import Listed, lists_of
from lowtide.reading.rows.reader import ROWS_AT_ONCE, RowReader, Wanted
from lowtide.reading.rows.resident import GivenArray, ResidentRows
from lowtide.storage.budget import Budget, whole_pages

Member = RowReader | ResidentRows | GivenArray
REMEMBERED = 8 * ROWS_AT_ONCE  # most numbers of a batch that are computed once for all members: half a MiB


class Column:
    """One member alone: what adapters ask of an array."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self.dtype, self.shape = member.dtype, (member.count, *member.shape)
        self.nbytes = member.nbytes(member.count)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        return self._member.select(select(key, self.shape))


class MemberRows:
    """The same rows of every member, as a tuple, or as a dict if they have names."""

    def __init__(self, members: tuple[Member, ...], names: tuple[str, ...] | None, budget: Budget) -> None:
        self.members = members
        self.called = names or tuple(str(k) for k in range(len(members)))
        self.names = names
        self.budget = budget
        self.count = members[0].count
        self.row_bytes = sum(one.row_bytes for one in members)
        self.where = " with ".join(one.where for one in members)
        self.stores = tuple(store for one in members for store in one.stores)
        self.pools = tuple(pool for one in members for pool in one.pools)
        self.temperatures = tuple(one for member in members for one in member.temperatures)
        memories = {id(one.memory): one.memory for one in members if isinstance(one, ResidentRows)}
        for memory in memories.values():
            memory.hold()
        self.resident = sum(memory.size for memory in memories.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.members, self.names, self.budget, self.budget.limit)

    def start(self, numbers: Wanted, early: bool = False) -> Batch:
        if not isinstance(numbers, (range, np.ndarray)) and len(numbers) <= REMEMBERED:
            numbers = numbers[0 : len(numbers)]
        batches = []
        for one in self.members:
            batches.append(one.start(numbers, early))  # noqa: PERF401 - a comprehension would be one call more
        return Batch(self._finished, batches)

    def _finished(self, batches: list[Batch]) -> Any:
        found = []
        for batch in batches:
            found.append(batch.finish())  # noqa: PERF401 - a comprehension would be one call more
        return self.packed(found)

    def scattered(self) -> MemberRows:
        return MemberRows(tuple(one.scattered() for one in self.members), self.names, self.budget)

    def each(self, call: Callable[[RowReader], RowReader]) -> MemberRows:
        members = tuple(call(one) if isinstance(one, RowReader) else one for one in self.members)
        return MemberRows(members, self.names, self.budget)

    def nbytes(self, rows: int) -> int:
        return sum(whole_pages(one.nbytes(rows)) or PAGE for one in self.members)

    def scratch(self, rows: int) -> int:
        return max(whole_pages(one.scratch(rows)) for one in self.members)

    def ahead(self, rows: int) -> int:
        """More bytes that batches under way may hold, as a plan counts them."""
        size = 0
        for one in self.members:
            if isinstance(one, RowReader) and not one.fortran:
                batches, staging = prepared_ahead(one.store)
                size += batches * whole_pages(one.nbytes(rows)) + staging
        return size

    def plan(self, batch: int, held: int | None = None) -> Plan:
        """Projected bytes by kind, all members together, and how each is read."""
        if held is None:
            held = 2 * self.nbytes(batch) + self.scratch(batch) + self.ahead(batch)
        sources = (one.source if isinstance(one, ResidentRows) else one for one in self.members)
        files = [one for one in sources if isinstance(one, RowReader)]
        kept = self.resident + sum(one.index.nbytes for one in self.indices())
        plans = [project(one.store, 0, announced=2 * one.nbytes(batch), kept=kept) for one in files]
        limit = self.budget.limit if self.budget.stated else max(self.budget.limit, held + self.budget.aside)
        mapped = self.budget.aside - kept if any(one.strategy in ("remap", "advise") for one in plans) else 0
        return Plan(
            anon=min(limit, held + self.budget.aside) - max(0, mapped),
            mapped=sum(one.mapped for one in plans),
            cache=sum(one.cache for one in plans),
            budget=limit,
            strategy=_all_of([one.strategy for one in plans]),
            rung=_all_of([one.rung for one in plans]),
            engine=_all_of([one.engine for one in plans]),
            why=(
                *(f"{one.where}: {reason}" for one, its in zip(files, plans, strict=True) for reason in its.why),
                *(
                    f"{one.where}: small, so read once and kept"
                    for one in self.members
                    if isinstance(one, ResidentRows)
                ),
            ),
        )

    def packed(self, found: Sequence[Any]) -> Any:
        return tuple(found) if self.names is None else dict(zip(self.names, found, strict=True))

    def indices(self) -> list[Listed]:
        """The indices of subsets, each once."""
        found = {id(index): index for one in self.members for index in lists_of(one.part)}
        return list(found.values())

    def fingerprint(self) -> dict[str, Any]:
        found: dict[str, Any] = {"members": list(self.called)}
        for name, one in zip(self.called, self.members, strict=True):
            found |= {f"{name}.{what}": value for what, value in one.fingerprint().items()}
        return found


def _again(members: tuple[Member, ...], names: tuple[str, ...] | None, budget: Budget, limit: int) -> MemberRows:
    budget.limit = max(budget.limit, limit)  # an unstated budget is pickled without its growth
    return MemberRows(members, names, budget)


def _all_of(words: Sequence[str]) -> str:
    return " and ".join(dict.fromkeys(words)) or "none"
