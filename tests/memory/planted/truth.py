"""What a planted program knows of itself, from the kernel or the allocator, written down for whoever judges it.

``tell`` adds to the JSON file that $TRUTH names: keys are places in the JSON document of ``lowtide doctor --json``
("held.anon.peak"), values are bytes. Without $TRUTH nothing is written.
"""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path


def tell(**places: int) -> None:
    """Places have two underscores for each dot."""
    name = os.environ.get("TRUTH")
    if name:
        path = Path(name)
        known = json.loads(path.read_text()) if path.exists() else {}
        known |= {place.replace("__", "."): size for place, size in places.items()}
        path.write_text(json.dumps(known))


def rollup(field: str, pid: int | str = "self") -> int:
    """A line of smaps_rollup, in bytes: Pss_Anon, Pss_File, Pss_Shmem, Locked, AnonHugePages."""
    return _lines(Path(f"/proc/{pid}/smaps_rollup"))[field]


def status(field: str, pid: int | str = "self") -> int:
    """A line of status, in bytes: RssAnon, VmHWM, HugetlbPages, VmPTE."""
    return _lines(Path(f"/proc/{pid}/status"))[field]


def freed() -> int:
    """What the C library's allocator keeps of freed memory, by its own account."""

    class Numbers(ctypes.Structure):
        _fields_ = [(f"number{place}", ctypes.c_size_t) for place in range(10)]

    function = ctypes.CDLL(None).mallinfo2
    function.restype = Numbers
    return int(function().number8)


def _lines(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in path.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in pairs if words[-1] == "kB"}
