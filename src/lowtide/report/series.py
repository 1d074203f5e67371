"""What every report draws: memory by kind over time, thinned, with the lines it is compared to. Pure.

Stacked from the bottom: what nobody can take back (anon, shmem, tables), then mapped - up to here a budget counts -
then dirty and cache, which only the cgroup sees, and huge pages of the pool, which nothing else counts. Thinning keeps
each kind's highest sample of every span.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log2

from lowtide.memory import Sample, Trace, Verdict
from lowtide.units import GIB, KIB, MIB, TIB

STACK = ("anon", "shmem", "tables", "mapped", "dirty", "cache", "hugetlb")
STALE = 2.0  # seconds: a close look older than this is shown as such
MOST_DRAWN = 800  # points drawn: about one for every pixel of a wide plot
_IN_VIEW = 2.5  # a limit further above the highest point than this is named, not drawn: it would flatten the rest
_TIME_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200)


@dataclass(frozen=True)
class ReferenceLine:
    """A height to compare with. ``drawn`` is False when it lies far above everything."""

    name: str
    size: int
    drawn: bool


@dataclass(frozen=True)
class Series:
    """The thinned samples as columns; sizes in bytes, times in seconds from the first sample."""

    seconds: tuple[float, ...]
    kinds: dict[str, tuple[int, ...]]
    rss: tuple[int, ...]
    lines: tuple[ReferenceLine, ...]
    top: int  # the height of the plot in bytes
    of: int  # samples there were
    retained: tuple[int, ...] = ()  # the upper part of anon: freed, and kept by allocators
    stale: tuple[tuple[float, float], ...] = ()  # spans in which the last close look was older than ``STALE``

    @property
    def last(self) -> float:
        return self.seconds[-1]

    def total(self, place: int) -> int:
        return sum(column[place] for column in self.kinds.values())

    def tops(self, kind: str) -> tuple[int, ...]:
        """The upper edge of a kind's area: itself and all below it."""
        below = STACK[: STACK.index(kind) + 1]
        return tuple(sum(self.kinds[each][place] for each in below) for place in range(len(self.seconds)))


def series(trace: Trace, verdict: Verdict | None = None, most: int = MOST_DRAWN) -> Series | None:
    """None when there is nothing to draw. The limit drawn is the one the verdict names."""
    samples = thin(trace.samples, most)
    if not samples:
        return None
    if len(samples) == 1:  # one reading has no width: it is drawn as holding for one interval
        samples = (samples[0], samples[0])
        seconds: tuple[float, ...] = (0.0, trace.interval or 1.0)
    else:
        seconds = tuple(sample.seconds - samples[0].seconds for sample in samples)
        seconds = (*seconds[:-1], max(seconds[-1], 1e-3))
    kinds = {kind: tuple(sample.of(kind) for sample in samples) for kind in STACK}
    rss = tuple(sample.rss for sample in samples)
    highest = max(max(sum(sizes) for sizes in zip(*kinds.values(), strict=True)), *rss, 1)
    lines = tuple(
        ReferenceLine(name, size, size <= _IN_VIEW * highest)
        for name, size in (("budget", trace.budget or 0), _limit_line(verdict))
        if size
    )
    top = ceil(1.08 * max([highest, *(line.size for line in lines if line.drawn)]))
    retained = tuple(min(sample.retained, sample.anon) for sample in samples)
    return Series(seconds, kinds, rss, lines, top, len(trace.samples), retained, _stale_spans(seconds, samples))


def _stale_spans(seconds: Sequence[float], samples: Sequence[Sample]) -> tuple[tuple[float, float], ...]:
    """Where owners and sharing were carried on from an older look."""
    spans: list[tuple[float, float]] = []
    for (begin, end), sample in zip(pairwise(seconds), samples[1:], strict=True):
        if sample.look_age > STALE:
            joined = spans and spans[-1][1] == begin
            spans[-1:] = [(spans[-1][0], end)] if joined else [*spans[-1:], (begin, end)]
    return tuple(spans)


def thin(samples: Sequence[Sample], most: int) -> tuple[Sample, ...]:
    """At most ``most`` samples: the first and last, and of each equal stretch every kind's highest."""
    if len(samples) <= most:
        return tuple(samples)
    spans = max(1, (most - 2) // (len(STACK) + 1))
    edges = [round(place * len(samples) / spans) for place in range(spans + 1)]
    keep = {0, len(samples) - 1}
    for begin, end in pairwise(edges):
        places = range(begin, end)
        keep.add(max(places, key=lambda place: sum(samples[place].of(kind) for kind in STACK)))
        keep.update(max(places, key=lambda place: samples[place].of(kind)) for kind in STACK)
    return tuple(samples[place] for place in sorted(keep))


def size_ticks(top: int) -> tuple[tuple[int, str], ...]:
    """Three to six round heights up to ``top``: powers of two apart, as memory is counted."""
    step = 2 ** max(0, ceil(log2(max(top, 2) / 6)))
    return tuple((size, _tick_label(size)) for size in range(0, top + 1, step))


def time_ticks(last: float, most: int = 8) -> tuple[tuple[float, str], ...]:
    """Round times from 0 to ``last`` seconds, at most ``most`` steps."""
    days = 86400.0 * max(1, ceil(last / 86400 / most))
    step = next((each for each in _TIME_STEPS if last / each <= most), days)
    return tuple((place * step, _time_label(place * step, step)) for place in range(int(last / step + 1e-9) + 1))


def _limit_line(verdict: Verdict | None) -> tuple[str, int]:
    held = verdict.held if verdict is not None else None
    if held is None or not held.limit:
        return "limit", 0
    return "cgroup limit" if held.limit_set_by.startswith("cgroup") else "memory of the machine", held.limit


def _tick_label(size: int) -> str:
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B" if size else "0"


def _time_label(seconds: float, step: float) -> str:
    if step < 60:
        return f"{seconds:g} s"
    if step < 3600:
        return f"{seconds / 60:g} min"
    return f"{seconds / 3600:g} h" if step < 86400 else f"{seconds / 86400:g} d"
