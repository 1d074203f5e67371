"""A store: bytes on disk, opened read-only, read many runs per call into buffers we own.

One idea: the caller says *which* logical bytes it wants now and which it will want next; the store alone decides how -
strategy, merging, announcing, dropping - inside one budget. Every strategy fills the same bytes.

Costs one lookup and one fstat a call on top of the reads. Knows no dtypes, rows or seeds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from lowtide.errors import BudgetError
from lowtide.machine import direct_alignment, file_kind, room_for_cache
from lowtide.storage.buffers import Budget, Buffer, Pool
from lowtide.storage.direct import Direct
from lowtide.storage.files import MOST_OPEN, MOST_TOGETHER, Extent, Files, identities_of
from lowtide.storage.mapped import MOST_MAPPED, Cured, Map
from lowtide.storage.pread import Read
from lowtide.storage.spans import GAP, NETWORK_GAP, Ahead, Located, Offsets, Round, Spans, merge
from lowtide.units import KIB, MIB, format_size

STRATEGIES = ("auto", "read", "direct", "remap", "advise", "map")
CACHES = ("auto", "keep", "drop")

MERGE_ROUND = 256 * KIB  # bytes merged reads bring in at a time: stays in the CPU's second-level cache
LARGEST_ALLOWANCE = 16 * MIB
SMALLEST_ALLOWANCE = 256 * KIB


class Strategy(Protocol):
    """How bytes leave the file. All of them fill the same bytes or raise the same errors."""

    @property
    def name(self) -> str: ...
    @property
    def rung(self) -> str: ...
    def fill(self, spans: Spans, buffer: Buffer, *, ahead: Ahead = None, scattered: bool) -> None: ...
    def close(self) -> None: ...


class Store:
    """Extents of files as one run of logical bytes ``[0, total)``."""

    def __init__(
        self,
        extents: tuple[Extent, ...],
        *,
        strategy: str = "auto",
        cache: str = "auto",
        budget: int | str | Budget = "auto",
    ) -> None:
        _known("strategy", strategy, STRATEGIES)
        _known("cache", cache, CACHES)
        self.extents = extents
        self.asked = (strategy, cache)
        self.where = extents[0].path if extents else "(no files)"
        if len(extents) > 1:
            self.where += f" and {len(extents) - 1} more"
        self.budget = budget if isinstance(budget, Budget) else Budget(budget)
        self.pool = Pool(self.budget, where=self.where)
        self._located = Located(extents)
        self.total = self._located.total
        kind = file_kind(extents[0].path) if extents else None
        self.gap = NETWORK_GAP if kind is not None and kind.network else GAP
        self.drop, self.cache_why = self._decide_cache(cache)
        self.closed = False
        self._process = os.getpid()
        self._identities = identities_of(extents)
        self._allowance = 0
        self._strategy, self.strategy_why = self._make_strategy(strategy)

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
        strategy = self.strategy
        if not sparse and strategy.name != "map":  # merging saves reads, and a mapping makes none
            rounds = merge(numbers * stride, length, gap=self.gap, most=self._merge_round(length))
            if rounds is not None and self._gather_merged(rounds, length, buffer):
                return
        later = None if ahead is None else lambda: self._located.spans(ahead(), stride, length)
        self._fill(self._located.spans(numbers, stride, length), buffer, ahead=later, scattered=True)

    def fetch(self, numbers: Offsets, stride: int, length: int) -> NDArray[np.uint8] | None:
        """The same runs as rows of a fresh array, where the strategy has a way without a buffer between; else None."""
        strategy = self.strategy
        return strategy.fetch(self._located.spans(numbers, stride, length)) if isinstance(strategy, Map) else None

    def run(self, offset: int, length: int, buffer: Buffer) -> None:
        """Fill ``buffer`` with one run of consecutive bytes."""
        if length:
            spans = self._located.spans(np.array([offset], np.int64), 1, length)
            self._fill(spans, buffer, scattered=False)

    def take(self, size: int) -> Buffer:
        """A buffer from the budget."""
        self.require_open()
        return self.pool.take(size)

    def lend(self, buffer: Buffer, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        return self.pool.lend(buffer, shape, dtype)

    @property
    def strategy(self) -> Strategy:
        """The strategy in use, with descriptors of this very process."""
        self.require_open()
        if self._process != os.getpid():
            # After a fork: new descriptors, new locks, new threads. The parent's go with the old object.
            self._process = os.getpid()
            self.budget.renew_after_fork()
            self._strategy, self.strategy_why = self._make_strategy(self.asked[0])
        return self._strategy

    def keep_for_ranks(self, world: int) -> None:
        """Ranks that share files must not evict each other's pages; a stated ``cache="drop"`` is obeyed."""
        if world > 1 and self.drop and self.asked[1] == "auto":
            self.strategy.close()  # this process's own, also after a fork
            self.drop = False
            self.cache_why = f"{world} ranks share these files, and dropping would evict what the others need"
            self.budget.release_aside(self._allowance)
            self._strategy, self.strategy_why = self._make_strategy(self.asked[0])

    def close(self) -> None:
        """Close every file and give free buffers back. Arrays already handed out stay valid."""
        if not self.closed:
            self.closed = True
            self._strategy.close()
            self.pool.trim()
            if self._process == os.getpid():  # after a fork the child never set it aside
                self.budget.release_aside(self._allowance)

    def __reduce__(self) -> tuple[Any, ...]:
        strategy, cache = self.asked
        return _reopen, (self.extents, strategy, cache, self.budget)

    # How it does it

    def _fill(self, spans: Spans, buffer: Buffer, *, ahead: Ahead = None, scattered: bool) -> None:
        """Through the strategy, a bounded number of files at a time."""
        strategy = self.strategy
        later = None if ahead is None else lambda: next(ahead().few_files(MOST_TOGETHER))[0]
        for part, start in spans.few_files(MOST_TOGETHER):
            into = Buffer(buffer.view[start:], 0) if start else buffer
            strategy.fill(part, into, ahead=later, scattered=scattered)

    def _merge_round(self, length: int) -> int:
        return max(length, min(MERGE_ROUND, self.budget.limit // 32))

    def _gather_merged(self, rounds: list[Round], length: int, buffer: Buffer) -> bool:
        """Read neighbours together into scratch, then put each run in its place; False if there is no room for it."""
        scratch = self.pool.try_take(max(int(turn.lengths.sum()) for turn in rounds))
        if scratch is None:
            return False
        try:
            for turn in rounds:
                self._fill(self._located.unequal(turn.starts, turn.lengths), scratch, scattered=True)
                _scatter(scratch, turn, length, buffer.bytes)
        finally:
            self.pool.give(scratch)
        return True

    def _decide_cache(self, cache: str) -> tuple[bool, str]:
        if cache != "auto":
            return cache == "drop", f"cache={cache!r} was asked for"
        room, source = room_for_cache()
        fits = self.total <= room // 2
        verb = "fits" if fits else "does not fit"
        return not fits, f"{format_size(self.total)} of data {verb} in half of {format_size(room)} ({source})"

    def _make_strategy(self, asked: str) -> tuple[Strategy, str]:
        why = f"strategy={asked!r} was asked for"
        name = asked
        if asked == "auto":
            name, why = "read", "reads into our own buffers: bounded, and no mapping to be killed by"
        self._allowance = 0
        mapped = name in ("remap", "advise", "map")
        files = Files(self.extents, self._identities, most=MOST_OPEN - MOST_MAPPED if mapped else MOST_OPEN)
        if name == "direct":
            alignment = self._direct_alignment()
            if alignment is not None:
                return Direct(files, alignment=alignment, allowance=self._allow(name)), why
            why = "this filesystem refuses O_DIRECT, so strategy 'read' with fadvise(DONTNEED) stands in"
            return Read(files, drop=True), why
        if name == "read":
            return Read(files, drop=self.drop), why
        if name == "map":
            return Map(files, drop=self.drop), why
        return Cured(files, name=name, drop=self.drop, allowance=self._allow(name)), why

    def _allow(self, name: str) -> int:
        """Set aside, once, what the strategy itself may hold: staging buffers or mapped pages."""
        allowance = min(LARGEST_ALLOWANCE, self.budget.limit // 4)
        if allowance < SMALLEST_ALLOWANCE or not self.budget.set_aside(allowance):
            raise BudgetError(
                f"{self.where}: expected a budget of {format_size(4 * SMALLEST_ALLOWANCE)} or more for "
                f"strategy={name!r}, got {format_size(self.budget.limit)}. Raise the budget or use strategy='read'."
            )
        self._allowance = allowance
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

    def require_open(self) -> None:
        if self.closed:
            raise ValueError(f"{self.where}: expected an open store, got a closed one. Open it again.")


def _scatter(scratch: Buffer, turn: Round, length: int, out: NDArray[np.uint8]) -> None:
    """Runs that lie anywhere in ``scratch`` to their rows of ``out``."""
    data = scratch.bytes
    anywhere = as_strided(data, (len(data) - length + 1, length), (1, 1), writeable=False)
    rows = out[: len(out) // length * length].reshape(-1, length)
    rows[turn.runs] = anywhere[turn.inside]


def _known(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{what}: expected one of {', '.join(allowed)}, got {value!r}. Use {what}='auto'.")


def _reopen(extents: tuple[Extent, ...], strategy: str, cache: str, budget: Budget) -> Store:
    return Store(extents, strategy=strategy, cache=cache, budget=budget)
