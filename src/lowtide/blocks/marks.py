"""What a reader knows of the blocks of its store: which of them are there.

A mark that was found odd is remembered, so that blocks which are there cost no call but one: the count of how often
blocks were taken away. Another count means that nothing remembered holds any more.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowtide.blocks.block_file import MARK, open_ledger, taken_away
from lowtide.blocks.objects import MadeFile
from lowtide.storage.read import Temperature
from lowtide.storage.spans import each_once

NEAR = 65_536  # marks this close are read with one call

Blocks = NDArray[np.int64]  # numbers of blocks, counted over all files of a store
# Blocks (None: all of the store's), their marks, and how often blocks had been taken away before those were looked at.
Known = tuple[Blocks | None, NDArray[np.uint32] | None, int]


class MissingTemperature(Temperature):
    """Cold, too, while blocks are missing: then starting early pays, whatever the page cache says."""

    __slots__ = ("_cold", "missing")

    def __init__(self) -> None:
        self.missing = False
        super().__init__()

    @property
    def cold(self) -> bool:
        return self.missing or self._cold

    @cold.setter
    def cold(self, value: bool) -> None:
        self._cold = value


class Look(NamedTuple):
    """Marks, and how often blocks had been taken away before the first of them was looked at. Another count means other
    marks, in memory of their own: what a thread writes late is then not taken for new."""

    taken: int
    marks: NDArray[np.uint32]  # 0 where nobody looked


class BlockMarks:
    """The marks of all blocks of these files (None: a file without any), as far as somebody looked."""

    def __init__(self, files: Sequence[MadeFile | None], temperature: MissingTemperature) -> None:
        self._files, self._temperature = files, temperature
        counts = [0 if file is None else file.file.count for file in files]
        ends = np.cumsum(counts, dtype=np.int64)
        self.bases = ends - counts  # the first block of each file
        self.count = int(ends[-1])
        self._ledgers = [open_ledger(root) for root in sorted({file.root for file in files if file is not None})]
        self.seen, self._looks = Look(self.taken(), np.zeros(self.count, np.uint32)), 0
        self.whole_at = -1  # the count of blocks taken away at which all were there
        for file, base in zip(files, self.bases.tolist(), strict=True):
            if file is not None:
                self.seen.marks[base : base + file.file.count] = np.frombuffer(file.file.read_marks(), np.uint32)
        self._note_whole()

    def taken(self) -> int:
        return sum(map(taken_away, self._ledgers))

    def there(self) -> int:
        """How many were there when last looked at."""
        return int(np.count_nonzero(self.seen.marks & 1))

    def missing(self, needed: Blocks) -> Blocks:
        """Which of them are not there now."""
        seen, taken = self.seen, self.taken()
        if taken != seen.taken:
            self.seen = seen = Look(taken, np.zeros_like(seen.marks))
        unknown: Blocks = needed[seen.marks[needed] % 2 == 0]
        if len(unknown):
            self._look(unknown, seen.marks)
            unknown = needed[seen.marks[needed] % 2 == 0]
        if len(unknown):
            self._temperature.missing = True
        else:
            self.look_at_all()
        return unknown

    def known(self, needed: Blocks) -> Known | None:
        """What says later whether blocks that are there now stayed; None where one is missing."""
        seen = self.seen
        marks = seen.marks[needed]
        return (needed, marks, seen.taken) if (marks % 2 == 1).all() else None

    def unchanged(self, known: Known) -> bool:
        """Whether blocks are still those that were there before a read."""
        needed, marks, taken = known
        if self.taken() == taken:
            return True
        if needed is None or marks is None or len(self.missing(each_once(needed))):
            return False
        return bool((self.seen.marks[needed] == marks).all())

    def by_file(self, blocks: Blocks) -> list[tuple[MadeFile, int, Blocks]]:
        """Blocks, ascending, as those of each file, counted from its first, whose own number is the second."""
        found, which = [], np.searchsorted(self.bases, blocks, side="right") - 1
        for number in each_once(which).tolist():
            file, base = self._files[number], int(self.bases[number])
            assert file is not None
            found.append((file, base, blocks[which == number] - base))
        return found

    def look_at_all(self) -> None:
        """Now and then: whether any block is missing at all."""
        self._looks += 1
        if self._looks % 32 == 0:
            self._note_whole()

    def _note_whole(self) -> None:
        seen = self.seen
        whole = bool((seen.marks % 2 == 1).all())
        self.whole_at = seen.taken if whole else -1
        self._temperature.missing = not whole

    def _look(self, blocks: Blocks, marks: NDArray[np.uint32]) -> None:
        """Read the marks of these blocks into those of all."""
        for file, base, some in self.by_file(blocks):
            number = file.file.marks.number
            first, last = int(some[0]), int(some[-1])
            if last - first < NEAR:
                raw = os.pread(number, (last - first + 1) * MARK.size, first * MARK.size)
                if len(raw) == (last - first + 1) * MARK.size:
                    marks[base + some] = np.frombuffer(raw, np.uint32)[some - first]
            else:
                for block in some.tolist():
                    marks[base + block] = file.file.mark_of(block)
