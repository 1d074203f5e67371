"""A cut over several corpora: row k belongs to one of them, by a plan, and a batch is still one read.

One idea: corpora of one dtype lie end to end in one store, so a row's number is a token of that joint space - where the
corpus begins plus the number its own stream gives - and a batch of 16 corpora is one gather, as of one. Corpora of
several dtypes make several such groups; then a batch is one gather per group and rows are written to their places.

A part's stream counts the part's own rows, which go on where they were whatever the others do: changing weights never
loses or repeats a row. Costs one sort of a block's row numbers on top of each stream's own arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.formats import Layout
from lowtide.machine import PAGE
from lowtide.order.mixing import Mixing
from lowtide.reading.cuts import Place
from lowtide.reading.mixture_state import check_past, past_of
from lowtide.reading.plan import Plan, project
from lowtide.reading.run_ahead import Announcer, RunAhead
from lowtide.reading.streams import ShuffledStream, Stream
from lowtide.reading.token_range import TokenRange
from lowtide.reading.upcoming import Numbers
from lowtide.reading.window_filler import WindowFiller
from lowtide.storage import Buffer, Store
from lowtide.storage.budget import whole_pages
from lowtide.units import format_size

ANY = 2**64  # the vocabulary of a corpus that states none: every id is below it


@dataclass(frozen=True)
class MixedPart:
    """One corpus of a mixture: its name, its own tokens, and its stream of windows over them."""

    name: str
    tokens: TokenRange
    stream: Stream

    def starts(self, rows: Numbers) -> Numbers:
        """First tokens of the part's own rows, counted from its files' beginning; a finite order begins again."""
        finite = self.stream.rows
        return self.stream.starts(rows if finite is None else rows % finite) + self.tokens.first

    def epochs(self, rows: int) -> float:
        """Epochs that the part's first ``rows`` rows are; 0 for an order without epochs."""
        return rows / self.stream.epoch_rows if self.stream.epoch_rows else 0.0

    @property
    def local(self) -> bool:
        return isinstance(self.stream, ShuffledStream) and self.stream.locality is not None


class JoinedRange(TokenRange):
    """The files of several corpora end to end. Ids are checked against the vocabulary of the corpus they are from."""

    def __init__(self, layout: Layout, store: Store, parts: Sequence[TokenRange]) -> None:
        super().__init__(layout, store)
        ends = np.cumsum([part.layout.shape[0] for part in parts], dtype=np.int64)
        self.bases = ends - np.array([part.layout.shape[0] for part in parts], np.int64)
        self._parts = tuple(parts)
        stated = [part.vocab for part in parts if part.vocab is not None]
        self._vocabs = np.array([ANY if part.vocab is None else part.vocab for part in parts], object)
        self.vocab = min(stated) if stated else None  # below the smallest, an id is fine in all of them

    def check(self, tokens: NDArray[Any], position: Callable[[int], int]) -> None:
        if self.vocab is None or tokens.size == 0:
            return
        low = int(tokens.min()) if tokens.dtype.kind == "i" else 0
        if int(tokens.max()) < self.vocab and low >= 0:
            return
        width = tokens.shape[1]
        starts = np.array([position(row * width) for row in range(len(tokens))], np.int64)
        owners = np.searchsorted(self.bases, starts, side="right") - 1
        wrong = tokens.max(axis=1).astype(object) >= self._vocabs[owners]
        if tokens.dtype.kind == "i":
            wrong |= (tokens.min(axis=1) < 0) & (self._vocabs[owners] < ANY)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            first = int(starts[row] - self.bases[owners[row]])
            self._parts[owners[row]].check(tokens[row], lambda index: first + index)


@dataclass(frozen=True)
class MixedGroup:
    """Corpora of one dtype and one way of opening, read through one store. ``first``: where its tokens begin in the
    numbers of the mixture."""

    windows: WindowFiller
    first: int

    @property
    def store(self) -> Store:
        return self.windows.tokens.store

    def narrow(self, starts: Numbers, scratch: Buffer, ahead: Callable[[], Numbers] | None) -> NDArray[Any]:
        """Windows as they lie on disk, read into ``scratch`` and checked."""
        item, width = self.windows.tokens.dtype.itemsize, self.windows.length + 1
        self.store.gather(starts, item, width * item, scratch, ahead=ahead, sparse=True)
        found: NDArray[Any] = np.ndarray((len(starts), width), self.windows.tokens.dtype, scratch.view)
        self.windows.check(found, starts)
        return found


class MixedRuns:
    """Stretches of every corpus of a local shuffle, each followed at its own row."""

    def __init__(self, mixing: Mixing, runs: Sequence[RunAhead]) -> None:
        self._mixing = mixing
        self._runs = tuple(runs)

    def approach(self, row: int) -> None:
        phase = self._mixing.phase(row)
        for runs, share, own in zip(self._runs, phase.shares, phase.counts(row), strict=True):
            if share:
                runs.approach(own)

    def adjusted(self, plan: Plan) -> Plan:
        """As of one, with the stretches of all in the page cache."""
        plans = [runs.adjusted(plan) for runs in self._runs]
        return replace(plans[0], cache=min(plan.cache, sum(one.cache for one in plans)))


