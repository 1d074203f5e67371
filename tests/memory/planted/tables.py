"""Grows page tables: a huge mapping touched once every 2 MiB, each touch a page of page table and nothing else."""

import mmap
import os
import time

SECONDS = float(os.environ.get("SECONDS", "4"))
STEP, TOUCHES = 2 * 1024**2, 32 * 1024  # 64 GiB of addresses, 128 MiB of page tables

space = mmap.mmap(-1, STEP * TOUCHES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
space.madvise(mmap.MADV_NOHUGEPAGE)
for touch in range(TOUCHES):
    space[touch * STEP]  # reads the kernel's one page of zeros: no heap
    if touch % 256 == 0:
        time.sleep(SECONDS * 256 / TOUCHES)
time.sleep(0.6)
os._exit(0)  # at the highest point: nothing freed before, which a sample might see
