"""Long stretches for a local shuffle: announce a whole stretch, read from the page cache, then drop it.

A local shuffle takes its rows from one stretch of the file after another, so the disk can be asked for whole stretches.
While rows of one are read, the next is announced in proportion: the disk works all the time, and never more than two
stretches are in the page cache. They need not fit the budget, because Lowtide does not hold them.

Costs one system call per 4 MiB. Stretches too large for the page cache are not announced; each batch then announces
itself, as in a full shuffle. With many ranks a whole stretch is read on every machine, though each rank wants only its
share; beyond ``MOST_RANKS`` that costs more than it gains, and batches announce themselves too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from lowtide.machine import PAGE, room_for_cache
from lowtide.order.steps import EpochSteps
from lowtide.order.streams import Shuffled, Stream
from lowtide.reading.ahead import Follower as Follower
from lowtide.reading.plan import Plan
from lowtide.storage import RESIDENT, Store
from lowtide.units import MIB, format_size

STEP = 4 * MIB  # announced at a time: long for any disk, short beside a stretch
MOST_PASSED = 64  # stretches that one batch may span; a longer distance is a seek
MOST_RANKS = 16  # ranks on one machine share the page cache; more ranks mean several machines


class PlannedFollower(Follower, Protocol):
    """A follower that knows what it adds to a plan."""

    def adjusted(self, plan: Plan) -> Plan: ...


class ByteStretch(NamedTuple):
    """Neighbouring bytes of a store, and the positions of the stream that they hold."""

    offset: int
    length: int
    position: int
    positions: int


class StretchFollower:
    """Follows a local shuffle of items of ``item`` bytes from byte ``base`` on: told of each step before it is read.

    ``more``: bytes by which items are longer (windows share a token with the next). ``steps``: those of a rank, which
    has its own positions and may have an end.
    """

    def __init__(
        self, store: Store, stream: Shuffled, item: int, base: int, more: int, steps: EpochSteps | None = None
    ) -> None:
        self._store, self._stream, self._item, self._base, self._more = store, stream, item, base, more
        self._steps = steps
        self._rows: int | None = None  # positions of a stream that ends
        if steps is not None and steps.stop is not None and steps.rows:
            self._rows = steps.stop // steps.rows * stream.n
        self.largest = min(stream.neighbours or 0, stream.n) * item + more
        self.drop = store.drop and store.strategy.name == "read"  # instead of the reads themselves
        self._now: ByteStretch | None = None
        self._next: ByteStretch | None = None
        self._announced = 0  # bytes of the next one

    def approach(self, position: int) -> None:
        if self._steps is not None:
            position = self._steps.position(position)
        now = self._now
        if now is None or not now.position <= position < now.position + now.positions:
            now = self._enter(position)
        following = self._next
        if following is None:
            after = now.position + now.positions
            if self._rows is not None and after >= self._rows:
                return  # this is the last one
            self._next = following = self._at(after)
        done = following.length * (position - now.position) // now.positions
        wanted = min(following.length, -(-done // STEP) * STEP)
        if wanted > self._announced:
            self._store.announce_long(following.offset + self._announced, wanted - self._announced)
            self._announced = wanted

    def _at(self, position: int) -> ByteStretch:
        found = self._stream.stretch(position)
        token = self._item // max(1, self._stream.stride)  # bytes of one number: a phase counts numbers
        offset = self._base + found.item * self._item + found.phase * token
        return ByteStretch(offset, found.items * self._item + self._more, found.position, found.items)

    def _enter(self, position: int) -> ByteStretch:
        before, now = self._now, self._at(position)
        already = self._announced if self._next == now else 0
        if self.drop and before is not None:
            for _ in range(MOST_PASSED):  # those in between too: a batch longer than a stretch reads from several
                self._store.drop_long(before.offset, before.length)
                before = self._at(before.position + before.positions)
                if before.position >= now.position:
                    break
            if self._next is not None and self._next != now:
                self._store.drop_long(self._next.offset, self._announced)
        self._now, self._next, self._announced = now, None, 0
        for start in range(already, now.length, STEP):
            self._store.announce_long(now.offset + start, min(STEP, now.length - start))
        return now

    def leave(self) -> None:
        """The stream is at its end: evict what is left."""
        for stretch in (self._now, self._next):
            if self.drop and stretch is not None:
                self._store.drop_long(stretch.offset, stretch.length)
        self._now, self._next, self._announced = None, None, 0

    def adjusted(self, plan: Plan) -> Plan:
        """The plan, with the stretches in the page cache added."""
        size = format_size(self.largest)
        why = (*plan.why, f"stretches of {size} are announced whole and read from the page cache, at most two at once")
        if not self.drop:
            return replace(plan, why=why)
        cache = min(sum(self._store.files.sizes) + PAGE, 2 * self.largest + 16 * MIB)
        return replace(plan, cache=cache, rung="fadvise(DONTNEED) behind each stretch", why=why)

    def __getstate__(self) -> dict[str, object]:
        """Another process has its own position in the order."""
        return {**self.__dict__, "_now": None, "_next": None, "_announced": 0}


def follow(
    reader: Any, stream: Stream, world: int, item: int, base: int = 0, more: int = 0, steps: EpochSteps | None = None
) -> tuple[Any, StretchFollower | None]:
    """The reader to use for this stream, and the follower that announces its stretches if that helps."""
    if not isinstance(stream, Shuffled) or stream.neighbours is None or stream.n == 0 or world > MOST_RANKS:
        return reader, None
    follower = StretchFollower(reader.store, stream, item, base, more, steps)
    if 2 * follower.largest > room_for_cache()[0]:
        return reader, None
    return reader.read_as(RESIDENT) if follower.drop else reader, follower
