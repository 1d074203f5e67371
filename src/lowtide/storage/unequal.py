"""Runs of unequal length, read in one call: the pieces that make packed rows.

One idea: the store's own way of reading, for runs that differ in length. Costs what ``Store.gather`` costs per run.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lowtide import _native
from lowtide.storage.buffers import Buffer
from lowtide.storage.descriptors import KEPT
from lowtide.storage.many_files import windows_located
from lowtide.storage.spans import Offsets
from lowtide.storage.store import Store

Unequal = tuple[Offsets, Offsets]  # where runs begin, in bytes, and how long they are
Later = Callable[[], Unequal] | None  # the next call's runs


def read_unequal(store: Store, runs: Unequal, buffer: Buffer, *, ahead: Later = None) -> None:
    """Fill ``buffer`` with these runs, one after the other."""
    if len(runs[0]):
        store.files.counters.asked += int(runs[1].sum())
        later = None if ahead is None else lambda: store.located.unequal(*ahead())
        store.fill(store.located.unequal(*runs), buffer, ahead=later, scattered=True)


def widen_unequal(store: Store, runs: Unequal, pair: _native.Pair, *, ahead: Later = None) -> bool:
    """Runs that together fill rows of ``pair.length + 1`` tokens, widened in one pass; False as in ``windows``."""
    strategy = store.strategy
    if not strategy.widens or strategy.name == "map":
        return False
    total = len(pair.x) * (pair.length + 1) * np.dtype(pair.source).itemsize
    if windows_located(strategy, store.located, (runs[0], 1, runs[1]), pair, total):
        return True
    spans = store.located.unequal(*runs)
    if len(spans.files) > 1 and len(spans.files) > KEPT.together:
        return False
    later = None if ahead is None else lambda: store.located.unequal(*ahead())
    store.files.counters.asked += total
    read: bool = strategy.windows(spans, pair, ahead=later)  # type: ignore[attr-defined]
    return read
