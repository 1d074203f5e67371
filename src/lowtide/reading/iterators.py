"""Iterators over rows: batch after batch of a pass, lent to the caller.

One idea: a pass says which row is the k-th, so an iterator is a position and nothing else: it can be saved, moved, and
asked again. The next batch's rows are known before this one is read, so each step tells the kernel of the following
one, or has native threads fill it. The position moves last: a step that fails or is interrupted delivers nothing and
can be asked for again.

Costs about 10 microseconds per batch beyond the reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from lowtide.arguments import whole_number
from lowtide.reading.html_table import html_table
from lowtide.reading.passes import Pass
from lowtide.reading.prefetch import Following, Prefetch
from lowtide.reading.run_ahead import RunAhead
from lowtide.reading.state import VERSION, check_state
from lowtide.reading.upcoming import Numbers, Upcoming
from lowtide.storage import Pool
from lowtide.storage.forks import Turn


class Filler(Protocol):
    """What turns positions into batches: rows of one array, or of several together."""

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Where the buffers of batches come from."""
        ...

    def read(
        self,
        order: Pass,
        upcoming: Upcoming,
        first: int,
        count: int,
        room: int,
        following: Following | None = None,
    ) -> Any: ...


@dataclass(frozen=True)
class Share:
    """How much of a pass an iterator gives: epochs (None: without end) as one rank of several."""

    epochs: int | None = 1
    rank: int = 0
    world: int = 1


class BatchIterator:
    """Batches of rows, lent until you drop them. ``position`` counts this rank's rows over all epochs: pass it as
    ``start=`` to resume.

    Each epoch ends with its own short batch. ``len(it)`` is the number of batches left; an endless iterator raises
    ``TypeError``. ``next`` raises ``ReadError`` or ``BudgetError`` without moving: ask again and the same batch comes.

    >>> it = a.shuffled(4096, seed=0)
    >>> rows = next(it)
    >>> it.position, len(it)
    """

    def __init__(
        self,
        filler: Filler,
        order: Pass,
        batch: int,
        *,
        share: Share = Share(),  # noqa: B008 - a frozen value
        fingerprint: Callable[[], dict[str, Any]],
        runs: RunAhead | None = None,
    ) -> None:
        self._filler = filler
        self._runs = runs  # of a local shuffle
        self._order = order
        self._batch = batch
        self._share = share
        self._fingerprint = fingerprint
        rows, epochs = order.rows, share.epochs
        self._stop = None if rows is None or epochs is None else rows * epochs
        if rows == 0:
            self._stop = 0  # also of endless epochs of nothing
        self._upcoming = Upcoming(order.block, self._stop)
        self._turn = Turn()
        self._prefetch = Prefetch()
        self.position = 0

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Any:
        first = last = -1
        try:
            with self._turn.lock:
                first = self.position
                count = self._count(first)
                if count:
                    if self._runs is not None:
                        self._runs.approach(first)
                    following = None
                    if self._order.scattered:
                        following = Following(first, self._prefetch, self._following, self._numbers)
                    batch = self._filler.read(self._order, self._upcoming, first, count, self._batch, following)
                    last = first + count
                    self.position = last
                    return batch
        except BaseException:
            if self.position == last:  # interrupted after the position moved: the batch comes again
                self.position = first
            raise
        if self._runs is not None:
            self._runs.leave()
        raise StopIteration

    def __len__(self) -> int:
        """Batches left."""
        if self._stop is None:
            raise TypeError(
                "len: expected an iterator with an end, got an endless one. Count batches yourself, or state epochs=1."
            )
        rows = self._order.rows or 1
        left = self._stop - self.position
        epochs, rest = divmod(left, rows)  # whole epochs still to come, and what is left of this one
        return epochs * -(-rows // self._batch) + -(-rest // self._batch)

    def __length_hint__(self) -> int:
        return 0 if self._stop is None else len(self)

    @property
    def pools(self) -> tuple[Pool, ...]:
        return self._filler.pools

    @property
    def order(self) -> str:
        """``chunks``, ``shuffled``, ``gather`` or ``sample``."""
        return self._order.name

    @property
    def world(self) -> int:
        """How many ranks share the rows."""
        return self._share.world

    @property
    def epoch(self) -> int:
        """Epochs finished."""
        return self.position // self._order.rows if self._order.rows else 0

    def state_dict(self) -> dict[str, Any]:
        """Where this iterator is, and of which data and order: a few integers and a fingerprint, safe for JSON.

        >>> state = a.shuffled(4096, seed=0).state_dict()
        """
        return {
            "lowtide": VERSION,
            "position": self.position,
            "rank": self._share.rank,
            "world": self._share.world,
            **self._order.settings(),
            "data": self._fingerprint(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to where the state was. ``StateError``, naming what differs, if it is of other data, another order or
        rank.

        >>> it = a.shuffled(4096, seed=0)
        >>> it.load_state_dict(a.shuffled(4096, seed=0, start=8192).state_dict())
        """
        mine = self.state_dict()
        self.position = check_state(state, mine, position="position", maker="iterator", most=self._stop)

    def checked_start(self, start: int) -> int:
        """``start`` if there is such a position."""
        number = whole_number("start", start)
        if number < 0 or (self._stop is not None and number > self._stop):
            rows = "0 or more" if self._stop is None else f"0 to {self._stop}"
            raise ValueError(
                f"start: expected {rows} (rows already received), got {start}. Use start=0 for the beginning."
            )
        return number

    def __repr__(self) -> str:
        return f"<lowtide iterator {self.order} batch={self._batch} rows={self._progress()}>"

    def _repr_html_(self) -> str:
        facts = {"order": self.order, "batch": f"{self._batch:,} rows", "received": f"{self._progress()} rows"}
        if self._stop is not None:
            facts["batches left"] = f"{len(self):,}"
        if self.world > 1:
            facts["rank"] = f"{self._share.rank} of {self.world}"
        return html_table("lowtide iterator", facts)

    def _progress(self) -> str:
        return f"{self.position:,}" + (" (endless)" if self._stop is None else f" of {self._stop:,}")

    def _following(self, first: int) -> int | None:
        """Where the batch after the one at ``first`` begins; None where there is no such full batch."""
        later = first + self._count(first)
        return later if self._count(later) == self._batch else None

    def _numbers(self, first: int) -> Numbers:
        return self._upcoming.at(first, self._batch)

    def _count(self, first: int) -> int:
        if self._stop is not None and first >= self._stop:
            return 0
        rows = self._order.rows
        return self._batch if rows is None else min(self._batch, rows - first % rows)
