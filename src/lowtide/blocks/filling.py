"""Blocks that come without being asked for: what a decoder has in hand anyhow is kept where there is room.

Beside the maker's queue, in a thread of its own: each block is locked, reserved, written and marked as the maker does.
Blocks that somebody else is making, and those for which half of the disk has no room, are left to whoever needs them.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from lowtide.blocks.block_file import BLOCK, BlockFile, make_files
from lowtide.blocks.block_writing import Writing
from lowtide.blocks.disk import Disk, now, punch
from lowtide.blocks.messages import in_runs
from lowtide.errors import WriteError


class Filling:
    """Takes the bytes of a block file. ``stated``: of ``disk=``."""

    def __init__(self, place: str, size: int, stated: int | None) -> None:
        make_files(place, size)
        self._file, self._disk, self._stated = BlockFile(place, size), Disk(str(Path(place).parent)), stated
        self._file.settle()
        self._left = self._disk.limit(stated) // 2 // BLOCK
        self._turn = threading.Lock()  # several threads may fill one

    def write(self, offset: int, data: Any) -> None:
        """Whole blocks from ``offset`` on, which is the beginning of one."""
        view, first = memoryview(data), offset // BLOCK
        with self._turn:
            count = min(-(-len(view) // BLOCK), self._left)
            self._left -= count
        if count == 0:  # a lock on no bytes would be one on all that follow
            return
        locked = set(self._file.locked(first, count))
        try:
            marks = self._file.read_marks(first, count)
            missing = [block for block, mark in enumerate(marks, first) if mark % 2 == 0 and block in locked]
            for run in in_runs(missing, 1 << 30):
                self._made(run, view[run[0] * BLOCK - offset : (run[-1] + 1) * BLOCK - offset])
        except WriteError:  # no room: blocks are made when they are needed, or the error is reported then
            self._left = 0
        finally:
            self._file.unlock(first, count)

    def _made(self, run: list[int], data: memoryview) -> None:
        self._disk.reserve(len(run), self._stated, ())
        writing = Writing(self._file, run)
        try:
            writing.write(run[0] * BLOCK, data)
            self._file.needed(run[0], len(run), now())
        finally:
            punch(self._file, [block for block in run if block not in writing.marked])
            self._disk.settle(len(run), len(writing.marked))
