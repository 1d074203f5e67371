"""Which source gives row k of a mixture, and which of its own rows that is: integers only.

Shares are whole numbers over a common denominator D of at most 65,536, and one period of D rows is a table
that the earliest deadline fills. After any k rows since the last change every source has given its share of k to within
one row, so counts are exact at every row, and row k is found by arithmetic: whole periods, then a look into the table.

Costs up to 0.3 s and 600 KiB once for a table of 65,536 entries, a few microseconds for the usual one of 10 or 100.
Tijdeman, "The chairman assignment problem" (1980), proves the bound.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_PARTS = 65_536  # the largest common denominator of shares, and the longest period

Rows = NDArray[np.int64]
Weights = tuple[Fraction, ...]  # one for each source; 0: takes no part


def shares(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Whole numbers in the ratio of the weights: exact where their sum can be 65,536 or less, else the nearest over
    65,536 (largest remainder: none is off by more than 1/65,536). A weight too small for that becomes 0."""
    total = sum(weights, Fraction(0))
    parts = [weight / total for weight in weights]
    denominator = lcm(*(part.denominator for part in parts))
    if denominator <= MOST_PARTS:
        return tuple(int(part * denominator) for part in parts)
    exact = [part * MOST_PARTS for part in parts]
    found = [int(part) for part in exact]
    by_remainder = sorted(range(len(exact)), key=lambda index: (found[index] - exact[index], index))
    for index in by_remainder[: MOST_PARTS - sum(found)]:
        found[index] += 1
    common = gcd(*found)
    return tuple(share // common for share in found)


class Period(NamedTuple):
    """One period: which source gives each row, and that row's rank among the source's rows of the period."""

    source: NDArray[np.int16]
    rank: NDArray[np.int32]
    rows: tuple[NDArray[np.int32], ...]  # of each source: the rows of the period it gives


@lru_cache(maxsize=64)
def period(given: tuple[int, ...]) -> Period:
    """The period of these shares: earliest deadline first among the units that are due to begin."""
    source = np.asarray(_assigned(given), np.int16)
    rows = tuple(np.flatnonzero(source == index).astype(np.int32) for index in range(len(given)))
    rank = np.empty(len(source), np.int32)
    for mine in rows:
        rank[mine] = np.arange(len(mine), dtype=np.int32)
    return Period(source, rank, rows)


def _assigned(given: tuple[int, ...]) -> list[int]:
    """Unit j of a source may stand from step ceil(D (1 + m j) / (m w)) and must by D (m (j + 1) - 1) / (m w), counting
    steps from 1, where m = 2n - 2: then no prefix is off by more than 1 - 1/m rows."""
    length = sum(given)
    taking = [(index, share) for index, share in enumerate(given) if share]
    if len(taking) == 1:
        return [taking[0][0]] * length
    m = 2 * len(taking) - 2
    begins: list[list[tuple[int, int, int]]] = [[] for _ in range(length + 1)]  # step -> (due, source, unit)
    for index, share in taking:
        for unit in range(share):
            first = -(-length * (1 + m * unit) // (m * share))
            due = length * (m * (unit + 1) - 1) // (m * share)
            begins[first].append((due + 1, index, unit))
    waiting: list[tuple[int, int, int]] = []
    found = []
    for step in range(1, length + 1):
        for one in begins[step]:
            heapq.heappush(waiting, one)
        found.append(heapq.heappop(waiting)[1])
    return found


@dataclass(frozen=True)
class SharePhase:
    """Rows from ``start`` on, of sources in these shares; ``bases``: rows each had given before."""

    start: int
    shares: tuple[int, ...]
    bases: tuple[int, ...]

    @property
    def parts(self) -> int:
        """The common denominator, which is the length of a period."""
        return sum(self.shares)

    def counts(self, row: int) -> tuple[int, ...]:
        """Rows each source has given before ``row`` of the mixture."""
        periods, rest = divmod(row - self.start, self.parts)
        table = period(self.shares)
        return tuple(
            base + periods * share + int(np.searchsorted(rows, rest))
            for base, share, rows in zip(self.bases, self.shares, table.rows, strict=True)
        )

    def row_of(self, source: int, own: int) -> int:
        """The row of the mixture at which ``source`` gives its own row ``own``."""
        periods, rank = divmod(own - self.bases[source], self.shares[source])
        return self.start + periods * self.parts + int(period(self.shares).rows[source][rank])

    def at(self, rows: Rows) -> tuple[NDArray[np.int16], Rows]:
        """The source of each row, and the source's own row."""
        table = period(self.shares)
        periods, inside = np.divmod(rows - self.start, self.parts)
        source = table.source[inside]
        own = periods * np.asarray(self.shares, np.int64)[source]
        own += np.asarray(self.bases, np.int64)[source]
        own += table.rank[inside]
        return source, own


@dataclass(frozen=True)
class Mixing:
    """The whole plan: phases in order, and ``rows`` where it ends (None: endless)."""

    phases: tuple[SharePhase, ...]
    rows: int | None

    def phase(self, row: int) -> SharePhase:
        """The one that a row belongs to."""
        return self.phases[bisect_right(self.phases, row, key=lambda phase: phase.start) - 1]

    def counts(self, row: int) -> tuple[int, ...]:
        """Rows each source has given before ``row``."""
        return self.phase(max(0, row - 1)).counts(row)

    def at(self, rows: Rows) -> tuple[NDArray[np.int16], Rows]:
        """The source of each row, and the source's own row."""
        if len(rows) == 0:
            return np.empty(0, np.int16), np.empty(0, np.int64)
        first, last = self.phase(int(rows.min())), self.phase(int(rows.max()))
        if first is last:
            return first.at(rows)
        source, own = np.empty(len(rows), np.int16), np.empty(len(rows), np.int64)
        starts = np.array([phase.start for phase in self.phases], np.int64)
        which = np.searchsorted(starts, rows, side="right") - 1
        for number in sorted(set(which.tolist())):
            mine = which == number
            source[mine], own[mine] = self.phases[number].at(rows[mine])
        return source, own


def plan_mixing(
    changes: Sequence[tuple[int, Weights]], *, epochs: Sequence[int | None] = (), exhausted: str = "repeat"
) -> Mixing:
    """Phases from stated changes of weights: (row, weights), the first at row 0.

    ``epochs``: each source's rows of one epoch, None where it never runs out. ``exhausted``: what happens at the first
    row a source cannot give any more: ``repeat`` (its next epoch), ``stop`` (the end) or ``share`` (the others go on in
    their ratio from that row on; the end when none is left).
    """
    count = len(changes[0][1])
    limits = [None] * count if exhausted == "repeat" else list(epochs)
    phases: list[SharePhase] = []
    out: set[int] = set()
    bases: tuple[int, ...] = (0,) * count
    for number, (start, stated) in enumerate(changes):
        stop = changes[number + 1][0] if number + 1 < len(changes) else None
        while stop is None or start < stop:
            weights = [Fraction(0) if index in out else weight for index, weight in enumerate(stated)]
            if not any(weights):
                return Mixing(tuple(phases), start)
            phase = SharePhase(start, shares(weights), bases)
            ends = _first_missing(phase, limits)
            if ends is None or (stop is not None and ends[0] >= stop):
                phases.append(phase)
                break
            row, source = ends
            if row > start:
                phases.append(phase)
            if exhausted == "stop":
                return Mixing(tuple(phases), row)
            out.add(source)
            bases = phase.counts(row)
            start = row
        if stop is not None and phases:
            bases = phases[-1].counts(stop)
    return Mixing(tuple(phases), None)


def _first_missing(phase: SharePhase, limits: Sequence[int | None]) -> tuple[int, int] | None:
    """The first row whose source has nothing left, and that source."""
    found = [
        (phase.row_of(source, limit), source)
        for source, limit in enumerate(limits)
        if limit is not None and phase.shares[source]
    ]
    return min(found, default=None)
