"""Grows nothing: reads a file over and over with pread into one buffer, leaving no page cache behind."""

import os
import sys
import tempfile
import time
from pathlib import Path

SECONDS = float(os.environ.get("SECONDS", "4"))
PIECE, PIECES = 1024**2, 64

with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as directory:
    path = Path(directory, "rows.bin")
    path.write_bytes(os.urandom(PIECE) * PIECES)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    buffer = bytearray(PIECE)
    end = time.monotonic() + SECONDS
    number = 0
    while time.monotonic() < end:
        offset = number % PIECES * PIECE
        os.preadv(fd, [buffer], offset)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # all of it: large folios reach beyond a piece
        number += 1
        time.sleep(0.01)
