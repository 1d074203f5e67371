"""Grows dirty pages: writes a file and never asks for it to reach the disk."""

import os
import sys
import tempfile
import time
from pathlib import Path

SECONDS = float(os.environ.get("SECONDS", "4"))
PIECE, PIECES = 1024**2, 256

with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as directory:
    piece = os.urandom(PIECE)
    with Path(directory, "written.bin").open("wb", buffering=0) as file:
        for _ in range(PIECES):
            file.write(piece)
            time.sleep(SECONDS / PIECES)
        time.sleep(
            2.5
        )  # held, so that a close look sees what was reached: while something moved they are 2 s apart at most
