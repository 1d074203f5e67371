"""Writes a file and does not sync it, then maps and reads it: every page is dirty, and mapped, and one page."""

import mmap
import os
import sys
import tempfile
import time
from pathlib import Path

SECONDS = float(os.environ.get("SECONDS", "4"))
SIZE = 192 * 1024**2

with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as directory:
    path = Path(directory, "written.bin")
    with path.open("w+b") as file:
        for _ in range(SIZE // 1024**2):
            file.write(os.urandom(1024**2))
        file.flush()
        view = mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ)
        for offset in range(0, SIZE, mmap.PAGESIZE):
            view[offset]
            if offset % (SIZE // 32) == 0:
                time.sleep(SECONDS / 32)
