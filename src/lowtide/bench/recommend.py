"""What the figures recommend, and why.

Only ways that stayed inside the budget are candidates, judged where the data will really be - in the page
cache if it fits there, on the disk if not - and only a clear gain replaces the default. Pure: figures in, words out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

from lowtide.bench.jobs import BASELINE, BOUNDED_BASELINE, READING_WAYS
from lowtide.bench.rounds import Case
from lowtide.units import MIB, format_size

SLACK = 8 * MIB  # what the interpreter itself may grow by while it reads
CLEAR = 1.15  # a smaller gain may be noise, and does not replace the default
CLEAR_ONCE = 3.0  # the same for one round: "read, keep" came out 2.6x apart in three quick runs at load 5 on 2 CPUs
WORTH_MAPPING = 1.5  # below this, giving up the bound on memory is not worth mentioning


@dataclass(frozen=True)
class Advice:
    """Settings, the reasons for them, and what else is worth knowing."""

    strategy: str
    cache: str
    reasons: tuple[str, ...]
    beside: tuple[str, ...] = ()


def recommend(cases: Sequence[Case], *, keep: bool, cache_why: str, budget: int) -> Advice:
    """The settings to open the file with. ``keep``: the page cache will hold it."""
    cache = "keep" if keep else "drop"
    heat = _heat(cases, cache)
    if heat is None:
        return Advice("read", cache, (f"cache={cache!r}: {cache_why}", "no figures: this is the default"))
    safe = [way.name for way in READING_WAYS if way.strategy not in (None, "map")]
    bounded = [name for name in safe if _inside(cases, name, budget)]
    scores = {name: _score(cases, name, heat) for name in bounded if _cache(cases, name) == cache}
    scores = {name: score for name, score in scores.items() if score > 0}
    default = f"read, {cache}"
    best = max(scores, key=lambda name: scores[name], default=default)
    clear = CLEAR if min(case.rounds for case in cases if _rate(case, heat)) > 1 else CLEAR_ONCE
    if default not in scores or scores[default] * clear >= scores[best]:
        best = default
    strategy = best.split(",")[0]
    other = "cold" if heat == "warm" else "warm"
    speeds = [_speed_reason(cases, best, each) for each in (heat, other)]
    reasons = [f"cache={cache!r}: {cache_why}", *speeds, _memory_reason(cases, best, budget)]
    if best != default:
        reasons.insert(1, f"strategy={strategy!r}: {scores[best] / scores[default]:.1f}x 'read' here, {heat}")
    return Advice(strategy, cache, tuple(filter(None, reasons)), _beside(cases, best, heat, keep=keep))


def _heat(cases: Sequence[Case], cache: str) -> str | None:
    """Which figures count: warm if the cache holds the data, else cold; the other kind if there are none."""
    order = ("warm", "cold") if cache == "keep" else ("cold", "warm")
    return next((heat for heat in order if any(_rate(case, heat) for case in cases)), None)


def _rate(case: Case, heat: str) -> float:
    return (case.warm if heat == "warm" else case.cold) or 0.0


def _of(cases: Sequence[Case], way: str) -> list[Case]:
    return [case for case in cases if case.way == way]


def _cache(cases: Sequence[Case], way: str) -> str:
    return next((case.cache for case in _of(cases, way)), "")


def _inside(cases: Sequence[Case], way: str, budget: int) -> bool:
    return all(case.anon + case.mapped <= budget + SLACK for case in _of(cases, way))


def _score(cases: Sequence[Case], way: str, heat: str) -> float:
    """Geometric mean over the patterns of its rate against the baseline's; 0 if a pattern was not measured."""
    ratios = [ratio(cases, case, BASELINE, heat) for case in _of(cases, way)]
    if not ratios or any(not value for value in ratios):
        return 0.0
    return exp(sum(log(value) for value in ratios if value) / len(ratios))


def ratio(cases: Sequence[Case], case: Case, other: str, heat: str) -> float | None:
    """This case's rate over that of another way in the same pattern; None if either is missing."""
    against = next((c for c in cases if c.way == other and c.pattern == case.pattern), None)
    if against is None or not _rate(against, heat) or not _rate(case, heat):
        return None
    return _rate(case, heat) / _rate(against, heat)


def _speed_reason(cases: Sequence[Case], way: str, heat: str) -> str:
    parts = []
    for case in _of(cases, way):
        bounded = ratio(cases, case, BOUNDED_BASELINE, heat)
        plain = ratio(cases, case, BASELINE, heat)
        if bounded and plain:
            parts.append(f"{case.pattern} {times(bounded)} ({times(plain)})")
    return f"{heat}, against np.memmap recreated (kept open): {', '.join(parts)}" if parts else ""


def _memory_reason(cases: Sequence[Case], way: str, budget: int) -> str:
    own, kept = _of(cases, way), _of(cases, BASELINE)
    held = max((case.anon + case.mapped for case in own), default=0)
    theirs = max((case.mapped for case in kept), default=0)
    text = f"held at most {format_size(held)} (budget {format_size(budget)})"
    return f"{text}; np.memmap kept open had mapped {format_size(theirs)} when time was up" if kept else text


def _beside(cases: Sequence[Case], best: str, heat: str, *, keep: bool) -> tuple[str, ...]:
    mapped, chosen = _score(cases, "map, keep", heat), _score(cases, best, heat)
    if not keep or not mapped or not chosen or mapped < WORTH_MAPPING * chosen:
        return ()
    gain = f"strategy='map' is {mapped / chosen:.1f}x faster {heat}"
    return (f"{gain}, by letting the whole file become mapped: no budget bounds it",)


def times(value: float) -> str:
    """A ratio as people read it: <0.01x, 0.43x, 1.9x, 14x, 3,600x."""
    if 0 < value < 0.01:
        return "<0.01x"
    if value >= 9.95:
        return f"{value:,.0f}x"
    return f"{value:.1f}x" if value >= 1.05 else f"{value:.2f}x"
