"""A program that holds an exact number of bytes of one kind of memory: ``python hold.py KIND BYTES
DIRECTORY``.

It prints ``ready`` when it holds them and ends when its standard input closes. It imports nothing of
Lowtide's.
"""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

MIB = 1024**2


def hold(kind: str, size: int, directory: Path) -> object:
    """Bring ``size`` bytes of ``kind`` into being; keep what is returned alive."""
    return {
        "anon": anon,
        "mapped": mapped,
        "mapped-dirty": mapped_dirty,
        "cache": cache,
        "dirty": dirty,
        "tables": tables,
        "shmem": shmem_written,
        "shmem-mapped": shmem_mapped,
        "shmem-anonymous": shmem_anonymous,
        "workers": worker_copies,
    }[kind](size, directory)


def anon(size: int, _: Path) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    touch(memory, size, write=True)
    return memory


def mapped(size: int, directory: Path) -> mmap.mmap:
    fd = clean_file(size, directory)
    memory = mmap.mmap(fd, size, prot=mmap.PROT_READ)
    os.close(fd)
    touch(memory, size, write=False)
    return memory


def mapped_dirty(size: int, directory: Path) -> mmap.mmap:
    fd = clean_file(size, directory)
    memory = mmap.mmap(fd, size)
    touch(memory, size, write=True)
    return memory


def cache(size: int, directory: Path) -> int:
    """Pages brought in by read(), of a file that is not in the page cache before."""
    fd = clean_file(size, directory)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    buffer = bytearray(MIB)
    for offset in range(0, size, MIB):
        os.preadv(fd, [buffer], offset)
    return fd


def dirty(size: int, directory: Path) -> int:
    fd = os.open(directory / "dirty", os.O_RDWR | os.O_CREAT)
    fill(fd, size)
    return fd


def tables(size: int, _: Path) -> mmap.mmap:
    """A 4 KiB page of page table maps 2 MiB. Reading untouched memory maps one shared page of zeros: no
    heap."""
    span = size // mmap.PAGESIZE * 2 * MIB
    memory = mmap.mmap(-1, span, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for offset in range(0, span, 2 * MIB):
        memory[offset]
    return memory


def shmem_written(size: int, _: Path) -> int:
    path = Path(f"/dev/shm/hold-{os.getpid()}")
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    fill(fd, size)
    path.unlink()
    return fd


def shmem_mapped(size: int, _: Path) -> mmap.mmap:
    path = Path(f"/dev/shm/hold-{os.getpid()}")
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, size)
    memory = mmap.mmap(fd, size)
    touch(memory, size, write=True)
    path.unlink()
    return memory


def shmem_anonymous(size: int, _: Path) -> mmap.mmap:
    memory = mmap.mmap(-1, size)  # shared and anonymous: no file leads to it
    touch(memory, size, write=True)
    return memory


def worker_copies(size: int, _: Path) -> mmap.mmap:
    """Two forked children share ``size`` bytes of heap; each makes half of it its own."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    touch(memory, size, write=True)
    for _child in range(2):
        done, begun = os.pipe()
        if os.fork() == 0:
            touch(memory, size // 2, write=True)
            os.write(begun, b"x")
            sys.stdin.buffer.read()
            os._exit(0)
        os.read(done, 1)
    return memory


def clean_file(size: int, directory: Path) -> int:
    fd = os.open(directory / "clean", os.O_RDWR | os.O_CREAT)
    fill(fd, size)
    os.fsync(fd)
    return fd


def fill(fd: int, size: int) -> None:
    piece = os.urandom(MIB)
    for offset in range(0, size, MIB):
        os.pwrite(fd, piece[: min(MIB, size - offset)], offset)


def touch(memory: mmap.mmap, size: int, *, write: bool) -> None:
    for offset in range(0, size, mmap.PAGESIZE):
        if write:
            memory[offset] = 1
        else:
            memory[offset]


if __name__ == "__main__":
    kept = hold(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
    print("ready", flush=True)
    sys.stdin.buffer.read()
