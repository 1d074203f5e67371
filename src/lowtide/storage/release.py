"""``lowtide.release(memmap)``: the second known cure, on the memmap you already have.

One idea: ``madvise(DONTNEED)`` on the mmap below the array takes its resident pages back at once; the next access reads
them again. It lowers one counter - mapped pages of this process. The page cache keeps the data, and says so.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.units import format_size


@dataclass(frozen=True)
class Released:
    """Bytes of the mapping that were resident before and after; ``freed`` is the difference."""

    before: int
    after: int

    @property
    def freed(self) -> int:
        return self.before - self.after

    def __str__(self) -> str:
        return (
            f"freed {format_size(self.freed)} of mapped pages ({format_size(self.before)} -> "
            f"{format_size(self.after)}); the page cache keeps the data"
        )


def release(array: NDArray[Any]) -> Released:
    """Drop the resident pages of an ``np.memmap`` (or a view of one) now, and say how much that freed.

    Unsaved changes of a writable map are flushed first. A copy-on-write map (mode ``"c"``) is refused: dropping its
    pages would destroy what was written to it.
    """
    whole = _memmap_of(array)
    if whole.mode == "c":
        raise ValueError(
            "release: expected a memmap of mode 'r' or 'r+', got mode 'c' (copy on write), whose changes live only in "
            "the pages this would drop. Save them first, or open the file with mode 'r'."
        )
    below: mmap.mmap = whole._mmap  # type: ignore[attr-defined]
    if array.flags.writeable:
        below.flush()
    start = np.frombuffer(below, np.uint8).__array_interface__["data"][0]
    before = _resident(start, len(below))
    below.madvise(mmap.MADV_DONTNEED)
    return Released(before, _resident(start, len(below)))


def _memmap_of(array: Any) -> np.memmap[Any, Any]:
    """The memmap that ``array`` is or shows. Any other mapping may be private memory, which this would wipe."""
    below = array
    while isinstance(below, np.ndarray):
        if isinstance(below, np.memmap) and isinstance(getattr(below, "_mmap", None), mmap.mmap):
            return below
        below = below.base
    raise TypeError(
        f"release: expected an np.memmap or a view of one, got {type(array).__name__} without a mapped file below it. "
        "Only mapped files have pages to release."
    )


def _resident(start: int, length: int) -> int:
    """Resident bytes of the mappings in this address range, from /proc/self/smaps."""
    try:
        text = Path("/proc/self/smaps").read_text()
    except OSError:
        return 0
    total, inside = 0, False
    for line in text.splitlines():
        head = line.split(None, 1)[0]
        if "-" in head and not head.endswith(":"):
            first, last = (int(part, 16) for part in head.split("-"))
            inside = first < start + length and last > start
        elif inside and head == "Rss:":
            total += int(line.split()[1]) * 1024
    return total
