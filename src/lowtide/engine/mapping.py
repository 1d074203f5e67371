"""Mappings made through ctypes, as ``mapping.c`` does, because Python's own mmap takes no address.

The page cache holds files in folios of up to 2 MiB, and if address and offset agree modulo 2 MiB, one fault maps a
whole folio of that size. One page off such a boundary a folio does not fit a page table, and a fault in it maps
``FAULT_AROUND`` bytes. Since Linux 6.18 smaller folios that fit are still mapped whole: measured on a warm file, a row
touched at random mapped 60 to 220 KiB in a shifted mapping and 230 to 2,048 KiB in an unshifted one; never more than
``FAULT_MOST``.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

import numpy as np

from lowtide.engine.runs import PAGE, bad_value

# What a fault maps around itself if the page cache holds small folios: fault_around_bytes in the kernel's
# mm/memory.c, which only debugfs changes.
FAULT_AROUND = 65536
# The most a fault can map: one page table, 512 entries of 4 KiB. The largest measured on Linux 6.18 was 1,084 KiB
# shifted and 2,048 KiB not shifted.
FAULT_MOST = 2 << 20
LARGE = 2 << 20
PROT_NONE, PROT_READ = 0, 1
MAP_SHARED, MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS, MAP_NORESERVE = 1, 2, 0x10, 0x20, 0x4000
MADV_RANDOM, MADV_DONTNEED, MADV_DONTDUMP = 1, 4, 16

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class _Pages:
    """Owns the addresses: NumPy keeps it as long as an array or a view of one exists."""

    def __init__(self, at: int, size: int) -> None:
        self.__array_interface__ = {"data": (at, True), "shape": (size,), "typestr": "|u1", "version": 3}
        weakref.finalize(self, _libc.munmap, at, size).atexit = False


class Mapping(np.ndarray[Any, np.dtype[np.uint8]]):
    """The first ``size`` bytes of a file, read-only. An array, because before Python 3.12 no other class written in
    Python exports a buffer; unmapped when nobody has a view of it."""

    def __new__(cls, fd: int, size: int, shifted: bool, scattered: bool) -> Mapping:
        if size > os.fstat(fd).st_size:
            raise bad_value("size", "at most the bytes of the file", size)
        at = _shifted(fd, size) if shifted else _mapped(0, size, PROT_READ, MAP_SHARED, fd)
        made = np.asarray(_Pages(at, size)).view(cls)
        _libc.madvise(at, size, MADV_DONTDUMP)
        if scattered:
            _libc.madvise(at, size, MADV_RANDOM)
        return made

    def take_back(self, first: int, length: int) -> None:
        """Give the whole page tables of these bytes back to the kernel; the next access maps them again."""
        base = self.ctypes.data
        start = max(base, (base + first) // LARGE * LARGE)
        end = min(base + self.nbytes, -(-(base + first + length) // LARGE) * LARGE)
        if end > start and _libc.madvise(start, end - start, MADV_DONTNEED):
            raise _refused("the kernel to take pages back")


def _shifted(fd: int, size: int) -> int:
    """The file mapped one page after a boundary of 2 MiB, inside addresses reserved for it."""
    pages = -(-size // PAGE) * PAGE
    whole = pages + 2 * LARGE
    reserved = _mapped(0, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1)
    at = -(-reserved // LARGE) * LARGE + PAGE
    try:
        _mapped(at, size, PROT_READ, MAP_SHARED | MAP_FIXED, fd)
    except OSError:
        _libc.munmap(reserved, whole)
        raise
    _libc.munmap(reserved, at - reserved)
    _libc.munmap(at + pages, reserved + whole - (at + pages))
    return at


def _mapped(at: int, size: int, protection: int, flags: int, fd: int) -> int:
    found: int | None = _libc.mmap(at, size, protection, flags, fd, 0)
    if found is None or found == ctypes.c_void_p(-1).value:
        raise _refused("a file that can be mapped")
    return found


def _refused(wanted: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"mapping: expected {wanted}, got a refusal ({os.strerror(number)}). Read it instead.")
