"""Keeps heap it has freed, in very many small pieces: every other one of 200,000 blocks is still in use."""

import ctypes
import os
import time

import truth

SECONDS = float(os.environ.get("SECONDS", "4"))
BLOCK, BLOCKS = 1200, 200_000

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
blocks = [libc.malloc(ctypes.c_size_t(BLOCK)) for _ in range(BLOCKS)]
for block in blocks:
    ctypes.memset(block, 1, BLOCK)
time.sleep(SECONDS / 3)
for block in blocks[::2]:
    libc.free(ctypes.c_void_p(block))
truth.tell(retained=truth.freed())
time.sleep(2 * SECONDS / 3)
os._exit(0)
