"""Touches one byte in every 2 MiB of memory that may be huge pages: the kernel gives 2 MiB for each."""

import mmap
import os
import time

import truth

SECONDS = float(os.environ.get("SECONDS", "4"))
PAGES, HUGE = 96, 2 * 1024**2

memory = mmap.mmap(-1, (PAGES + 1) * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_HUGEPAGE)
for page in range(PAGES):
    memory[page * HUGE] = 1
    time.sleep(SECONDS / PAGES)
truth.tell(held__anon__peak=truth.rollup("Pss_Anon"), held__total__huge=truth.rollup("AnonHugePages"))
time.sleep(2.2)
os._exit(0)
