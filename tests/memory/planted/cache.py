"""Grows the page cache: reads a file that was not cached, with read(), through one small buffer."""

import os
import sys
import tempfile
import time
from pathlib import Path

SECONDS = float(os.environ.get("SECONDS", "4"))
PIECE, PIECES = 1024**2, 256

with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as directory:
    path = Path(directory, "read.bin")
    with path.open("wb") as file:
        for _ in range(PIECES):
            file.write(os.urandom(PIECE))
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    buffer = bytearray(PIECE)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            time.sleep(SECONDS / PIECES)
        os._exit(0)  # at the highest point: nothing closed, deleted or freed before, which a sample might see
