"""Where runs go in Python: straight into a buffer, or widened through a scratch buffer into x and y; and problems met.

What ``deliver.c`` and ``widen.c`` do. Whole windows are widened many at a time, everything else a run at a time. The
scratch has 64 KiB, or one run where that is longer, so a batch of any size needs no memory of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.engine.document_planes import few_true
from lowtide.engine.runs import (
    Numbers,
    Placed,
    Problem,
    Runs,
    array_of,
    bad_value,
    place,
    place_windows,
    writable,
)

SCRATCH = 65536


class ByteSink:
    """Runs and where their bytes go: here, straight into a buffer."""

    needs = 0  # bytes of scratch
    scratch: memoryview

    def __init__(self, placed: Placed, into: memoryview) -> None:
        self.placed, self._into = placed, into
        self.fds = placed.fds
        self.problem: Problem | None = None
        self.offsets: list[int] = placed.offsets.tolist()
        self.lengths: list[int] = placed.lengths.tolist()
        self.targets: list[int] = placed.targets.tolist()

    def chunks(self, wanted: Sequence[int]) -> Iterable[Sequence[int]]:
        """These runs, as many at a time as there is room for."""
        return [wanted] if len(wanted) else []

    def buffers(self, some: Sequence[int]) -> list[list[memoryview]]:
        """Where each of these runs is read to, for ``preadv``."""
        into, targets, lengths = self._into, self.targets, self.lengths
        return [[into[targets[run] : targets[run] + lengths[run]]] for run in some]

    def fds_of(self, some: Sequence[int]) -> Iterable[int]:
        return self.fds if len(some) == len(self.fds) else [self.fds[run] for run in some]

    def offsets_of(self, some: Sequence[int]) -> list[int]:
        return self.offsets if len(some) == len(self.offsets) else [self.offsets[run] for run in some]

    def lengths_of(self, some: Sequence[int]) -> list[int]:
        return self.lengths if len(some) == len(self.lengths) else [self.lengths[run] for run in some]

    def note(self, kind: str, run: int, at: int, value: int) -> None:
        """Keep the problem of the lowest run, and of its lowest byte."""
        if self.problem is None or (run, at) < (self.problem.run, self.problem.at):
            self.problem = Problem(kind, run, at, value)

    def deliver(self, some: Sequence[int], turns: Sequence[int] | None = None) -> None:
        """These runs have come, each into the buffer of its turn."""

    def deliver_some(self, run: int, turn: int, came: int) -> None:
        """Only the first bytes of this run have come."""


class WindowSink(ByteSink):
    """Tokens, read into the scratch buffer and widened from there into x and y."""

    def __init__(
        self, placed: Placed, pair: tuple[Any, ...], x: NDArray[Any], y: NDArray[Any], *, packed: bool
    ) -> None:
        super().__init__(placed, memoryview(b""))
        self.packed = packed  # run i lies behind run i - 1
        self.x, self.y, self.length = x, y, int(pair[2])
        self.narrow = np.dtype(pair[3])
        self.mark = int(pair[6])
        self.marks = None if pair[5] is None else _marks(pair[5])
        self.longest = max(self.lengths, default=0)
        self.needs = max(SCRATCH, self.longest)
        self.whole = self.lengths.count((self.length + 1) * self.narrow.itemsize) == len(self.lengths)
        self.bounds = _bounds(self.narrow, pair[4], x.dtype)

    def chunks(self, wanted: Sequence[int]) -> Iterable[Sequence[int]]:
        step = max(1, self.needs // max(1, self.longest))
        return [wanted[first : first + step] for first in range(0, len(wanted), step)]

    def buffers(self, some: Sequence[int]) -> list[list[memoryview]]:
        scratch, longest, lengths = self.scratch, self.longest, self.lengths
        return [[scratch[turn * longest : turn * longest + lengths[run]]] for turn, run in enumerate(some)]

    def deliver(self, some: Sequence[int], turns: Sequence[int] | None = None) -> None:
        if not len(some):
            return
        if not self.whole or not self.longest:
            for turn, run in enumerate(some) if turns is None else zip(turns, some, strict=True):
                self.deliver_some(run, turn, self.lengths[run])
            return
        columns = self.length + 1
        last = len(some) if turns is None else max(turns) + 1
        tokens = np.frombuffer(self.scratch, self.narrow, last * columns).reshape(last, columns)
        if turns is not None:
            tokens = tokens[turns]
        self._look(some, tokens)
        rows: Any
        if isinstance(some, range) and self.packed:
            rows = slice(some.start, some.stop)
        else:
            rows = self.placed.targets[np.asarray(some)] // columns
        self.x[rows], self.y[rows] = tokens[:, :-1], tokens[:, 1:]

    def deliver_some(self, run: int, turn: int, came: int) -> None:
        item, columns = self.narrow.itemsize, self.length + 1
        tokens = np.frombuffer(self.scratch, self.narrow, came // item, turn * self.longest)
        if len(tokens):
            self._look([run], tokens[None])
            row, first = divmod(self.targets[run], columns)
            last = first + len(tokens)
            self.x[row, first : min(last, self.length)] = tokens[: self.length - first]
            self.y[row, max(first, 1) - 1 : max(last - 1, 0)] = tokens[first == 0 :]

    def _look(self, some: Sequence[int], tokens: NDArray[Any]) -> None:
        """Note ids that may not be there, and where the mark stands."""
        if self.bounds is not None:
            least, most = self.bounds
            refused = (tokens < least) | (tokens > most)
            if refused.any():
                turn, column = divmod(int(np.argmax(refused)), tokens.shape[1])
                self.note("token", some[turn], column * self.narrow.itemsize, int(tokens[turn, column]))
        if self.marks is not None:
            hits = few_true((tokens == self.mark).reshape(-1))
            turns, columns = np.divmod(hits, tokens.shape[1])
            places = self.placed.targets[np.asarray(some)[turns]] + columns
            many = int(self.marks[0])
            room = self.marks[1 + many :]
            room[: len(places)] = places[: len(room)]
            self.marks[0] = many + len(places)


def sink_of(runs: Runs, target: Any, *, needs_fds: bool = True) -> ByteSink:
    """Runs and their target, checked."""
    if isinstance(target, tuple):
        placed, x, y = place_windows(runs, target, needs_fds=needs_fds)
        return WindowSink(placed, target, x, y, packed=runs[3] is None)
    view = writable("target", target).cast("B")
    return ByteSink(place(runs, len(view), 1, needs_fds=needs_fds), view)


def _marks(thing: Any) -> Numbers:
    marks: Numbers = array_of("marks", writable("marks", thing), "lq", 8)
    if len(marks) < 1:
        raise bad_value("marks", "room for a count", marks.nbytes)
    marks[0] = 0
    return marks


@lru_cache(maxsize=64)
def _bounds(narrow: np.dtype[Any], vocab: int | None, wide: np.dtype[Any]) -> tuple[int, int] | None:
    """Least and largest id that is not refused; None: the type on disk has no others."""
    limits, mine = np.iinfo(wide), np.iinfo(narrow)
    least, most = (0, min(vocab - 1, int(limits.max))) if vocab is not None else (int(limits.min), int(limits.max))
    if least <= mine.min and mine.max <= most:
        return None
    return max(least, int(mine.min)), min(most, int(mine.max))
