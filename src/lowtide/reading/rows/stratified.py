"""A split by a seed: rows for validation picked evenly from the whole file, without an index.

The file is cut into runs of 1,024 rows, and each run gives its share of the rows to val: whole numbers that
add up exactly. One of 64 permutations, rotated by an offset, says which rows of a run those are; both are drawn from
(seed, run). So the k-th row of either part is a few table look-ups away, both parts stay in file order, and
equal lengths, counts and seeds pick equal rows in every file.

Costs some 200 ns per row in calls of thousands and 0.5 MiB of tables, made at first use and left out of pickles.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.arguments import whole_number
from lowtide.engine import Numbers
from lowtide.order import Permutation, key
from lowtide.order.words import mixed
from lowtide.reading.rows.parts import Consecutive, Part

RUN = 1024
PATTERNS = 64


@dataclass(frozen=True)
class Stratified:
    """The ``val`` rows of ``total`` that ``seed`` picks, or the others."""

    total: int
    val: int
    seed: int
    picked: bool  # whether this part is val or the rest
    _tables: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def count(self) -> int:
        return self.val if self.picked else self.total - self.val

    def settings(self) -> dict[str, Any]:
        side = "val" if self.picked else "train"
        return {"part": side, "count": self.count, "total": self.total, "seed": self.seed}

    def __reduce__(self) -> tuple[object, ...]:
        return Stratified, (self.total, self.val, self.seed, self.picked)

    def rows(self, numbers: Numbers) -> Numbers:
        """Rows of the whole at these positions of the part."""
        run = self._run_of(numbers)
        place = numbers - self._before(run)
        quota = self._val_before(run + 1) - self._val_before(run)
        found = np.empty(len(numbers), np.int64)
        last = run == self.total // RUN  # the last run is short, or empty
        for size in sorted(set(quota[~last].tolist())):
            here = (quota == size) & ~last
            found[here] = self._inside(run[here], place[here], size)
        if last.any():
            found[last] = self._short_run(int(quota[last][0]))[place[last]]
        return run * RUN + found

    # How many

    def _val_before(self, runs: Numbers) -> Numbers:
        """Val rows in the first ``runs`` runs: their share, rounded down; all of them at the end."""
        whole, rest = divmod(RUN * self.val, self.total)
        if self.total < 2**36:
            share = runs * rest // self.total
        else:  # the product would not fit into 64 bits
            share = np.array([run * rest // self.total for run in runs.tolist()], np.int64)
        return np.where(runs * RUN >= self.total, self.val, runs * whole + share)

    def _before(self, runs: Numbers) -> Numbers:
        """Rows of this part in the first ``runs`` runs."""
        val = self._val_before(runs)
        return val if self.picked else np.minimum(runs * RUN, self.total) - val

    def _run_of(self, numbers: Numbers) -> Numbers:
        """The run of each row of this part: guessed by proportion, then corrected."""
        most = (self.total - 1) // RUN
        run = np.minimum((numbers * (self.total / self.count / RUN)).astype(np.int64), most)
        while (early := self._before(run + 1) <= numbers).any():
            run += early
        while (late := self._before(run) > numbers).any():
            run -= late
        return run

    # Which ones

    def _inside(self, run: Numbers, place: Numbers, quota: int) -> Numbers:
        """The ``place``-th row of this part within each (whole) run, where val has ``quota`` rows of the run."""
        chosen, below = self._table(quota)
        word = mixed(key(self.seed, "split", self.total, "runs"), run.astype(np.uint64))
        pattern = (word >> np.uint64(58)).astype(np.int64)
        turn = (word & np.uint64(RUN - 1)).astype(np.int64)
        # A sorted set rotated by `turn` is the same sorted list with another start.
        begin = below[pattern, RUN - turn]
        found: Numbers = (chosen[pattern, (place + begin) % chosen.shape[1]] + turn) % RUN
        return found

    def _table(self, quota: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each pattern: this part's rows of a run, sorted; and how many of them are below each row."""
        found = self._tables.get(quota)
        if found is None:
            mine = np.zeros((PATTERNS, RUN), bool)
            for pattern in range(PATTERNS):
                order = Permutation(RUN, seed=key(self.seed, "split", self.total, pattern), purpose="split")
                mine[pattern, order.block(0, quota) if self.picked else order.block(quota, RUN - quota)] = True
            chosen = np.nonzero(mine)[1].reshape(PATTERNS, -1)
            below = np.zeros((PATTERNS, RUN + 1), np.int64)
            np.cumsum(mine, axis=1, out=below[:, 1:])
            found = self._tables[quota] = chosen, below
        return found

    def _short_run(self, quota: int) -> Numbers:
        rows = self.total % RUN
        order = Permutation(rows, seed=key(self.seed, "split", self.total, "short"), purpose="split")
        return np.sort(order.block(0, quota) if self.picked else order.block(quota, rows - quota))


def val_count(val: Any, total: int, what: str = "rows") -> int:
    """How many rows (or tokens) ``val`` means, a share below 1 or a number; at least one is left on either side."""
    if isinstance(val, (bool, np.bool_)) or not isinstance(val, (int, float, np.integer, np.floating)):
        raise TypeError(f"split: expected a number for val, got {type(val).__name__}. Use a share such as val=0.1.")
    if total < 2:
        raise ValueError(f"split: expected 2 {what} or more to split, got {total}. Use it whole, or open more data.")
    whole = isinstance(val, (int, np.integer))
    count = int(val) if whole else round(total * float(val)) if 0 < val < 1 else 0
    if not 0 < count < total:
        way = f"a share such as val=0.1, or a number of {what}" if round(total * 0.1) else "val=1"
        raise ValueError(
            f"split: expected 1 to {total - 1} {what} for val, got val={val} of {total} {what}. Use {way}."
        )
    return count


def split_parts(count: int, val: float | int, seed: int | None) -> tuple[Part, Part]:
    """The two parts of ``count`` rows: equal counts, shares and seeds give equal parts, whatever the rows are."""
    rows = val_count(val, count)
    if seed is None:
        return Consecutive(0, count - rows), Consecutive(count - rows, rows)
    number = whole_number("seed", seed)
    return Stratified(count, rows, number, False), Stratified(count, rows, number, True)
