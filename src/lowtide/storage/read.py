"""Strategy ``read``: bytes into buffers we own, one engine call per batch. The default: nothing is ever mapped.

``start`` says what is wanted; nothing happens before ``finish`` unless the batch is started early, in a *lane*: a
thread of the native engine with a queue of its own. The engine copies what is cached at once and reads the misses
together: through io_uring or Linux AIO with O_DIRECT if nothing is to stay in the page cache, otherwise through
announced reads.

Whether data is cold is learnt from the reads themselves: the engine says how many it found in the page cache. Costs a
few microseconds per batch; queues of direct reads hold staging memory, counted against the budget and given back when
the room is needed. A truncated file is a short read here, never SIGBUS.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from lowtide.engine import (
    DROP,
    DROP_SEQUENTIAL,
    KEEP,
    KEEP_NEAR,
    KEEP_SEQUENTIAL,
    Engine,
    ReadLane,
    ReadQueue,
    WatchedFiles,
)
from lowtide.errors import ReadError
from lowtide.machine import PAGE, Descriptor
from lowtide.storage.budget import Budget, Holding
from lowtide.storage.forks import renew_in_children
from lowtide.storage.spans import Spans, each_of, place_of
from lowtide.storage.watched_files import Files
from lowtide.units import KIB, MIB

# How a call treats the page cache: reads from all over the file; one long read among neighbours; reads of pages that
# others bring in and drop; so many of those that they are read in one sweep over the file; such a sweep past the page
# cache; rows in the order of the file with small gaps, which the kernel's own read-ahead follows.
SCATTERED, SEQUENTIAL, RESIDENT, SWEPT, SWEPT_DIRECT, DENSE = range(6)

DEPTH = 128  # reads in flight: this batch and the next of the usual 64 windows
STAGING = MIB  # what a queue of direct reads needs: 128 windows, each widened to whole blocks
HUGE = 2 * MIB  # staging of a sweep: one huge page, which long direct reads fill three times as fast as small ones
LEAST_STAGING = 128 * KIB
QUEUED = ("uring", "aio")  # the ways that keep many direct reads in flight, the better one first
WAY_NAMES = {"uring": "io_uring", "aio": "Linux AIO", "announce": "announced reads", "read": "plain reads"}
RECHECK = 32  # an unannounced cold batch costs about twice an announced one: once in 32, that is 3 %
FEW_MISSES = 16  # fewer misses than one in so many do not make data cold

_IN_ORDER = (SEQUENTIAL, DENSE)  # nobody asks whether such reads were cached
_DIRECT = (SCATTERED, SWEPT_DIRECT)  # past the page cache where nothing is to stay there

Refused = tuple[int, str, int]  # an id outside the vocabulary, its file and byte
# Files, offsets, stride, shift, lengths: spans that were found among watched files, whose descriptors tell them apart.
WatchedSpans = tuple[WatchedFiles, Any, int, int, Any]
Laned = tuple[ReadLane, Holding | None]  # a lane, and what its staging holds of the budget


class Temperature:
    """``cold``: whether the last reads missed the cache. One per store; races between threads cost a wrong guess."""

    __slots__ = ("asked", "cold")

    def __init__(self) -> None:
        self.cold = False
        self.asked = 0  # announcements that were wanted


class Reads:
    """The reads of one batch, under way in a lane or still to be made. It is safe to drop half-way: a dropped lane
    waits until nobody can write into the target any more."""

    __slots__ = ("_held", "_lane", "_plan", "_spans", "_strategy", "_target", "total")

    def __init__(
        self, strategy: Read, spans: Spans | WatchedSpans, plan: tuple[Any, int, int], target: Any, held: Any
    ) -> None:
        self._strategy, self._spans, self._plan, self._target = strategy, spans, plan, target
        self._held = held  # descriptors stay open until the reads are done
        self._lane: Laned | None = None
        self.total: int | None = None  # bytes, if the caller knows: adding them up takes 2 to 3 microseconds

    def start_in(self, lane: Laned) -> Reads:
        """Let a lane's thread make the reads."""
        runs, drop, _ = self._plan
        lane[0].start(runs, self._target, drop)
        self._lane = lane
        return self

    def finish(self) -> Refused | None:
        """Wait for all of it; raises if a read failed, and returns an id that was refused, else None."""
        strategy = self._strategy
        runs, drop, how = self._plan
        lane = self._lane
        if lane is None:
            found = strategy.queue(how).fill(runs, self._target, drop)
        else:
            found = lane[0].wait()
            self._lane = None
            (strategy.sweeping if how == SWEPT_DIRECT else strategy.idle).append(lane)
        refused = None if isinstance(found, int) else strategy.judge(found, self._spans, runs)
        strategy.look_again(self._spans, self._held)
        if not isinstance(found, int):
            return refused
        count, length, total = len(runs[1]), runs[2], self.total
        if total is None:
            total = length * count if type(length) is int else int(np.add.reduce(length))
        counters = strategy.files.counters
        counters.asked += total
        counters.read += total
        if how not in _IN_ORDER:
            counters.cached += total if found >= count else total * found // count
            strategy.temperature.cold = (count - found) * FEW_MISSES > count
        return None


