"""Long stretches for a local shuffle: announce a whole stretch, read from the page cache, drop it behind.

A local shuffle takes its rows from one stretch of the file after another, so the disk can be asked for whole stretches.
While rows of one are read, as much of the next is announced as of this one is done: the disk works all the time, and
two stretches pass through the page cache, never more. They need not fit the budget: nothing of ours holds them.

Costs one system call per 4 MiB. Stretches too large for the page cache are not announced; each batch then announces
itself, as in a full shuffle. With many ranks a whole stretch is read on every machine, though each rank wants only its
share; beyond ``MOST_RANKS`` that costs more than it gains, and batches announce themselves too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from lowtide.machine import PAGE, room_for_cache
from lowtide.order.steps import Steps
from lowtide.order.streams import Shuffled, Stream
from lowtide.reading.ahead import Follower as Follower
from lowtide.reading.plan import Plan
from lowtide.storage import Store
from lowtide.units import MIB, format_size

STEP = 4 * MIB  # announced at a time: long for any disk, short beside a stretch
MOST_PASSED = 64  # stretches that one batch may reach over; more than these were not read but jumped over
MOST_RANKS = 16  # ranks on one machine share the page cache; more than this are many machines


class PlannedFollower(Follower, Protocol):
    """A follower that knows what it adds to a plan."""

    def adjusted(self, plan: Plan) -> Plan: ...


class ByteStretch(NamedTuple):
    """Neighbouring bytes of a store, and the positions of the stream that are read from them."""

    offset: int
    length: int
    position: int
    positions: int


class LocalBytes:
    """Where the stretches of a local shuffle lie: items of ``item_bytes`` from byte ``base`` on, ``more`` bytes longer
    than their items (windows share a token with the next)."""

    def __init__(self, stream: Shuffled, item_bytes: int, base: int = 0, more: int = 0) -> None:
        self._stream, self._item, self._base, self._more = stream, item_bytes, base, more

    @property
    def largest(self) -> int:
        return min(self._stream.neighbours or 0, self._stream.n) * self._item + self._more

    def at(self, position: int) -> ByteStretch:
        found = self._stream.stretch(position)
        token = self._item // max(1, self._stream.stride)  # bytes of one number: a phase counts numbers
        offset = self._base + found.item * self._item + found.phase * token
        return ByteStretch(offset, found.items * self._item + self._more, found.position, found.items)


class StretchFollower:
    """Follows a stream: told of each step before it is read. ``drop``: evict what lies behind; ``rows``: positions of a
    stream that ends."""

    def __init__(self, store: Store, bytes_: LocalBytes, *, drop: bool, rows: int | None = None) -> None:
        self._store, self._bytes, self._drop, self._rows = store, bytes_, drop, rows
        self._now: ByteStretch | None = None
        self._next: ByteStretch | None = None
        self._announced = 0  # bytes of the next one

    def approach(self, position: int) -> None:
        now = self._now
        if now is None or not now.position <= position < now.position + now.positions:
            now = self._enter(position)
        following = self._next
        if following is None:
            after = now.position + now.positions
            if self._rows is not None and after >= self._rows:
                return  # this is the last one
            self._next = following = self._bytes.at(after)
        done = following.length * (position - now.position) // now.positions
        wanted = min(following.length, -(-done // STEP) * STEP)
        if wanted > self._announced:
            self._store.announce_long(following.offset + self._announced, wanted - self._announced)
            self._announced = wanted

    def _enter(self, position: int) -> ByteStretch:
        before, now = self._now, self._bytes.at(position)
        already = self._announced if self._next == now else 0
        if self._drop and before is not None:
            self._drop_passed(before, now)
            if self._next is not None and self._next != now:
                self._store.drop_long(self._next.offset, self._announced)
        self._now, self._next, self._announced = now, None, 0
        for start in range(already, now.length, STEP):
            self._store.announce_long(now.offset + start, min(STEP, now.length - start))
        return now

    def _drop_passed(self, before: ByteStretch, now: ByteStretch) -> None:
        """Also what lies between: a batch longer than a stretch reads from several."""
        for _ in range(MOST_PASSED):
            self._store.drop_long(before.offset, before.length)
            before = self._bytes.at(before.position + before.positions)
            if before.position >= now.position:
                return

    def leave(self) -> None:
        """The stream is at its end: evict what is left."""
        for stretch in (self._now, self._next):
            if self._drop and stretch is not None:
                self._store.drop_long(stretch.offset, stretch.length)
        self._now, self._next, self._announced = None, None, 0

    def adjusted(self, plan: Plan) -> Plan:
        """The plan with what passes through the page cache."""
        largest = self._bytes.largest
        why = f"stretches of {format_size(largest)} are announced whole and read from the page cache, two at most"
        if not self._drop:
            return replace(plan, why=(*plan.why, why))
        files = sum(self._store.files.sizes)
        cache = min(files + PAGE, 2 * largest + 16 * MIB)
        return replace(plan, cache=cache, rung="fadvise(DONTNEED) behind each stretch", why=(*plan.why, why))

    def __getstate__(self) -> dict[str, object]:
        """Another process has its own place in the order."""
        return {**self.__dict__, "_now": None, "_next": None, "_announced": 0}


class RankFollower:
    """The same for a rank, whose positions are not those of the stream."""

    def __init__(self, inner: StretchFollower, steps: Steps) -> None:
        self._inner, self._steps = inner, steps

    def approach(self, position: int) -> None:
        self._inner.approach(self._steps.position(position))

    def leave(self) -> None:
        self._inner.leave()


def follows(largest: int) -> bool:
    """Whether announcing stretches of so many bytes, all at once, helps."""
    return 2 * largest <= room_for_cache()[0]


def drops_behind(store: Store) -> bool:
    """Whether the follower evicts what lies behind, in place of the reads themselves."""
    return store.drop and store.strategy.name == "read"


def follow_rows(reader: Any, stream: Stream, steps: Any, world: int = 1) -> tuple[Any, Follower | None]:
    """The reader to use for this stream of whole C-ordered rows, and what announces its stretches."""
    if not isinstance(stream, Shuffled) or stream.neighbours is None or stream.n == 0 or world > MOST_RANKS:
        return reader, None
    if not getattr(reader, "follows", False):
        return reader, None
    store = reader.store
    bytes_ = LocalBytes(stream, reader.row_bytes)
    if not follows(bytes_.largest):
        return reader, None
    rows = None if steps.stop is None or not steps.rows else steps.stop // steps.rows * stream.n
    drop = drops_behind(store)
    follower = StretchFollower(store, bytes_, drop=drop, rows=rows)
    return reader.resident() if drop else reader, RankFollower(follower, steps)


def follow_windows(reader: Any, stream: Stream, base_token: int, item: int) -> tuple[Any, StretchFollower | None]:
    """The same for windows of tokens; ``base_token``: where the range begins, of ``item`` bytes each."""
    if not isinstance(stream, Shuffled) or stream.neighbours is None:
        return reader, None
    store = reader.store
    bytes_ = LocalBytes(stream, stream.stride * item, base_token * item, item)
    if not follows(bytes_.largest):
        return reader, None
    drop = drops_behind(store)
    follower = StretchFollower(store, bytes_, drop=drop)
    return reader.resident() if drop else reader, follower
