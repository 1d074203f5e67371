"""Windows of many files - shards, corpora of a mixture - or of many pieces: found, checked, read in two native calls.

One idea: while everything is as it was opened and in the page cache, a batch needs no Python per file or piece.
What is open is kept as arrays; one call finds each run's file and looks at every file once, the other reads. What is
out of the ordinary - a run across two files, a file that changed or is not open - is left to the usual way, which
knows what to do and what to say.

Costs about 5 microseconds per batch and 0.2 per file. Holds the descriptors it knows, until one of them is let go.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lowtide import _native
from lowtide.storage.descriptors import Descriptor, Files
from lowtide.storage.native_read import NativeRead
from lowtide.storage.spans import Located, Offsets
from lowtide.storage.strategy import Strategy

MOST_FILES = 256  # of a store, up to which all of them are open before long, so that the arrays stay as they are
TOLD_EVERY = 64  # batches after which descriptors are marked as used: those not used for longest are closed first

Wanted = tuple[Offsets, int, Any]  # numbers, stride: run i begins at logical byte numbers[i] * stride; lengths in bytes


class OpenTable(NamedTuple):
    """What is open of a store's files, as arrays, and the descriptors themselves: they stay open while this lives."""

    files: _native.WatchedFiles
    held: tuple[Descriptor, ...]


def windows_located(strategy: Strategy, located: Located, runs: Wanted, pair: _native.Pair, total: int) -> bool:
    """Read and widen these runs; False: nothing is said about why, the usual way finds out.

    ``total``: their bytes.
    """
    if not isinstance(strategy, NativeRead) or strategy.temperature.cold or strategy.way != "announce":
        return False
    files = strategy.files
    if strategy.drop or len(files.extents) > MOST_FILES:
        return False
    numbers, stride, lengths = runs
    table = files.table or _made(files, located)  # held to the end: so are its descriptors
    fds, offsets = np.empty(len(numbers), np.int32), np.empty(len(numbers), np.int64)
    if files.closed or not strategy.engine.locate(table.files, numbers, stride, lengths, fds, offsets):
        return False
    files.uses += 1
    if files.uses % TOLD_EVERY == 0:
        files.used()
    return strategy.read_located(_native.Runs(fds, offsets, lengths), pair, total)


def _made(files: Files, located: Located) -> OpenTable:
    count = len(files.extents)
    sizes, modified, fds = np.zeros(count, np.int64), np.zeros(count, np.int64), np.full(count, -1, np.int32)
    held = files.opened()
    for index, descriptor in held.items():
        sizes[index], fds[index] = files.extents[index].size, descriptor.number
        modified[index] = files.modified(index)
    watched = _native.WatchedFiles(located.ends, located.shift, sizes, modified, fds)
    files.table = made = OpenTable(watched, tuple(held.values()))
    return made
