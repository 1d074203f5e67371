"""Rows of several corpora in one batch: which corpus gives which row, and how they are read together.

A number of a mixture is a pair in one integer: with R readers, ``number * R + r`` is row ``number`` of reader ``r``.
``MixtureStream`` finds it, exactly and at any row; each corpus goes through its own stream meanwhile, so changing
weights never loses or repeats a row. ``MixtureReader`` lets every reader start its rows and puts them in their places.

Corpora of one dtype are laid end to end in one store with one reader, ``JoinedWindows``: a batch from 16 corpora is one
native call, as from a single one. Several readers cost one more copy of the batch, and one call each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lowtide.engine import Numbers
from lowtide.formats.layout import join
from lowtide.machine import PAGE
from lowtide.order.mixing import Mixing
from lowtide.order.streams import Stream
from lowtide.reading.ahead import Batch, Later
from lowtide.reading.blocks_ahead import BlockFollower
from lowtide.reading.documents.docs import Docs, DocsFiller, docs_of
from lowtide.reading.mixtures.mixture_state import past_of
from lowtide.reading.places import Place
from lowtide.reading.plan import Plan
from lowtide.reading.token_range import TokenRange
from lowtide.reading.window_reader import XY, Starts, WindowReader
from lowtide.storage.budget import whole_pages
from lowtide.storage.buffers import Bytes
from lowtide.storage.read import SCATTERED
from lowtide.storage.store import Store

UNROUNDED = 8 * PAGE  # a reader's arrays and scratch begin on pages: the most that this may cost each reader


@dataclass(frozen=True)
class MixturePart:
    """One corpus: its name, its stream, which reader reads it and where its rows begin in that reader's numbers."""

    name: str
    stream: Stream
    reader: int
    base: int
    fingerprint: Callable[[], dict[str, Any]]

    def numbers(self, rows: Numbers) -> Numbers:
        """Numbers of the part's own rows; a finite order begins again."""
        finite = self.stream.rows
        found = self.stream.at(rows if finite is None else rows % finite)
        return found + self.base if self.base else found


class MixtureStream:
    """Rows of the mixture -> numbers, as ``mixing`` plans them."""

    epoch = None

    def __init__(self, parts: Sequence[MixturePart], mixing: Mixing, readers: int) -> None:
        self.parts = tuple(parts)
        self.mixing = mixing
        self.order = parts[0].stream.order
        self.rows = mixing.rows
        self.among = max(part.stream.among for part in parts)
        self._readers = readers

    def at(self, positions: Numbers) -> Numbers:
        sources, own = self.mixing.at(positions)
        found = np.empty(len(positions), np.int64)
        order = np.argsort(sources, kind="stable")
        bounds = np.searchsorted(sources[order], np.arange(len(self.parts) + 1))
        for index, part in enumerate(self.parts):
            mine = order[bounds[index] : bounds[index + 1]]
            if len(mine):
                found[mine] = part.numbers(own[mine]) * self._readers + part.reader
        return found

    def settings(self) -> dict[str, Any]:
        return self.parts[0].stream.settings()

    def notes(self) -> tuple[str, ...]:
        return tuple(f"{part.name}: {note}" for part in self.parts for note in part.stream.notes())

    def past(self, rows: int) -> dict[str, Any]:
        """What fixed the order of the rows before this one, safe for JSON."""
        return past_of(self.mixing, [(part.name, part.fingerprint) for part in self.parts], rows)


