"""The next batches, filled by the native engine while the caller works.

One idea: which batch comes next is known, so while data is not cached, native threads fill the following two into
buffers of their own and ``next`` hands them over. A program that computes in pure Python finds its batch ready; the
disk always has this batch and the next to work on. A batch is known by its place, one integer: a program that computes
for milliseconds finds none of our code in the CPU's cache afterwards, so what counts is how little there is of it.

Costs two buffers beyond the two of the caller, where the budget has room for them; they are given up as soon as
somebody else needs the room. Does nothing while reads come from the page cache, nor with the Python engine, which tells
the kernel of the next batch instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowtide import _native
from lowtide.reading.upcoming import Numbers
from lowtide.storage import Filling, Store
from lowtide.storage.budget import Holding
from lowtide.storage.forks import Turn, renew_in_children

LOST = "lost"  # the answer of a job that nobody noted
DEPTH = 2  # batches under way beside the one in the caller's hands
NONE: Numbers = np.empty(0, np.int64)


class NativeThread:
    """A thread of the engine, what its staging holds of the budget, and how many runs it had found cached."""

    __slots__ = ("_cached", "_holding", "fills")

    def __init__(self, fills: _native.Prefetching, holding: Holding | None) -> None:
        self.fills = fills
        self._holding = holding
        self._cached = 0

    def hits(self) -> int:
        """Runs of the last job that were in the page cache."""
        before, self._cached = self._cached, self.fills.counters()[1]
        return self._cached - before


@dataclass
class Underway:
    """One batch under way: the one at ``place`` of somebody's order, from ``store``.

    ``arrays`` are what its buffer is lent as, ``held`` what must live until it is done.
    """

    store: Store
    place: int
    filling: Filling
    thread: NativeThread
    arrays: tuple[NDArray[Any], ...]
    held: Any
    ended: bool = False

    def wait(self) -> Any:
        """None if the batch is there, else the problem. Interrupted, it can be asked again."""
        try:
            found: Any = self.thread.fills.wait()
        except RuntimeError:
            found = LOST  # an interrupt came between the end of the job and our note of it: it will be read again
        self.ended = True
        return found

    def cancel(self) -> None:
        """Nobody writes into the buffer any more when this returns."""
        if not self.ended:
            self.thread.fills.cancel()
            self.ended = True


class Ready(NamedTuple):
    """A batch that was prepared: its buffer, the arrays that it is lent as, and how many of its runs were cached."""

    filling: Filling
    arrays: tuple[NDArray[Any], ...]
    hits: int


class Following:
    """What comes after the batch at ``place``: ``after`` gives the place of the batch that follows the one at a place
    (None where no full one does), ``numbers`` the numbers of a place."""

    __slots__ = ("after", "numbers", "place", "prefetch")

    def __init__(
        self,
        place: int,
        prefetch: Prefetch,
        after: Callable[[int], int | None],
        numbers: Callable[[int], Numbers],
    ) -> None:
        self.place = place
        self.prefetch = prefetch
        self.after = after
        self.numbers = numbers

    def __call__(self) -> Numbers:
        """The next batch's numbers."""
        place = self.after(self.place)
        return NONE if place is None else self.numbers(place)


Arrays = tuple[NDArray[Any], ...]
# Lends a buffer to a thread and lets it begin: the arrays, and what must live until it is done; None where it cannot.
Begin = Callable[[NativeThread, Filling, Numbers], tuple[Arrays, Any] | None]


class Prefetch:
    """The jobs of one iterator, in the order in which their batches will be asked for."""

    def __init__(self) -> None:
        self._turn = Turn()
        self.renew_after_fork()
        renew_in_children(self)

    def renew_after_fork(self) -> None:
        """The parent's threads do not exist in a child, and their buffers are the parent's."""
        self._jobs: deque[Underway] = deque()
        self._idle: list[tuple[Store, NativeThread]] = []
        self._pools: list[Any] = []

    def __reduce__(self) -> tuple[type[Prefetch], tuple[()]]:
        return Prefetch, ()

    def take(self, store: Store, place: int) -> Ready | None:
        """The batch at this place, if it was under way. What was prepared for another place is dropped."""
        if not self._jobs:
            return None
        with self._turn.lock:
            while self._jobs:
                job = self._jobs[0]
                if job.store is not store:
                    return None  # of another array that is read together with this one
                if job.place != place:
                    self._drop_first()
                    continue
                problem = LOST if job.ended else job.wait()
                self._jobs.popleft()
                self._idle.append((store, job.thread))
                hits = job.thread.hits()
                if problem is not None:
                    return None  # a plain read will say what is wrong
                return Ready(job.filling, job.arrays, hits)
        return None

    def keep_ahead(self, store: Store, following: Following, size: int, begin: Begin) -> None:
        """Have the next batches filled, as far as there are threads, and room in the budget, for them."""
        place = following.after(following.place)
        for _ in range(DEPTH):
            if place is None or not self._start(store, place, following.numbers, size, begin):
                return
            place = following.after(place)

    def _start(self, store: Store, place: int, numbers: Callable[[int], Numbers], size: int, begin: Begin) -> bool:
        with self._turn.lock:
            for job in self._jobs:
                if job.place == place and job.store is store:
                    return True
            if len(self._jobs) >= DEPTH:
                return False
            if store.pool not in self._pools:
                self._pools.append(store.pool)
                store.pool.may_reclaim(self)
            filling = store.pool.try_filling(size)
            thread = None if filling is None else self._thread_of(store)
            if filling is None or thread is None:
                return False
            with filling:  # back in the pool at once where nothing begins
                begun = begin(thread, filling, numbers(place))
            if begun is None:
                self._idle.append((store, thread))
                return False
            self._jobs.append(Underway(store, place, filling, thread, *begun))
            return True

    def _thread_of(self, store: Store) -> NativeThread | None:
        for index, (owner, thread) in enumerate(self._idle):
            if owner is store:
                del self._idle[index]
                return thread
        made = store.prefetcher()
        return None if made is None else NativeThread(*made)

    def shrink(self) -> bool:
        """Give up what is under way; True if that freed a buffer. Called when somebody needs the room."""
        if not self._turn.lock.acquire(blocking=False):
            return False  # another thread is just being given its batch
        try:
            had = bool(self._jobs) or bool(self._idle)
            while self._jobs:
                self._drop_first()
            self._idle.clear()
            return had
        finally:
            self._turn.lock.release()

    def _drop_first(self) -> None:
        self._jobs[0].cancel()
        job = self._jobs.popleft()
        self._idle.append((job.store, job.thread))


def prepared_ahead(store: Store) -> tuple[int, int]:
    """Batches that may be under way beside those of the caller, and bytes of staging for them: what a plan counts."""
    staging = store.staging
    return (0, 0) if staging is None else (DEPTH, (1 + DEPTH) * staging)
