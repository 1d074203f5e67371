"""Grows shared memory by files that are written to /dev/shm and closed at once: no process holds them."""

import os
import shutil
import tempfile
import time
from pathlib import Path

import truth

SECONDS = float(os.environ.get("SECONDS", "4"))
FILES, SIZE = 60, 4_000_000

directory = tempfile.mkdtemp(dir="/dev/shm", prefix="planted-")
try:
    for number in range(FILES):
        Path(directory, f"batch-{number:03}.bin").write_bytes(os.urandom(SIZE))
        time.sleep(SECONDS / FILES)
    truth.tell(held__shmem__peak=sum(each.stat().st_blocks * 512 for each in Path(directory).iterdir()))
    time.sleep(1)
finally:
    shutil.rmtree(directory)
    os._exit(0)