class MixedCut:
    """Rows of several corpora, as ``mixing`` plans them. ``bases``: where each part's files begin in the numbers."""

    tail = 0

    def __init__(
        self,
        parts: Sequence[MixedPart],
        bases: Sequence[int],
        groups: Sequence[MixedGroup],
        mixing: Mixing,
        runs: Announcer | None = None,
    ) -> None:
        self.parts = tuple(parts)
        self.groups = tuple(groups)
        self.mixing = mixing
        self.runs = runs
        self.rows = mixing.rows
        first = groups[0].windows
        self.length, self.dtype = first.length, first.dtype
        self.order = parts[0].stream.order
        self.stores = tuple(group.store for group in groups)
        self.where = f"a mixture of {', '.join(part.name for part in parts)}"
        self._bases = np.asarray(bases, np.int64)
        self._by_base = np.argsort(self._bases)
        self._group_firsts = np.array([group.first for group in groups], np.int64)

    # Rows and numbers

    def numbers(self, rows: Numbers) -> Numbers:
        sources, own = self.mixing.at(rows)
        found = np.empty(len(rows), np.int64)
        order = np.argsort(sources, kind="stable")
        bounds = np.searchsorted(sources[order], np.arange(len(self.parts) + 1))
        for index in range(len(self.parts)):
            mine = order[bounds[index] : bounds[index + 1]]
            if len(mine):
                found[mine] = self.parts[index].starts(own[mine]) + self._bases[index]
        return found

    def places(self, numbers: Numbers) -> list[Place]:
        found = []
        which = self._by_base[np.searchsorted(self._bases[self._by_base], numbers, side="right") - 1]
        for number, index in zip(numbers.tolist(), which.tolist(), strict=True):
            part = self.parts[index]
            file, offset = part.tokens.place(number - int(self._bases[index]))
            found.append(Place(file, offset, part.name))
        return found

    # Reading

    def read(
        self, numbers: Numbers, *, rows: int, ahead: Callable[[], Numbers] | None = None, tail: bool = False
    ) -> Any:
        assert not tail, "a mixture has no shorter row at its end"
        if len(self.groups) == 1:
            return self.groups[0].windows.read(numbers, rows=rows, ahead=ahead)
        half = whole_pages(max(len(numbers), rows, 1) * self.length * self.dtype.itemsize)
        shape = (len(numbers), self.length)
        with self.stores[0].filling(2 * half) as out, self.stores[0].filling(self._scratch(rows)) as scratch:
            x: NDArray[Any] = np.ndarray(shape, self.dtype, out.buffer.view)
            y: NDArray[Any] = np.ndarray(shape, self.dtype, out.buffer.view, half)
            of_group = self._group_of(numbers)
            for index, group in enumerate(self.groups):
                mine = np.flatnonzero(of_group == index)
                if len(mine):
                    later = None if ahead is None else self._part_of(ahead, index)
                    narrow = group.narrow(numbers[mine] - group.first, scratch.buffer, later)
                    x[mine], y[mine] = narrow[:, :-1], narrow[:, 1:]
            return out.lend(shape, self.dtype), out.lend(shape, self.dtype, half)

    def _group_of(self, numbers: Numbers) -> NDArray[np.intp]:
        return np.searchsorted(self._group_firsts, numbers, side="right") - 1

    def _part_of(self, ahead: Callable[[], Numbers], index: int) -> Callable[[], Numbers]:
        def later() -> Numbers:
            numbers = ahead()
            mine: Numbers = numbers[self._group_of(numbers) == index]
            return mine - self.groups[index].first

        return later

    def _scratch(self, rows: int) -> int:
        return max(group.windows.nbytes(rows)[1] for group in self.groups)

    def admit(self, rows: int) -> None:
        """Two batches and the scratch they are widened from must fit the budget of all parts together."""
        widest = max(self.groups, key=lambda group: group.windows.tokens.dtype.itemsize)
        widest.windows.admit(rows)

    # State and cost

    def epochs(self, row: int) -> dict[str, float]:
        """Epochs each corpus has been through before ``row``: 1.25 is a quarter into its second."""
        counts = self.mixing.counts(row)
        return {part.name: part.epochs(count) for part, count in zip(self.parts, counts, strict=True)}

    def settings(self) -> dict[str, Any]:
        return {"length": self.length, **self.parts[0].stream.settings()}

    def fingerprint(self) -> dict[str, Any]:
        """Nothing for all: ``past`` has one of each corpus that took part."""
        return {}

    def past(self, rows: int) -> dict[str, Any]:
        return past_of(self.mixing, [(part.name, part.tokens.fingerprint) for part in self.parts], rows)

    def check_past(self, past: Any, rows: int) -> None:
        check_past(past, self.past(rows), rows)

    def plan(self, rows: int) -> Plan:
        size, _ = self.groups[0].windows.nbytes(rows)
        scratch = self._scratch(rows)
        windows = [(self.length + 1) * group.windows.tokens.dtype.itemsize + 2 * PAGE for group in self.groups]
        why = f"batches of {format_size(size)}, one held and one being filled, widened from {format_size(scratch)}"
        joined = f"{len(self.parts)} corpora read through {len(self.groups)} store{'s' * (len(self.groups) > 1)}"
        held = 2 * size + whole_pages(scratch)
        plans = [project(store, held, announced=2 * rows * max(windows), why=(why, joined)) for store in self.stores]
        mapped, cache = sum(plan.mapped for plan in plans), sum(plan.cache for plan in plans)
        plan = replace(plans[0], mapped=mapped, cache=cache)
        return plan if self.runs is None else self.runs.adjusted(plan)
