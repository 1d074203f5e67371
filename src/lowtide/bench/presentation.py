"""A benchmark as rows of text and as one JSON document.

Every figure has its ratio to the same baseline beside it, and notes on how it was measured below. Formats only;
measures and prints nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lowtide.bench.jobs import BASELINE, READING_PATTERNS, READING_WAYS
from lowtide.bench.recommend import Advice, ratio, times
from lowtide.bench.rounds import Case, Measurements
from lowtide.units import GIB, MIB, format_size

_SHOWN = (*(way.name for way in READING_WAYS if not way.ours), *(way.name for way in READING_WAYS if way.ours))
_UNITS = {"chunks": "GiB/s", "rows": "rows/s", "windows": "windows/s"}


@dataclass(frozen=True)
class BenchFacts:
    """What was measured, and on what."""

    path: str  # of the file that was read
    nbytes: int
    holes: int  # bytes of it that were never written
    files: int  # of the whole corpus; only the largest was read
    all_nbytes: int
    dtype: str
    dtype_guessed: bool
    shape: tuple[int, ...]
    kind: str  # "tokens" | "array"
    filesystem: str
    read_ahead: int | None
    memory: int
    cpus: int | None
    budget: int
    engine: str  # the one Lowtide reads with
    seconds_per_case: float
    rounds: int
    quick: bool
    warm_bytes: int


def document(facts: BenchFacts, outcome: Measurements, advice: Advice, line: str) -> dict[str, Any]:
    """What --json prints."""
    cases = []
    for case in outcome.cases:
        heats = {heat: ratio(outcome.cases, case, BASELINE, heat) for heat in ("cold", "warm")}
        cases.append({**asdict(case), "ratio": heats})
    return {
        **asdict(facts),
        "seconds": round(outcome.seconds, 2),
        "warm_only": outcome.warm_only,
        "stopped": outcome.stopped,
        "not_measured": [{"pattern": pattern, "way": way} for pattern, way in outcome.skipped],
        "notes": notes(facts, outcome),
        "baseline": BASELINE,
        "cases": cases,
        "recommended": {**asdict(advice), "open": line},
    }


def pattern_rows(cases: Sequence[Case], pattern: str) -> tuple[list[str], list[list[str]], list[str]]:
    """Header, rows and styles of one pattern's table; sizes in MiB, so that 80 columns are enough."""
    shown = sorted((case for case in cases if case.pattern == pattern), key=lambda case: _SHOWN.index(case.way))
    heats = [heat for heat in ("cold", "warm") if any(getattr(case, heat) for case in shown)]
    header = [_UNITS[pattern]]
    for heat in heats:
        header += [heat, "ratio"]
    header += ["anon", "mapped", *(["cache", "disk"] if "cold" in heats else [])]
    rows, styles = [], []
    for case in shown:
        row = [case.way]
        for heat in heats:
            row += [_speed(case, getattr(case, heat)), _ratio(cases, case, heat)]
        row += [_mib(case.anon), _mib(case.mapped)] if case.rounds else ["-", "-"]
        if "cold" in heats:
            row += ["-" if case.left is None else _mib(case.left), "-" if case.device is None else times(case.device)]
        rows.append(row)
        styles.append("" if case.strategy else "dim")
    return header, rows, styles


def notes(facts: BenchFacts, outcome: Measurements) -> list[str]:
    """What a reader must know about how the figures were measured."""
    found = []
    if facts.files > 1:
        size, everything = format_size(facts.nbytes), format_size(facts.all_nbytes)
        found.append(
            f"only the largest of {facts.files:,} files was read, {size} of {everything}: np.memmap opens one file"
        )
    if facts.dtype_guessed:
        found.append(f"dtype {facts.dtype} is a guess from its name or first block: nothing in the file says so")
    if outcome.warm_only:
        found.append(f"warm only: {outcome.warm_only}")
    if facts.holes:
        found.append(
            f"{format_size(facts.holes)} of the file are holes, which are not on disk: there the figures measure memory"
        )
    found += _cut_short(facts, outcome)
    found += sorted({f"{case.way}, {case.pattern}: {note}" for case in outcome.cases for note in case.notes})
    if outcome.skipped:
        found.append("no time left for: " + "; ".join(f"{way} ({pattern})" for pattern, way in outcome.skipped))
    if outcome.stopped:
        found.append("stopped by Ctrl-C: figures are from the rounds so far")
    if facts.quick:
        found.append("one quick round: small differences are noise; without --quick figures are medians of rounds")
    if outcome.load is not None:
        found.append(
            f"other work was running ({outcome.load:.1f} processes for {os.cpu_count()} CPUs): figures are too low"
        )
    return found


def _cut_short(facts: BenchFacts, outcome: Measurements) -> list[str]:
    found = []
    for pattern in READING_PATTERNS:
        covered = [case.covered for case in outcome.cases if case.pattern == pattern and case.covered is not None]
        if covered and min(covered) < 1:
            parts = dict.fromkeys((_share(min(covered)), _share(max(covered))))
            read = f"{' to '.join(parts)} of the file was read"
            found.append(f"{pattern}, cold: {read}, in at most {facts.seconds_per_case:g} s per case")
    return found


def _share(value: float) -> str:
    return f"{value:.0%}" if value >= 0.1 else f"{value:.2%}" if value >= 0.0001 else "less than 0.01%"


def title(pattern: str, batch: int, item: int, length: int) -> str:
    if pattern == "chunks":
        return f"chunks of {format_size(batch * item)}, in order"
    if pattern == "rows":
        return f"shuffled rows of {format_size(item)}, batches of {batch}"
    return f"random windows of {length:,} tokens, batches of {batch} as int64 x and y"


def _speed(case: Case, rate: float | None) -> str:
    if rate is None:
        return "-"
    if case.pattern == "chunks":
        return f"{rate * case.item_bytes / GIB:.2f}"
    return f"{rate:,.0f}"


def _ratio(cases: Sequence[Case], case: Case, heat: str) -> str:
    found = ratio(cases, case, BASELINE, heat)
    return "-" if found is None else times(found) if case.way != BASELINE else "1x"


def _mib(size: int) -> str:
    value = size / MIB
    return f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"
