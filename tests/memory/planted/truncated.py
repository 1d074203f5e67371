"""Reads a mapping of a file that another one cuts short: a bus error."""

import mmap
import os
import sys
import tempfile
import time
from pathlib import Path

SIZE = 64 * 1024**2
with tempfile.NamedTemporaryFile(dir=sys.argv[1], suffix=".bin") as file:
    file.write(os.urandom(SIZE))
    file.flush()
    os.fsync(file.fileno())
    view = mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ)
    for offset in range(0, SIZE, mmap.PAGESIZE):
        view[offset]
    time.sleep(3)
    os.truncate(Path(file.name), 4096)
    view[SIZE - 1]
