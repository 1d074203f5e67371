"""Bytes on their way into blocks: checked, written and marked in the thread that received or decoded them."""

from __future__ import annotations

from array import array
from typing import Any

from lowtide.blocks.block_file import BLOCK, BlockFile, fast_checksum
from lowtide.errors import WriteError

_CHECKSUM_OF = fast_checksum()
_TOGETHER = 4 * BLOCK  # bytes written by one call, while the processor's cache has them from their checksum


class Writing:
    """Bytes that come in order into neighbouring blocks, each marked when its last byte is written."""

    def __init__(self, file: BlockFile, run: list[int]) -> None:
        self._file, self._first, self._checksum = file, run[0], 0
        self._before = file.read_marks(run[0], len(run))
        self.marked: set[int] = set()

    def write(self, offset: int, data: Any) -> None:
        view = memoryview(data).cast("B")
        if offset + len(view) > self._file.size:
            raise ValueError(f"bytes at {offset}, behind the end of the file")
        if offset == self._first * BLOCK:
            self._checksum = 0  # from the beginning, perhaps once more
        first, whole = offset // BLOCK, array("I")
        # Before too, where it ends: what is written there makes it longer.
        had_its_length = offset + len(view) < self._file.size or self._file.has_its_length
        for at in range(0, len(view), _TOGETHER):
            part = view[at : at + _TOGETHER]
            self._sum(offset + at, part, whole)
            self._file.allocate(offset + at, len(part))
            self._put(offset + at, part)
        if not (had_its_length and self._file.has_its_length):
            raise self._cut()
        if whole:
            before = self._before[first - self._first :]
            marks = self._file.read_marks(first, len(whole))
            if any(mark - was not in (0, 1) for mark, was in zip(marks, before, strict=False)):
                raise self._cut()  # and made again by somebody who noticed: part of these bytes may be gone
            self._file.mark(first, whole, marks)
            self.marked.update(range(first, first + len(whole)))

    def _sum(self, offset: int, view: memoryview, whole: array[int]) -> None:
        """Checksums of the blocks that end in these bytes, added to ``whole``."""
        while view:
            end = min((offset // BLOCK + 1) * BLOCK, self._file.size)
            part = view[: end - offset]
            self._checksum = _CHECKSUM_OF(part, self._checksum)
            offset, view = offset + len(part), view[len(part) :]
            if offset == end:
                whole.append(self._checksum or 1)
                self._checksum = 0

    def _put(self, offset: int, part: memoryview) -> None:
        try:
            self._file.write(offset, part)
        except OSError as problem:
            raise WriteError(
                f"{self._file.place}: expected to write {len(part)} bytes of a block, got {problem.strerror}. "
                "State cache_dir= on another disk, or make room there.",
                path=self._file.place,
                wanted=len(part),
                free=None,
                errno=problem.errno,
            ) from None

    def _cut(self) -> CutByHandError:
        where = self._file.place
        return CutByHandError(f"{where}: cut by hand", path=where, wanted=None, free=None, errno=None)


class CutByHandError(WriteError):
    """Somebody made the file of the data shorter: what was there before is gone too."""
