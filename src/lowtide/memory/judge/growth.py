"""How much a kind of memory grew over a trace, told apart from start-up and from noise. Pure.

It leaves out a command's start, then asks two things that must both hold: is the end higher than the beginning
by more than noise, and do most pairs of samples rise. Of a block of code everything is judged and the first question
alone decides: all of it may happen at once. The slope is the median over all pairs (Theil-Sen), which a few odd
samples cannot move. Cost: at most 64 samples per kind are compared, whatever the length of the trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowtide.memory.judge.findings import Growth
from lowtide.memory.samples import KINDS, OF_FILES, Sample
from lowtide.units import MIB

TimedBytes = tuple[float, int]  # seconds, bytes

NOISE = 8 * MIB  # allocators, imports and the kernel's lagging counters move this much in healthy programs
_LEVEL_NOISE = 0.01  # of the level itself, for programs that hold very much
_START_SHARE, _START_SECONDS = 0.3, 300.0  # start-up is the first 30 %, and never more than five minutes
# What goes on being read or written after start-up was work from the first second on, and counts from there.
_FROM_THE_START = ("cache", "dirty")
_POINTS = 64
_RISING = 0.2


@dataclass(frozen=True)
class Course:
    """A ``Growth`` and how far to trust it: samples used, noise bound, and -1 (falls) .. 1 (every pair rises)."""

    growth: Growth
    samples: int
    noise: int
    rising: float
    about: str = "command"

    @property
    def grew(self) -> bool:
        return self.growth.grew >= self.noise and (self.rising >= _RISING or self.about == "block")


def courses(samples: Sequence[Sample], about: str = "command") -> dict[str, Course]:
    """The course of every kind, from the samples that really read it."""
    asked = [sample for sample in samples if sample.files_asked]
    kinds = (*KINDS, "hugetlb") if any(sample.hugetlb for sample in samples) else KINDS
    return {
        kind: course(kind, [(s.seconds, own_bytes(s, kind)) for s in (asked if kind in OF_FILES else samples)], about)
        for kind in kinds
    }


def own_bytes(sample: Sample, kind: str) -> int:
    """Bytes of a kind that came while watching, without what was in memory before the tree opened the file."""
    found = {"cache": sample.found_cache, "shmem": sample.found_shmem}.get(kind, 0)
    return sample.of(kind) - found


def course(name: str, points: Sequence[TimedBytes], about: str = "command") -> Course:
    """The course of any series of (seconds, bytes). ``about`` as in a ``Trace``."""
    if not points:
        return Course(Growth(name, 0, 0, 0, 0, 0), 0, NOISE, 0.0)
    judged = _thin(points if about == "block" else _judged(points, start=about == "command"))
    values = [value for _, value in judged]
    edge = 1 if about == "block" else max(1, min(3, len(values) // 3))
    first, last = int(median(values[:edge])), int(median(values[-edge:]))
    slope, rising = _slope(judged)
    noise = max(NOISE, int(_LEVEL_NOISE * median(values)))
    if name in _FROM_THE_START and last - first >= noise and rising >= _RISING:
        first = min(first, points[0][1])
    growth = Growth(
        kind=name,
        first=points[0][1],
        last=points[-1][1],
        peak=max(value for _, value in points),
        grew=last - first,
        per_minute=int(slope * 60),
    )
    return Course(growth, len(judged), noise, rising, about)


def _judged(points: Sequence[TimedBytes], *, start: bool) -> Sequence[TimedBytes]:
    """Without start-up, if there was one, and without the fall at the end, when a program frees all before it exits."""
    begin, end = points[0][0], points[-1][0]
    if end < begin:  # a trace put together from two clocks: nothing to tell start-up by
        return points
    begin_at = begin + (min(_START_SHARE * (end - begin), _START_SECONDS) if start else 0.0)
    late = [point for point in points if point[0] >= begin_at]
    top = max(range(len(late)), key=lambda place: late[place][1])
    if late[top][0] >= end - 0.25 * (end - begin) and top >= 2:
        late = late[: top + 1]
    return late


def _thin(points: Sequence[TimedBytes]) -> Sequence[TimedBytes]:
    if len(points) <= _POINTS:
        return points
    step = (len(points) - 1) / (_POINTS - 1)
    return [points[round(place * step)] for place in range(_POINTS)]


def _slope(points: Sequence[TimedBytes]) -> tuple[float, float]:
    """Median slope over all pairs in bytes per second, and how many more pairs rise than fall, as a share."""
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for place, earlier in enumerate(points)
        for later in points[place + 1 :]
        if later[0] > earlier[0]
    ]
    if not slopes:
        return 0.0, 0.0
    rising = sum(slope > 0 for slope in slopes) - sum(slope < 0 for slope in slopes)
    return median(slopes), rising / len(slopes)


def median(values: Sequence[float]) -> float:
    """As statistics.median; that module would add its own imports to ``import lowtide``."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
