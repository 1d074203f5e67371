"""A store: bytes on disk, opened read-only, read many spans per call into buffers we own.

The caller says which logical bytes it wants and where they go; ``start`` begins the read and ``finish`` completes it.
How - strategy, merging, announcing, dropping, threads - is up to the store, inside one budget. Every strategy gives the
same bytes. Costs one look-up and one ``fstat`` per call on top of the reads. Knows no dtypes, rows or seeds.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from lowtide.arguments import one_of
from lowtide.engine import engine as chosen_engine
from lowtide.errors import BudgetError
from lowtide.machine import direct_alignment, file_kind, room_for_cache
from lowtide.storage.budget import SMALLEST_ALLOWANCE, Budget, Holding
from lowtide.storage.buffers import Bytes, Pool
from lowtide.storage.forks import Turn, renew_in_children
from lowtide.storage.many_files import InTurns, ReadsOfMany
from lowtide.storage.mapped import Mapped, MappedReads
from lowtide.storage.read import (
    DENSE,
    SCATTERED,
    SEQUENTIAL,
    Read,
    Reads,
    Temperature,
    announce_now,
    drop_pages,
    read_all,
)
from lowtide.storage.spans import (
    GAP,
    NETWORK_GAP,
    Lengths,
    Located,
    MergedRound,
    Offsets,
    each_of,
    few_files,
    is_dense,
    joined,
    merge,
)
from lowtide.storage.watched_files import KEPT, Extent, Files, ReadCounts
from lowtide.units import KIB, MIB, format_size

STRATEGIES = ("auto", "read", "remap", "advise", "map")
CACHES = ("auto", "keep", "drop")

MERGE_ROUND = 256 * KIB  # bytes that merged reads bring in at a time: fits the CPU's second-level cache
DENSE_ROUND = MIB  # the same if many of the bytes are asked for: shorter reads were slower, longer ones no faster
# Rows from this size on are read with the gaps between them sent elsewhere: of chunks over the bytes passed over, 0.85
# instead of 0.67 for rows of 2 KiB, 0.72 instead of 0.65 for 512 bytes, but 0.52 instead of 0.65 for 256.
SEVERAL_PLACES_FROM = 512

SMALL_TABLES = 64 * KIB  # tables that say where data is are counted from this size on

DANGER = "a file truncated while it is mapped kills the process with SIGBUS: use strategy='read' if that may happen"


# How bytes leave the file: all strategies fill the same bytes or raise the same errors.
Strategy = Read | Mapped


class Store:
    """Extents of files as logical bytes ``[0, total)``."""

    new_temperature = Temperature
    room: int | None = None  # bytes of data that can be here at once; None: all of it
    makes_blocks = False  # true: what is read may have to be made first

    def __init__(
        self,
        extents: tuple[Extent, ...],
        *,
        strategy: str = "auto",
        cache: str = "auto",
        budget: int | str | Budget = "auto",
        engine: str = "auto",
    ) -> None:
        if strategy == "direct":
            raise ValueError(
                "strategy: expected one of auto, read, remap, advise, map, got 'direct', which no longer exists. "
                "Use cache='drop': it reads uncached data by O_DIRECT."
            )
        self.asked = one_of("strategy", strategy, STRATEGIES), one_of("cache", cache, CACHES), engine
        self.engine = chosen_engine(engine)
        self.extents = extents
        self.where = extents[0].path if extents else "(no files)"
        if len(extents) > 1:
            self.where += f" and {len(extents) - 1} more"
        self.budget = budget if isinstance(budget, Budget) else Budget(budget)
        self.pool = Pool(self.budget, where=self.where)
        self.files = Files(extents, self.engine)
        self.located = Located(extents, self.files.which)
        self.total = self.located.total
        self._single = self.located.single
        self.tables = self.located.nbytes + sum(extent.pieces.nbytes for extent in extents if extent.pieces is not None)
        self.tables *= self.tables > SMALL_TABLES  # bytes of the budget that say where data lies
        self._held_tables = self._hold_tables() if self.tables else None
        kind = file_kind(extents[0].path) if extents else None
        self.gap = NETWORK_GAP if kind is not None and kind.network else GAP
        self.drop, self.cache_why = self._decide_cache(cache)
        self.closed = False
        self._ranks = 1
        self._turn = Turn()
        self._aside: Holding | None = None
        self._strategy: Strategy | None = None
        self._why = ""
        self.temperature = self.new_temperature()
        renew_in_children(self)
        self._ready()  # a budget too small for the strategy is refused here

    def _hold_tables(self) -> Holding:
        size = self.tables
        found = self.budget.reserve(size, aside=True, urgent=True)
        if found is None:
            raise BudgetError(
                f"{self.where}: expected a budget that holds where {len(self.located.ends)} pieces of data lie, "
                f"{format_size(size)}, got {format_size(self.budget.limit)}. Open it with budget={4 * size} or more."
            )
        return found

    # What a user may do with it

    def start(
        self, numbers: Offsets, stride: int, length: Lengths, target: Any, how: int = SCATTERED, early: bool = False
    ) -> StartedReads:
        """Read ``length`` bytes at each ``number * stride`` into ``target``; ``finish`` completes it.

        ``target``: a writable buffer, filled one span after the other, or the pair that windows are widened into; where
        it ``sweeps``, also a list of buffers, each filled to its end.
        """
        strategy = self._strategy or self._ready()
        if self._single is not None:
            return strategy.start((0, numbers, stride, self._single, length), target, how, early)
        return self._start_in_many(strategy, numbers, stride, length, target, how, early)

    def gather(self, numbers: Offsets, stride: int, length: int, target: Any, how: int = SCATTERED) -> None:
        """Fill ``target`` with bytes that may be neighbours; they are read together if that saves reads."""
        if self.strategy.name == "map":  # makes no reads that could be saved
            self.start(numbers, stride, length, target, how).finish()
            return
        dense = length == stride and self.strategy.name == "read" and is_dense(numbers, stride, 2 * self.gap)
        if dense and how == SCATTERED and stride >= SEVERAL_PLACES_FROM and self._keeps_natively:
            self.start(numbers, stride, length, target, DENSE).finish()
            return
        if dense and self._gather_dense(numbers, stride, target, how):
            return
        if length == stride and (runs := joined(numbers, length, self.gap // 2)) is not None:
            self.start(*runs, target, how).finish()
            return
        most = max(length, min(MERGE_ROUND, self.budget.limit // 32))
        rounds = merge(numbers * stride, length, gap=self.gap, most=most)
        if rounds is not None and self._gather_merged(rounds, length, target, how):
            return
        self.start(numbers, stride, length, target, how).finish()

    def run(self, offset: int, length: int, target: Any) -> None:
        """Fill ``target`` with consecutive bytes."""
        if length:
            self.start(np.array([offset], np.int64), 1, length, target, SEQUENTIAL).finish()

    def read_at(self, offset: int, view: Any) -> None:
        """Fill ``view``, a small contiguous buffer, with the bytes at ``offset``."""
        strategy = self._strategy or self._ready()
        if self._single is not None:
            strategy.read_at(0, offset + self._single, view)
            return
        files, numbers, _, _, _ = self.located.spans(np.array([offset], np.int64), 1, view.nbytes)
        if len(numbers) == 1 and isinstance(files, list):
            strategy.read_at(files[0], int(numbers[0]), view)
        else:
            self.start(np.array([offset], np.int64), 1, view.nbytes, memoryview(view).cast("B")).finish()

    def announce(self, numbers: Offsets, stride: int, length: Lengths) -> bool:
        """Tell the kernel of scattered reads to come if that helps; returns whether it was told."""
        if not len(numbers):
            return False
        spans, _ = next(few_files(self.located.spans(numbers, stride, length), KEPT.together))
        return self.strategy.announce(spans)

    def announce_long(self, offsets: Offsets, length: int, urgent: bool = False) -> None:  # noqa: ARG002
        """Tell the kernel that the ``length`` bytes from each of these offsets on will be read, in any order.
        ``urgent``: they are waited for; it matters where blocks are made."""
        for spans, _ in few_files(self.located.spans(offsets, 1, length), KEPT.together):
            announce_now(self.files, spans)

    def read_again(self, offsets: Offsets, length: int, when: Offsets) -> None:
        """Told when these bytes will be read next, in bytes read until then: helps to choose what stays cached."""

    def drop_long(self, offsets: Offsets, length: int) -> None:
        """Evict these bytes from the page cache, for every process."""
        for spans, _ in few_files(self.located.spans(offsets, 1, length), KEPT.together):
            for file, start, size in each_of(spans):
                drop_pages(self.files.descriptor(file, True).number, start, size)

    def sample(self, offsets: list[int], length: int) -> bytes:
        """Small blocks, one after the other: by plain reads that need no queue or lock, so that a signal handler
        may ask for a fingerprint while a batch is being read."""
        found = []
        for offset in offsets:
            for file, start, size in each_of(self.located.spans(np.array([offset], np.int64), 1, length)):
                block = memoryview(bytearray(size))
                descriptor = self.files.descriptor(file, True)  # held to the end: its last reference closes it
                read_all(self.files.paths[file], descriptor.number, start, block)
                self.files.still(file, descriptor)
                if self.drop:
                    drop_pages(descriptor.number, start, size)
                found.append(block.tobytes())
        return b"".join(found)

    @property
    def prepares(self) -> bool:
        """Whether a batch that is started early is read by another thread."""
        return (self._strategy or self._ready()).prepares

    @property
    def sweeps(self) -> bool:
        """Whether it fills many buffers in one sweep over its files, in another thread; not where their owner may write
        meanwhile."""
        few = len(self.files) <= KEPT.together
        return few and (self.makes_blocks or self.files.settled) and self.strategy.name == "read" and self.prepares

    @property
    def sweeps_direct(self) -> bool:
        """Whether such a sweep can go past the page cache."""
        strategy = self.strategy
        return self.sweeps and not self.makes_blocks and isinstance(strategy, Read) and strategy.sweeps_direct

    @property
    def counters(self) -> ReadCounts:
        """Bytes asked for, read, and known to come from the page cache, since the store was opened."""
        return self.files.counters

    @property
    def strategy(self) -> Strategy:
        """The strategy in use, with descriptors of this very process."""
        return self._strategy or self._ready()

    @property
    def strategy_why(self) -> str:
        """Why this strategy was chosen, in words for ``plan()``."""
        return self._why + self.strategy.note

    def keep_for_ranks(self, world: int) -> None:
        """Ranks that share files must not evict each other's pages; a stated ``cache="drop"`` is obeyed."""
        self._ranks = max(self._ranks, world)
        if self._ranks > 1 and self.drop and self.asked[1] == "auto":
            self.drop = False
            self.cache_why = f"{self._ranks} ranks share these files, and dropping would evict what the others need"
            self._strategy = self._aside = None
            self._ready()

    def renew_after_fork(self) -> None:
        """A child's strategy is its own: made at its first read."""
        self._strategy = self._aside = None

    def close(self) -> None:
        """Close every file and give free buffers back. Arrays already handed out stay valid."""
        if not self.closed:
            self.closed = True
            strategy, self._strategy = self._strategy, None
            self.files.close()
            if strategy is not None:
                strategy.close()
            self.pool.trim()
            self._aside = self._held_tables = None

    def require_open(self) -> None:
        if self.closed:
            raise ValueError(f"{self.where}: expected an open store, got a closed one. Open it again.")

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.extents, *self.asked, self.budget, self._ranks)

    # How it does it

    def _start_in_many(
        self, strategy: Strategy, numbers: Offsets, stride: int, length: Lengths, target: Any, how: int, early: bool
    ) -> StartedReads:
        if how == SCATTERED and strategy.name == "read" and not early and self.files.watchable:
            found = self._watched(strategy, numbers, stride, length, target)
            if found is not None:
                return found
        return self.start_spans(numbers, stride, length, target, how, early=early)

    def start_spans(
        self, numbers: Offsets, stride: int, length: Lengths, target: Any, how: int, *, early: bool
    ) -> Reads | MappedReads | InTurns:
        """The same, each file looked at before it is read and afterwards."""
        strategy, spans = self.strategy, self.located.spans(numbers, stride, length)
        if isinstance(spans[0], int) or len(set(spans[0])) <= KEPT.together:
            return strategy.start(spans, target, how, early)
        return InTurns(strategy, spans, target, how)

    def _watched(
        self, strategy: Any, numbers: Offsets, stride: int, length: Lengths, target: Any
    ) -> StartedReads | None:
        """Spans of files that are all open: found in one native call, and looked at in another when they are read."""
        if strategy.temperature.cold or strategy.way != "announce" or strategy.drop:
            return None
        table, held = self.files.watched(self.located.ends, self.located.shift, self.located.which)
        fds, offsets = np.empty(len(numbers), np.int32), np.empty(len(numbers), np.int64)
        numbers = np.ascontiguousarray(numbers)
        located = numbers, stride, length, fds, offsets
        if not self.engine.locate(table, *located, False):
            return None
        reads = strategy.start_located(table, located, target, held)
        return ReadsOfMany(self, table, located, reads, target)

    @property
    def _keeps_natively(self) -> bool:
        return self.engine.name == "native" and not self.drop and not self.makes_blocks

    def _gather_dense(self, rows: Offsets, size: int, target: Any, how: int) -> bool:
        """Read all between the first and the last of growing ``rows`` in large pieces, and copy out what was asked for;
        False if there is no room for a piece."""
        step = min(DENSE_ROUND, self.budget.limit // 32) // size
        scratch = self.pool.try_take(min(step, int(rows[-1] - rows[0]) + 1) * size) if step else None
        if scratch is None:
            return False
        out: Bytes = np.frombuffer(target, np.uint8) if not isinstance(target, np.ndarray) else target
        done, inside, how = 0, (rows - rows[0]) * size, SEQUENTIAL if how == SCATTERED else how
        while done < len(rows):
            first = rows[done]
            end = done + int(np.searchsorted(rows[done : done + step], first + step))
            piece = scratch[: int(rows[end - 1] - first + 1) * size]
            self.start(rows[done : done + 1], size, len(piece), piece, how).finish()
            self.engine.copy_rows(piece, inside[done:end] - inside[done], size, out[done * size :], None)
            done = end
        return True

    def _gather_merged(self, rounds: list[MergedRound], length: int, target: Any, how: int) -> bool:
        """Read neighbours together into scratch, then put each span in its place; False if it has no room."""
        scratch = self.pool.try_take(max(int(turn.lengths.sum()) for turn in rounds))
        if scratch is None:
            return False
        out: Bytes = np.frombuffer(target, np.uint8) if not isinstance(target, np.ndarray) else target
        for turn in rounds:
            self.start(turn.starts, 1, turn.lengths, scratch[: int(turn.lengths.sum())], how).finish()
            self.engine.copy_rows(scratch, turn.inside, length, out, turn.numbers)
        return True

    def _decide_cache(self, cache: str) -> tuple[bool, str]:
        if cache != "auto":
            return cache == "drop", f"cache={cache!r} was asked for"
        room, source = room_for_cache()
        fits = self.total <= room // 2
        verb = "fits" if fits else "does not fit"
        return not fits, f"{format_size(self.total)} of data {verb} in half of {format_size(room)} ({source})"

    def _ready(self) -> Strategy:
        """The strategy, made once per process; threads that come meanwhile wait for it."""
        self.require_open()
        with self._turn.lock:
            if self._strategy is None:
                made, self._why = self._make_strategy(self.asked[0])
                self.budget.may_shrink(made)
                self._strategy = made
            return self._strategy

    def _make_strategy(self, asked: str) -> tuple[Strategy, str]:
        why = f"strategy={asked!r} was asked for"
        if asked == "auto":
            why = "reads into our own buffers: bounded, and a truncated file is an error, not a crash"
        if asked in ("auto", "read"):
            alignment = self._direct_alignment() if self.engine.name == "native" else None
            made = Read(self.files, self.engine, self.budget, self.temperature, drop=self.drop, alignment=alignment)
            return made, why
        why = f"{why}; {DANGER}"
        allowance = 0 if asked == "map" else self._allow(asked)
        made_of = self.files, self.engine, self.temperature
        return Mapped(*made_of, name=asked, drop=self.drop, allowance=allowance), why

    def _allow(self, name: str) -> int:
        """Set aside what the strategy may hold mapped while it is open."""
        self._aside = self.budget.allow_mapped()
        if self._aside is None:
            least = self.budget.aside + 4 * SMALLEST_ALLOWANCE
            raise BudgetError(
                f"{self.where}: expected a budget of {format_size(least)} or more for "
                f"strategy={name!r}, got {format_size(self.budget.limit)}. Raise the budget or use strategy='read'."
            )
        return self._aside.size

    def _direct_alignment(self) -> int | None:
        try:
            number = os.open(self.extents[0].path, os.O_RDONLY | os.O_DIRECT)
        except (OSError, AttributeError, IndexError):
            return None
        try:
            return direct_alignment(number)
        finally:
            os.close(number)


StartedReads = Reads | MappedReads | InTurns | ReadsOfMany


def _reopen(extents: tuple[Extent, ...], strategy: str, cache: str, engine: str, budget: Budget, ranks: int) -> Store:
    store = Store(extents, strategy=strategy, cache=cache, budget=budget, engine=engine)
    store.keep_for_ranks(ranks)
    return store
