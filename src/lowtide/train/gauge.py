"""Memory by kind while training, and whether the reader kept to its budget.

The reader's memory cannot be measured apart from torch's, so we measure the growth of the whole process after
`SETTLE_STEPS` steps, when the model, the optimiser's state and torch's own caches exist: at most what reading added.
Heap that torch has freed and the C library keeps for the next step is told apart as ``kept``: giving it back shows what
is in use, and the next step has to fetch it again, so that is done at the settled reading and the last one, and between
them when the library's own counts say that more than `SLACK` was added, or when more than `KEPT` bytes are kept. Cost:
a millisecond per reading, and a question about the corpus's page cache asked so rarely that it stays under half a
percent.
"""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from lowtide.machine import page_cache
from lowtide.memory import process_memory
from lowtide.memory.measure.allocator import malloc_counts
from lowtide.prepare import Control
from lowtide.report.png import Curve, Level, Panel
from lowtide.units import MIB, format_size

SETTLE_STEPS = 20
SLACK = MIB
CACHE_SHARE = 0.005
MOST_POINTS = 1024
KEPT = 384 * MIB  # a step of the default run frees about 200; a larger model computes longer than its pages take
LARGEST = 64 * MIB  # larger tensors are mapped and unmapped each on its own
USUAL = 128 * 1024  # glibc's own threshold for both
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h numbers them
_THEIR_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@dataclass(frozen=True)
class MemoryNow:
    """Bytes held by this process, and the page cache of its corpus. All its anonymous memory is anon + kept."""

    anon: int  # in use
    mapped: int
    cache: int
    kept: int = 0  # freed, and kept by the C library for the next step

    @property
    def held(self) -> int:
        return self.anon + self.mapped


@dataclass(frozen=True)
class BudgetVerdict:
    """Readings after settling, at the highest anon + mapped, and last; ``ok`` is None for a run that never settled."""

    settled: MemoryNow
    peak: MemoryNow
    last: MemoryNow
    budget: int
    ok: bool | None

    @property
    def word(self) -> str:
        return "unknown" if self.ok is None else "ok" if self.ok else "broken"


class CurvePoint(NamedTuple):
    """One place on the picture, as plain numbers, which is all a checkpoint may hold."""

    seconds: float
    step: float
    loss: float
    val_loss: float  # nan where none was measured
    anon: float
    mapped: float
    cache: float
    kept: float = 0.0  # checkpoints of earlier versions have none


class Gauge:
    """Takes readings and remembers the settled and the highest one."""

    def __init__(self, files: Sequence[str], budget: int) -> None:
        self._files = files
        self._budget = budget
        self._settled: MemoryNow | None = None
        self._peak: MemoryNow | None = None
        self._in_use = -1  # anon when what was freed was last given back
        self._claimed = 0  # what the C library counted as in use then
        self._cache = 0
        self._next_cache = 0.0
        self.last = MemoryNow(0, 0, 0)
        self.measurable = True

    def read(self) -> MemoryNow:
        try:
            memory = process_memory()
            claimed, free = _counts()
            # What is free may have been given back, or never been touched, so anon - free is no more than is in use.
            anon = max(self._in_use + claimed - self._claimed, memory.anon - free)
            if self._in_use < 0 or anon - self._in_use > SLACK or memory.anon - anon > KEPT:
                anon = self._look_closely()
        except OSError:  # no /proc: macOS
            self.measurable = False
            return self.last
        self.last = MemoryNow(anon, memory.mapped, self._cached(), max(0, memory.anon - anon))
        if self._settled is not None and (self._peak is None or self.last.held > self._peak.held):
            self._peak = self.last
        return self.last

    def _look_closely(self) -> int:
        """What is in use, to the byte: all that is free is given back, and the next step fetches it again."""
        _give_back_freed()
        self._in_use, (self._claimed, _) = process_memory().anon, _counts()
        return self._in_use

    def settle(self) -> None:
        """From here on growth counts."""
        self._in_use = -1  # in use to the byte: later readings are compared with it
        self._settled = self._peak = self.read()

    def verdict(self) -> BudgetVerdict:
        self._in_use = -1
        last = self.read()
        settled, peak = self._settled or last, self._peak or last
        known = self.measurable and self._settled is not None
        within = peak.held - settled.held <= self._budget
        return BudgetVerdict(settled, peak, last, self._budget, within if known else None)

    def _cached(self) -> int:
        started = time.monotonic()
        if started >= self._next_cache:
            try:
                self._cache = sum(page_cache(path).cached for path in self._files)
            except OSError:  # another user's file, or a system that does not say
                self._cache = 0
            ended = time.monotonic()
            self._next_cache = ended + (ended - started) / CACHE_SHARE
        return self._cache


# The heap. Every step frees its tensors and the next one allocates them again; glibc maps each large one again,
# and the kernel fills its pages with zeros: a third of a small model's time.


