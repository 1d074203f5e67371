"""Grows mapped file pages: rows of an np.memmap in shuffled order, the map kept open."""

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SECONDS = float(os.environ.get("SECONDS", "4"))
# Rows of 2 MiB: where the page cache holds a file in large folios, one fault maps up to 2 MiB at once.
ROW, ROWS = 2 * 1024**2, 128

with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as directory:
    path = Path(directory, "rows.bin")
    with path.open("wb") as file:
        for _ in range(ROWS):
            file.write(os.urandom(ROW))
        os.fsync(file.fileno())
    rows = np.memmap(path, dtype=np.uint8, mode="r", shape=(ROWS, ROW))
    total = 0
    for row in np.random.default_rng(0).permutation(ROWS):
        total += int(rows[row].sum())
        time.sleep(SECONDS / ROWS)
    # Held, so that a close look sees what was reached: while something moves they are 2 s apart at most.
    time.sleep(2.5)
    os._exit(0)  # at the highest point: nothing closed, deleted or freed before, which a sample might see
