"""Whole blocks for a local shuffle: announce those of the next window, read from the page cache, drop them behind.

A local shuffle takes its rows from one window of blocks after another, so the disk can be asked for whole blocks. While
rows of one window are read, as many blocks of the next are announced as of this one is done: the disk works all the
time, and two windows pass through the page cache, never more. They need not fit the budget: nothing of ours holds them.
Small rows are not read one by one from there but in sweeps (``reading/ahead.py``).

Costs one system call per block. Windows too large for the page cache are not announced; each batch then announces
itself, as in a full shuffle. With many ranks a whole window is read on every machine, though each rank wants only its
share; beyond ``MOST_RANKS`` that costs more than it gains, and batches announce themselves too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from lowtide.machine import PAGE, room_for_cache
from lowtide.order.steps import EpochSteps
from lowtide.order.streams import LocalWindow, Positions, Shuffled, Stream
from lowtide.reading.ahead import Follower as Follower
from lowtide.reading.ahead import Sweep
from lowtide.reading.plan import Plan
from lowtide.storage.read import RESIDENT
from lowtide.storage.spans import Offsets
from lowtide.storage.store import Store
from lowtide.units import MIB, format_size

STEP = 4 * MIB  # announced at a time: long for any disk, short beside a window
AT_ONCE = 8192  # blocks whose offsets are computed at a time: 64 KiB of them
FURTHER = 256 * MIB  # asked for where blocks are fetched: enough for the way to a store and for a reader's pauses
MOST_PASSED = 64  # windows that one batch may reach over; more than these were not read but jumped over
MOST_RANKS = 16  # ranks on one machine share the page cache; more than this are many machines


class PlannedFollower(Follower, Protocol):
    """A follower that knows what it adds to a plan."""

    def adjusted(self, plan: Plan) -> Plan: ...


class BlockFollower:
    """Follows a local shuffle of items of ``item`` bytes from byte ``base`` on: told of each step before it is read.

    ``more``: bytes by which items are longer (windows of tokens share one with the next). ``steps``: of a rank, whose
    positions are not those of the stream, and which may have an end.
    """

    def __init__(
        self, store: Store, stream: Shuffled, item: int, base: int, more: int, steps: EpochSteps | None = None
    ) -> None:
        assert stream.locality is not None
        self._store, self._stream, self._item, self._base, self._more = store, stream, item, base, more
        self._steps = steps
        self._rows: int | None = None  # positions of a stream that ends
        if steps is not None and steps.stop is not None and steps.rows:
            self._rows = steps.stop // steps.rows * stream.n
        self._items = min(stream.locality.items_per_block, stream.n)  # of a block
        self.block = self._items * item + more  # bytes
        many = min(stream.locality.blocks_per_window, -(-stream.n // self._items))
        # Blocks begin and end inside pages, which come and go whole.
        self.largest = many * min(self.block + 2 * PAGE, store.total)
        self.drop = store.drop and store.strategy.name == "read"  # in place of the reads themselves
        self.sweep: Sweep | None = None
        self._now: LocalWindow | None = None
        self._next: LocalWindow | None = None
        self._announced = 0  # blocks of the next one
        self._asked = 0  # positions whose windows were asked for, where blocks are fetched
        self._behind: list[tuple[LocalWindow, int]] = []  # windows that were read, and how many of their blocks to drop

    def swept_by(self, reader: Any, told: Any, rows: int) -> Any:
        """Read small rows in sweeps; returns the reader to use: ``told``, or ``reader`` where sweeps read whole windows
        from the disk, and nothing is announced or dropped."""
        self.sweep = told.sweep_of(rows, self)
        if self.sweep is None or not self.sweep.whole:
            return told
        self.sweep, self.drop = reader.sweep_of(rows, self), False
        return reader

    def enter(self, position: int) -> int:
        """See to it that the window of a step is announced; returns how many positions of it are left."""
        if self._steps is not None:
            position = self._steps.position(position)
        now = self._now
        if now is None or not now.position <= position < now.position + now.positions:
            if self.sweep is not None and self.sweep.whole:
                now = self._now = self._stream.window(position)
            else:
                now = self._next_window(position)
        return now.position + now.positions - position

    def approach(self, position: int, ahead: int = 0) -> None:
        left = self.enter(position)
        for window, blocks in self._behind:
            self._each(self._store.drop_long, window, 0, blocks)
        self._behind = []
        now, following = self._now, self._next
        assert now is not None
        if following is None:
            after = now.position + now.positions
            if self._rows is not None and after >= self._rows:
                return  # this is the last one
            self._next = following = self._stream.window(after)
        step = max(1, STEP // self.block)
        steps = -(-following.blocks * (now.positions - left + ahead) // (now.positions * step))  # the last batch: all
        wanted = min(following.blocks, steps * step)
        if wanted > self._announced:
            self._each(self._store.announce_long, following, self._announced, wanted)
            self._announced = wanted

    def _next_window(self, position: int) -> LocalWindow:
        before, now = self._now, self._stream.window(position)
        already = self._announced if self._next == now else 0
        if self._next != now:
            self._asked = 0
        if self.drop and before is not None:
            for _ in range(MOST_PASSED):  # also what lies between: a batch longer than a window reads from several
                self._behind.append((before, before.blocks))
                before = self._stream.window(before.position + before.positions)
                if before.position >= now.position:
                    break
            if self._next is not None and self._next != now:
                self._behind.append((self._next, self._announced))
        if self._now is not None:
            self._each(self._hand_down, self._now, 0, self._now.blocks)
        self._now, self._next, self._announced = now, None, 0
        # Whole and before the others: the first batch needs some of nearly all its blocks, the next ones the rest.
        self._each(partial(self._store.announce_long, urgent=True), now, already, now.blocks)
        room = self._store.room
        if self._store.makes_blocks and (room is None or 4 * self.largest <= room):
            self._ask_further(now, FURTHER if room is None else min(FURTHER, room // 2))
        return now

    def _ask_further(self, window: LocalWindow, most: int) -> None:
        """Where blocks are fetched: the next two windows at once, and more of them up to ``most`` bytes. While one is
        read and another comes, the requests of the third are on their way already."""
        for number in range(max(2, most // self.largest)):
            after = window.position + window.positions
            if self._rows is not None and after >= self._rows:
                return
            window = self._stream.window(after)
            if after >= self._asked:  # else it was when an earlier window was entered
                self._each(self._store.announce_long, window, 0, window.blocks)
                self._asked = after + window.positions
            if number == 0:
                self._next, self._announced = window, window.blocks

    def _hand_down(self, offsets: Offsets, length: int) -> None:
        """Of a window that was read: when each of its blocks comes again."""
        assert self._now is not None
        after = self._now.position + self._now.positions
        self._store.read_again(offsets, length, self.comes_next(offsets, after) * self._item)

    def leave(self) -> None:
        """The stream is at its end: evict what is left."""
        for window in (self._now, self._next, *(window for window, _ in self._behind)):
            if self.drop and window is not None:
                self._each(self._store.drop_long, window, 0, window.blocks)
        self._now, self._next, self._announced, self._asked, self._behind = None, None, 0, 0, []

    def _each(self, call: Callable[[Offsets, int], None], window: LocalWindow, first: int, last: int) -> None:
        """Call with where blocks ``[first, last)`` of a window begin, and their length; a short one comes apart."""
        token = self._item // max(1, self._stream.stride)  # bytes of one number: a phase counts numbers
        base = self._base + window.phase * token
        for start in range(first, last, AT_ONCE):
            items = self._stream.first_items(window, start, min(AT_ONCE, last - start))
            left = self._stream.n - int(items[-1])  # blocks come in the order of the data: only the last may be short
            whole = items if left >= self._items else items[:-1]
            if len(whole):
                call(whole * self._item + base, self.block)
            if left < self._items:
                call(items[-1:] * self._item + base, left * self._item + self._more)

    def comes_next(self, offsets: Offsets, position: int) -> Positions:
        """For bytes of the store: the position at which the window begins that needs each of them next. ``position``:
        of the stream, from whose window on."""
        items = np.clip((offsets - self._base) // max(1, self._item), 0, self._stream.n - 1)
        return self._stream.comes_next(items, position)

    def adjusted(self, plan: Plan) -> Plan:
        """The plan with what passes through the page cache."""
        size = format_size(self.largest)
        why = (
            *plan.why,
            f"blocks of a window of {size} are announced and read from the page cache, two windows at most",
        )
        if self.sweep is not None:
            if self.sweep.whole:
                why = (*plan.why, f"the blocks of a window of {size} are read whole, by O_DIRECT")
            held = 7 * self.sweep.batches * self.sweep.nbytes // 5
            why = (*why, f"{self.sweep.batches} batches at a time are read in one sweep over a window")
            plan = replace(plan, anon=min(plan.budget, plan.anon + held))
        if not self.drop:
            return replace(plan, why=why)
        if self.sweep is not None and self.sweep.whole_from:
            why = (*why, f"from budget={self.sweep.whole_from} on, windows are read whole, past the page cache")
        cache = min(sum(self._store.files.sizes) + PAGE, 2 * self.largest + 16 * MIB)
        return replace(plan, cache=cache, rung="fadvise(DONTNEED) behind each window of blocks", why=why)

    def __getstate__(self) -> dict[str, object]:
        """Another process has its own place in the order."""
        return {**self.__dict__, "_now": None, "_next": None, "_announced": 0, "_asked": 0, "_behind": []}


class FollowersTogether:
    """Of arrays that are read row for row: the windows of each."""

    sweep = None

    def __init__(self, followers: tuple[BlockFollower, ...]) -> None:
        self._followers = followers
        self.drop = all(follower.drop for follower in followers)

    def approach(self, position: int, ahead: int = 0) -> None:
        for follower in self._followers:
            follower.approach(position, ahead)

    def leave(self) -> None:
        for follower in self._followers:
            follower.leave()

    def adjusted(self, plan: Plan) -> Plan:
        plans = [follower.adjusted(plan) for follower in self._followers]
        return replace(plans[0], cache=sum(one.cache for one in plans))


def follow(
    reader: Any, stream: Stream, world: int, item: int, base: int = 0, more: int = 0, steps: EpochSteps | None = None
) -> tuple[Any, BlockFollower | None]:
    """The reader to use for this stream, and what announces its blocks where that helps."""
    if not isinstance(stream, Shuffled) or stream.locality is None or stream.n == 0 or world > MOST_RANKS:
        return reader, None
    follower = BlockFollower(reader.store, stream, item, base, more, steps)
    room = reader.store.room
    if room is not None and follower.largest > room // 2:
        raise ValueError(
            f"locality: expected windows of at most half of disk={format_size(room)}, got "
            f"{format_size(follower.largest)}. Open it with disk={2 * follower.largest}, or state a smaller locality=."
        )
    if 2 * follower.largest > room_for_cache()[0]:
        return reader, None
    return reader.read_as(RESIDENT) if follower.drop else reader, follower
