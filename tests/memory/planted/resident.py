"""Holds mapped file pages from its first second on and grows nothing: a memmap that was read before the work begins."""

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SECONDS = float(os.environ.get("SECONDS", "4"))
SIZE = 256 * 1024**2

with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as directory:
    path = Path(directory, "table.bin")
    with path.open("wb") as file:
        for _ in range(SIZE // 1024**2):
            file.write(os.urandom(1024**2))
        os.fsync(file.fileno())
    table = np.memmap(path, dtype=np.uint8, mode="r")
    total = int(table[::4096].sum())
    time.sleep(SECONDS)
