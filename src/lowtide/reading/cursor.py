"""The cursor: the one iterator. It alone knows position, lock, rollback, epochs and look-ahead.

Feeds and the iterators of arrays are thin wrappers around it. A step that fails, or is interrupted at any line,
delivers nothing and does not move. Position, state and fingerprint can be asked for at any moment, from any thread and
from a signal handler, without waiting for a batch in flight: only the steps themselves take the lock, and the
fingerprint is read with the first batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from lowtide.order.steps import Steps
from lowtide.order.streams import Stream
from lowtide.reading.ahead import Ahead, Batch, Batches, Follower, Reader
from lowtide.reading.state import VERSION, check_state
from lowtide.storage.buffers import Pool
from lowtide.storage.forks import Turn
from lowtide.storage.store import Store

WAITS = 8 * 64  # kinds of wait: up to 2**63 nanoseconds


def _forget(trace: TracebackType | None) -> None:
    """Clear the frames of a failed step: a caller that keeps the error must not keep the buffer too."""
    while trace is not None:
        try:  # noqa: SIM105 - on the way of an interrupt: no more code than this
            trace.tb_frame.clear()
        except RuntimeError:
            pass  # still running: the step itself
        trace = trace.tb_next


class Cursor:
    """Batches of a stream, one after the other. ``position`` counts what was delivered."""

    kind = "iterator"
    counts = "position"  # what a state calls the position

    def __init__(self, reader: Reader, stream: Stream, steps: Steps, follower: Follower | None = None) -> None:
        self.position = 0
        self._reader, self._stream, self._steps = reader, stream, steps
        self._batches = Batches(reader, stream, steps)
        self._ahead = Ahead(self._batches, follower)
        self._turn = Turn()
        self._fingerprint: dict[str, Any] | None = None
        self._forget_times()
        self.sought = 0  # number of seeks, even to where the cursor already was

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        began = perf_counter()
        before = after = -1
        batch: Batch | None = None
        try:
            with self._turn.lock:
                while True:
                    before, sought, had = self.position, self.sought, self.delivered
                    at = self._steps.begin(before)
                    if at is None:
                        break
                    if self._fingerprint is None:
                        self._ahead.ask(at)
                        self._fingerprint = self._reader.fingerprint()
                    batch = self._ahead.take(at) or self._batches.start(at)
                    self._ahead.keep(at)
                    started = perf_counter()
                    arrays = batch.finish()
                    following, now = self._steps.after(at), perf_counter()
                    # Eight kinds of wait for each doubling: two shifts find it, and no function of ours is called.
                    nanoseconds = int((now - began) * 1e9) | 8
                    wait = (doubling := nanoseconds.bit_length()) * 8 + (nanoseconds >> (doubling - 4)) - 8
                    # A signal handler may have run meanwhile. There is no call from here to the move, so no other can.
                    if self.delivered != had:  # it took this very batch: ours is the next one
                        batch = arrays = None
                        continue
                    if self.position == before and self.sought == sought:  # nobody called seek
                        after = self.position = following
                    self.delivered += 1
                    self._seconds += now - began
                    self._reading += now - started
                    self._waits[wait] += 1
                    return arrays
        except BaseException as problem:
            if self.position == after:  # interrupted after the position moved: this batch will come again
                self.position = before
            batch = None
            _forget(problem.__traceback__)
            raise
        self._ahead.leave()
        raise StopIteration

    def cursors(self, start: int | None = None) -> Iterator[int]:
        """The position of every step from ``start`` (or here) on, without reading or moving: how several workers share
        one order."""
        steps = self._steps
        at = steps.begin(self.position if start is None else start)
        while at is not None:
            yield at
            at = steps.begin(steps.after(at))

    def dealing(self) -> dict[str, Any]:
        """What fixes where steps begin, beside the position: workers that share them must agree. Safe for JSON."""
        return {"batch": self._steps.batch}

    @property
    def last_position(self) -> int | None:
        """Where everything was delivered; None: without end."""
        return self._end()

    def at(self, position: int) -> Any:
        """The batch of the step that begins at this position."""
        return self._batches.start(position).finish()

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the data, wherever it is copied."""
        found = self._fingerprint
        if found is None:
            self._fingerprint = found = self._reader.fingerprint()
        return found

    def state_dict(self) -> dict[str, Any]:
        """The position, and the data and order it belongs to: a few integers and a fingerprint, safe for JSON.

        >>> state = a.shuffled(4096, seed=0).state_dict()
        """
        return self.state_at(self.position)

    def state_at(self, at: int) -> dict[str, Any]:
        """The state it would have at a position."""
        return {"lowtide": VERSION, self.counts: at, **self._settings(at), "data": self.fingerprint()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the position of the state; ``StateError``, naming what differs, if its data or order is another.

        >>> it = a.shuffled(4096, seed=0)
        >>> it.load_state_dict(a.shuffled(4096, seed=0, start=8192).state_dict())
        """
        self.go_to(self.checked_position(state))

    def go_to(self, position: int) -> None:
        """Have the next batch begin at ``position``; one that is under way is still given first."""
        self.sought += 1
        self.position = position

    def checked_position(self, state: Any) -> int:
        """The position that a state holds, if it is of this data and order."""
        return check_state(state, self.state_dict(), self.counts, self.kind, self._end())

    def _settings(self, position: int) -> dict[str, Any]:
        """What fixes the order of the rows before ``position``, safe for JSON."""
        raise NotImplementedError

    def _end(self) -> int | None:
        """The last possible position; None: endless."""
        raise NotImplementedError

    @property
    def stores(self) -> tuple[Store, ...]:
        return self._reader.stores

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Where the buffers of batches come from."""
        return self._reader.pools

    def __getstate__(self) -> dict[str, Any]:
        """Another process counts its own steps and reads its own fingerprint."""
        times = ("delivered", "_seconds", "_reading", "_waits", "shipping")
        return {name: value for name, value in self.__dict__.items() if name not in times} | {"_fingerprint": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget_times()

    def _forget_times(self) -> None:
        self.delivered, self._seconds, self._reading = 0, 0.0, 0.0  # batches, and the time spent on them
        self._waits = [0] * WAITS
        self.shipping = 0.0  # seconds that whoever ships the batches to a device took for it
