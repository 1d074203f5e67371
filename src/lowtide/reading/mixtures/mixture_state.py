"""What a mixture's state remembers of its plan, and whether another mixture would have given the same rows.

Only the past must agree. A state holds the shares of every phase that began before its row and a short hash
of each corpus that took part; a mixture may plan anything from that row on. Changes before the
last ``KEPT_PHASES`` are kept as one hash, so that a state stays small however often weights changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from lowtide.errors import StateError
from lowtide.order.mixing import Mixing
from lowtide.reading.fingerprint import digest
from lowtide.reading.state import DAMAGED

KEPT_PHASES = 12
SHORT = 16  # characters of a hash

Named = Sequence[tuple[str, Callable[[], dict[str, Any]]]]  # each corpus's name and fingerprint
Phases = list[tuple[int, dict[str, int]]]


def past_of(mixing: Mixing, corpora: Named, rows: int) -> dict[str, Any]:
    """Safe for JSON; 16 corpora and a dozen changes make about 2 KiB."""
    began = [phase for phase in mixing.phases if phase.start < rows]
    taking = [index for index in range(len(corpora)) if any(phase.shares[index] for phase in began)]
    phases = [[phase.start, *(phase.shares[index] for index in taking)] for phase in began]
    names = [corpora[index][0] for index in taking]
    found: dict[str, Any] = {
        "corpora": [[corpora[index][0], _hash(corpora[index][1]())] for index in taking],
        "phases": phases[-KEPT_PHASES:],
    }
    if len(phases) > KEPT_PHASES:
        earlier = [[start, _taking(names, shares)] for start, *shares in phases[:-KEPT_PHASES]]
        found["earlier"] = [len(earlier), _hash(earlier)]
    return found


def check_past(theirs: Any, mine: dict[str, Any], rows: int) -> None:
    """StateError that names the first row at which the two plans differ, or the corpus that differs."""
    if theirs is None:
        raise StateError(
            "state: expected one of a mixture, got one of a single corpus. Load it into the feed of that corpus."
        )
    was, now = _phases(theirs), _phases(mine)
    if theirs.get("earlier") != mine.get("earlier"):
        first = min((phases[0][0] for phases in (was, now) if phases), default=0)
        raise _differs(rows, f"before row {first:,}", "other changes", "these")
    for index in range(max(len(was), len(now))):
        before, after = (phases[index] if index < len(phases) else None for phases in (was, now))
        if before != after:
            first = min(phase[0] for phase in (before, after) if phase is not None)
            raise _differs(rows, f"at row {first:,}", _shown(before, first), _shown(after, first))
    here = dict(mine["corpora"])
    for name, hashed in theirs["corpora"]:
        if here.get(name) != hashed:
            since = next(start for start, shares in was if name in shares)
            raise StateError(
                f"state: expected the same data for {name!r}, which takes part from row {since:,} on, got other data. "
                "Open the corpus the state was saved with."
            )


def _phases(past: Any) -> Phases:
    try:
        names = [str(name) for name, _ in past["corpora"]]
        return [(int(start), _taking(names, shares)) for start, *shares in past["phases"]]
    except (TypeError, KeyError, ValueError):
        raise StateError(f"state: expected the plan of a mixture, got something else. {DAMAGED}.") from None


def _taking(names: Sequence[str], shares: Sequence[int]) -> dict[str, int]:
    return {name: share for name, share in sorted(zip(names, shares, strict=True)) if share}


def _differs(rows: int, where: str, was: str, now: str) -> StateError:
    return StateError(
        f"state: expected the plan that gave its {rows:,} rows, got one that differs {where}: the state has {was}, "
        f"this mixture has {now}. Change weights only from row {rows:,} on (then={{{rows}: ...}})."
    )


def _shown(phase: tuple[int, dict[str, int]] | None, row: int) -> str:
    if phase is None or phase[0] != row:
        return "no change"
    total = sum(phase[1].values())
    return ", ".join(f"{name} {share}/{total}" for name, share in phase[1].items())


def _hash(value: Any) -> str:
    return digest(json.dumps(value, sort_keys=True).encode())[:SHORT]
