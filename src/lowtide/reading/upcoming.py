"""Look-ahead: the numbers of the rows or windows that come next, computed in blocks.

One idea: an order is a pure function, so what comes next is known before this batch is read, and a block of numbers
costs little more than one. The first request computes just what was asked for, so that any single step comes at once;
those who read on get blocks that double, up to 64 KiB.

The last two blocks are kept: who looks two batches ahead comes back to this one. Costs those blocks of numbers. Holds
no position: callers say where they are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

BLOCK = 8192  # numbers computed at a time: 64 KiB, and the order's fixed cost spread over many batches


_Block = tuple[int, Numbers]
_NOTHING: _Block = 0, np.empty(0, np.int64)


class Upcoming:
    """Numbers at positions of an order, where ``compute(first, count)`` gives those at ``[first, first + count)``.

    ``stop``: positions there are; None for an endless order.
    """

    __slots__ = ("_compute", "_known", "_stop")

    def __init__(self, compute: Callable[[int, int], Numbers], stop: int | None = None) -> None:
        self._compute = compute
        self._stop = stop
        # One value, so that threads never see half of it: where each block begins, and the block; the newest first.
        self._known: tuple[_Block, _Block] = _NOTHING, _NOTHING

    def at(self, first: int, count: int) -> Numbers:
        """The numbers at positions ``[first, first + count)``, fewer at the end."""
        if self._stop is not None:
            count = min(count, self._stop - first)
        if count <= 0:
            return np.empty(0, np.int64)
        known = self._known
        for start, block in known:
            skip = first - start
            if skip >= 0 and skip + count <= len(block):
                return block[skip : skip + count]
        start, block = known[0]
        goes_on = 0 < first - start <= len(block)
        size = max(count, min(BLOCK, 2 * len(block))) if goes_on else count
        block = self._compute(first, size if self._stop is None else min(size, self._stop - first))
        self._known = (first, block), known[0]
        return block[:count]

    def __reduce__(self) -> tuple[object, ...]:
        return Upcoming, (self._compute, self._stop)
