"""Holds 240 MiB for most of its life and gives them back long before it ends."""

import mmap
import os
import time

import truth

SECONDS = float(os.environ.get("SECONDS", "12"))

memory = mmap.mmap(-1, 240 * 1024**2, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for offset in range(0, len(memory), mmap.PAGESIZE):
    memory[offset] = 1
truth.tell(held__anon__peak=truth.rollup("Pss_Anon"))
time.sleep(SECONDS * 0.75)
memory.close()
truth.tell(held__anon__end=truth.rollup("Pss_Anon"))
time.sleep(SECONDS * 0.25)
