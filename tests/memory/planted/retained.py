"""Keeps heap it has freed: half a gigabyte in blocks below malloc's own threshold, all freed but the last."""

import ctypes
import os
import time

SECONDS = float(os.environ.get("SECONDS", "4"))
BLOCK, BLOCKS = 100_000, 2600

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
blocks = [libc.malloc(ctypes.c_size_t(BLOCK)) for _ in range(BLOCKS)]
for block in blocks:
    ctypes.memset(block, 1, BLOCK)
pin = libc.malloc(ctypes.c_size_t(BLOCK))  # above all others: what lies below it cannot be given back
ctypes.memset(pin, 1, BLOCK)
time.sleep(SECONDS / 3)
for block in blocks:
    libc.free(ctypes.c_void_p(block))
time.sleep(2 * SECONDS / 3)
