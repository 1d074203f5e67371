"""A cut over several cuts: rows of windows that are already laid - packed or with documents - mixed by a plan.

One idea: each part reads its own rows as it would alone, and they are put in their places of one batch; documents are
numbered anew through the batch. Which part gives which row is the plan's, exact at every row.

Costs one more copy of the batch than a mixture of plain corpora, and one read per part in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.order.mixing import Mixing
from lowtide.reading.cuts import Cut, Place
from lowtide.reading.docs import Docs, DocsFiller
from lowtide.reading.mixture_state import check_past, past_of
from lowtide.reading.plan import Plan
from lowtide.reading.upcoming import Numbers
from lowtide.storage import Filling
from lowtide.storage.budget import whole_pages


@dataclass(frozen=True)
class WindowsPart:
    """One part of a mixture of windows: its name, its cut, and how many rows an epoch of it has."""

    name: str
    cut: Cut
    epoch_rows: int

    def numbers(self, rows: Numbers) -> Numbers:
        """Of the part's own rows; a finite order begins again."""
        finite = self.cut.rows
        return self.cut.numbers(rows if finite is None else rows % finite)


class MixedWindowsCut:
    """Rows of several cuts of one length, as ``mixing`` plans them.

    ``most_runs``: of documents in any window of any part; 0 where documents were not asked for.
    """

    tail = 0

    def __init__(
        self, parts: Sequence[WindowsPart], mixing: Mixing, dtype: np.dtype[Any], *, most_runs: int = 0
    ) -> None:
        self.parts = tuple(parts)
        self.mixing = mixing
        self.dtype = dtype
        self.rows = mixing.rows
        self.length = parts[0].cut.length
        self.order = parts[0].cut.order
        self.stores = tuple(part.cut.stores[0] for part in parts)
        self.where = f"a mixture of {', '.join(part.name for part in parts)}"
        self._docs = DocsFiller(self.length, most_runs) if most_runs else None

    # Rows and numbers: (part, the part's own number)

    def numbers(self, rows: Numbers) -> Numbers:
        sources, own = self.mixing.at(rows)
        found = np.empty((len(rows), 2), np.int64)
        found[:, 0] = sources
        for index, mine in self._each_part(sources):
            found[mine, 1] = self.parts[index].numbers(own[mine])
        return found

    def places(self, numbers: Numbers) -> list[Place]:
        found: list[Any] = [None] * len(numbers)
        for index, mine in self._each_part(numbers[:, 0]):
            part = self.parts[index]
            for row, place in zip(mine.tolist(), part.cut.places(numbers[mine, 1].copy()), strict=True):
                found[row] = place._replace(corpus=part.name)
        return found

    def _each_part(self, sources: NDArray[Any]) -> list[tuple[int, NDArray[np.intp]]]:
        return [(index, np.flatnonzero(sources == index)) for index in sorted(set(sources.tolist()))]

    # Reading

    def read(
        self, numbers: Numbers, *, rows: int, ahead: Callable[[], Numbers] | None = None, tail: bool = False
    ) -> Any:
        assert not tail, "a mixture has no shorter row at its end"
        room = max(len(numbers), rows, 1)
        half, shape = self._half(room), (len(numbers), self.length)
        with self.stores[0].filling(self.nbytes(room)) as out:
            x, y = out.lend(shape, self.dtype), out.lend(shape, self.dtype, half)
            ids, mask = np.empty(shape, np.int32), np.empty(shape, np.bool_)
            for index, mine in self._each_part(numbers[:, 0]):
                later = None if ahead is None else self._part_of(ahead, index)
                found = self.parts[index].cut.read(numbers[mine, 1].copy(), rows=len(mine), ahead=later)
                x[mine], y[mine] = found[0], found[1]
                if self._docs is not None:
                    ids[mine], mask[mine] = found[2].ids, found[2].loss_mask
            return (x, y) if self._docs is None else (x, y, self._documents(ids, mask, out, 2 * half))

    def _documents(self, ids: NDArray[np.int32], mask: NDArray[np.bool_], out: Filling, base: int) -> Docs:
        """The parts' runs, numbered through the whole batch."""
        assert self._docs is not None
        begins = np.ones(ids.shape, np.bool_)
        begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
        first = np.flatnonzero(begins)
        padding = ids.reshape(-1)[first] == -1
        closing = np.flatnonzero(~mask & (ids >= 0))
        engine = self.stores[0].engine
        runs = first, closing, padding if padding.any() else None
        return self._docs.fill(lambda planes: engine.documents_given(planes, *runs), len(ids), out, base)

    def _part_of(self, ahead: Callable[[], Numbers], index: int) -> Callable[[], Numbers]:
        def later() -> Numbers:
            numbers = ahead()
            return numbers[numbers[:, 0] == index, 1] if len(numbers) else np.empty(0, np.int64)

        return later

    def _half(self, rows: int) -> int:
        return whole_pages(rows * self.length * self.dtype.itemsize)

    def nbytes(self, rows: int) -> int:
        """Bytes of a batch, its documents included."""
        return 2 * self._half(rows) + (0 if self._docs is None else self._docs.nbytes(rows))

    def admit(self, rows: int) -> None:
        """Two batches, and those of the parts they are put together from, must fit the budget of all together."""
        store = self.stores[0]
        where = f"{self.where}: batches of {rows} x {self.length} per rank"
        store.budget.admit(self.nbytes(rows), copies=4, where=where, smaller="use a smaller batch")

    # State and cost

    def settings(self) -> dict[str, Any]:
        return self.parts[0].cut.settings()

    def fingerprint(self) -> dict[str, Any]:
        """Nothing for all: ``past`` has one of each corpus that took part."""
        return {}

    def past(self, rows: int) -> dict[str, Any]:
        return past_of(self.mixing, [(part.name, part.cut.fingerprint) for part in self.parts], rows)

    def check_past(self, past: Any, rows: int) -> None:
        check_past(past, self.past(rows), rows)

    def plan(self, rows: int) -> Plan:
        plans = [part.cut.plan(rows) for part in self.parts]
        mapped, cache = sum(plan.mapped for plan in plans), sum(plan.cache for plan in plans)
        anon = min(plans[0].budget, sum(plan.anon for plan in plans) + 2 * self.nbytes(rows))
        return replace(plans[0], anon=anon, mapped=mapped, cache=cache)
