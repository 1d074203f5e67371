"""Which documents were seen before, exactly, in a stated amount of memory.

One array is a hash table of 128-bit hashes (open addressing, at most three quarters full); a batch of documents is
looked up with a few array operations. Costs 16 bytes per slot, allocated once. When it is full the job
stops and says how much it needs: a table that quietly forgets would keep duplicates. Hashes of kept documents are also
appended to a file, from which a resumed run fills the table.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from lowtide.errors import BudgetError
from lowtide.units import format_size

_FULL = 0.75
_SLOT = 16


class Seen:
    """Tells first appearances of hashes; ``file`` keeps them for a resumed run."""

    def __init__(self, memory: int, file: Path, count: int = 0) -> None:
        slots = 1 << max(8, (max(memory, 1) // _SLOT).bit_length() - 1)
        self._table = np.zeros((slots, 2), np.uint64)  # the second word of an entry is never 0
        self._mask = np.uint64(slots - 1)
        self._most = int(slots * _FULL)
        self._memory = memory
        self.count = 0
        file.touch()
        self._file: BinaryIO = file.open("r+b", buffering=0)
        self._file.truncate(count * _SLOT)  # drops what was written after the last checkpoint
        self._fill(count)

    def first(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """For each hash in order, whether it appears for the first time; one with a second word of 0 always does."""
        result = np.ones(len(hashes), np.bool_)
        asked = np.flatnonzero(hashes[:, 1] != 0)
        if not asked.size:
            return result
        _, places = np.unique(hashes[asked], axis=0, return_index=True)
        once = np.zeros(len(asked), np.bool_)
        once[places] = True  # of equal hashes in this batch, only the first
        once[np.flatnonzero(once)] = ~self._known(hashes[asked[once]])
        new = hashes[asked[once]]
        self._insert(new)
        self._file.write(np.ascontiguousarray(new, "<u8").tobytes())
        result[asked] = once
        return result

    def checkpoint(self) -> int:
        os.fsync(self._file.fileno())
        return self.count

    def close(self) -> None:
        self._file.close()

    def _fill(self, count: int) -> None:
        self._file.seek(0)
        while count > 0:
            data = self._file.read(min(count, 65_536) * _SLOT)
            if not data:
                break
            self._insert(np.frombuffer(data, "<u8").astype(np.uint64).reshape(-1, 2))
            count -= len(data) // _SLOT

    def _known(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        known = np.zeros(len(hashes), np.bool_)
        waiting, slots = np.arange(len(hashes)), hashes[:, 0] & self._mask
        while waiting.size:
            entries = self._table[slots]
            same = (entries == hashes[waiting]).all(axis=1)
            known[waiting[same]] = True
            on = ~same & (entries[:, 1] != 0)
            waiting, slots = waiting[on], (slots[on] + np.uint64(1)) & self._mask
        return known

    def _insert(self, hashes: NDArray[np.uint64]) -> None:
        """Add hashes that differ from each other and are not in the table."""
        if self.count + len(hashes) > self._most:
            raise BudgetError(
                f"--dedup: expected at most {self._most} documents in {format_size(self._memory)}, got more. "
                f"Run it again with --dedup {format_size(2 * self._memory).replace(' ', '')}: "
                "it continues where it stopped."
            )
        waiting, slots = np.arange(len(hashes)), hashes[:, 0] & self._mask
        while waiting.size:
            free = self._table[slots, 1] == 0
            _, winners = np.unique(slots[free], return_index=True)  # two may want the same free slot
            chosen = np.flatnonzero(free)[winners]
            self._table[slots[chosen]] = hashes[waiting[chosen]]
            on = np.ones(len(waiting), np.bool_)
            on[chosen] = False
            waiting, slots = waiting[on], (slots[on] + np.uint64(1)) & self._mask
        self.count += len(hashes)
