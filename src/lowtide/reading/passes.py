"""Passes over the rows of an array: which row is a rank's k-th, epoch after epoch.

One idea: position k of a pass counts this rank's rows since the first epoch; epoch ``k // rows`` has an order of its
own, and every pass is a pure function of its settings. Nothing is stored per row, and resuming needs nothing but k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from lowtide.order import LocalPermutation, Order, Permutation, draws
from lowtide.reading.fingerprint import digest
from lowtide.reading.upcoming import Numbers


class Pass(Protocol):
    """Positions of this rank -> row numbers."""

    @property
    def name(self) -> str: ...
    @property
    def rows(self) -> int | None:
        """This rank's rows of one epoch; None: the pass has no epochs and no end."""
        ...

    @property
    def consecutive(self) -> bool:
        """Neighbouring positions are neighbouring rows."""
        ...

    @property
    def scattered(self) -> bool:
        """Neighbouring positions are rows from all over the array."""
        ...

    def block(self, first: int, count: int) -> Numbers: ...
    def settings(self) -> dict[str, Any]:
        """What fixes the order, safe for JSON."""
        ...


def _by_epoch(rows: int, first: int, count: int, part: Callable[[int, int, int], Numbers]) -> Numbers:
    """Positions ``[first, first + count)`` from ``part(epoch, offset, size)``, epoch by epoch."""
    if rows == 0 or count == 0:
        return np.empty(0, np.int64)
    parts = []
    while count > 0:
        epoch, offset = divmod(first, rows)
        size = min(count, rows - offset)
        parts.append(part(epoch, offset, size))
        first, count = first + size, count - size
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(frozen=True)
class InFileOrder:
    """Rows ``[first, last)`` as they lie in the file, the same in every epoch."""

    first: int
    last: int
    name = "chunks"
    consecutive = True
    scattered = False

    @property
    def rows(self) -> int:
        return self.last - self.first

    def block(self, first: int, count: int) -> Numbers:
        return self.first + np.arange(first, first + count, dtype=np.int64) % max(1, self.rows)

    def settings(self) -> dict[str, Any]:
        return {"order": "chunks"}


class RowStretch(NamedTuple):
    """Neighbouring rows, and the positions of a pass at which they come."""

    row: int
    rows: int
    position: int
    positions: int


@dataclass(frozen=True)
class ShuffledRows:
    """Positions ``[first, last)`` of a shuffle of ``count`` rows; epoch e of the pass is epoch ``epoch + e`` of it.

    ``neighbours``: shuffle only within runs of this many rows.
    """

    count: int
    first: int
    last: int
    seed: int
    epoch: int
    neighbours: int | None = None
    _orders: dict[int, Order] = field(default_factory=dict, init=False, repr=False, compare=False)
    name = "shuffled"
    consecutive = False

    @property
    def rows(self) -> int:
        return self.last - self.first

    @property
    def scattered(self) -> bool:
        return self.neighbours is None

    def block(self, first: int, count: int) -> Numbers:
        return _by_epoch(
            self.rows,
            first,
            count,
            lambda epoch, offset, size: self._order(self.epoch + epoch).block(self.first + offset, size),
        )

    def stretch(self, position: int) -> RowStretch:
        """The run of neighbours that is being shuffled at a position of a local shuffle."""
        epoch, offset = divmod(position, self.rows)
        order = self._order(self.epoch + epoch)
        assert isinstance(order, LocalPermutation)
        row, rows, begins = order.run_at(self.first + offset)
        # A rank's share may begin or end in the middle of a run.
        first, last = max(begins, self.first), min(begins + rows, self.last)
        return RowStretch(row, rows, epoch * self.rows + first - self.first, last - first)

    def settings(self) -> dict[str, Any]:
        return {"order": "shuffled", "seed": self.seed, "epoch": self.epoch, "neighbours": self.neighbours}

    def _order(self, epoch: int) -> Order:
        order = self._orders.get(epoch)
        if order is None:
            if self.neighbours is None:
                order = Permutation(self.count, seed=self.seed, epoch=epoch)
            else:
                order = LocalPermutation(self.count, self.neighbours, seed=self.seed, epoch=epoch)
            if len(self._orders) > 2:  # a block may reach into the next epoch, a retry back into the last
                self._orders.clear()
            self._orders[epoch] = order
        return order

    def __reduce__(self) -> tuple[object, ...]:
        return ShuffledRows, (self.count, self.first, self.last, self.seed, self.epoch, self.neighbours)


@dataclass(frozen=True)
class GivenRows:
    """The caller's own row numbers (checked, negative ones allowed), in the caller's order."""

    indices: np.ndarray[Any, Any]
    count: int
    name = "gather"
    consecutive = False
    scattered = False

    @property
    def rows(self) -> int:
        return len(self.indices)

    def block(self, first: int, count: int) -> Numbers:
        whole = _by_epoch(self.rows, first, count, lambda _, offset, size: self._part(offset, size))
        return np.where(whole < 0, whole + self.count, whole)

    def _part(self, offset: int, size: int) -> Numbers:
        return np.asarray(self.indices[offset : offset + size]).astype(np.int64)

    def settings(self) -> dict[str, Any]:
        step = 1 << 16
        blocks = (np.asarray(self.indices[first : first + step]) for first in range(0, len(self.indices), step))
        return {"order": "gather", "indices": digest(*(block.astype("<i8").tobytes() for block in blocks))}


@dataclass(frozen=True)
class DrawnRows:
    """Rows drawn with replacement from ``count``, without end."""

    count: int
    seed: int
    name = "sample"
    rows = None
    consecutive = False
    scattered = True

    def block(self, first: int, count: int) -> Numbers:
        return draws(self.count, seed=self.seed, start=first, count=count)

    def settings(self) -> dict[str, Any]:
        return {"order": "sample", "seed": self.seed}
