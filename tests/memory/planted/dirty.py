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
        os._exit(0)  # at the highest point: nothing closed, deleted or freed before, which a sample might see
