"""A store over files whose blocks are made on demand: the same two verbs, and the one local path once blocks are there.

``start`` asks the maker for the blocks that are missing, ``finish`` waits for them and reads. While all blocks are
there this costs two reads of one counter per batch. When the disk is full, a block may be removed while somebody reads
it. The counter shows that; marks are then compared with those from before the read, and what changed is read again. So
nobody holds a lock while reading, and only the data itself is ever delivered.

Sequential reads ask for what follows; batches started early ask for theirs; a request that touches more blocks than
half of the disk is read in rounds.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from lowtide.blocks.asking import MAKER, Ticket
from lowtide.blocks.block_file import BLOCK
from lowtide.blocks.first_in_line import Line
from lowtide.blocks.marks import BlockMarks, Blocks, Known, MissingTemperature
from lowtide.blocks.objects import Made, MadeFile
from lowtide.errors import ReadError
from lowtide.storage.budget import Budget
from lowtide.storage.many_files import InTurns
from lowtide.storage.read import SCATTERED, SEQUENTIAL, Refused
from lowtide.storage.spans import Lengths, Offsets, Spans, each_of, each_once, placed
from lowtide.storage.store import StartedReads, Store
from lowtide.storage.watched_files import Extent, Files
from lowtide.units import MIB, format_duration, format_size

AHEAD = 32 * MIB // BLOCK  # blocks asked for ahead of sequential reads
STATED_LATENCY, AT_ONCE = 0.05, 48  # seconds and requests: of a plan's arithmetic
Found = TypeVar("Found")


def open_store(
    extents: tuple[Extent, ...],
    *,
    strategy: str = "auto",
    cache: str = "auto",
    budget: int | str | Budget = "auto",
    engine: str = "auto",
) -> Store:
    """The store of these extents: of files as they lie, or of blocks that are made."""
    kind = Store if all(extent.made is None for extent in extents) else BlockStore
    return kind(extents, strategy=strategy, cache=cache, budget=budget, engine=engine)


class BlockStore(Store):
    """Extents of made files, alone or among files that lie here, as logical bytes."""

    new_temperature, makes_blocks = MissingTemperature, True
    temperature: MissingTemperature

    def __init__(
        self,
        extents: tuple[Extent, ...],
        *,
        strategy: str = "auto",
        cache: str = "auto",
        budget: int | str | Budget = "auto",
        engine: str = "auto",
    ) -> None:
        self._stated = extents
        self._opened: dict[Made, MadeFile] = {}
        for extent in extents:
            if extent.made is not None and extent.made not in self._opened:
                self._opened[extent.made] = MadeFile(extent.made)
        super().__init__(self._local(), strategy=strategy, cache=cache, budget=budget, engine=engine)
        self.where = extents[0].path + (f" and {len(extents) - 1} more" if len(extents) > 1 else "")
        self.pool.where = self.where
        self._count_blocks()

    def _local(self) -> tuple[Extent, ...]:
        """The extents as they lie in block files, which change while they are open: marks tell what may be read."""
        return tuple(
            extent
            if extent.made is None
            else replace(extent, path=f"{self._opened[extent.made].place}/data", may_change=True, made=None)
            for extent in self._stated
        )

    def _count_blocks(self) -> None:
        by_path = {f"{file.place}/data": file for file in self._opened.values()}
        self._made = [by_path.get(path) for path in self.files.paths]  # of each file; None: it lies here
        self._here = np.array([file is None for file in self._made])
        self._round = self._most_at_once()
        stated = [file.made.reach.disk for file in self._opened.values() if file.made.reach.disk is not None]
        self.room = min(stated) if stated else None
        self._marks = BlockMarks(self._made, self.temperature)

    def _most_at_once(self) -> int:
        """Blocks one request may touch: half of the disk, so that they stay until they are read."""
        limits = []
        for file in self._opened.values():
            limit = file.made.reach.disk
            if limit is None:
                status = os.statvfs(file.root)
                limit = status.f_bavail * status.f_frsize // 2
            limits.append(limit)
        return max(8, min(limits) // 2 // BLOCK)

    # The two verbs, and what else a store does

    def start(
        self, numbers: Offsets, stride: int, length: Lengths, target: Any, how: int = SCATTERED, early: bool = False
    ) -> Any:
        asked = numbers, stride, length, target, how
        marks, taken = self._marks, self._marks.taken()
        if taken == marks.whole_at:
            return _Checked(self, asked, (None, None, taken), self._begun(asked, early))
        touched = self._touched(self.located.spans(numbers, stride, length))
        seen = marks.seen
        if taken == seen.taken and len(touched) <= self._round:
            found = seen.marks[touched]
            if (found & 1).all():  # the usual case while some other block is missing, kept short
                marks.look_at_all()
                return _Checked(self, asked, (touched, found, taken), self._begun(asked, early))
        needed = each_once(touched)
        missing = self._marks.missing(needed)
        if len(missing):
            self._ask(missing[: self._round], urgent=not early)
            if how == SEQUENTIAL:
                self._ask_ahead(int(needed[-1]))
        known = self._marks.known(needed)
        if known is not None and len(needed) <= self._round:
            return _Checked(self, asked, known, self._begun(asked, early))
        return _Checked(self, asked, (needed, None, -1), None)

    def _begun(self, asked: Any, early: bool) -> StartedReads | None:
        try:
            numbers, stride, length, target, how = asked
            return super().start(numbers, stride, length, target, how, early)
        except ReadError:  # of a file that somebody removed: finish opens it again, or says what happened
            return None

    def gather(self, numbers: Offsets, stride: int, length: int, target: Any, how: int = SCATTERED) -> None:
        self._want(numbers, stride, length, urgent=True)  # all at once, before the first is waited for
        super().gather(numbers, stride, length, target, how)

    def read_at(self, offset: int, view: Any) -> None:
        read = super().read_at
        self._surely(self._between(offset, view.nbytes), lambda: read(offset, view))

    def sample(self, offsets: list[int], length: int) -> bytes:
        read = super().sample
        needed = each_once(np.concatenate([self._between(offset, length) for offset in offsets]))
        return self._surely(needed, lambda: read(offsets, length))

    def announce(self, numbers: Offsets, stride: int, length: Lengths) -> bool:
        return self._want(numbers, stride, length, urgent=False) or super().announce(numbers, stride, length)

    def announce_long(self, offsets: Offsets, length: int, urgent: bool = False) -> None:
        if not self._want(offsets, 1, length, urgent=urgent):
            super().announce_long(offsets, length)

    def read_again(self, offsets: Offsets, length: int, when: Offsets) -> None:
        for offset, following in zip(offsets.tolist(), when.tolist(), strict=True):
            for number, start, size in each_of(self.located.spans(np.array([offset], np.int64), 1, length)):
                file, first, last = self._made[number], start // BLOCK, (start + size - 1) // BLOCK
                if file is not None:
                    file.file.next_use(first, last - first + 1, following // BLOCK + 1)

    @property
    def strategy_why(self) -> str:
        count, there = self._marks.count, self._marks.there()
        missing = count - there
        # Blocks that are read in file order are fetched 32 at a time, scattered ones each for itself.
        requests, size = -(-missing // 32), missing * BLOCK
        took = [-(-many // AT_ONCE) * STATED_LATENCY for many in (requests, missing)]
        text = f"{super().strategy_why}; {there} of {count} blocks of {format_size(BLOCK)} are here"
        if missing:
            waits = f"{format_duration(took[0])} or {format_duration(took[1])} of waiting"
            text += (
                f", the others are {format_size(size)} in {requests} requests in file order or {missing} scattered: "
                f"{waits} at {STATED_LATENCY * 1000:.0f} ms each and {AT_ONCE} at once"
            )
        return f"{text}; kept in {next(iter(self._opened.values())).root}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._stated, *self.asked, self.budget, self._ranks)

    # Which blocks

    def _between(self, offset: int, length: int) -> Blocks:
        return self._blocks(self.located.spans(np.array([offset], np.int64), 1, length))

    def _blocks(self, spans: Spans) -> Blocks:
        """The blocks these spans touch, each once, ascending."""
        return each_once(self._touched(spans))

    def _touched(self, spans: Spans) -> Blocks:
        """The same, in any order and perhaps more than once."""
        files, numbers, stride, shift, length = spans
        if len(numbers) == 0:
            return np.empty(0, np.int64)
        offsets = numbers * stride + shift
        base: Any = self._marks.bases[files]
        first = offsets // BLOCK + base
        last = np.maximum(first, (offsets + length - 1) // BLOCK + base)
        here = self._here[files]
        if np.any(here) or (not isinstance(length, int) and not np.all(length)):
            kept = ~np.broadcast_to(here, len(offsets)) & (np.broadcast_to(length, len(offsets)) > 0)
            first, last = first[kept], last[kept]
        if len(first) and int((last - first).max()) > 1:
            return np.concatenate([np.arange(a, b + 1) for a, b in zip(first.tolist(), last.tolist(), strict=True)])
        return np.concatenate((first, last))

    # Asking for them

    def _ask(self, blocks: Blocks, *, urgent: bool) -> None:
        for file, _, some in self._marks.by_file(blocks):
            file.ask(some.tolist(), urgent=urgent)

    def _ask_ahead(self, last: int) -> None:
        marks = self._marks.seen.marks
        following = np.arange(last + 1, min(last + 1 + min(AHEAD, self._round // 4), len(marks)))
        following = following[marks[following] % 2 == 0]
        if len(following):
            self._ask(following, urgent=False)

    def _want(self, numbers: Offsets, stride: int, length: Lengths, *, urgent: bool) -> bool:
        """Have what is missing made, without waiting; whether anything was missing."""
        if not len(numbers) or self._marks.taken() == self._marks.whole_at:
            return False
        missing = self._marks.missing(self._blocks(self.located.spans(numbers, stride, length)))
        if len(missing):
            self._ask(missing[: self._round // 2], urgent=urgent)
        return bool(len(missing))

    def _ensure(self, needed: Blocks, claims: list[Ticket], line: Line) -> None:
        """Wait until all of them are there; while some are missing, all are claimed, so that they come together. Where
        that was not enough, because others needed the room as well, it is our turn at some time."""
        while len(self._marks.missing(needed)):
            self._renewed()
            files = self._marks.by_file(needed)
            if claims:
                MAKER.done(claims)
                claims.clear()
                line.wait(file.root for file, _, _ in files)
                line.keep((file.place, some.tolist()) for file, _, some in files)
            asked = [
                (file, file.ask(some.tolist(), urgent=True, claim=True, first=line.first)) for file, _, some in files
            ]
            for _, tickets in asked:
                claims += tickets
            for file, tickets in asked:
                file.wait(tickets, len(needed))

    def _surely(self, needed: Blocks, read: Callable[[], Found]) -> Found:
        """What ``read`` gives while all these blocks are there, from before it begins until after its end."""
        claims: list[Ticket] = []
        with Line() as line:
            try:
                while True:
                    self._ensure(needed, claims, line)
                    known = self._marks.known(needed)
                    if known is None:
                        continue
                    try:
                        found = read()
                    except ReadError:
                        if self._renewed():
                            continue
                        raise
                    if self._marks.unchanged(known):
                        return found
            finally:
                MAKER.done(claims)

    def _renewed(self) -> bool:
        """Whether somebody had removed or damaged a block file, which has now been opened again."""
        if all(file.file.alive for file in self._opened.values()):
            return False
        for file in self._opened.values():
            if not file.file.alive:
                file.renew()
        self.files.close()
        self.extents = self._local()
        counters = self.files.counters
        self.files = Files(self.extents, self.engine)
        self.files.counters = counters
        self._strategy = self._aside = None
        self._count_blocks()
        return True

    def read_checked(self, asked: Any, known: Known, reads: StartedReads | None) -> Refused | None:
        """The end of a batch: wait for its blocks and read them, again where blocks were removed meanwhile."""
        numbers, stride, length, target, how = asked
        if reads is not None:
            try:
                found = reads.finish()
            except ReadError:
                if not self._renewed():
                    raise
            else:
                if self._marks.unchanged(known):
                    return found
        needed = self._blocks(self.located.spans(numbers, stride, length)) if known[0] is None else each_once(known[0])
        if len(needed) <= self._round:
            return self._surely(needed, lambda: Store.start(self, numbers, stride, length, target, how).finish())
        if isinstance(target, list):  # a sweep over more windows than the disk holds: batch by batch, each as it fits
            share = len(numbers) // len(target)
            for at, one in enumerate(target):
                some = numbers[at * share : (at + 1) * share]
                self.read_checked((some, stride, length, one, SCATTERED), (None, None, -1), None)
            return None
        return self._in_rounds(numbers * stride, length, target, how)

    def _in_rounds(self, offsets: Offsets, length: Lengths, target: Any, how: int) -> Refused | None:
        """More blocks than the disk holds at once: some of the spans at a time, long ones in parts. In the order of the
        data, so that each block has to come only once."""
        lengths = np.broadcast_to(length, len(offsets)).astype(np.int64)
        longest = (self._round - 2) * BLOCK
        if int(lengths.max()) > longest and not isinstance(target, tuple):
            counts = np.maximum(1, -(-lengths // longest))
            part = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
            offsets = np.repeat(offsets, counts) + part * longest
            lengths = np.minimum(longest, np.repeat(lengths, counts) - part * longest)
        places = np.cumsum(lengths) - lengths
        order = np.argsort(offsets, kind="stable")
        offsets, lengths, places = offsets[order], lengths[order], places[order]

        def between(first: int, last: int) -> Spans:
            return self.located.spans(offsets[first:last], 1, lengths[first:last])

        first = 0
        while first < len(offsets):
            many = range(first + 2, len(offsets) + 1)
            last = first + 1 + bisect_right(many, self._round, key=lambda end: len(self._blocks(between(first, end))))
            spans = between(first, last)
            here = placed(spans, lengths[first:last], places[first:last])
            refused = self._surely(self._blocks(spans), InTurns(self.strategy, spans, target, how, here).finish)
            if refused is not None:
                return refused
            first = last
        return None


class _Checked:
    """Reads of a batch, and the blocks they need."""

    __slots__ = ("_asked", "_known", "_reads", "_store")

    def __init__(self, store: BlockStore, asked: Any, known: Known, reads: StartedReads | None) -> None:
        self._store, self._asked, self._known, self._reads = store, asked, known, reads

    def finish(self) -> Refused | None:
        return self._store.read_checked(self._asked, self._known, self._reads)


def _reopen(
    extents: tuple[Extent, ...], strategy: str, cache: str, engine: str, budget: Budget, ranks: int
) -> BlockStore:
    store = BlockStore(extents, strategy=strategy, cache=cache, budget=budget, engine=engine)
    store.keep_for_ranks(ranks)
    return store
