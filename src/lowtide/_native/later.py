"""The prefetcher's twin in Python: reads are announced at ``start`` and made at ``wait``.

One idea: without a thread of its own nothing can write into the target behind the caller's back, and nothing has to
end at exit or after a fork; the kernel, once told, reads ahead by itself. Costs one announcement per run at ``start``.
Does not read before ``wait`` is called.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from lowtide._native.runs import (
    DROP_SEQUENTIAL,
    KEEP,
    PAGE,
    Pair,
    Placed,
    Problem,
    Runs,
    bad_value,
    place,
    place_windows,
    writable,
)
from lowtide._native.twin import Queue, announce_placed

Fill = Callable[[Runs, Any, int], Problem | None]


class Prefetcher:
    """A queue whose next fill is announced at ``start`` and made at ``wait``: no thread, nothing to end."""

    def __init__(self, way: str, depth: int = 64, staging: int = 1 << 20, alignment: int = PAGE) -> None:
        self._queue = Queue(way, depth, staging, alignment)
        self._work: tuple[Fill, Runs, Any, int] | None = None
        self._owner = os.getpid()

    def start_gather(self, runs: Runs, into: Any, drop: int) -> None:
        """``Queue.gather`` of these, later."""
        self._start(self._queue.gather, place(runs, writable("into", into).nbytes, 1), runs, into, drop)

    def start_windows(self, runs: Runs, pair: Pair, drop: int) -> None:
        """``Queue.windows`` of these, later."""
        self._start(self._queue.windows, place_windows(runs, pair)[0], runs, pair, drop)

    def _start(self, fill: Fill, placed: Placed, runs: Runs, target: Any, drop: int) -> None:
        self._left_behind()
        if drop not in (KEEP, 1, DROP_SEQUENTIAL):
            raise bad_value("drop", "0, 1 or 2", drop)
        if self._queue.closed:
            raise ValueError("queue: expected an open queue, got a closed one. Open it again.")
        if self._work is not None:
            raise RuntimeError(
                "prefetch: expected nothing under way, got a second start. Call wait() or cancel() first."
            )
        # Copies: the caller may use its arrays again before wait().
        copies: list[Any] = [np.array(part) if hasattr(part, "__len__") else part for part in runs]
        kept = Runs(*copies)
        self._work = (fill, kept, target, drop)
        if placed.direct is None:
            announce_placed(placed, range(len(placed.offsets)))

    def wait(self) -> Problem | None:
        """Make the reads that were started; their result."""
        if self._left_behind():
            raise RuntimeError(
                "prefetch: expected a batch started in this process, got one of the process it was forked from. "
                "Start it again."
            )
        work, self._work = self._work, None
        if work is None:
            raise RuntimeError("prefetch: expected something under way, got nothing to wait for. Start it first.")
        fill, runs, target, drop = work
        return fill(runs, target, drop)

    def cancel(self) -> None:
        """Forget what was started."""
        self._work = None

    def ready(self) -> bool:
        """Whether ``wait`` would return at once: never, here."""
        return False

    def counters(self) -> tuple[int, int, int]:
        return self._queue.counters()

    def close(self) -> None:
        self.cancel()
        self._queue.close()

    def _left_behind(self) -> bool:
        """In a child of fork what the parent started is not ours."""
        if self._owner == os.getpid():
            return False
        had, self._work, self._owner = self._work is not None, None, os.getpid()
        return had
