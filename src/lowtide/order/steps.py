"""Steps: which positions of a stream make a batch, for one of several ranks. Integers only.

``EpochSteps`` deals the rows of every epoch to ranks in slices; each epoch ends with its own short batch (iterators of
arrays). ``GlobalSteps`` deals every global batch to ranks (feeds): batches may straddle epochs, steps may be skipped,
and a finite stream ends with a step of the rows left over and, perhaps, one shorter row.

Both have ``width`` (from one full step to the next), ``share`` (this rank's rows of a full step), ``begin(position)``
(where the next step begins; None at the end), and of the step at ``at``: ``after(at)`` (the position behind it),
``count(at)`` (this rank's rows), ``position(at)`` (the stream's position of the first of them) and
``positions(at, count)`` (those of the next ``count``). Positions count what was delivered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lowtide.arguments import whole_number
from lowtide.order.streams import Positions

MOST_ROWS = 2**62  # a position beyond this is no place anyone reached, and near where int64 ends

Skips = Sequence[tuple[int, int]]  # steps to leave out: (first, last), both included


class EpochSteps:
    """``rows``: this rank's of an epoch (None: no epochs), which begin ``first`` into its ``total``; ``stop``: the
    position of the end."""

    contiguous = True

    def __init__(
        self, rows: int | None, batch: int, stop: int | None, first: int = 0, total: int | None = None
    ) -> None:
        self.rows, self.stop, self.first, self.total = rows, stop, first, rows if total is None else total
        self.width = self.share = self.batch = batch

    def begin(self, position: int) -> int | None:
        return position if self.stop is None or position < self.stop else None

    def after(self, at: int) -> int:
        rows = self.rows
        return at + (self.share if rows is None else min(self.share, rows - at % rows))

    def count(self, at: int) -> int:
        rows = self.rows
        return self.share if rows is None else min(self.share, rows - at % rows)

    def positions(self, at: int, count: int) -> Positions:
        if self.stop is not None:
            count = min(count, self.stop - at)
        own = np.arange(at, at + count, dtype=np.int64)
        if self.rows is None or (self.first == 0 and self.rows == self.total):
            return own
        epochs, places = np.divmod(own, self.rows)
        found: Positions = epochs * self.total + (places + self.first)
        return found

    def position(self, at: int) -> int:
        if self.rows is None or self.total is None:
            return at
        epoch, place = divmod(at, self.rows)
        return epoch * self.total + self.first + place

    def left(self, position: int) -> int | None:
        """Batches still to come; None: without end."""
        if self.stop is None:
            return None
        epochs, rest = divmod(self.stop - position, self.rows or 1)
        return epochs * -(-(self.rows or 1) // self.share) + -(-rest // self.share)


class GlobalSteps:
    """``batch`` is the global batch; ``rows``: those of a finite stream, behind which one shorter row follows where
    ``tail``. ``whole_only``: end before the first step that is not full."""

    contiguous = False

    def __init__(
        self, batch: int, rank: int, world: int, *, rows: int | None = None, tail: bool = False, skip: Skips = ()
    ) -> None:
        self.batch = self.width = batch
        self.share = batch // world
        self.rank, self.world, self.rows, self.tail = rank, world, rows, int(tail)
        self.whole_only = False
        self.skip = _united(map(_checked_skip, skip if isinstance(skip, Iterable) else [skip]))
        most = MOST_ROWS // batch
        if self.skip and rows is None and self.skip[-1][1] >= most:
            raise ValueError(f"skip: expected steps below {most}, got {self.skip[-1]}. Skip fewer of them.")

    def begin(self, position: int) -> int | None:
        if self.skip:
            position = self._behind_skips(position)
        rows = self.rows
        if rows is None:
            return position
        ended = position + self.batch > rows if self.whole_only else position >= rows + self.tail
        return None if ended else position

    def after(self, at: int) -> int:
        rows = self.rows
        if rows is None or at + self.batch <= rows:
            return at + self.batch
        return rows if at < rows else at + 1

    def count(self, at: int) -> int:
        rows = self.rows
        if rows is None or at + self.batch <= rows:
            return self.share
        if at >= rows:
            return int(self.rank == 0)
        left = rows - at
        return (self.rank + 1) * left // self.world - self.rank * left // self.world

    def positions(self, at: int, count: int) -> Positions:
        rows = self.rows
        if rows is not None and at + self.batch > rows:
            first = self.position(at)
            return np.arange(first, first + self.count(at), dtype=np.int64)
        if rows is not None:
            count = min(count, (rows - at) // self.batch * self.share)
        own = np.arange(count, dtype=np.int64)
        if self.world > 1:
            steps, inside = np.divmod(own, self.share)
            own = steps * self.batch + (inside + self.rank * self.share)
        own += at
        return own

    def position(self, at: int) -> int:
        rows = self.rows
        if rows is None or at + self.batch <= rows:
            return at + self.rank * self.share
        return at + self.rank * max(0, rows - at) // self.world  # of rows left over, or the shorter one behind them

    # Steps by number

    @property
    def all_steps(self) -> int:
        """Steps of a finite stream, those to skip included."""
        rows = self.rows or 0
        return rows // self.batch if self.whole_only else -(-rows // self.batch) + self.tail

    @property
    def steps(self) -> int:
        """The same without those to skip."""
        all_steps = self.all_steps
        return all_steps - sum(max(0, min(last + 1, all_steps) - first) for first, last in self.skip)

    def row(self, step: int) -> int:
        """The position a step begins at."""
        if self.rows is None:
            return step * self.batch
        return min(step * self.batch, self.rows) + max(0, step - -(-self.rows // self.batch))

    def step(self, position: int) -> int:
        """How many steps of this batch size the rows before ``position`` make up."""
        if self.rows is None or position < self.rows:
            return position // self.batch
        return -(-self.rows // self.batch) + position - self.rows

    def checked_row(self, step: Any) -> int:
        """The position of a step that a caller named."""
        number = whole_number("step", step, example="feed[0]")
        last = (MOST_ROWS // self.batch if self.rows is None else self.all_steps) - 1
        if not 0 <= number <= last:
            raise IndexError(f"feed: expected a step from 0 to {last}, got {step}. Use a step in that range.")
        return self.row(number)

    def _behind_skips(self, position: int) -> int:
        for first, last in self.skip:
            end = self.row(last + 1)
            # A position that another batch size left may lie inside a step: a step that reaches into a skip is skipped.
            if position < end and self.row(first) < self.after(position):
                position = end
        return position


Steps = EpochSteps | GlobalSteps


def _checked_skip(steps: Any) -> tuple[int, int]:
    whole = (int, np.integer)
    if not isinstance(steps, (tuple, list)) or len(steps) != 2 or not all(isinstance(step, whole) for step in steps):
        raise TypeError(
            f"skip: expected pairs of steps, got {steps!r}. Use skip=[(first, last)]; both are skipped too."
        )
    first, last = int(steps[0]), int(steps[1])
    if not 0 <= first <= last:
        way_out = "Steps count from 0" if min(first, last) < 0 else f"Use skip=[({last}, {first})]"
        raise ValueError(f"skip: expected 0 <= first <= last, got {steps!r}. {way_out}.")
    return first, last


def _united(skips: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted, and none reaching into another."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(skips):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found
