"""What is found in units of a column that are decoded beside each other, put down in the order of the file.

Document ends are written unit after unit. Whoever has decoded a unit waits for those before it; so does who has more
than ``MOST_ENDS`` of one in hand, and then writes them as they come. Of several problems, the first one is reported.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

MOST_ENDS = 1 << 17  # 1 MiB of them


class UnitOrder:
    """``ends``: the file of document ends; ``pieces``: how many the column has."""

    def __init__(self, ends: Any, pieces: int) -> None:
        self.counts, self.documents = [0] * pieces, 0
        self.failed: Exception | None = None
        self._ends = ends
        self._unit, self._before = 0, 0  # whose turn it is, and the ids before it
        self._turn = threading.Condition()

    def take(self, unit: int) -> int:
        """Wait for the units before this one; returns how many ids they have."""
        with self._turn:
            self._turn.wait_for(lambda: self._unit == unit or self.failed is not None)
            if self.failed is not None:
                raise self.failed
            return self._before

    def write(self, unit: int, ends: list[npt.NDArray[np.int64]]) -> None:
        """Document ends of a unit, counted from its first id."""
        before = self.take(unit)
        for some in ends:
            self._ends.write((some + before).astype("<i8").tobytes())
            self.documents += some.size

    def pass_on(self, ids: int) -> None:
        """The unit whose turn it is has so many ids, and is done."""
        with self._turn:
            self._unit, self._before = self._unit + 1, self._before + ids
            self._turn.notify_all()

    def fail(self, unit: int, problem: Exception) -> None:
        """This unit cannot be decoded: nor will those behind it, once those before it are."""
        with self._turn:
            self._turn.wait_for(lambda: self._unit == unit or self.failed is not None)
            self.failed = self.failed or problem
            self._turn.notify_all()