class Read:
    """Reads spans through queues of the engine. ``alignment``: of direct reads; None if they are impossible."""

    name = "read"
    note = ""  # what plan() should add

    def __init__(
        self,
        files: Files,
        engine: Engine,
        budget: Budget,
        temperature: Temperature,
        *,
        drop: bool,
        alignment: int | None,
    ) -> None:
        self.files, self.engine, self.drop, self.alignment = files, engine, drop, alignment
        self.temperature = temperature
        self.prepares = engine.name == "native"
        self.idle: list[Laned] = []
        self.sweeping: list[Laned] = []  # idle too, with more staging
        self._budget = budget
        self._missing = engine.unavailable()
        self.way = self._best_way()
        self._queued: tuple[ReadQueue, Holding] | None = None  # the one with staging memory, shared by all threads
        self._of_thread = threading.local()  # plain ones, so that threads need not wait for each other
        self._drops: tuple[int, ...] = (DROP, DROP_SEQUENTIAL)
        if not drop or files.in_memory:
            self._drops = KEEP, KEEP_SEQUENTIAL
        self._drops += KEEP, KEEP_NEAR, KEEP_NEAR, KEEP_NEAR
        renew_in_children(self)

    # Reading

    def start(self, spans: Spans, target: Any, how: int, early: bool, places: Any = None) -> Reads:
        """Read these spans into ``target``: at ``finish``, or now in a lane if one is available.

        ``places``: where each goes, in bytes or, for windows, tokens; by default one after the other.
        """
        files, numbers, stride, shift, length = spans
        scattered = how not in _IN_ORDER
        queued = how in _DIRECT and self.way != "announce"
        if type(files) is int:  # the usual case, kept short: it is part of every batch
            held: Any = self.files.descriptor(files, scattered)
            direct = None
            if queued:
                other = self.files.descriptor(files, False, os.O_DIRECT)
                direct, held = other.number, (held, other)
                number = held[0].number
            else:
                number = held.number
            runs: Any = (number, numbers, length, places, direct, stride, shift)
        else:
            runs, held = self._of_many(spans, scattered, queued, places)
        reads = Reads(self, spans, (runs, self._drops[how], how), target, held)
        if early:
            lane = self._lane(how)
            if lane is not None:
                try:
                    return reads.start_in(lane)
                except OSError:
                    self._without_threads()
        return reads

    def start_located(
        self, files: WatchedFiles, located: tuple[Any, ...], target: Any, descriptors: tuple[Descriptor, ...]
    ) -> Reads:
        """Runs that have their descriptors and offsets already: what ``Engine.locate`` was asked and has filled. The
        caller looks at the files."""
        _, _, length, fds, offsets = located
        runs = (fds, offsets, length, None, None, 1, 0)
        return Reads(self, (files, offsets, 1, 0, length), (runs, KEEP, SCATTERED), target, descriptors)

    def look_again(self, spans: Spans | WatchedSpans, held: Any) -> None:
        """Whether the files of reads that are done still are what was opened: else what came may be of two versions."""
        files = spans[0]
        if type(files) is int:
            self.files.still(files, held[0] if type(held) is tuple else held)
        elif not isinstance(files, WatchedFiles):
            for file, descriptor in held[0].items():
                self.files.still(file, descriptor)

    def announce(self, spans: Spans) -> bool:
        """Tell the kernel of scattered reads to come, which it starts all at once; returns whether that was done."""
        temperature = self.temperature
        temperature.asked += 1
        # Now and then a batch is not announced, to learn whether the cache has filled meanwhile.
        if self.way != "announce" or self.files.in_memory or temperature.asked % RECHECK == 0:
            return False
        runs, held = self._of_many(spans, True, False)
        self.engine.announce(runs)
        del held
        return True

    def read_at(self, file: int, offset: int, view: Any) -> None:
        """One small read, in the calling thread."""
        descriptor = self.files.descriptor(file, True)  # held to the end: its last reference closes it
        wanted = view.nbytes
        read_all(self.files.paths[file], descriptor.number, offset, memoryview(view).cast("B"))
        self.files.still(file, descriptor)
        counters = self.files.counters
        counters.asked += wanted
        counters.read += wanted
        if self._drops[0] != KEEP:
            drop_pages(descriptor.number, offset, wanted)

    def _of_many(self, spans: Spans, scattered: bool, queued: bool, places: Any = None) -> tuple[Any, Any]:
        files, numbers, stride, shift, length = spans
        each = [files] * len(numbers) if isinstance(files, int) else files
        held = self.files.descriptors(each, scattered)
        direct = self.files.descriptors(each, False, os.O_DIRECT) if queued else None
        fds = np.array([held[file].number for file in each], np.int32)
        others = None if direct is None else np.array([direct[file].number for file in each], np.int32)
        lengths = length if isinstance(length, int) else np.ascontiguousarray(length)
        return (fds, np.ascontiguousarray(numbers), lengths, places, others, stride, shift), (held, direct)

    def judge(self, found: tuple[str, int, int, int], spans: Any, runs: Any) -> Refused:
        """An id outside the vocabulary, with its place; raises if a read failed."""
        kind, number, at, value = found
        if isinstance(spans[0], WatchedFiles):
            file = int(np.flatnonzero(spans[0].fds == runs[0][number])[0])
            spans = (file, *spans[1:])
        file, offset, length = place_of(spans, number)
        path = self.files.paths[file]
        if kind == "token":
            return value, path, offset + at
        if value == 0:
            raise came_short(path, offset, length, at)
        raise read_failed(path, offset + at, OSError(value, os.strerror(value)))

    # Ways, queues and lanes

    def _best_way(self) -> str:
        if self.alignment is not None and self.drop and not self.files.in_memory:
            for way in QUEUED:
                if not self._missing[way]:
                    return way
        return "announce"

    def queue(self, how: int) -> ReadQueue:
        """The queue for a call of the calling thread."""
        way = self.way if how in _DIRECT else "read" if how == SEQUENTIAL else "announce"
        if way in QUEUED:
            found = self._queued
            if found is None:
                self._queued = found = self._with_staging(self.engine.queue)
            if found is not None:
                return found[0]
            if self.way == way:  # only the room was refused
                self.do_without("the budget has no room for its staging")
            return self.queue(how)
        known: ReadQueue | None = getattr(self._of_thread, way, None)
        if known is None:
            known = self.engine.queue(way, depth=DEPTH)
            setattr(self._of_thread, way, known)
        return known

    def _with_staging(self, make: Callable[..., Any], least: int = 0) -> Any:
        """A queue or lane and what its staging holds of the budget; None if the budget has no room for that, or
        the system cannot make one: then the next way is used."""
        holding = None
        if self.way in QUEUED:
            holding = self._budget.reserve(max(self.staging, least)) if self.staging else None
            if holding is None:
                return None
        try:
            return make(self.way, **self._settings(holding)), holding
        except OSError as problem:  # no descriptor for a ring, say
            if problem.errno == errno.EAGAIN and make == self.engine.lane:
                self._without_threads()
            elif self.way in QUEUED:
                self.do_without(problem.strerror or str(problem), (self.way,))
            return None

    def _lane(self, how: int) -> Laned | None:
        swept = how == SWEPT_DIRECT
        try:
            return (self.sweeping if swept else self.idle).pop()
        except IndexError:
            found: Laned | None = self._with_staging(self.engine.lane, HUGE if swept else 0)
            return found

    @property
    def sweeps_direct(self) -> bool:
        """Whether there are queues of direct reads, and room for the staging of a sweep."""
        return self.way in QUEUED and self.prepares and self._budget.limit >= 16 * HUGE

    def _without_threads(self) -> None:
        """No thread can be started (a limit of this user or container): reads are made in the calling thread."""
        self.prepares = False
        self.note = "; nothing is read ahead: no thread can be started here (ulimit -u, or the container's limit)"

    def _settings(self, holding: Holding | None) -> dict[str, int]:
        staging = STAGING if holding is None else holding.size
        return {"depth": DEPTH, "staging": staging, "alignment": max(512, self.alignment or PAGE)}

    @property
    def staging(self) -> int:
        """Bytes that a queue of direct reads holds; 0 if none is used."""
        size = min(STAGING, self._budget.limit // 16) // PAGE * PAGE
        return size if self.way in QUEUED and size >= LEAST_STAGING else 0

    def do_without(self, why: str, ways: tuple[str, ...] = QUEUED) -> None:
        """From now on use none of these ways for scattered misses."""
        self._missing = {**self._missing, **dict.fromkeys(ways, why)}
        self.way = self._best_way()

    def shrink(self) -> None:
        """Give the staging memory back: its room is needed."""
        self.idle, self.sweeping = [], []
        queued, self._queued = self._queued, None
        if queued is not None:
            queued[0].close()
            self.do_without("the budget has no room for its staging")

    def close(self) -> None:
        if self._queued is not None:
            self._queued[0].close()
        self.renew_after_fork()

    def renew_after_fork(self) -> None:
        self._queued = None
        self.idle, self.sweeping = [], []
        self._of_thread = threading.local()

    @property
    def rung(self) -> str:
        """How the page cache is left, in words for ``plan()``."""
        if not self.drop:
            return "keep"
        if self.files.in_memory:
            return "none: the file lives in memory (tmpfs), nothing can be dropped"
        if not hasattr(os, "posix_fadvise"):
            return "none: this system has no posix_fadvise"
        rung = "fadvise(DONTNEED), with RWF_DONTCACHE where the file system has it"
        if self.way != "announce":
            rung += f"; scattered misses by O_DIRECT ({WAY_NAMES[self.way]})"
        return f"{rung}; files that live in memory (tmpfs) stay" if self.files.partly_in_memory else rung


def read_all(path: str, number: int, offset: int, view: memoryview) -> None:
    """Fill ``view`` from there on, however short the single reads are."""
    got = 0
    while got < len(view):
        try:
            more = os.preadv(number, (view[got:] if got else view,), offset + got)
        except InterruptedError:
            continue
        except OSError as problem:
            raise read_failed(path, offset + got, problem) from problem
        if more == 0:
            raise came_short(path, offset, len(view), got)
        got += more


def announce_now(files: Files, spans: Spans) -> None:
    """Tell the kernel of these spans, whatever the strategy."""
    if not files.in_memory:
        for file, offset, length in each_of(spans):
            descriptor = files.descriptor(file, True)
            advise_file(descriptor.number, offset, length, "POSIX_FADV_WILLNEED")


def drop_pages(number: int, offset: int, length: int, *, sequential: bool = False) -> None:
    """Evict bytes, rounded out to whole pages: the kernel keeps pages that are only partly named.

    After sequential reads it keeps whole folios of up to 2 MiB that are only partly named; a range that starts at a
    folio boundary also evicts the folio in which the read before it ended.
    """
    unit = 512 * PAGE if sequential else PAGE
    first = offset // unit * unit
    advise_file(number, first, -(-(offset + length) // PAGE) * PAGE - first, "POSIX_FADV_DONTNEED")


def advise_file(number: int, offset: int, length: int, advice: str) -> None:
    """A hint to the kernel: if it is refused or unknown, nothing is lost."""
    if hasattr(os, advice):
        try:
            os.posix_fadvise(number, offset, length, getattr(os, advice))
        except OSError:
            return


def read_failed(path: str, offset: int, problem: OSError) -> ReadError:
    name = errno.errorcode.get(problem.errno or 0, "an error")
    way_out = "Check the disk and open the file again"
    if problem.errno == errno.EBADF:
        way_out = (
            "Other code of this process closed it (os.closerange, a library that becomes a daemon): ask again, and "
            "it is reopened"
        )
    return ReadError(
        f"{path}: expected to read at byte {offset}, got {name} ({problem.strerror}). {way_out}.",
        path=path,
        offset=offset,
        errno=problem.errno,
    )


def came_short(path: str, offset: int, expected: int, got: int) -> ReadError:
    return ReadError(
        f"{path}: expected {expected} bytes at byte {offset}, got {got} before the end of the file. "
        "It was truncated while open: open it again once it is complete.",
        path=path,
        offset=offset,
    )
