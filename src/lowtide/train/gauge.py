"""Memory by kind while training, and whether the reader kept to its budget.

The reader cannot be weighed apart from torch, so we weigh the whole process and take growth after `SETTLE_STEPS`
steps, when the model, the optimiser's state and torch's own caches exist: at most what reading added. Before each
reading the C library gives back the heap that torch has freed, whose tens of MiB belong to nobody. Cost: a millisecond
per reading, and a question about the corpus' page cache asked so rarely that it stays under half a percent.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lowtide.machine import page_cache
from lowtide.memory import process_memory
from lowtide.prepare import Control
from lowtide.report.png import Curve, Level, Panel
from lowtide.units import MIB, format_size

SETTLE_STEPS = 20
CACHE_SHARE = 0.005
MOST_POINTS = 1024


@dataclass(frozen=True)
class MemoryNow:
    """Bytes held by this process, and the page cache of its corpus."""

    anon: int
    mapped: int
    cache: int

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


class Gauge:
    """Takes readings and remembers the settled and the highest one."""

    def __init__(self, files: Sequence[str], budget: int) -> None:
        self._files = files
        self._budget = budget
        self._settled: MemoryNow | None = None
        self._peak: MemoryNow | None = None
        self._cache = 0
        self._next_cache = 0.0
        self.last = MemoryNow(0, 0, 0)
        self.measurable = True

    def read(self) -> MemoryNow:
        _give_back_freed()
        try:
            memory = process_memory()
        except OSError:  # no /proc: macOS
            self.measurable = False
            return self.last
        self.last = MemoryNow(memory.anon, memory.mapped, self._cached())
        if self._settled is not None and (self._peak is None or self.last.held > self._peak.held):
            self._peak = self.last
        return self.last

    def settle(self) -> None:
        """From here on growth counts."""
        self._settled = self._peak = self.read()

    def verdict(self) -> BudgetVerdict:
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


def _give_back_freed() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc; elsewhere what was freed counts as held
        trim(ctypes.c_size_t(0))


def thinned(points: list[CurvePoint]) -> list[CurvePoint]:
    """The same curve in at most `MOST_POINTS` points: every other one goes, val losses and the last one stay."""
    if len(points) <= MOST_POINTS:
        return points
    last = len(points) - 1
    return [p for place, p in enumerate(points) if place % 2 == 0 or place == last or not math.isnan(p.val_loss)]


# The picture, as plain series

BLUE, ORANGE, GREEN = "#1f5fa8", "#d9722b", "#3a8f5c"


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
            ("cache: the corpus' page cache", ORANGE),
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
