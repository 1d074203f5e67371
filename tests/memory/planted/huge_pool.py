"""Holds pages of the machine's pool of huge pages (HUGETLB), which no RSS shows."""

import mmap
import os
import time

import truth

SECONDS = float(os.environ.get("SECONDS", "4"))
PAGES, HUGE = 24, 2 * 1024**2
MAP_HUGETLB = 0x40000

memory = mmap.mmap(-1, PAGES * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB)
for page in range(PAGES):
    memory[page * HUGE] = 1
    time.sleep(SECONDS / PAGES)
truth.tell(held__hugetlb__peak=truth.status("HugetlbPages"))
time.sleep(0.6)
os._exit(0)
