"""Long runs for a local shuffle: announce a whole stretch, read from the page cache, drop it behind.

One idea: a local shuffle takes its rows from one stretch of the file after another, so the disk can be asked for whole
stretches. While rows of one are read, as much of the next is announced as of this one is done: the disk works all the
time, and two stretches pass through the page cache, never more. They need not fit the budget: nothing of ours holds
them.

Costs one system call per 4 MiB. Stretches too large for the page cache are not announced; each batch then announces
itself, as in a full shuffle. With many ranks a whole stretch is read on every machine, though each rank wants only its
share; beyond ``MOST_RANKS`` that costs more than it gains, and batches announce themselves too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

from lowtide.machine import PAGE, room_for_cache
from lowtide.reading.passes import ShuffledRows
from lowtide.reading.plan import Plan
from lowtide.reading.streams import ShuffledStream
from lowtide.storage import Store
from lowtide.storage.long_runs import announce_run, drop_run, keeping
from lowtide.units import MIB, format_size

STEP = 4 * MIB  # announced at a time: long for any disk, short beside a stretch
MOST_PASSED = 64  # stretches that one batch may reach over; more than these were not read but jumped over
MOST_RANKS = 16  # ranks on one machine share the page cache; more than this are many machines


class ByteStretch(NamedTuple):
    """Neighbouring bytes of a store, and the rows of the order that are read from them."""

    offset: int
    length: int
    row: int
    rows: int


class Announcer(Protocol):
    """What a feed tells of the rows it is about to read."""

    def approach(self, row: int) -> None: ...
    def adjusted(self, plan: Plan) -> Plan:
        """The plan with what passes through the page cache."""
        ...


def store_for_runs(store: Store, largest: int) -> Store | None:
    """The store to read stretches of at most ``largest`` bytes through, one that leaves dropping to ``RunAhead``; None
    where announcing them would not help."""
    if store.strategy.name == "direct" or 2 * largest > room_for_cache()[0]:
        return None
    return keeping(store) if store.drop and store.strategy.name == "read" else store


class RunAhead:
    """Follows an order of rows: ``approach(row)`` before rows from ``row`` on are read.

    ``locate(row)`` is the stretch a row belongs to, of ``largest`` bytes at most; ``drop``: evict what lies behind.
    ``rows``: those of a finite order.
    """

    def __init__(
        self,
        store: Store,
        locate: Callable[[int], ByteStretch],
        *,
        largest: int,
        drop: bool,
        rows: int | None = None,
    ) -> None:
        self._store = store
        self._locate = locate
        self._largest = largest
        self._drop = drop
        self._rows = rows
        self._now: ByteStretch | None = None
        self._next: ByteStretch | None = None
        self._announced = 0  # bytes of the next one

    def approach(self, row: int) -> None:
        now = self._now
        if now is None or not now.row <= row < now.row + now.rows:
            now = self._enter(row)
        following = self._next
        if following is None:
            after = now.row + now.rows
            if self._rows is not None and after >= self._rows:
                return  # this is the last one
            self._next = following = self._locate(after)
        done = following.length * (row - now.row) // now.rows
        wanted = min(following.length, -(-done // STEP) * STEP)
        if wanted > self._announced:
            announce_run(self._store, following.offset + self._announced, wanted - self._announced)
            self._announced = wanted

    def _enter(self, row: int) -> ByteStretch:
        before, now = self._now, self._locate(row)
        already = self._announced if self._next == now else 0
        if self._drop and before is not None:
            self._drop_passed(before, now)
            if self._next is not None and self._next != now:
                drop_run(self._store, self._next.offset, self._announced)
        self._now, self._next, self._announced = now, None, 0
        for start in range(already, now.length, STEP):
            announce_run(self._store, now.offset + start, min(STEP, now.length - start))
        return now

    def _drop_passed(self, before: ByteStretch, now: ByteStretch) -> None:
        """Also what lies between: a batch longer than a stretch reads from several."""
        for _ in range(MOST_PASSED):
            drop_run(self._store, before.offset, before.length)
            before = self._locate(before.row + before.rows)
            if before.row >= now.row:
                return

    def leave(self) -> None:
        """The order is at its end: evict what is left."""
        for stretch in (self._now, self._next):
            if self._drop and stretch is not None:
                drop_run(self._store, stretch.offset, stretch.length)
        self._now, self._next, self._announced = None, None, 0

    def adjusted(self, plan: Plan) -> Plan:
        why = f"stretches of {format_size(self._largest)} are announced whole and read from the page cache, two at most"
        if not self._drop:
            return replace(plan, why=(*plan.why, why))
        files = sum(extent.size for extent in self._store.extents)
        cache = min(files + PAGE, 2 * self._largest + 16 * MIB)
        return replace(plan, cache=cache, rung="fadvise(DONTNEED) behind each stretch", why=(*plan.why, why))

    def __getstate__(self) -> dict[str, object]:
        """Another process has its own place in the order."""
        return {**self.__dict__, "_now": None, "_next": None, "_announced": 0}


class ArrayStretches:
    """``locate`` for rows of an array: the runs of neighbours of a local shuffle, as bytes."""

    def __init__(self, order: ShuffledRows, nbytes: int) -> None:
        self._order, self._nbytes = order, nbytes

    def __call__(self, row: int) -> ByteStretch:
        found = self._order.stretch(row)
        return ByteStretch(found.row * self._nbytes, found.rows * self._nbytes, found.position, found.positions)

    @property
    def largest(self) -> int:
        return min(self._order.neighbours or 0, self._order.count) * self._nbytes


class TokenStretches:
    """``locate`` for windows of tokens: stretches of a stream as bytes, ``base`` tokens into the store."""

    def __init__(self, stream: ShuffledStream, base: int, item: int) -> None:
        self._stream, self._base, self._item = stream, base, item

    def __call__(self, row: int) -> ByteStretch:
        found = self._stream.stretch(row)
        return ByteStretch((self._base + found.first) * self._item, found.tokens * self._item, found.row, found.rows)

    @property
    def largest(self) -> int:
        assert self._stream.locality is not None
        windows = min(self._stream.locality.windows, self._stream.windows)
        return (windows * self._stream.length + 1) * self._item
