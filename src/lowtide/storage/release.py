"""``lowtide.release(memmap)`` and ``lowtide.release()``: give back memory that this process need not hold.

Each call says what came back. With a memmap, ``madvise(DONTNEED)`` on the mmap below the array drops its resident
pages at once; the next access reads them again, and the page cache keeps the data. Without an argument,
``malloc_trim`` makes the C library give back the heap that the program has freed; what is in use stays. Cost: a walk
over the free chunks of every arena, 10 ms per GiB. Needs glibc; elsewhere nothing is freed, and the answer says so.
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
    """Bytes that were resident before and after, of the mapping or of the heap; ``freed`` is the difference."""

    before: int
    after: int
    what: str = "mapped pages"
    note: str = "the page cache keeps the data"

    @property
    def freed(self) -> int:
        return self.before - self.after

    def __str__(self) -> str:
        return (
            f"freed {format_size(self.freed)} of {self.what} ({format_size(self.before)} -> "
            f"{format_size(self.after)}); {self.note}"
        )


def release(array: NDArray[Any] | None = None) -> Released:
    """Drop the resident pages of an ``np.memmap`` (or a view of one) now, and say how much that freed. Without an
    argument: give back the heap that the program freed and the C library keeps.

    Unsaved changes of a writable map are flushed first. A copy-on-write map (mode ``"c"``) is a ``ValueError``:
    dropping its pages would destroy what was written to it. Costs one ``madvise``; pages that are needed again are read
    again.

    >>> print(lowtide.release(np.load("features.npy", mmap_mode="r")))
    """
    if array is None:
        return _trim()
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


def _trim() -> Released:
    """The heap's resident bytes around malloc_trim(0), after Python's own garbage is gone."""
    import ctypes  # only here: `import lowtide` need not pay for it
    import gc

    gc.collect()
    before = _heap_resident()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        note = "this system's C library has no malloc_trim, so nothing was freed"
        return Released(before, before, "heap", note)
    trim(ctypes.c_size_t(0))
    return Released(before, _heap_resident(), "heap", "what is left is in use, or too scattered to give back")


def _heap_resident() -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


def _memmap_of(array: Any) -> np.memmap[Any, Any]:
    """The memmap that ``array`` is or is a view of. Any other mapping may be private memory, which this would wipe."""
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
