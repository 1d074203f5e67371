"""A server that saves itself: a forked child keeps the old pages while the parent goes on writing to them."""

import mmap
import os
import signal
import time

import truth

SECONDS = float(os.environ.get("SECONDS", "6"))
SIZE = 160 * 1024**2

memory = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for offset in range(0, SIZE, mmap.PAGESIZE):
    memory[offset] = 1
time.sleep(SECONDS / 4)
child = os.fork()
if child == 0:
    time.sleep(600)
for offset in range(0, SIZE, mmap.PAGESIZE):
    memory[offset] = 2
    if offset % (SIZE // 64) == 0:
        time.sleep(SECONDS / 128)
truth.tell(held__anon__peak=truth.rollup("Pss_Anon") + truth.rollup("Pss_Anon", child))
time.sleep(SECONDS / 4)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
os._exit(0)