@contextmanager
def kept_heap() -> Iterator[None]:
    """Keep what is freed while this lasts, at most `KEPT` bytes at the heap's end; give it back then. For the whole
    process. Without glibc, or where the user has set its variables, nothing is changed."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt") or any(name in os.environ for name in _THEIR_OWN):
        yield
        return
    # Older releases allow no more than half of 64 MiB, and 0 says that one was refused.
    if not library.mallopt(_MMAP_THRESHOLD, LARGEST):
        library.mallopt(_MMAP_THRESHOLD, LARGEST // 2)
    library.mallopt(_TRIM_THRESHOLD, KEPT)
    try:
        yield
    finally:
        library.mallopt(_MMAP_THRESHOLD, USUAL)
        library.mallopt(_TRIM_THRESHOLD, USUAL)
        _give_back_freed()


def _counts() -> tuple[int, int]:
    """Bytes the C library has given to the program, and those it holds free; zeros before glibc 2.33."""
    found = malloc_counts()
    return (0, 0) if found is None else (int(found.hblkhd + found.uordblks), int(found.fordblks))


def _give_back_freed() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc; elsewhere what was freed counts as held
        trim(ctypes.c_size_t(0))


# The curve


def thinned(points: list[CurvePoint]) -> list[CurvePoint]:
    """The same curve in at most `MOST_POINTS` points: every other one goes, val losses and the last one stay."""
    if len(points) <= MOST_POINTS:
        return points
    last = len(points) - 1
    return [p for place, p in enumerate(points) if place % 2 == 0 or place == last or not math.isnan(p.val_loss)]


# The picture, as plain series

BLUE, ORANGE, GREEN, GREY = "#1f5fa8", "#d9722b", "#3a8f5c", "#b8bcc2"


def panels(
    points: Sequence[CurvePoint], unigram: float, verdict: BudgetVerdict, control: Control | None = None
) -> list[Panel]:
    """Loss and memory over the same minutes, because the claim is about both at once: the loss falls while memory stays
    where it was. Where a control was measured, a third panel puts the growth of both beside the budget."""
    trained = [point for point in points if not math.isnan(point.loss)]
    checked = [point for point in points if not math.isnan(point.val_loss)]
    losses = [
        Curve("train", _minutes(trained), [point.loss for point in trained], BLUE),
        Curve("val", _minutes(checked), [point.val_loss for point in checked], ORANGE, dots=True),
    ]
    counts = [] if math.isnan(unigram) else [Level(f"knowing only token counts ({unigram:.2f})", unigram)]
    kinds = [
        Curve(label, _minutes(points), [getattr(point, label.split(":")[0]) / MIB for point in points], color)
        for label, color in (
            ("anon: heap of torch, model, reader", BLUE),
            ("mapped: file pages in this process", GREEN),
            ("kept: freed by torch, for its next step", GREY),
            ("cache: page cache of the corpus", ORANGE),
        )
    ]
    allowed = (verdict.settled.held + verdict.budget) / MIB
    text = f"anon + mapped after warm-up, plus the budget of {format_size(verdict.budget)}: {verdict.word}"
    levels = (Level(text, allowed),)
    top = 1.55 * max(allowed, *(sum(held) for held in zip(*(kind.y for kind in kinds), strict=True)))
    found = [
        Panel("Loss", "minutes", "loss, nats per token", tuple(losses), levels=tuple(counts), bottom=0),
        Panel("Memory by kind", "minutes", "MiB", areas=tuple(kinds), levels=levels, bottom=0, top=top),
    ]
    return found if control is None else [*found, _beside_control(points, verdict, control)]


def _minutes(points: Sequence[CurvePoint]) -> list[float]:
    return [point.seconds / 60 for point in points]


def _beside_control(points: Sequence[CurvePoint], verdict: BudgetVerdict, control: Control) -> Panel:
    """Growth of anon + mapped, of this run since its warm-up and of the pass through kept maps, side by side."""
    since = [point for point in points if point.step >= SETTLE_STEPS] or list(points)
    first, last = since[0].seconds, since[-1].seconds
    shares = [100 * (point.seconds - first) / max(1e-9, last - first) for point in since]
    grown = [(point.anon + point.mapped - verdict.settled.held) / MIB for point in since]
    passed = [100 * share for share, _, _ in control.trace]
    mapped = [held / MIB for _, held, _ in control.trace]  # its anon is the list of windows it goes through
    size, budget = control.corpus_bytes, verdict.budget
    curves = (
        Curve("control: one pass through a kept np.memmap", passed, mapped, ORANGE),
        Curve("this run since its warm-up", shares, grown, BLUE),
    )
    levels = (
        Level(f"budget {format_size(budget)}", budget / MIB),
        Level(f"the train tokens, {format_size(size)}", size / MIB, dotted=True),
    )
    bottom, top = min(0.0, *grown), 1.5 * size / MIB
    title, across = "Growth of anon + mapped", "% of the run, and of the pass"
    return Panel(title, across, "MiB", curves, levels=levels, bottom=bottom, top=top)
