"""Maps a file, reads it and locks it (mlock): clean file pages that nobody can take back."""

import ctypes
import mmap
import os
import sys
import tempfile
import time
from pathlib import Path

import truth

SECONDS = float(os.environ.get("SECONDS", "4"))
SIZE, STEPS = 160 * 1024**2, 32

libc = ctypes.CDLL(None, use_errno=True)
with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as directory:
    path = Path(directory, "index.bin")
    with path.open("wb") as file:
        for _ in range(SIZE // 1024**2):
            file.write(os.urandom(1024**2))
        os.fsync(file.fileno())
    with path.open("r+b") as file:
        view = mmap.mmap(file.fileno(), SIZE, access=mmap.ACCESS_WRITE)  # shared: locking a private one copies it
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        for step in range(STEPS):
            if libc.mlock(ctypes.c_void_p(address + step * SIZE // STEPS), ctypes.c_size_t(SIZE // STEPS)):
                raise OSError(ctypes.get_errno(), "mlock")
            time.sleep(SECONDS / STEPS)
        time.sleep(2.5)
        truth.tell(held__total__locked=truth.rollup("Locked"))
        os._exit(0)
