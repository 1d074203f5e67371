"""A store: bytes on disk, opened read-only, read many runs per call into buffers we own.

One idea: the caller says *which* logical bytes it wants now and which it will want next; the store alone decides how -
strategy, merging, announcing, dropping - inside one budget. Every strategy fills the same bytes.

Costs one lookup and one fstat per call on top of the reads. Knows no dtypes, rows or seeds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from lowtide import _native
from lowtide.arguments import one_of
from lowtide.errors import BudgetError
from lowtide.machine import direct_alignment, file_kind, room_for_cache
from lowtide.storage.budget import Budget, Holding
from lowtide.storage.buffers import Buffer, Filling, Pool
from lowtide.storage.descriptors import KEPT, Extent, Files, ReadCounts
from lowtide.storage.direct import Direct
from lowtide.storage.forks import Turn, renew_in_children
from lowtide.storage.many_files import windows_located
from lowtide.storage.mapped import Cured, Map
from lowtide.storage.native_read import NativeRead
from lowtide.storage.read import Read
from lowtide.storage.spans import GAP, NETWORK_GAP, Ahead, Located, Offsets, Round, Spans, merge
from lowtide.storage.strategy import Strategy
from lowtide.units import KIB, MIB, format_size

STRATEGIES = ("auto", "read", "direct", "remap", "advise", "map")
CACHES = ("auto", "keep", "drop")

MERGE_ROUND = 256 * KIB  # bytes merged reads bring in at a time: stays in the CPU's second-level cache
LARGEST_ALLOWANCE = 16 * MIB
SMALLEST_ALLOWANCE = 256 * KIB

DANGER = "a file truncated while it is mapped kills the process with SIGBUS: use strategy='read' where that may happen"


class Store:
    """Extents of files as one run of logical bytes ``[0, total)``."""

    def __init__(
        self,
        extents: tuple[Extent, ...],
        *,
        strategy: str = "auto",
        cache: str = "auto",
        budget: int | str | Budget = "auto",
        engine: str = "auto",
    ) -> None:
        self.asked = one_of("strategy", strategy, STRATEGIES), one_of("cache", cache, CACHES), engine
        self.engine = _native.engine(engine)
        self.extents = extents
        self.where = extents[0].path if extents else "(no files)"
        if len(extents) > 1:
            self.where += f" and {len(extents) - 1} more"
        self.budget = budget if isinstance(budget, Budget) else Budget(budget)
        self.pool = Pool(self.budget, where=self.where)
        self.files = Files(extents, self.engine)
        self.located = Located(extents)
        self.total = self.located.total
        kind = file_kind(extents[0].path) if extents else None
        self.gap = NETWORK_GAP if kind is not None and kind.network else GAP
        self.drop, self.cache_why = self._decide_cache(cache)
        self.closed = False
        self.keeping: Store | None = None  # the same bytes for a reader that drops behind itself (long_runs.py)
        self._ranks = 1
        self._turn = Turn()
        self._aside: Holding | None = None
        self._strategy: Strategy | None = None
        self.strategy_why = ""
        renew_in_children(self)
        self._ready()  # a budget too small for the strategy is refused here

    # What a user may do with it

    def gather(
        self,
        numbers: Offsets,
        stride: int,
        length: int,
        buffer: Buffer,
        *,
        ahead: Callable[[], Offsets] | None = None,
        sparse: bool = False,
    ) -> None:
        """Fill ``buffer`` with the runs of ``length`` bytes at ``number * stride``, in this order, one after the other.

        ``ahead`` gives the next call's numbers, of which the kernel is told before the first read while reads miss.
        ``sparse``: the caller knows that few of them are neighbours, so looking for runs to merge is not worth it.
        """
        if length == 0 or len(numbers) == 0:
            return
        self.files.counters.asked += length * len(numbers)
        if not sparse and self.strategy.merges:
            rounds = merge(numbers * stride, length, gap=self.gap, most=self._merge_round(length))
            if rounds is not None and self._gather_merged(rounds, length, buffer):
                return
        later = None if ahead is None else lambda: self.located.spans(ahead(), stride, length)
        self.fill(self.located.spans(numbers, stride, length), buffer, ahead=later, scattered=True)

    def fetch(self, numbers: Offsets, stride: int, length: int) -> NDArray[np.uint8] | None:
        """The same runs as rows of a fresh array, where the strategy has a way without a buffer between; else None."""
        found = self.strategy.fetch(self.located.spans(numbers, stride, length))
        self.files.counters.asked += 0 if found is None else found.nbytes
        return found

    def run(self, offset: int, length: int, buffer: Buffer) -> None:
        """Fill ``buffer`` with one run of consecutive bytes."""
        if length:
            self.files.counters.asked += length
            self.fill(self.one_run(offset, length), buffer, scattered=False)

    def one_run(self, offset: int, length: int) -> Spans:
        return self.located.spans(np.array([offset], np.int64), 1, length)

    def windows(
        self, numbers: Offsets, stride: int, pair: _native.Pair, *, ahead: Callable[[], Offsets] | None = None
    ) -> bool:
        """The windows at ``number * stride`` read and widened into ``pair`` in one pass.

        False where that cannot be: the strategy has no such pass, or an id is wrong (then a plain read says which).
        """
        strategy = self.strategy
        if not strategy.widens:
            return False
        length = (pair.length + 1) * stride
        if len(self.extents) > 1:
            total = length * len(numbers)
            if windows_located(strategy, self.located, (numbers, stride, length), pair, total):
                return True
        spans = self.located.spans(numbers, stride, length)
        if len(spans.files) > 1 and (strategy.name == "map" or len(spans.files) > KEPT.together):
            return False
        later = None if ahead is None else lambda: self.located.spans(ahead(), stride, length)
        self.files.counters.asked += length * len(numbers)
        read: bool = strategy.windows(spans, pair, ahead=later)  # type: ignore[attr-defined]
        return read

    @property
    def cold(self) -> bool:
        """Whether the last scattered reads missed the page cache, and there are threads that can read ahead."""
        strategy = self.strategy
        return isinstance(strategy, NativeRead) and strategy.temperature.cold

    def prefetcher(self) -> tuple[_native.Prefetching, Holding | None] | None:
        """A native thread for somebody's next batch, where the budget has room for its staging."""
        strategy = self.strategy
        return strategy.prefetcher() if isinstance(strategy, NativeRead) else None

    @property
    def staging(self) -> int | None:
        """Bytes that each native queue may hold for itself; None where there are no native threads."""
        strategy = self.strategy
        return strategy.staging if isinstance(strategy, NativeRead) else None

    def startable(self, numbers: Offsets, stride: int, length: int) -> Spans | None:
        """The runs of ``length`` bytes at ``number * stride``, for a native thread; None where one call cannot read
        them all."""
        spans = self.located.spans(numbers, stride, length)
        return spans if len(spans.files) == 1 or len(spans.files) <= KEPT.together else None

    def start_windows(self, thread: _native.Prefetching, spans: Spans, pair: _native.Pair) -> tuple[Any, ...]:
        """Let ``thread`` read and widen these windows; what is returned must live until it has."""
        strategy = self.strategy
        assert isinstance(strategy, NativeRead)  # it made the thread
        runs, held = strategy.runs(spans, scattered=True)
        thread.start_windows(runs, pair, strategy.dropping(True))
        return runs, held, pair

    def start_gather(self, thread: _native.Prefetching, spans: Spans, into: NDArray[Any]) -> tuple[Any, ...]:
        """Let ``thread`` read these runs into an array, one after the other."""
        strategy = self.strategy
        assert isinstance(strategy, NativeRead)
        runs, held = strategy.runs(spans, scattered=True)
        thread.start_gather(runs, into, strategy.dropping(True))
        return runs, held, into

    def prefetched(self, count: int, length: int, hits: int) -> None:
        """Count that many runs of ``length`` bytes, which a native thread has read, ``hits`` of them from the cache."""
        strategy = self.strategy
        if isinstance(strategy, NativeRead):
            strategy.prefetched(hits, count, count * length)
        self.files.counters.asked += count * length

    def filling(self, size: int) -> Filling:
        """A buffer from the budget, to fill and lend: ``with store.filling(size) as out: ...``."""
        self.require_open()
        return self.pool.filling(size)

    @property
    def counters(self) -> ReadCounts:
        """Bytes asked for, read, and known to come from the page cache, since the store was opened."""
        return self.files.counters

    @property
    def strategy(self) -> Strategy:
        """The strategy in use, with descriptors of this very process."""
        self.require_open()
        return self._strategy or self._ready()

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
            if self.keeping is not None:
                self.keeping.close()
            self.files.close()
            if self._strategy is not None:
                self._strategy.close()
            self.pool.trim()
            self._aside = None

    def require_open(self) -> None:
        if self.closed:
            raise ValueError(f"{self.where}: expected an open store, got a closed one. Open it again.")

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.extents, *self.asked, self.budget, self._ranks)

    # How it does it

    def fill(self, spans: Spans, buffer: Buffer, *, ahead: Ahead = None, scattered: bool) -> None:
        """Through the strategy, a bounded number of files at a time."""
        strategy = self.strategy
        if len(spans.files) == 1:
            strategy.fill(spans, buffer, ahead=ahead, scattered=scattered)
            return
        most = KEPT.together
        later = None if ahead is None else lambda: next(ahead().few_files(most))[0]
        for part, start in spans.few_files(most):
            strategy.fill(part, buffer.after(start), ahead=later, scattered=scattered)

    def _merge_round(self, length: int) -> int:
        return max(length, min(MERGE_ROUND, self.budget.limit // 32))

    def _gather_merged(self, rounds: list[Round], length: int, buffer: Buffer) -> bool:
        """Read neighbours together into scratch, then put each run in its place; False if there is no room for it."""
        self.require_open()
        filling = self.pool.try_filling(max(int(turn.lengths.sum()) for turn in rounds))
        if filling is None:
            return False
        with filling as scratch:
            for turn in rounds:
                self.fill(self.located.unequal(turn.starts, turn.lengths), scratch.buffer, scattered=True)
                _scatter(scratch.buffer, turn, length, buffer.bytes)
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
        with self._turn.lock:
            if self._strategy is None:
                self._strategy, self.strategy_why = self._make_strategy(self.asked[0])
            return self._strategy

    def _make_strategy(self, asked: str) -> tuple[Strategy, str]:
        why = f"strategy={asked!r} was asked for"
        name = asked
        if asked == "auto":
            name, why = "read", "reads into our own buffers: bounded, and no mapping to be killed by"
        native = self.engine.name == "native"
        alignment = self._direct_alignment() if native or name == "direct" else None
        if native and (name == "read" or (name == "direct" and alignment is not None)):
            return self._native_strategy(name, alignment), why
        if name == "direct":
            if alignment is not None:
                return Direct(self.files, alignment=alignment, allowance=self._allow(name, 4 * alignment)), why
            why = "this filesystem refuses O_DIRECT, so strategy 'read' with fadvise(DONTNEED) stands in"
            return Read(self.files, drop=True), why
        if name == "read":
            return Read(self.files, drop=self.drop), why
        why = f"{why}; {DANGER}"
        if name == "map":
            return Map(self.files, self.engine, drop=self.drop), why
        return Cured(self.files, name=name, drop=self.drop, allowance=self._allow(name)), why

    def _native_strategy(self, name: str, alignment: int | None) -> NativeRead:
        made = NativeRead(self.files, self.engine, self.budget, name=name, drop=self.drop, alignment=alignment)
        self.pool.may_reclaim(made)
        return made

    def _allow(self, name: str, least: int = 0) -> int:
        """Set aside what the strategy itself may hold as long as it is open: staging buffers or mapped pages."""
        least = max(least, SMALLEST_ALLOWANCE)
        allowance = max(least, min(LARGEST_ALLOWANCE, self.budget.limit // 4))
        if 4 * least <= self.budget.limit:
            self._aside = self.budget.reserve(allowance, aside=True)
        if self._aside is None:
            raise BudgetError(
                f"{self.where}: expected a budget of {format_size(4 * least)} or more for "
                f"strategy={name!r}, got {format_size(self.budget.limit)}. Raise the budget or use strategy='read'."
            )
        return allowance

    def _direct_alignment(self) -> int | None:
        try:
            number = os.open(self.extents[0].path, os.O_RDONLY | os.O_DIRECT)
        except (OSError, AttributeError, IndexError):
            return None
        try:
            return direct_alignment(number)
        finally:
            os.close(number)


def _scatter(scratch: Buffer, turn: Round, length: int, out: NDArray[np.uint8]) -> None:
    """Runs that lie anywhere in ``scratch`` to their rows of ``out``, in steps: what NumPy copies between is small."""
    data = scratch.bytes
    anywhere = as_strided(data, (len(data) - length + 1, length), (1, 1), writeable=False)
    rows = out[: len(out) // length * length].reshape(-1, length)
    step = max(1, MERGE_ROUND // length)
    for first in range(0, len(turn.runs), step):
        part = slice(first, first + step)
        rows[turn.runs[part]] = anywhere[turn.inside[part]]


def _reopen(extents: tuple[Extent, ...], strategy: str, cache: str, engine: str, budget: Budget, ranks: int) -> Store:
    store = Store(extents, strategy=strategy, cache=cache, budget=budget, engine=engine)
    store.keep_for_ranks(ranks)
    return store