class JoinedWindows(WindowReader):
    """Windows of corpora laid end to end in one store; numbers count tokens from the first file of the first corpus.

    If vocabularies differ, ids are checked row by row against the vocabulary of their corpus.
    """

    def __init__(
        self,
        corpora: dict[str, TokenRange],
        store: Store,
        length: int,
        dtype: DTypeLike = "int64",
        *,
        how: int = SCATTERED,
    ) -> None:
        each = tuple(corpora.values())
        sizes = [tokens.layout.shape[0] for tokens in each]
        vocabs = [tokens.vocab for tokens in each]
        equal = len(set(vocabs)) == 1
        joined = TokenRange(join([tokens.layout for tokens in each]), store, vocab=vocabs[0] if equal else None)
        super().__init__(joined, length, dtype, how=how)
        self.corpora = corpora
        self.where = f"a mixture of {', '.join(corpora)}"
        self.bases = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
        self._names = tuple(corpora)
        self._each = each
        self._vocabs = None if equal else np.array([-1 if vocab is None else vocab for vocab in vocabs], np.int64)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(JoinedWindows, how=self.how), (self.corpora, self.store, self.length, self.dtype)

    def start(self, numbers: Starts, early: bool = False) -> Batch:
        batch = super().start(numbers, early)
        if self._vocabs is None or isinstance(batch, Later):
            return batch
        return Batch(self._checked, np.asarray(numbers, np.int64), batch)

    def _checked(self, numbers: Numbers, batch: Batch) -> XY:
        """Refuse ids outside the vocabulary of their row's corpus."""
        x, y = batch.finish()
        if self._vocabs is None or x.size == 0:
            return x, y
        owners = np.searchsorted(self.bases, numbers, side="right") - 1
        vocabs = self._vocabs[owners]
        wrong = (x.max(axis=1) >= vocabs) | (y[:, -1] >= vocabs)
        if self.tokens.dtype.kind == "i":
            wrong |= (x.min(axis=1) < 0) | (y[:, -1] < 0)
        wrong &= vocabs >= 0
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            tokens = self._each[owners[row]]
            first = int(numbers[row] - self.bases[owners[row]])
            tokens.check(np.append(x[row], y[row, -1]), lambda index: first + index)
        return x, y

    def fingerprint(self) -> dict[str, Any]:
        """Nothing for all: a state has one of each corpus that took part."""
        for tokens in self._each:
            tokens.fingerprint()
        return {}

    def places(self, numbers: Numbers) -> list[Place]:
        found = []
        for start, owner in zip(numbers.tolist(), np.searchsorted(self.bases, numbers, side="right") - 1, strict=True):
            file, offset = self._each[owner].place(start - int(self.bases[owner]))
            found.append(Place(file, offset, self._names[owner]))
        return found

    def plan(self, rows: int) -> Plan:
        found = super().plan(rows)
        return replace(found, why=(*found.why, f"{len(self._each)} corpora read through 1 store"))


