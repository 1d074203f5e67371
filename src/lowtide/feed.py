"""``Feed``: batches of rows of tokens in an order that is a pure function, with a cursor that counts rows.

Row k of the stream is computed from (data, seed, k) alone; a step's batch is rows [cursor, cursor + batch) of it and a
rank's share is its slice of those. So ranks, prefetch, budget and batch size never change what comes, and resuming is
one integer. A finite (sequential) feed ends with a step of the rows left over and one of the tokens left over.

Adds steps, ``where`` and states to the cursor, which reads (``reading/cursor.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from lowtide.arguments import whole_number
from lowtide.engine import Numbers
from lowtide.order.steps import MOST_ROWS, GlobalSteps, Skips
from lowtide.order.streams import Stream
from lowtide.reading.admission import admit
from lowtide.reading.ahead import Reader
from lowtide.reading.blocks_ahead import PlannedFollower
from lowtide.reading.cursor import Cursor
from lowtide.reading.documents.docs import DocsFiller
from lowtide.reading.places import Place
from lowtide.reading.plan import Plan

FeedBatch = Any  # (x, y), and docs where they were asked for


class RowsOfTokens(Reader, Protocol):
    """A reader of rows of ``length`` tokens."""

    @property
    def length(self) -> int: ...
    @property
    def docs(self) -> DocsFiller | None: ...
    @property
    def copying(self) -> float:
        """Seconds spent so far on copying rows again after they were read."""
        ...

    def places(self, numbers: Any) -> list[Place]: ...
    def settings(self) -> dict[str, Any]:
        """What fixes the rows beside the data and their order, safe for JSON."""
        ...

    def plan(self, rows: int) -> Plan: ...


class FeedRows(NamedTuple):
    """What a feed reads: ``numbers`` of ``stream`` by ``reader``. ``follower``: of a local shuffle; ``tail``: reads
    the one shorter row that a finite stream ends with."""

    reader: RowsOfTokens
    stream: Stream
    follower: PlannedFollower | None = None
    tail: Reader | None = None


class Ranks(NamedTuple):
    """Which reader of how many; ``stated`` when the caller said so."""

    rank: int
    world: int
    stated: bool


@dataclass(frozen=True)
class FeedStats:
    """What a feed has done so far in this process. Bytes count all readers of its stores, not only this feed."""

    steps: int
    seconds: float  # spent in next(), reading or waiting
    asked: int  # bytes of the rows asked for
    read: int  # bytes that left the files, gaps between merged neighbours included
    cached: float | None  # share of those known to have come from the page cache; None before the first read
    cold: float | None  # the rest of them: what had to come from the disk
    p50: float | None  # seconds of next() that half of the steps stayed below, to within an eighth
    p95: float | None
    p99: float | None
    reading: float  # of ``seconds``: waiting for bytes that leave a file or the page cache, widened on the way
    copying: float  # of ``seconds``: copying rows once more: widening by NumPy, or putting a mixture's rows together
    shipping: float  # beside ``seconds``: making tensors and sending them to a device


class Feed(Cursor):
    """An iterator of ``(x, y)``: C-contiguous, not aliasing, yours until dropped. ``feed[step]`` is any step's batch.

    Shuffled and random feeds never end. A step that fails (``ReadError``, ``BudgetError``, ``FormatError`` for an id
    that is too large) delivers nothing and moves nothing. Costs about 10 microseconds per batch in addition to reading.

    >>> x, y = next(feed)
    >>> x, y = feed[48_211]
    >>> feed.seek(1_000)
    >>> feed.load_state_dict(feed.state_dict())
    """

    kind = "feed"
    counts = "rows"
    _reader: RowsOfTokens
    _steps: GlobalSteps

    def __init__(self, rows: FeedRows, batch: int, ranks: Ranks, skip: Skips = ()) -> None:
        reader, stream, follower, tail = rows
        self.rank, self.world, self.ranks_stated = ranks
        steps = GlobalSteps(batch, self.rank, self.world, rows=stream.rows, tail=tail is not None, skip=skip)
        super().__init__(reader, stream, steps, follower)
        self.length = reader.length
        self.batch = batch
        self._follower = follower
        self._batches.tail_reader = tail
        self._before = self._counted()
        admit_rows(reader, steps.share)

    @property
    def tokens(self) -> Any:
        """The tokens it reads, where they are of one corpus."""
        return self._reader.tokens  # type: ignore[attr-defined]

    # Steps

    @property
    def cursor(self) -> int:
        """Rows of the global stream delivered so far."""
        return self.position

    @cursor.setter
    def cursor(self, rows: int) -> None:
        end = self._end()
        number, most = whole_number("cursor", rows, example="feed.seek(step)"), MOST_ROWS if end is None else end
        if not 0 <= number <= most:
            raise ValueError(f"cursor: expected 0 to {most} (rows of the stream), got {rows}. Use feed.seek(step).")
        self.go_to(number)

    def whole_batches(self) -> Feed:
        """This feed, without the batches at the end of a sequential order that are not full."""
        self._steps.whole_only = True
        return self

    def rows_at(self, rows: Numbers) -> FeedBatch:
        """Rows of the stream by number, in the order given, whatever the batch and the ranks; one read."""
        admit_rows(self._reader, len(rows))
        return self._reader.start(self._stream.at(rows)).finish()

    def dealing(self) -> dict[str, Any]:
        return {**super().dealing(), "skip": [list(steps) for steps in self._steps.skip]}

    @property
    def end_of_rows(self) -> int | None:
        """Rows of a finite order, without a shorter one behind them; None: without end."""
        return self._stream.rows

    @property
    def epoch_rows(self) -> int | None:
        """Rows of one epoch, or of a finite order; None where there is neither."""
        return self._stream.epoch if self._stream.rows is None else self._stream.rows

    def __len__(self) -> int:
        """Steps of a finite (sequential) feed, without those to skip."""
        if self._steps.rows is None:
            raise TypeError(
                f"feed: expected a sequential order to have a length, got {self._stream.order!r}, which has no end. "
                "Count steps yourself, or use order='sequential'."
            )
        return self._steps.steps

    def __getitem__(self, step: int) -> FeedBatch:
        """The batch of any step, without moving."""
        return self.at(self._steps.checked_row(step))

    def __getitems__(self, steps: Iterable[int]) -> list[FeedBatch]:
        """Several steps' batches: what a torch DataLoader asks a map-style dataset for."""
        return [self[step] for step in steps]

    def where(self, step: int) -> list[Place]:
        """File and byte offset of each of this rank's rows of a step, and in a mixture the corpus's name."""
        numbers = self._batches.numbers(self._steps.checked_row(step))
        return self._reader.places(np.asarray(numbers, np.int64))

    @property
    def step(self) -> int:
        """How many steps of this batch size the rows delivered so far make up."""
        return self._steps.step(self.position)

    def seek(self, step: int) -> None:
        """Go to a step; the next batch is that step's. Costs nothing, however far."""
        self.go_to(self._steps.checked_row(step))

    def _settings(self, position: int) -> dict[str, Any]:  # noqa: ARG002
        return {**self._reader.settings(), **self._stream.settings()}

    def _end(self) -> int | None:
        return None if self._steps.rows is None else self._steps.rows + self._steps.tail

    # What it costs

    def plan(self) -> Plan:
        """Projected bytes by kind and how reading happens, and why."""
        found = self._reader.plan(self._steps.share)
        found = replace(found, why=(*found.why, *self._stream.notes()))
        return found if self._follower is None else self._follower.adjusted(found)

    def stats(self) -> FeedStats:
        """Steps, waits, where their time went, and bytes, since the feed was made in this process.

        >>> feed.stats().p99
        """
        asked, read, cached = (now - then for now, then in zip(self._counted(), self._before, strict=True))
        share = cached / read if read else None
        copying = self._reader.copying
        return FeedStats(
            steps=self.delivered,
            seconds=self._seconds,
            asked=asked,
            read=read,
            cached=share,
            cold=None if share is None else 1 - share,
            p50=self._wait(0.50),
            p95=self._wait(0.95),
            p99=self._wait(0.99),
            reading=max(0.0, self._reading - copying),
            copying=copying,
            shipping=self.shipping,
        )

    def _wait(self, share: float) -> float | None:
        """Seconds that this share of the steps did not exceed."""
        left = share * self.delivered
        for kind, count in enumerate(self._waits):
            left -= count
            if count and left <= 0:
                doubling, eighth = divmod(kind, 8)
                return (9 + eighth) * 2.0 ** (doubling - 4) * 1e-9  # where this kind of wait ends
        return None

    def _counted(self) -> tuple[int, int, int]:
        asked = read = cached = 0
        for store in self.stores:
            counters = store.counters
            asked, read, cached = asked + counters.asked, read + counters.read, cached + counters.cached
        return asked, read, cached

    def __repr__(self) -> str:
        return (
            f"<lowtide.Feed {self._stream.order} batch={self.batch} length={self.length} rank={self.rank}/{self.world} "
            f"rows={self.position:,} of {self._reader.where}>"
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._before = self._counted()


def admit_rows(reader: RowsOfTokens, rows: int) -> None:
    """Refuse batches of which two, and what they are widened from, do not fit the budget."""
    if reader.docs is not None:
        reader.docs.check_size(rows)
    where = f"{reader.where}: batches of {rows} x {reader.length} per rank"
    admit(reader, rows, where, "use a batch of {} per rank".format)
