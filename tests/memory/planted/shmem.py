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
    time.sleep(
        2.5
    )  # held, so that a close look sees what was reached: while something moved they are 2 s apart at most
