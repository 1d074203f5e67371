"""``Feed``: batches of rows of tokens in an order that is a pure function, with a cursor that counts rows.

One idea: row k of the stream is computed from (data, seed, k) alone; a step's batch is rows [cursor, cursor + batch) of
it and a rank's share is its slice of those. So ranks, prefetch, budget and batch size never change what comes, and
resuming is one integer. A finite (sequential) feed ends with a step of the rows left over and one of the tokens left
over.

Costs about 10 microseconds per batch beyond reading and widening; no thread: each step tells the kernel of the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from lowtide.arguments import whole_number
from lowtide.reading.cuts import Cut, Place, Scheduled
from lowtide.reading.plan import Plan
from lowtide.reading.prefetch import Following, Prefetch
from lowtide.reading.run_ahead import MOST_RANKS, Announcer
from lowtide.reading.state import MOST_ROWS, VERSION, check_state
from lowtide.reading.upcoming import Numbers, Upcoming
from lowtide.storage import Store
from lowtide.storage.forks import Turn

Skips = Sequence[tuple[int, int]]  # steps to leave out: (first, last), both included
Batch = Any  # (x, y), and docs where they were asked for


class Ranks(NamedTuple):
    """Which reader of how many; ``stated`` when the caller said so."""

    rank: int
    world: int
    stated: bool


@dataclass(frozen=True)
class FeedStats:
    """What a feed has done so far in this process. Bytes are those of its stores, whoever else reads from them."""

    steps: int
    seconds: float  # spent in next(), reading or waiting
    asked: int  # bytes of the rows asked for
    read: int  # bytes that left the files, gaps between merged neighbours included
    cached: float | None  # share of those known to have come from the page cache; None before the first read


class Feed:
    """An iterator of ``(x, y)``: C-contiguous, not aliasing, yours until dropped. ``feed[step]`` is any step's batch.

    Shuffled and random feeds never end. A step that fails (``ReadError``, ``BudgetError``, ``FormatError`` for an id
    that is too large) delivers nothing and moves nothing. Costs about 10 microseconds per batch beside reading.

    >>> x, y = next(feed)
    >>> x, y = feed[48_211]
    >>> feed.seek(1_000)
    >>> feed.load_state_dict(feed.state_dict())
    """

    def __init__(self, cut: Cut, batch: int, ranks: Ranks, skip: Skips = ()) -> None:
        self.length = cut.length
        self.batch = batch
        self.rank, self.world, self.ranks_stated = ranks
        self.cursor = 0  # rows of the global stream delivered so far
        self._cut = cut
        self._runs: Announcer | None = getattr(cut, "runs", None) if self.world <= MOST_RANKS else None
        self._whole_only = False
        self._share = batch // self.world
        self._skip = _united(_checked_skip(steps) for steps in skip)
        self._turn = Turn()
        self._prefetch = Prefetch()
        self._steps, self._seconds = 0, 0.0
        self._before = self._counted()
        self._ahead = self._look_ahead(0)

    @property
    def tokens(self) -> Any:
        """The tokens it reads, where they are of one corpus."""
        return self._cut.tokens  # type: ignore[attr-defined]

    @property
    def stores(self) -> tuple[Store, ...]:
        return self._cut.stores

    # Iterating

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Batch:
        began = perf_counter()
        before = after = -1
        try:
            with self._turn.lock:
                before = self.cursor
                cursor = self._after_skips(before)
                if not self._ended(cursor):
                    batch = self._read(cursor, ahead=True)
                    after = self._after(cursor)
                    self._steps += 1
                    self._seconds += perf_counter() - began
                    self.cursor = after
                    return batch
        except BaseException:
            if self.cursor == after:  # interrupted after the cursor moved: the step comes again
                self.cursor = before
            raise
        raise StopIteration

    def whole_batches(self) -> Feed:
        """This feed, without the batches at the end of a sequential order that are not full."""
        self._whole_only = True
        return self

    def cursors(self) -> Iterator[int]:
        """The cursor of every step from here on, without reading or moving: how several workers share one feed."""
        cursor = self._after_skips(self.cursor)
        while not self._ended(cursor):
            yield cursor
            cursor = self._after_skips(self._after(cursor))

    def at(self, cursor: int) -> Batch:
        """The batch that begins at this row of the stream."""
        return self._read(cursor, ahead=False)

    def __len__(self) -> int:
        """Steps of a finite (sequential) feed, without those to skip."""
        if self._cut.rows is None:
            raise TypeError(
                f"feed: expected a sequential order to have a length, got {self._cut.order!r}, which has no end. "
                "Count steps yourself, or use order='sequential'."
            )
        steps = self._all_steps()
        return steps - sum(max(0, min(last + 1, steps) - first) for first, last in self._skip)

    def __getitem__(self, step: int) -> Batch:
        """The batch of any step, without moving."""
        return self._read(self._checked_row(step), ahead=False)

    def __getitems__(self, steps: Iterable[int]) -> list[Batch]:
        """Several steps' batches: what a torch DataLoader asks a map-style dataset for."""
        return [self[step] for step in steps]

    def where(self, step: int) -> list[Place]:
        """File and byte offset of each of this rank's rows of a step, and in a mixture the corpus's name."""
        numbers, _ = self._numbers(self._checked_row(step))
        return self._cut.places(numbers)

    # The cursor

    @property
    def step(self) -> int:
        """How many steps of this batch size the rows delivered so far make up."""
        full = self._cut.rows
        if full is None or self.cursor < full:
            return self.cursor // self.batch
        return -(-full // self.batch) + self.cursor - full

    def seek(self, step: int) -> None:
        """Go to a step; the next batch is that step's. Costs nothing, however far."""
        self.cursor = self._checked_row(step)

    def state_dict(self) -> dict[str, Any]:
        """A few integers and a fingerprint, safe for JSON: where this feed is, and of which data and order."""
        state = {"lowtide": VERSION, "rows": self.cursor, **self._cut.settings(), "data": self._cut.fingerprint()}
        if isinstance(self._cut, Scheduled):
            state["mixture"] = self._cut.past(self.cursor)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to where the state was; ``StateError``, naming what differs, if it is of other data or another order."""
        end = None if self._cut.rows is None else self._cut.rows + self._tail()
        mine = self.state_dict()
        if not isinstance(self._cut, Scheduled):
            self.cursor = check_state(state, mine, position="rows", maker="feed", most=end)
            return
        # Of a mixture only the past must agree: its future may have been planned anew.
        same = {**state, "mixture": mine["mixture"]} if isinstance(state, dict) else state
        rows = check_state(same, mine, position="rows", maker="feed", most=end)
        self._cut.check_past(state.get("mixture"), rows)
        self.cursor = rows

    # What it costs

    def plan(self) -> Plan:
        """Projected bytes by kind and how reading happens, and why."""
        return self._cut.plan(self._share)

    def stats(self) -> FeedStats:
        """Steps, time spent in ``next``, and bytes, since the feed was made in this process."""
        asked, read, cached = (now - then for now, then in zip(self._counted(), self._before, strict=True))
        return FeedStats(self._steps, self._seconds, asked, read, cached / read if read else None)

    def _counted(self) -> tuple[int, int, int]:
        counters = [store.counters for store in self._cut.stores]
        return (
            sum(one.asked for one in counters),
            sum(one.read for one in counters),
            sum(one.cached for one in counters),
        )

    def __repr__(self) -> str:
        return (
            f"<lowtide.Feed {self._cut.order} batch={self.batch} length={self.length} rank={self.rank}/{self.world} "
            f"rows={self.cursor:,} of {self._cut.where}>"
        )

    # How a step is read

    def _read(self, cursor: int, *, ahead: bool) -> Batch:
        if ahead and self._runs is not None:
            self._runs.approach(cursor)
        numbers, tail = self._numbers(cursor)
        following = Following(cursor, self._prefetch, self._following, self._full_step) if ahead else None
        return self._cut.read(numbers, rows=self._share, ahead=following, tail=tail)

    def _following(self, cursor: int) -> int | None:
        """Where the step after this one begins; None where there is no such full step."""
        cursor = self._after_skips(self._after(cursor))
        full = self._cut.rows
        return cursor if full is None or cursor + self.batch <= full else None

    def _numbers(self, cursor: int) -> tuple[Numbers, bool]:
        """This rank's numbers of the step at ``cursor``, and whether it is the shorter row at the end."""
        full = self._cut.rows
        if full is None or cursor + self.batch <= full:
            return self._full_step(cursor), False
        left = full - cursor
        if left > 0:  # a batch of fewer rows
            first, last = self.rank * left // self.world, (self.rank + 1) * left // self.world
            return self._cut.numbers(np.arange(cursor + first, cursor + last)), False
        return self._cut.numbers(np.array([full] if self.rank == 0 else [], np.int64)), True

    def _full_step(self, cursor: int) -> Numbers:
        anchor, upcoming = self._ahead
        step, rest = divmod(cursor - anchor, self.batch)
        if rest or step < 0:  # steps are counted from elsewhere: a cursor that another batch size left
            self._ahead = _, upcoming = self._look_ahead(cursor)
            step = 0
        return upcoming.at(step * self._share, self._share)

    def _look_ahead(self, anchor: int) -> tuple[int, Upcoming]:
        full = self._cut.rows
        stop = None if full is None else max(0, full - anchor) // self.batch * self._share
        # Not a method of ours: a feed that refers to itself would keep its files until the garbage collector comes.
        return anchor, Upcoming(partial(_own_numbers, self._cut, self.batch, self.rank, self.world, anchor), stop)

    # Steps and rows

    def _tail(self) -> int:
        return int(self._cut.tail > 0)

    def _all_steps(self) -> int:
        full = self._cut.rows or 0
        return full // self.batch if self._whole_only else -(-full // self.batch) + self._tail()

    def _ended(self, cursor: int) -> bool:
        full = self._cut.rows
        if full is None:
            return False
        return cursor + self.batch > full if self._whole_only else cursor >= full + self._tail()

    def _row(self, step: int) -> int:
        """The row a step begins at."""
        full = self._cut.rows
        if full is None:
            return step * self.batch
        return min(step * self.batch, full) + max(0, step - -(-full // self.batch))

    def _after(self, cursor: int) -> int:
        """The row behind the step that begins at ``cursor``."""
        full = self._cut.rows
        if full is None or cursor + self.batch <= full:
            return cursor + self.batch
        return full if cursor < full else cursor + 1

    def _after_skips(self, cursor: int) -> int:
        """The next step that has no row of those to leave out."""
        for first, last in self._skip:
            end = self._row(last + 1)
            # A cursor that another batch size left may stand inside a step: what only reaches into a skip goes too.
            if cursor < end and self._row(first) < self._after(cursor):
                cursor = end
        return cursor

    def _checked_row(self, step: int) -> int:
        number = whole_number("step", step, example="feed[0]")
        last = (MOST_ROWS // self.batch if self._cut.rows is None else self._all_steps()) - 1
        if not 0 <= number <= last:
            raise IndexError(f"feed: expected a step from 0 to {last}, got {step}. Use a step in that range.")
        return self._row(number)

    # Processes

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_ahead", "_before")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._steps, self._seconds = 0, 0.0
        self._before = self._counted()
        self._ahead = self._look_ahead(0)


def _own_numbers(cut: Cut, batch: int, rank: int, world: int, anchor: int, first: int, count: int) -> Numbers:
    """Numbers of a rank's rows, counted from ``anchor``: a share of every step."""
    mine = np.arange(first, first + count, dtype=np.int64)
    if world > 1:
        share = batch // world
        steps, inside = np.divmod(mine, share)
        mine = steps * batch + (inside + rank * share)
    return cut.numbers(mine + anchor)


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
