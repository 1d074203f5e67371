"""Where runs go in Python: straight into a buffer, or widened through a scratch buffer into x and y; and problems.

Does what ``deliver.c`` and ``widen.c`` do. Whole windows are widened many at a time, everything else run by run. The
scratch has 64 KiB, or one run if that is longer, so a batch of any size needs no memory of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from lowtide.engine.runs import Placed, Problem, bad_value, place

SCRATCH = 65536


class ByteSink:
    """Runs and where their bytes go: here, straight into a buffer."""

    needs = 0  # bytes of scratch
    longest = 0  # bytes between two runs in it
    scratch: memoryview

    def __init__(self, placed: Placed, into: memoryview) -> None:
        self.fds, self.offsets, self.lengths, self.places = placed
        self._into = into
        self.problem: Problem | None = None

    def chunks(self, wanted: Sequence[int]) -> list[Sequence[int]]:
        """These runs, as many at a time as there is room for."""
        return [wanted] if len(wanted) else []

    def buffers(self, some: Sequence[int]) -> list[list[memoryview]]:
        """Where each of these runs is read to, for ``preadv``."""
        into, targets, lengths = self._into, self.places.tolist(), self.lengths
        return [[into[targets[run] : targets[run] + lengths[run]]] for run in some]

    def note(self, kind: str, run: int, at: int, value: int) -> None:
        """Keep the problem of the lowest run, and of its lowest byte."""
        if self.problem is None or (run, at) < (self.problem.run, self.problem.at):
            self.problem = Problem(kind, run, at, value)

    def deliver(self, some: Sequence[int], turns: Sequence[int] | None = None) -> None:
        """These runs have come, each into the buffer of its turn."""

    def deliver_some(self, run: int, turn: int, came: int) -> None:
        """Only the first bytes of this run have come."""


class ManySink(ByteSink):
    """Runs of one length into many buffers, each filled to its end."""

    def __init__(self, runs: Any, targets: list[Any]) -> None:
        placed = place(runs, 2**62, 1)
        length, views = runs[2], [memoryview(target).cast("B") for target in targets]
        self._parts = [view[at : at + length] for view in views for at in range(0, len(view), length)]
        if len(self._parts) != len(placed.offsets):
            raise bad_value("targets", "room for every run", len(self._parts))
        super().__init__(placed, memoryview(b""))

    def buffers(self, some: Sequence[int]) -> list[list[memoryview]]:
        return [[self._parts[run]] for run in some]


class WindowSink(ByteSink):
    """Tokens, read into the scratch buffer and widened from there into x and y."""

    def __init__(self, runs: Any, pair: Any) -> None:
        x, y, self.length, source, vocab, marks, _ = pair
        self.narrow = np.dtype(source)
        self.x, self.y = (np.asarray(one).reshape(-1, self.length) for one in (x, y))
        super().__init__(place(runs, len(self.x) * (self.length + 1), self.narrow.itemsize), memoryview(b""))
        self.longest = max(self.lengths, default=0)
        self.needs = max(SCRATCH, self.longest)
        self.whole = self.lengths.count((self.length + 1) * self.narrow.itemsize) == len(self.lengths)
        self.bounds = _bounds(self.narrow, vocab, self.x.dtype)
        if marks is not None:
            marks[0] = -1  # only the native engine notes them while it reads

    def chunks(self, wanted: Sequence[int]) -> list[Sequence[int]]:
        step = max(1, self.needs // max(1, self.longest))
        return [wanted[first : first + step] for first in range(0, len(wanted), step)]

    def buffers(self, some: Sequence[int]) -> list[list[memoryview]]:
        scratch, longest, lengths = self.scratch, self.longest, self.lengths
        return [[scratch[turn * longest : turn * longest + lengths[run]]] for turn, run in enumerate(some)]

    def deliver(self, some: Sequence[int], turns: Sequence[int] | None = None) -> None:
        turns = range(len(some)) if turns is None else turns
        if not self.whole:
            for turn, run in zip(turns, some, strict=True):
                self.deliver_some(run, turn, self.lengths[run])
        elif len(some):
            columns = self.length + 1
            tokens = np.frombuffer(self.scratch, self.narrow, (max(turns) + 1) * columns).reshape(-1, columns)
            tokens = tokens[np.asarray(turns)] if len(turns) < len(tokens) else tokens
            self._look(some, tokens)
            rows = self.places[np.asarray(some)] // columns
            self.x[rows], self.y[rows] = tokens[:, :-1], tokens[:, 1:]

    def deliver_some(self, run: int, turn: int, came: int) -> None:
        tokens = np.frombuffer(self.scratch, self.narrow, came // self.narrow.itemsize, turn * self.longest)
        if len(tokens):
            self._look([run], tokens[None])
            row, first = divmod(int(self.places[run]), self.length + 1)
            last = first + len(tokens)
            self.x[row, first : min(last, self.length)] = tokens[: self.length - first]
            self.y[row, max(first, 1) - 1 : max(last - 1, 0)] = tokens[first == 0 :]

    def _look(self, some: Sequence[int], tokens: Any) -> None:
        """Note ids that are refused."""
        if self.bounds is not None:
            least, most = self.bounds
            refused = (tokens < least) | (tokens > most)
            if refused.any():
                turn, column = divmod(int(np.argmax(refused)), tokens.shape[1])
                self.note("token", some[turn], column * self.narrow.itemsize, int(tokens[turn, column]))


class MarkSink(ByteSink):
    """Tokens, read into the scratch buffer one run at a time, and only looked at for an id."""

    def __init__(self, runs: Any, pair: Any) -> None:
        _, _, _, source, _, self._marks, self._id = pair
        self.narrow = np.dtype(source)
        super().__init__(place(runs, 2**62, self.narrow.itemsize), memoryview(b""))
        self.needs = max(1, *self.lengths, 0)
        self._marks[0] = 0

    def chunks(self, wanted: Sequence[int]) -> list[Sequence[int]]:
        return [[run] for run in wanted]

    def buffers(self, some: Sequence[int]) -> list[list[memoryview]]:
        return [[self.scratch[: self.lengths[some[0]]]]]

    def deliver(self, some: Sequence[int], turns: Sequence[int] | None = None) -> None:  # noqa: ARG002
        limits, marks = np.iinfo(self.narrow), self._marks
        for run in some:
            tokens = np.frombuffer(self.scratch, self.narrow, self.lengths[run] // self.narrow.itemsize)
            if limits.min <= self._id <= limits.max and marks[0] < len(marks):
                found = np.flatnonzero(tokens == self.narrow.type(self._id)) + self.places[run]
                used = int(marks[0]) + 1
                marks[0] += len(found)
                marks[used : used + len(found)] = found[: len(marks) - used]


def sink_of(runs: Any, target: Any) -> ByteSink:
    """Runs and their target: a writable buffer, a list of them, or a Pair."""
    if isinstance(target, tuple):
        return MarkSink(runs, target) if target[0] is None else WindowSink(runs, target)
    if isinstance(target, list):
        return ManySink(runs, target)
    view = memoryview(target).cast("B")
    return ByteSink(place(runs, len(view), 1), view)


@lru_cache(maxsize=64)
def _bounds(narrow: np.dtype[Any], vocab: int | None, wide: np.dtype[Any]) -> tuple[int, int] | None:
    """The least and the largest id allowed; None: the type on disk has no others."""
    limits, mine = np.iinfo(wide), np.iinfo(narrow)
    least, most = (0, min(vocab - 1, int(limits.max))) if vocab is not None else (int(limits.min), int(limits.max))
    if least <= mine.min and mine.max <= most:
        return None
    return max(least, int(mine.min)), min(most, int(mine.max))