class MixtureReader:
    """Rows of several readers of one length and dtype. ``names``: the corpus of each reader that reads just one;
    ``corpora``: the names of all."""

    def __init__(self, readers: Sequence[WindowReader], names: Sequence[str | None], corpora: Sequence[str]) -> None:
        self.readers, self.names, self.corpora = tuple(readers), tuple(names), tuple(corpora)
        self.where = f"a mixture of {', '.join(corpora)}"
        first = readers[0]
        self.length, self.dtype, self.budget = first.length, first.dtype, first.budget
        self.stores = tuple(reader.store for reader in readers)
        self.pools = tuple(reader.store.pool for reader in readers)
        self.temperatures = tuple(reader.store.temperature for reader in readers)
        most = max(0 if reader.docs is None else reader.docs.most_runs for reader in readers)
        self.docs = DocsFiller(self.length, most) if most else None
        self._putting = 0.0

    @property
    def copying(self) -> float:
        """Seconds spent on copying rows once more: by the readers, and into their places here."""
        return self._putting + sum(reader.copying for reader in self.readers)

    def __reduce__(self) -> tuple[Any, ...]:
        return MixtureReader, (self.readers, self.names, self.corpora)

    def start(self, numbers: Numbers, early: bool = False) -> Batch:
        rows = len(numbers)
        root = None if early else self.pools[0].take(self.nbytes(rows))
        items, which = np.divmod(numbers, len(self.readers))
        begun = []
        for index, reader in enumerate(self.readers):
            mine = np.flatnonzero(which == index)
            if len(mine):
                begun.append((mine, reader.start(items[mine], early)))
        return Batch(self._put_together, rows, begun, root)

    def _put_together(self, rows: int, begun: list[tuple[NDArray[np.intp], Batch]], root: Bytes | None) -> Any:
        """Each reader's rows in their places. For an early batch, the buffer is taken only now."""
        shape, half = (rows, self.length), self.half(rows)
        if root is None:
            root = self.pools[0].take(self.nbytes(rows))
        x: NDArray[Any] = np.ndarray(shape, self.dtype, root)
        y: NDArray[Any] = np.ndarray(shape, self.dtype, root, half)
        if self.docs is not None:
            ids, mask = np.empty(shape, np.int32), np.empty(shape, np.bool_)
        while begun:  # each returns its buffers before the next is finished
            mine, batch = begun.pop()
            found = batch.finish()
            began = perf_counter()
            x[mine], y[mine] = found[0], found[1]
            if self.docs is not None:
                ids[mine], mask[mine] = found[2].ids, found[2].loss_mask
            self._putting += perf_counter() - began
            del found, batch
        return (x, y) if self.docs is None else (x, y, self._documents(ids, mask, root, 2 * half))

    def _documents(self, ids: NDArray[np.int32], mask: NDArray[np.bool_], root: Bytes, base: int) -> Docs:
        """The readers' runs, numbered through the whole batch."""
        assert self.docs is not None
        begins = np.ones(ids.shape, np.bool_)
        begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
        first = np.flatnonzero(begins)
        padding = ids.reshape(-1)[first] == -1
        closing = np.flatnonzero(~mask & (ids >= 0))
        engine = self.stores[0].engine
        runs = first, closing, padding if padding.any() else None
        planes = self.docs.planes(len(ids), root, base)
        return docs_of(planes, engine.documents_given(planes, *runs))

    def nbytes(self, rows: int) -> int:
        """Bytes of x, y and docs."""
        return 2 * self.half(rows) + (0 if self.docs is None else self.docs.nbytes(rows))

    def half(self, rows: int) -> int:
        return whole_pages(rows * self.length * self.dtype.itemsize)

    def scratch(self, rows: int) -> int:
        """The most that the readers' own batches take, however the rows are distributed."""
        most = max(whole_pages(reader.nbytes(rows)) + whole_pages(reader.scratch(rows)) for reader in self.readers)
        return most + len(self.readers) * UNROUNDED

    def places(self, numbers: Numbers) -> list[Place]:
        items, which = np.divmod(numbers, len(self.readers))
        found: list[Any] = [None] * len(numbers)
        for index, reader in enumerate(self.readers):
            mine, name = np.flatnonzero(which == index), self.names[index]
            for row, place in zip(mine.tolist(), reader.places(items[mine]), strict=True):
                found[row] = place if name is None else place._replace(corpus=name)
        return found

    def settings(self) -> dict[str, Any]:
        return self.readers[0].settings()

    def fingerprint(self) -> dict[str, Any]:
        """Nothing for all: a state has one of each corpus that took part."""
        for reader in self.readers:
            reader.fingerprint()
        return {}

    def plan(self, rows: int) -> Plan:
        plans = [reader.plan(rows) for reader in self.readers]
        mapped, cache = sum(plan.mapped for plan in plans), sum(plan.cache for plan in plans)
        anon = min(plans[0].budget, sum(plan.anon for plan in plans) + 2 * self.nbytes(rows))
        joined = f"{len(self.corpora)} corpora read through {len(self.stores)} stores"
        return replace(plans[0], anon=anon, mapped=mapped, cache=cache, why=(*plans[0].why, joined))


class MixedFollower:
    """Windows of blocks of every corpus of a mixture, each followed at its own row."""

    sweep = None

    def __init__(self, mixing: Mixing, followers: Sequence[BlockFollower]) -> None:
        self._mixing = mixing
        self._followers = tuple(followers)
        self.drop = all(follower.drop for follower in self._followers)

    def approach(self, position: int, ahead: int = 0) -> None:
        phase = self._mixing.phase(position)
        for follower, share, own in zip(self._followers, phase.shares, phase.counts(position), strict=True):
            if share:
                follower.approach(own, ahead)

    def leave(self) -> None:
        for follower in self._followers:
            follower.leave()

    def adjusted(self, plan: Plan) -> Plan:
        """As for a single one, with the windows of all in the page cache."""
        plans = [follower.adjusted(plan) for follower in self._followers]
        return replace(plans[0], cache=min(plan.cache, sum(one.cache for one in plans)))
