"""Leaks while it reads a file: the page cache grows many times faster than the heap."""

import os
import sys
import tempfile
import time
from pathlib import Path

import truth

SECONDS = float(os.environ.get("SECONDS", "8"))
PIECE, PIECES, LEAK = 1024**2, 400, 256 * 1024

with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as directory:
    path = Path(directory, "read.bin")
    with path.open("wb") as file:
        for _ in range(PIECES):
            file.write(os.urandom(PIECE))
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    buffer = bytearray(PIECE)
    kept = []
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            kept.append(os.urandom(LEAK))
            time.sleep(SECONDS / PIECES)
        truth.tell(held__anon__peak=truth.rollup("Pss_Anon"))
        os._exit(0)  # at the highest point
