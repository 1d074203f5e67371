"""Registers buffers with io_uring: the kernel pins their pages, and no swap or reclaim takes them."""

import ctypes
import mmap
import os
import struct
import time

import truth

SECONDS = float(os.environ.get("SECONDS", "4"))
SIZE, STEPS = 128 * 1024**2, 16
SETUP, REGISTER, REGISTER_BUFFERS = 425, 427, 0

libc = ctypes.CDLL(None, use_errno=True)
kept = []
for _ in range(STEPS):
    memory = mmap.mmap(-1, SIZE // STEPS, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for offset in range(0, len(memory), mmap.PAGESIZE):
        memory[offset] = 1
    parameters = ctypes.create_string_buffer(120)
    ring = libc.syscall(ctypes.c_long(SETUP), ctypes.c_uint(4), parameters)
    if ring < 0:
        raise OSError(ctypes.get_errno(), "io_uring_setup")
    place = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    vector = struct.pack("QQ", place, len(memory))
    if libc.syscall(ctypes.c_long(REGISTER), ring, REGISTER_BUFFERS, vector, 1) < 0:
        raise OSError(ctypes.get_errno(), "io_uring_register")
    kept.append((memory, ring))
    time.sleep(SECONDS / STEPS)
truth.tell(held__anon__peak=truth.rollup("Pss_Anon"))
time.sleep(1)
os._exit(0)
