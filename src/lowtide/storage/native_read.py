"""Strategies ``read`` and ``direct`` with the native engine: one call per batch, without the GIL.

One idea: a batch's runs go to the C core as arrays of numbers. It copies what is cached at once and queues the misses
together: through io_uring or Linux AIO with O_DIRECT where nothing is to stay in the page cache, through announced
reads elsewhere. Whole batches of windows are read and widened in the same pass.

Costs the queue's staging memory, counted against the budget and given back when somebody needs the room: the strategy
then reads without a queue. Errors name file and offset as ``read.py`` does.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide import _native
from lowtide.machine import PAGE
from lowtide.storage.budget import Budget, Holding
from lowtide.storage.buffers import Buffer
from lowtide.storage.descriptors import Descriptor, Files
from lowtide.storage.forks import renew_in_children
from lowtide.storage.read import Temperature, came_short, read_failed
from lowtide.storage.spans import Ahead, Spans
from lowtide.units import KIB, MIB

DEPTH = 128  # reads in flight: this batch and the next of the usual 64 windows
STAGING = MIB  # what a queue of direct reads needs: 128 windows, each widened to whole blocks
LEAST_STAGING = 128 * KIB
QUEUED = ("uring", "aio")  # the ways that keep many direct reads in flight, the better one first


class NativeRead:
    """Reads spans through a queue of the native engine; ``direct``: misses never enter the page cache.

    ``alignment``: of direct reads, None where the filesystem refuses them.
    """

    merges = True
    widens = True

    def __init__(
        self, files: Files, engine: _native.Engine, budget: Budget, *, name: str, drop: bool, alignment: int | None
    ) -> None:
        self.name = name
        self.files = files
        self.engine = engine
        self.drop = drop
        self.direct = name == "direct" and alignment is not None
        self.alignment = alignment
        self.temperature = Temperature()
        self._budget = budget
        self._announced = self._was_announced = False
        self._missing = engine.unavailable()
        self._way = self._best_way()
        self._queued: _Channel | None = None  # the one with staging memory, shared by all threads
        self._of_thread = threading.local()  # plain ones, so that threads need not wait for each other
        renew_in_children(self)

    @property
    def way(self) -> str:
        """How scattered misses are read."""
        return self._way

    def _best_way(self) -> str:
        if self.alignment is not None and (self.drop or self.direct) and not self.files.in_memory:
            for way in QUEUED:
                if not self._missing[way]:
                    return way
        return "announce"

    @property
    def rung(self) -> str:
        """How the page cache is left, in words for ``plan()``."""
        if self.direct:
            return f"O_DIRECT ({NAMES[self.way]}): nothing enters the page cache"
        if not self.drop:
            return "keep"
        if self.files.in_memory:
            return "none: the file lives in memory (tmpfs), nothing can be dropped"
        rung = "RWF_DONTCACHE + fadvise(DONTNEED)"
        if self.way != "announce":
            rung += f"; scattered misses by O_DIRECT ({NAMES[self.way]})"
        return f"{rung}; files that live in memory (tmpfs) stay" if self.files.partly_in_memory else rung

    # Reading

    def fill(self, spans: Spans, buffer: Buffer, *, ahead: Ahead = None, scattered: bool) -> None:
        """Read every span into ``buffer``, or raise; tell the kernel of ``ahead`` while reads miss."""
        runs, held = self.runs(spans, scattered=scattered)
        if scattered:
            self._announce(ahead)
        channel = self._channel(scattered)
        found = channel.queue.gather(runs, buffer.bytes, self.dropping(scattered))
        del held  # descriptors stay open until the reads are done
        self._count(channel.hits(), len(spans.numbers), spans.total, scattered=scattered)
        self.judge(found, spans)

    def fetch(self, spans: Spans) -> NDArray[np.uint8] | None:  # noqa: ARG002
        """No way without a buffer."""
        return None

    def windows(self, spans: Spans, pair: _native.Pair, *, ahead: Ahead = None) -> bool:
        """Read and widen windows in one pass; False where an id is not one of the vocabulary, or does not fit."""
        runs, held = self.runs(spans, scattered=True)
        self._announce(ahead)
        channel = self._channel(True)
        found = channel.queue.windows(runs, pair, self.dropping(True))
        del held
        self._count(channel.hits(), len(spans.numbers), spans.total, scattered=True)
        return self.judge(found, spans)

    def read_located(self, runs: _native.Runs, pair: _native.Pair, total: int) -> bool:
        """Runs of ``total`` bytes that have their places already (many_files.py); False: read them the usual way."""
        channel = self._channel(True)
        found = channel.queue.windows(runs, pair, _native.KEEP)
        hits, count = min(channel.hits(), len(runs.offsets)), len(runs.offsets)
        if found is None and count:
            self._announce(None)
            self.files.counters.asked += total
            self.files.counters.read += total
            self.files.counters.cached += total if hits == count else total * hits // count
            self.temperature.cold = hits < count
        return found is None

    def judge(self, found: Any, spans: Spans) -> bool:
        """True: all is there; False: an id is wrong; a read that failed is raised."""
        if found is None:
            return True
        kind, run, done, code = found
        if kind == "token":
            return False
        path, offset = self.files.extents[spans.file_of_each()[run]].path, int(spans.offsets[run])
        if code == 0:
            raise came_short(path, offset, spans.length_of_each()[run], done)
        raise read_failed(path, offset + done, OSError(code, os.strerror(code)))

    def runs(self, spans: Spans, *, scattered: bool) -> tuple[_native.Runs, Any]:
        """The spans as the engine wants them, and the descriptors that must stay open meanwhile."""
        lengths: Any = spans.length if spans.lengths is None else np.array(spans.lengths, np.int64)
        queued = scattered and self._way != "announce"
        if len(spans.files) == 1:  # the usual case, kept short: it is part of every batch
            file = spans.files[0]
            one = self.files.descriptor(file, scattered=scattered)
            other = self.files.descriptor(file, flags=os.O_DIRECT) if queued else None
            number = None if other is None else other.number
            starts = np.ascontiguousarray(spans.numbers)
            runs = _native.Runs(one.number, starts, lengths, None, number, spans.stride, spans.shift)
            return runs, (one, other)
        held = self.files.descriptors(spans.files, scattered=scattered)
        direct = self.files.descriptors(spans.files, scattered=False, flags=os.O_DIRECT) if queued else None
        offsets = np.ascontiguousarray(spans.offsets)
        return _native.Runs(_numbers(held, spans), offsets, lengths, None, _numbers(direct, spans)), (held, direct)

    def dropping(self, scattered: bool) -> int:
        if not self.drop or self.files.in_memory:
            return _native.KEEP
        return _native.DROP if scattered else _native.DROP_SEQUENTIAL

    # Queues

    def prefetcher(self) -> tuple[_native.Prefetching, Holding | None] | None:
        """A queue with a thread of its own for somebody's next batch, where the budget has room for its staging."""
        holding = self._staging(self.way)
        if holding is None and self.way != "announce":
            return None
        return self.engine.prefetcher(self.way, **self._settings(holding)), holding

    def shrink(self) -> bool:
        """Give the staging back; True if there was any."""
        queued, self._queued = self._queued, None
        if queued is None:
            return False
        queued.queue.close()
        self.do_without("the budget has no room for its staging")
        return True

    def prefetched(self, hits: int, count: int, total: int) -> None:
        """Somebody's thread has read ``count`` spans of ``total`` bytes and found ``hits`` of them cached."""
        self._was_announced = False
        self._count(hits, count, total, scattered=True)

    def close(self) -> None:
        if self._queued is not None:
            self._queued.queue.close()
        self.renew_after_fork()

    def renew_after_fork(self) -> None:
        self._queued = None
        self._of_thread = threading.local()

    def _channel(self, scattered: bool) -> _Channel:
        way = self._way if scattered else "read"
        if way in QUEUED:
            if self._queued is None:
                holding = self._staging(way)
                if holding is None:
                    self.do_without("the budget has no room for its staging")
                    return self._channel(scattered)
                self._queued = _Channel(self.engine.queue(way, **self._settings(holding)), holding)
            return self._queued
        known: _Channel | None = getattr(self._of_thread, way, None)
        if known is None:
            known = _Channel(self.engine.queue(way, **self._settings(None)), None)
            setattr(self._of_thread, way, known)
        return known

    def do_without(self, why: str, ways: tuple[str, ...] = QUEUED) -> None:
        """From now on read scattered misses by none of these."""
        self._missing = {**self._missing, **dict.fromkeys(ways, why)}
        self._way = self._best_way()

    @property
    def staging(self) -> int:
        """Bytes a queue of direct reads holds; 0 where none is used."""
        size = min(STAGING, self._budget.limit // 16) // PAGE * PAGE
        return size if self.way in QUEUED and size >= LEAST_STAGING else 0

    def _staging(self, way: str) -> Holding | None:
        return self._budget.reserve(self.staging) if way in QUEUED and self.staging else None

    def _settings(self, holding: Holding | None) -> dict[str, int]:
        staging = STAGING if holding is None else holding.size
        return {"depth": DEPTH, "staging": staging, "alignment": max(512, self.alignment or PAGE)}

    # Cold or not

    def _announce(self, ahead: Ahead) -> None:
        self._was_announced, self._announced = self._announced, False
        if ahead is None or self.way != "announce" or self.files.in_memory or not self.temperature.announce_next():
            return
        self._announced = True
        spans = ahead()
        if len(spans.numbers):
            runs, held = self.runs(spans, scattered=True)
            self.engine.announce(runs)
            del held

    def _count(self, hits: int, count: int, total: int, *, scattered: bool) -> None:
        counters = self.files.counters
        counters.read += total
        counters.cached += total if hits >= count else total * hits // count
        # What was announced is there by now: that does not make the disk warm.
        if scattered and not (hits == count and self._was_announced):
            self.temperature.cold = hits < count


class _Channel:
    """A queue of the engine, the budget its staging holds, and how many runs it had found cached when last asked."""

    __slots__ = ("_cached", "_holding", "queue")

    def __init__(self, queue: _native.ReadQueue, holding: Holding | None) -> None:
        self.queue = queue
        self._holding = holding
        self._cached = 0

    def hits(self) -> int:
        """Runs found in the page cache since the last time. Threads that share a queue may see each other's."""
        before, self._cached = self._cached, self.queue.counters()[1]
        return self._cached - before


NAMES = {"uring": "io_uring", "aio": "Linux AIO", "announce": "announced reads", "read": "plain reads"}


def _numbers(held: dict[int, Descriptor] | None, spans: Spans) -> Any:
    if held is None:
        return None
    return np.array([held[file].number for file in spans.files], np.int32)
