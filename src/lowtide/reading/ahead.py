"""Batches by position, and those that are started before they are asked for.

Which batch comes next is known, so while data is cold the next two are started early: the native engine's threads fill
them while the caller works, or the kernel is told of their reads. The reader does not know which. While everything
is cached this does nothing. Batches under way are given up as soon as their room in the budget is needed.

A local shuffle of small rows goes further: as many batches as the budget holds are filled in one sweep over the window
that their rows come from. Where that is the whole window and nothing is to stay cached, sweeps read it past the page
cache.

Numbers are computed in blocks that double, up to 64 KiB: a block costs little more than one batch, and the first
request computes just what was asked for, so that any single step is fast.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from lowtide.engine import Numbers
from lowtide.order.steps import Steps
from lowtide.order.streams import InOrder, Stream
from lowtide.storage.budget import Budget
from lowtide.storage.buffers import Pool
from lowtide.storage.forks import renew_in_children
from lowtide.storage.read import Temperature
from lowtide.storage.store import Store

BLOCK = 8192  # numbers computed at a time: 64 KiB, and the order's fixed cost spread over many batches
AHEAD = 2  # batches under way beside the one the caller holds

_NOTHING: tuple[int, Numbers] = 0, np.empty(0, np.int64)


class Batch(partial[Any]):
    """A batch under way, which is the call that finishes it: ``finish()`` gives the lent arrays. Dropped, it gives its
    buffer back."""

    __slots__ = ()
    finish = partial.__call__


class Reader(Protocol):
    """Turns numbers into batches. Knows dtypes and shapes; no order, no position, no look-ahead."""

    @property
    def temperatures(self) -> tuple[Temperature, ...]: ...
    @property
    def pools(self) -> tuple[Pool, ...]: ...
    @property
    def stores(self) -> tuple[Store, ...]: ...
    @property
    def where(self) -> str: ...
    @property
    def budget(self) -> Budget: ...

    def start(self, numbers: Any, early: bool = False) -> Batch: ...
    def nbytes(self, rows: int) -> int: ...
    def scratch(self, rows: int) -> int: ...
    def fingerprint(self) -> dict[str, Any]: ...


class Sweep(NamedTuple):
    """How a local shuffle of small rows is read: ``batches`` at a time, in one sweep over a window."""

    batches: int
    start: Callable[..., list[Any]]  # numbers of batches -> those that were started
    nbytes: int  # of a batch and what is noted for it
    enter: Callable[[int], int]  # announces the window of a step, and says how many positions of it are left
    whole: bool = False  # windows are read whole from the disk, each in one sweep: nothing needs announcing or dropping
    whole_from: int = 0  # the budget from which on it is so; 0: never


class Follower(Protocol):
    """Told of every step before it is read; announces what is far ahead."""

    @property
    def drop(self) -> bool: ...  # what was read is dropped: it is always cold
    @property
    def sweep(self) -> Sweep | None: ...
    def approach(self, position: int, ahead: int = 0) -> None: ...  # so many positions behind it will be read too
    def leave(self) -> None: ...


class Later(Batch):
    """A batch for which there was no room yet; at most, the kernel was told of it (``announced``)."""

    __slots__ = ()

    def __new__(cls, reader: Reader, numbers: Any, announced: bool = False) -> Self:
        return super().__new__(cls, _read_now, reader, numbers, announced)


def _read_now(reader: Reader, numbers: Any, announced: bool) -> Any:
    found = reader.start(numbers).finish()
    if announced:  # announced data is cached by now, which does not mean that the rest is
        for temperature in reader.temperatures:
            temperature.cold = True
    return found


class LazyNumbers:
    """The numbers of a batch that is too large to hold them all: computed a slice at a time."""

    __slots__ = ("_at", "_batches", "_count")

    def __init__(self, batches: Batches, at: int, count: int) -> None:
        self._batches, self._at, self._count = batches, at, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, some: slice) -> Numbers:
        first, last, _ = some.indices(self._count)
        return self._batches.stream.at(self._batches.steps.positions(self._at + first, last - first))


class Batches:
    """The batches of a stream, read by ``reader``; a step begins at a position."""

    def __init__(self, reader: Reader, stream: Stream, steps: Steps) -> None:
        self.reader, self.stream, self.steps = reader, stream, steps
        self.tail_reader: Reader | None = None  # for the one shorter row that a finite stream may end with
        self._known = _NOTHING  # where the block begins, and the block: one value, so that threads never see half of it

    def start(self, at: int, early: bool = False) -> Batch:
        """The batch of the step at ``at``."""
        reader = self.reader
        if self.tail_reader is not None and at >= (self.stream.rows or 0):
            reader = self.tail_reader
        return reader.start(self.numbers(at), early)

    def numbers(self, at: int) -> Any:
        """This rank's numbers of the step at ``at``."""
        steps = self.steps
        count = steps.count(at)
        start, block = self._known
        step, rest = divmod(at - start, steps.width)
        first = step * steps.share
        if rest or first < 0 or first + count > len(block):
            return self._computed(at, count, first <= len(block) and not rest)
        return block[first : first + count]

    def _computed(self, at: int, count: int, goes_on: bool) -> Any:
        if isinstance(self.stream, InOrder):
            return self.stream.items(self.steps.position(at), count)
        if count > BLOCK and self.steps.contiguous:
            return LazyNumbers(self, at, count)
        block = self._known[1]
        size = count
        if goes_on and count == self.steps.share:
            size = max(count, min(BLOCK, 2 * len(block)) // count * count)
        found = self.stream.at(self.steps.positions(at, size))
        self._known = at, found
        return found[:count]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": _NOTHING}


class Ahead:
    """Batches started before they are asked for, by the position of their step. Empty while everything is cached."""

    def __init__(self, batches: Batches, follower: Follower | None = None) -> None:
        self._batches = batches
        self._follower = follower
        self._sweep = None if follower is None else follower.sweep
        # For items in order the kernel reads ahead by itself, and a follower announces what its stream needs.
        looks = follower is None and not isinstance(batches.stream, InOrder)
        self._temperatures = batches.reader.temperatures if looks else ()
        self._registered = False
        self.renew_after_fork()
        renew_in_children(self)

    def renew_after_fork(self) -> None:
        """The parent's threads do not exist in a child, and their buffers are the parent's."""
        self._started: dict[int, Batch] = {}
        self._taken = False  # whether the step at hand was started
        self._swept = -1, -1  # the step that the last sweep began with, and the position behind it
        self._windows = 0, 0  # the position behind the last sweep over whole windows, and its batches
        self._begun: Any = None  # a batch of two windows, of which one was swept
        self._missed = -1  # the last step that was asked for and not started

    def approach(self, at: int) -> None:
        """Announce the window of the first step."""
        if self._follower is not None and (self._sweep is None or not self._sweep.whole):
            self._follower.approach(at)

    def take(self, at: int) -> Batch | None:
        """The batch of this step, if it was started."""
        if self._sweep is not None and self._sweep.whole and at not in self._started:
            self._started, self._begun = {}, None
            if at != self._missed:  # twice in a row: interrupted, and then a single batch is faster
                self._sweep_windows(self._sweep, at)
            self._missed = at
        found = self._started.pop(at, None) if self._started else None
        self._taken = found is not None
        return found

    def keep(self, at: int) -> None:
        """Start the next batches early, as long as that pays."""
        if self._follower is not None:
            self._follow(self._follower, at)
            return
        for temperature in self._temperatures:
            if temperature.cold:
                self._start_next(at)
                return

    def _follow(self, follower: Follower, at: int) -> None:
        """The same in a local shuffle, whose windows are announced: it is cold where they are dropped."""
        if self._sweep is not None and self._sweep.whole:
            if self._taken and 5 * (len(self._started) + self._windows[1]) <= 6 * self._sweep.batches:
                self._sweep_windows(self._sweep, self._windows[0])
        elif self._sweep is not None:
            self._sweep_on(self._sweep, follower, at)
        elif follower.drop:
            follower.approach(at, AHEAD * self._batches.steps.width)
            self._start_next(at)
        else:
            follower.approach(at)

    def _sweep_on(self, sweep: Sweep, follower: Follower, at: int) -> None:
        """Start the next batches in one sweep, up to the one with which the window ends.

        One sweep is under way at a time, so that what lies behind the next one was read, and may be dropped.
        """
        steps, (first, reached) = self._batches.steps, self._swept
        if self._taken and reached > at:
            if first == at or first in self._started or 5 * len(self._started) > 2 * sweep.batches:
                return  # the last sweep was not waited for yet, or so much of it is left that another has no room
        else:
            follower.approach(at)
            self._started, reached = {}, steps.after(at)
            self._swept = -1, -1
            if sweep.enter(at) <= reached - at:
                return  # the next batch is of another window, and this one is still to be read
        self._register()
        position = begin = steps.begin(reached)
        if position is None or begin is None:
            return
        wanted: list[int] = []
        left = -(-sweep.enter(position) // steps.share)
        many = -(-left // -(-left // sweep.batches))  # sweeps over a window are as equal as they can be
        while position is not None and len(wanted) < many and steps.count(position) == steps.share:
            wanted.append(position)
            position = steps.begin(steps.after(position))
        batches = sweep.start([self._batches.numbers(step) for step in wanted]) if len(wanted) > 1 else []
        # What the following sweep reads is announced while this one works, and what the last one read is dropped.
        follower.approach(begin, 2 * sweep.batches * steps.share)
        if batches:
            self._started = {**self._started, **dict(zip(wanted, batches, strict=False))}
            self._swept = wanted[0], steps.after(wanted[len(batches) - 1])

    def _sweep_windows(self, sweep: Sweep, position: int) -> None:
        """Start a sweep over all that is left of a window, and over the following ones as long as they are small.

        Another begins as soon as it has room. The batch in which the last window ends is left begun: the next sweep
        reads the rest of it.
        """
        self._register()
        steps, begun, self._begun = self._batches.steps, self._begun, None
        first = steps.begin(position)
        if first is None and begun is None:
            return
        if begun is not None:
            position -= len(begun.numbers) - begun.rows
        end = position + sweep.enter(position)
        while steps.begin(end) is not None and 2 * (end + sweep.enter(end) - position) < sweep.batches * steps.share:
            end += sweep.enter(end)
        wanted: list[int] = []
        while first is not None and first < end and len(wanted) < sweep.batches:
            wanted.append(first)
            first = steps.begin(steps.after(first))
        batches = sweep.start([self._batches.numbers(step) for step in wanted], True, begun, end - position)
        if batches:
            self._begun = batches[-1] if batches[-1].rows < len(batches[-1].numbers) else None
            if begun is not None:
                del batches[0]
            self._started = {**self._started, **dict(zip(wanted, batches, strict=False))}
            self._windows = steps.after(wanted[len(batches) - 1]), len(batches)

    def _register(self) -> None:
        if not self._registered:
            self._registered = True
            self._batches.reader.budget.may_shrink(self)

    def _start_next(self, at: int) -> None:
        self._register()
        steps, before, wanted = self._batches.steps, self._started, {}
        for _ in range(AHEAD):
            following = steps.begin(steps.after(at))
            if following is None or steps.count(following) != steps.share:
                break
            at = following
            wanted[at] = before.get(at) or self._batches.start(at, True)
        self._started = wanted

    def leave(self) -> None:
        """The end was reached."""
        self.shrink()
        if self._follower is not None:
            self._follower.leave()

    def shrink(self) -> None:
        """Give up batches under way: their room is needed."""
        self._started, self._swept, self._begun = {}, (-1, -1), None

    def __reduce__(self) -> tuple[Any, ...]:
        return Ahead, (self._batches, self._follower)


def prepared_ahead(store: Store) -> tuple[int, int]:
    """Batches that may be under way beside the caller's, and bytes of staging for them, as a plan counts them."""
    strategy = store.strategy
    return (AHEAD, (1 + AHEAD) * strategy.staging) if strategy.prepares else (0, 0)
