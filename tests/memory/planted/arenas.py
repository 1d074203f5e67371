"""Keeps heap it has freed in the arenas of 16 threads."""

import ctypes
import os
import threading
import time

import truth

SECONDS = float(os.environ.get("SECONDS", "4"))
BLOCK, BLOCKS, THREADS = 6000, 4000, 16

libc = ctypes.CDLL(None)
libc.mallopt(-8, THREADS)  # M_ARENA_MAX: one for each, however few cores there are
libc.malloc.restype = ctypes.c_void_p
ready, free, done = threading.Barrier(THREADS + 1), threading.Event(), threading.Barrier(THREADS + 1)


def work() -> None:
    blocks = [libc.malloc(ctypes.c_size_t(BLOCK)) for _ in range(BLOCKS)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
    ready.wait()
    free.wait()
    for block in blocks[::2]:
        libc.free(ctypes.c_void_p(block))
    done.wait()
    time.sleep(600)


for _ in range(THREADS):
    threading.Thread(target=work, daemon=True).start()
ready.wait()
time.sleep(SECONDS / 3)
free.set()
done.wait()
truth.tell(retained=truth.freed())
time.sleep(2 * SECONDS / 3)
os._exit(0)
