"""Writes through a mapping of a file in a tmpfs that has no room left: a bus error."""

import mmap
import os
import sys
import time

fd = os.open(os.path.join(sys.argv[1], "batch"), os.O_RDWR | os.O_CREAT)  # noqa: PTH118  # plain calls only
os.ftruncate(fd, 1 << 30)
memory = mmap.mmap(fd, 1 << 30)
for offset in range(0, 1 << 30, 64 * 1024):
    memory[offset : offset + 64 * 1024] = bytes(64 * 1024)
    time.sleep(0.003)
