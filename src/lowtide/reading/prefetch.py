"""The next batches, filled by the native engine while the caller works.

One idea: which batch comes next is known, so while data is not cached, native threads fill the following two into
buffers of their own and ``next`` hands them over. A program that computes in pure Python finds its batch ready; the
disk always has this batch and the next to work on.

Costs two buffers beyond the two of the caller, where the budget has room for them; they are given up as soon as
somebody else needs the room. Does nothing while reads come from the page cache, nor with the Python engine, which tells
the kernel of the next batch instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowtide import _native
from lowtide.reading.upcoming import Numbers
from lowtide.storage import Filling, Store
from lowtide.storage.budget import Holding
from lowtide.storage.forks import Turn, renew_in_children

LOST = "lost"  # the answer of a job that nobody noted
DEPTH = 2  # batches under way beside the one in the caller's hands


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
    """One batch under way. ``held``: descriptors and numbers that must live until it is done."""

    numbers: Numbers
    filling: Filling
    thread: NativeThread
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


class Prefetch:
    """The jobs of one iterator, in the order in which their batches will be asked for."""

    def __init__(self) -> None:
        self._turn = Turn()
        self.renew_after_fork()
        renew_in_children(self)

    def renew_after_fork(self) -> None:
        """The parent's threads do not exist in a child, and their buffers are the parent's."""
        self._jobs: deque[Underway] = deque()
        self._idle: list[NativeThread] = []
        self._pools: list[Any] = []

    def __reduce__(self) -> tuple[type[Prefetch], tuple[()]]:
        return Prefetch, ()

    def take(self, numbers: Numbers) -> tuple[Filling, int] | None:
        """The filled buffer of these numbers, and how many were cached, if it was under way.

        What was prepared for another place is dropped.
        """
        if not self._jobs:
            return None
        with self._turn.lock:
            while self._jobs:
                job = self._jobs[0]
                if not np.array_equal(job.numbers, numbers):
                    self._drop_first()
                    continue
                problem = LOST if job.ended else job.wait()
                self._jobs.popleft()
                self._idle.append(job.thread)
                hits = job.thread.hits()
                return (job.filling, hits) if problem is None else None  # a plain read will say what is wrong
        return None

    def start(self, store: Store, numbers: Numbers, size: int, begin: Callable[[NativeThread, Filling], Any]) -> bool:
        """Fill the batch of these numbers; False where there is no room, or no thread for it."""
        with self._turn.lock:
            if any(np.array_equal(job.numbers, numbers) for job in self._jobs):
                return True
            if len(self._jobs) >= DEPTH:
                return False
            if store.pool not in self._pools:
                self._pools.append(store.pool)
                store.pool.may_reclaim(self)
            filling = store.pool.try_filling(size)
            thread = None
            if filling is not None:
                thread = self._idle.pop() if self._idle else _thread_of(store)
            if filling is None or thread is None:
                return False
            self._jobs.append(Underway(numbers, filling, thread, begin(thread, filling)))
            return True

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
        self._idle.append(job.thread)


def _thread_of(store: Store) -> NativeThread | None:
    made = store.prefetcher()
    return None if made is None else NativeThread(*made)


def prepared_ahead(store: Store) -> tuple[int, int]:
    """Batches that may be under way beside those of the caller, and bytes of staging for them: what a plan counts."""
    staging = store.staging
    return (0, 0) if staging is None else (DEPTH, (1 + DEPTH) * staging)


class Following:
    """The steps after one: ``following()`` gives the next one's numbers, ``at(k)`` those of the k-th after it."""

    __slots__ = ("at", "prefetch")

    def __init__(self, at: Callable[[int], Numbers], prefetch: Prefetch) -> None:
        self.at = at
        self.prefetch = prefetch

    def __call__(self) -> Numbers:
        return self.at(1)
