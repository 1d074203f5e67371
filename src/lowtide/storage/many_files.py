"""Reads of many files: all at once where they are open, some at a time where one call cannot hold them all."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

import numpy as np

from lowtide.engine import Engine
from lowtide.errors import ReadError
from lowtide.storage.mapped import Mapped, MappedReads, forget_marks, item_of
from lowtide.storage.read import SCATTERED, Read, Reads, Refused
from lowtide.storage.spans import Lengths, Offsets, Spans, few_files
from lowtide.storage.watched_files import KEPT


class Starter(Protocol):
    """A store, as far as it is needed here."""

    @property
    def engine(self) -> Engine: ...

    def start_spans(
        self, numbers: Offsets, stride: int, length: Lengths, target: Any, how: int, *, early: bool
    ) -> Reads | MappedReads | InTurns: ...


class ReadsOfMany:
    """Reads of files that were all open, which are looked at once, afterwards: a look takes a third as long as the read
    of a window. If anything is amiss, all is read again the slower way, which finds out what."""

    __slots__ = ("_located", "_reads", "_store", "_table", "_target")

    def __init__(self, store: Starter, table: Any, located: tuple[Any, ...], reads: Reads, target: Any) -> None:
        self._store, self._table, self._located, self._reads, self._target = store, table, located, reads, target

    def finish(self) -> Refused | None:
        store, (numbers, stride, length, fds, offsets) = self._store, self._located
        with contextlib.suppress(ReadError):
            refused = self._reads.finish()
            if store.engine.locate(self._table, numbers, stride, length, fds, offsets, True):
                return refused
        found = store.start_spans(numbers, stride, length, self._target, SCATTERED, early=False)
        return found.finish()


class InTurns:
    """Spans of more files than one call may hold open, read some of the files at a time.

    ``places``: the byte of the target at which each span goes; by default one behind the other.
    """

    __slots__ = ("_how", "_places", "_spans", "_strategy", "_target")

    def __init__(
        self, strategy: Read | Mapped, spans: Spans, target: Any, how: int, places: Offsets | None = None
    ) -> None:
        self._strategy, self._spans, self._target, self._how, self._places = strategy, spans, target, how, places

    def finish(self) -> Refused | None:
        item, places = item_of(self._target), self._places
        if places is None:
            lengths = np.broadcast_to(self._spans[4], len(self._spans[1])).astype(np.int64)
            places = np.cumsum(lengths) - lengths
        for some, first in few_files(self._spans, KEPT.together):
            lengths = np.broadcast_to(some[4], len(some[1])).astype(np.int64)
            here = places[first : first + len(lengths)] // item  # each turn's spans say where they go
            refused = self._strategy.start((*some[:4], lengths), self._target, self._how, False, here).finish()
            if refused is not None:
                return refused
        forget_marks(self._target)
        return None
