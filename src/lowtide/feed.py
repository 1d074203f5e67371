"""``Feed``: batches of windows in an order that is a pure function, with a cursor that counts rows.

One idea: row k of the stream is computed from (data, seed, k) alone; a step's batch is rows [cursor, cursor + batch) of
it and a rank's share is its slice of those. So ranks, prefetch, budget and batch size never change what comes, and
resuming is one integer. A finite (sequential) feed ends with a step of the rows left over and one of the tokens left
over.

Costs about 10 microseconds a batch beyond reading and widening; no thread: each step tells the kernel of the next.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lowtide.machine import PAGE
from lowtide.plan import Plan, project
from lowtide.rows import Numbers
from lowtide.state import check_state
from lowtide.storage.buffers import whole_pages
from lowtide.streams import Stream
from lowtide.units import format_size
from lowtide.windows import Batch, Windows

LOOKAHEAD = 8192  # most window starts computed at a time, over as many steps as that covers
MOST_ROWS = 2**62  # a cursor beyond this is no place anyone reached, and near where int64 ends

Skips = Sequence[tuple[int, int]]  # steps to leave out: (first, last), both included


class Place(NamedTuple):
    """Where a window begins: the file and the byte in it (as in ``np.fromfile(file, offset=offset)``)."""

    file: str
    offset: int


class Ranks(NamedTuple):
    """Which reader of how many; ``stated`` when the caller said so."""

    rank: int
    world: int
    stated: bool


class Known(NamedTuple):
    """Window starts of some steps: one value, so that threads never see half of it."""

    cursor: int  # where the first of the steps begins
    starts: Numbers  # (steps, this rank's rows)


class Feed:
    """An iterator of ``(x, y)``: C-contiguous, not aliasing, yours until dropped. ``feed[step]``: any step's batch."""

    def __init__(self, windows: Windows, stream: Stream, batch: int, ranks: Ranks, skip: Skips = ()) -> None:
        self.tokens = windows.tokens
        self.length = windows.length
        self.batch = batch
        self.rank, self.world, self.ranks_stated = ranks
        self.cursor = 0  # rows of the global stream delivered so far
        self._windows = windows
        self._stream = stream
        self._whole_only = False
        self._share = batch // self.world
        self._known: Known
        self._lock: threading.Lock
        self._skip = sorted(self._rows_of(*_checked_skip(steps)) for steps in skip)
        self._forget()

    # Iterating

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Batch:
        with self._turn():
            cursor = self._after_skips(self.cursor)
            if self._ended(cursor):
                raise StopIteration
            batch = self._read(cursor, ahead=True)
            self.cursor = self._after(cursor)  # only now: a step that failed can be asked for again
            return batch

    def whole_batches(self) -> Feed:
        """This feed, from now on without the batches at a sequential order's end that are not full."""
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
        """Steps of a finite (sequential) feed."""
        rows = self._stream.rows
        if rows is None:
            raise TypeError(
                f"feed: expected a sequential order to have a length, got {self._stream.order!r}, which has no end. "
                "Count steps yourself, or use order='sequential'."
            )
        return rows // self.batch if self._whole_only else -(-self._full_rows() // self.batch) + self._tail()

    def __getitem__(self, step: int) -> Batch:
        """The batch of any step, without moving."""
        return self._read(self._checked_row(step), ahead=False)

    def __getitems__(self, steps: Iterable[int]) -> list[Batch]:
        """Several steps' batches: what a torch DataLoader asks a map-style dataset for."""
        return [self[step] for step in steps]

    def where(self, step: int) -> list[Place]:
        """File and byte offset of each of this rank's rows of a step."""
        starts, _ = self._starts(self._checked_row(step))
        return [Place(*self.tokens.place(int(start))) for start in starts]

    # The cursor

    @property
    def step(self) -> int:
        """Steps of this batch size that the rows delivered so far make."""
        full = self._stream.rows
        if full is None or self.cursor < full:
            return self.cursor // self.batch
        return -(-full // self.batch) + self.cursor - full

    def seek(self, step: int) -> None:
        """Go to a step; the next batch is that step's."""
        self.cursor = self._checked_row(step)

    def state_dict(self) -> dict[str, Any]:
        """A few integers and a fingerprint, safe for JSON: where this feed is, and of which data and order."""
        return {
            "lowtide": 1,
            "rows": self.cursor,
            "length": self.length,
            **self._stream.settings(),
            "data": self.tokens.fingerprint(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to where the state was; refused, naming what differs, if it is of other data or another order."""
        end = None if self._stream.rows is None else self._full_rows() + self._tail()
        check_state(state, self.state_dict(), most=MOST_ROWS if end is None else end)
        self.cursor = int(state["rows"])

    def plan(self) -> Plan:
        """Projected bytes by kind and how reading happens, and why."""
        size, scratch = self._windows.nbytes(self._share)
        window = (self.length + 1) * self.tokens.dtype.itemsize + 2 * PAGE
        why = f"batches of {format_size(size)}, one held and one being filled, widened from {format_size(scratch)}"
        held = 2 * size + whole_pages(scratch)
        return project(self.tokens.store, held, announced=2 * self._share * window, why=(why,))

    def __repr__(self) -> str:
        return (
            f"<lowtide.Feed {self._stream.order} batch={self.batch} length={self.length} rank={self.rank}/{self.world} "
            f"rows={self.cursor:,} of {self.tokens.store.where}>"
        )

    # How a step is read

    def _read(self, cursor: int, *, ahead: bool) -> Batch:
        starts, length = self._starts(cursor)
        windows = self._windows
        if length != self.length:
            windows = Windows(self.tokens, length, windows.dtype)
        later = None
        if ahead:
            following = self._after_skips(self._after(cursor))
            if self._stream.rows is None or following + self.batch <= self._full_rows():

                def later() -> Numbers:
                    return self._starts(following)[0]

        return windows.read(starts, rows=self._share, ahead=later)

    def _starts(self, cursor: int) -> tuple[Numbers, int]:
        """First tokens of this rank's windows of the step at ``cursor``, and how long they are."""
        if self._stream.rows is not None and cursor + self.batch > self._full_rows():
            return self._last_starts(cursor)
        known = self._known
        index, rest = divmod(cursor - known.cursor, self.batch)
        if rest or not 0 <= index < len(known.starts):
            # One step at first, so that any step is had at once; more and more for those who read on.
            known = self._known = self._look_ahead(cursor, 2 * index if index == len(known.starts) else 1)
            index = 0
        return known.starts[index], self.length

    def _look_ahead(self, cursor: int, steps: int) -> Known:
        steps = max(1, min(steps, LOOKAHEAD // self._share))
        if self._stream.rows is not None:
            steps = max(1, min(steps, (self._full_rows() - cursor) // self.batch))
        first = np.arange(steps, dtype=np.int64)[:, None] * self.batch + (cursor + self.rank * self._share)
        rows = (first + np.arange(self._share, dtype=np.int64)).reshape(-1)
        return Known(cursor, self._stream.starts(rows).reshape(steps, self._share) + self.tokens.first)

    def _last_starts(self, cursor: int) -> tuple[Numbers, int]:
        """The end of a sequential feed: a batch of fewer windows, then one shorter window of the tokens left over."""
        full = self._full_rows()
        left = max(0, full - cursor)
        if left:
            first, last = self.rank * left // self.world, (self.rank + 1) * left // self.world
            return self._stream.starts(np.arange(cursor + first, cursor + last)) + self.tokens.first, self.length
        mine = np.array([full] if self.rank == 0 else [], np.int64)
        return mine * self.length + self.tokens.first, len(self.tokens) - 1 - full * self.length

    def _full_rows(self) -> int:
        return self._stream.rows or 0

    def _tail(self) -> int:
        """1 if tokens are left over that no full window predicts."""
        return int(len(self.tokens) - 1 > self._full_rows() * self.length)

    def _ended(self, cursor: int) -> bool:
        if self._stream.rows is None:
            return False
        full = self._full_rows()
        if self._whole_only:
            return cursor + self.batch > full
        return cursor >= full + self._tail()

    # Steps and rows

    def _row(self, step: int) -> int:
        """The row a step begins at."""
        full = self._stream.rows
        if full is None:
            return step * self.batch
        return min(step * self.batch, full) + max(0, step - -(-full // self.batch))

    def _after(self, cursor: int) -> int:
        """The row behind the step that begins at ``cursor``."""
        full = self._stream.rows
        if full is None or cursor + self.batch <= full:
            return cursor + self.batch
        return full if cursor < full else cursor + 1

    def _rows_of(self, first: int, last: int) -> tuple[int, int]:
        return self._row(first), self._row(last + 1)

    def _after_skips(self, cursor: int) -> int:
        """The next step that has no row of those to leave out."""
        for first, end in self._skip:
            # A cursor that another batch size left may stand inside a step: what only reaches into a skip goes too.
            if cursor < end and first < self._after(cursor):
                cursor = end
        return cursor

    def _checked_row(self, step: int) -> int:
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)):
            raise TypeError(f"feed: expected a step number, got {type(step).__name__}. Use feed[0].")
        last = (MOST_ROWS // self.batch if self._stream.rows is None else len(self)) - 1
        if not 0 <= step <= last:
            raise IndexError(f"feed: expected a step from 0 to {last}, got {step}. Use one of those.")
        return self._row(int(step))

    # Threads and processes

    def _turn(self) -> threading.Lock:
        """One step at a time; a forked child has a lock of its own, since the parent's may be held."""
        if self._process != os.getpid():
            self._forget()
        return self._lock

    def _forget(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._known = Known(0, np.empty((0, self._share), np.int64))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_known")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()


def _checked_skip(steps: Any) -> tuple[int, int]:
    whole = (int, np.integer)
    if not isinstance(steps, (tuple, list)) or len(steps) != 2 or not all(isinstance(step, whole) for step in steps):
        raise TypeError(f"skip: expected pairs of steps, got {steps!r}. Use skip=[(first, last)], both left out.")
    first, last = int(steps[0]), int(steps[1])
    if not 0 <= first <= last:
        way_out = "Steps count from 0" if min(first, last) < 0 else f"Use skip=[({last}, {first})]"
        raise ValueError(f"skip: expected 0 <= first <= last, got {steps!r}. {way_out}.")
    return first, last
