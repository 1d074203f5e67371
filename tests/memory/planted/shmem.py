"""Grows shared memory: batches written to /dev/shm and left there, never mapped."""

import os
import tempfile
import time

SECONDS = float(os.environ.get("SECONDS", "4"))
PIECE, PIECES = 1024**2, 200

with tempfile.TemporaryFile(dir="/dev/shm", buffering=0) as file:
    for _ in range(PIECES):
        file.write(os.urandom(PIECE))
        time.sleep(SECONDS / PIECES)
    os._exit(0)  # at the highest point: nothing closed, deleted or freed before, which a sample might see
