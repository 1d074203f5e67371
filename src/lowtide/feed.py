"""``Feed``: batches of windows in an order that is a pure function, with a cursor that counts rows.

One idea: row k of the stream is computed from (data, seed, k) alone; a step's batch is rows [cursor, cursor + batch) of it
and a rank's share is its slice of those. So ranks, prefetch, budget and batch size never change what comes, and
resuming is one integer.

Costs about 10 microseconds a batch beyond reading and widening; no thread: each step tells the kernel of the next.
"""

from __future__ import annotations

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

LOOKAHEAD = 8192  # window starts computed at a time, over as many steps as that covers


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


class Feed:
    """An iterator of ``(x, y)``: C-contiguous, not aliasing, yours until dropped. ``feed[step]`` is any step's batch."""

    def __init__(self, windows: Windows, stream: Stream, batch: int, ranks: Ranks, skip: Skips = ()) -> None:
        self.tokens = windows.tokens
        self.length = windows.length
        self.batch = batch
        self.rank, self.world, self.ranks_stated = ranks
        self.cursor = 0  # rows of the global stream delivered so far
        self._windows = windows
        self._stream = stream
        self._whole_only = False
        self._skip = sorted((int(first), int(last_step)) for first, last_step in skip)
        self._share = batch // self.world
        self._known_from = 0
        self._known: Numbers = np.empty((0, self._share), np.int64)

    # Iterating

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Batch:
        cursor = self._after_skips(self.cursor)
        if self._ended(cursor):
            raise StopIteration
        batch = self._read(cursor, ahead=True)
        self.cursor = cursor + self.batch
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
            cursor = self._after_skips(cursor + self.batch)

    def at(self, cursor: int) -> Batch:
        """The batch that begins at this row of the stream."""
        return self._read(cursor, ahead=False)

    def __len__(self) -> int:
        """Steps of a finite (sequential) feed."""
        rows = self._stream.rows
        if rows is None:
            raise TypeError(
                f"feed: expected a sequential order to have a length, got {self._stream.order!r}, which has no end."
            )
        return rows // self.batch if self._whole_only else -(-self._full_rows() // self.batch) + self._tail()

    def __getitem__(self, step: int) -> Batch:
        """The batch of any step, without moving."""
        return self._read(self._row(step), ahead=False)

    def __getitems__(self, steps: Iterable[int]) -> list[Batch]:
        """Several steps' batches: what a torch DataLoader asks a map-style dataset for."""
        return [self[step] for step in steps]

    def where(self, step: int) -> list[Place]:
        """File and byte offset of each of this rank's rows of a step."""
        starts, _ = self._starts(self._row(step))
        return [Place(*self.tokens.place(int(start))) for start in starts]

    # The cursor

    @property
    def step(self) -> int:
        """Steps of this batch size that the rows delivered so far make."""
        return self.cursor // self.batch

    def seek(self, step: int) -> None:
        """Go to a step; the next batch is that step's."""
        self.cursor = self._row(step)

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
        check_state(state, self.state_dict())
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
            following = self._after_skips(cursor + self.batch)
            if self._stream.rows is None or following + self.batch <= self._full_rows():

                def later() -> Numbers:
                    return self._starts(following)[0]

        return windows.read(starts, rows=self._share, ahead=later)

    def _starts(self, cursor: int) -> tuple[Numbers, int]:
        """First tokens of this rank's windows of the step at ``cursor``, and how long they are."""
        if self._stream.rows is not None and cursor + self.batch > self._full_rows():
            return self._last_starts(cursor)
        index, rest = divmod(cursor - self._known_from, self.batch)
        if rest or not 0 <= index < len(self._known):
            index = 0
            self._look_ahead(cursor)
        return self._known[index], self.length

    def _look_ahead(self, cursor: int) -> None:
        steps = max(1, LOOKAHEAD // self._share)
        if self._stream.rows is not None:
            steps = max(1, min(steps, (self._full_rows() - cursor) // self.batch))
        first = np.arange(steps, dtype=np.int64)[:, None] * self.batch + (cursor + self.rank * self._share)
        rows = (first + np.arange(self._share, dtype=np.int64)).reshape(-1)
        self._known = self._stream.starts(rows).reshape(steps, self._share) + self.tokens.first
        self._known_from = cursor

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
        after_last = -(-full // self.batch) * self.batch
        return cursor >= after_last + self._tail()

    def _after_skips(self, cursor: int) -> int:
        for first, last in self._skip:
            if first * self.batch <= cursor < (last + 1) * self.batch:
                cursor = (last + 1) * self.batch
        return cursor

    def _row(self, step: int) -> int:
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)):
            raise TypeError(f"feed: expected a step number, got {type(step).__name__}. Use feed[0].")
        end = len(self) if self._stream.rows is not None else None
        if step < 0 or (end is not None and step >= end):
            raise IndexError(f"feed: expected a step from 0{'' if end is None else f' to {end - 1}'}, got {step}.")
        return int(step) * self.batch
