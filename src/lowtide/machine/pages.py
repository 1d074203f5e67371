"""How much of one file the page cache holds, and how to evict that file's clean pages.

``cachestat`` (Linux 6.5) answers for a whole file in one system call without mapping it; older
kernels answer page by page through ``mincore`` on windows of bounded size. Cost: cachestat walks the cached
pages, 0.05 ms per GiB held in large folios and up to 20 ms per GiB in single pages; mincore also maps each
window. Both need a file that you own or may write to (the kernel's rule against spying). Neither says which
process brought a page in. macOS: mincore sees the mapping's pages only.
"""

from __future__ import annotations

import errno
import mmap
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE: int = mmap.PAGESIZE

_CACHESTAT = 451  # the same number on every architecture but alpha
_WINDOW = 256 * 1024**2  # address space for mincore: 64 Ki pages, a 64 KiB answer


@dataclass(frozen=True)
class PageCache:
    """Bytes of a file's range in the page cache. ``how`` is "cachestat", or "mincore", which knows only ``cached``."""

    cached: int
    dirty: int
    writeback: int
    how: str


def page_cache(path_or_fd: str | os.PathLike[str] | int, offset: int = 0, length: int | None = None) -> PageCache:
    """What the page cache holds of a file, or of ``length`` bytes from ``offset``; OSError if the kernel is silent."""
    if isinstance(path_or_fd, int):
        return _page_cache_of(path_or_fd, offset, length, f"descriptor {path_or_fd}")
    fd = os.open(path_or_fd, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not block us
    try:
        return _page_cache_of(fd, offset, length, os.fspath(path_or_fd))
    finally:
        os.close(fd)


def drop_page_cache(path: str | os.PathLike[str]) -> None:
    """Write a file's dirty pages out, then evict all its pages that nobody maps. For tests and benchmarks."""
    if not hasattr(os, "posix_fadvise"):
        why = f"{sys.platform} has no posix_fadvise, so its page cache cannot be dropped"
        raise OSError(errno.ENOTSUP, why, os.fspath(path))
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _page_cache_of(fd: int, offset: int, length: int | None, name: str) -> PageCache:
    size = os.fstat(fd).st_size
    if length is None:
        length = max(0, size - offset)
    if length == 0:
        return PageCache(0, 0, 0, "empty")
    if sys.platform == "linux" and platform.machine() != "alpha":
        answer = _cachestat(fd, offset, length)
        if isinstance(answer, PageCache):
            return answer
        if answer not in (errno.ENOSYS, errno.EOPNOTSUPP):
            raise OSError(answer, f"cachestat: {os.strerror(answer)}", name)
    return _mincore(fd, offset, min(length, size - offset), name)


def _cachestat(fd: int, offset: int, length: int) -> PageCache | int:
    """The kernel's answer, or its errno."""
    import ctypes

    libc = _libc(ctypes)
    span = (ctypes.c_uint64 * 2)(offset, length)
    counts = (ctypes.c_uint64 * 5)()
    if libc.syscall(ctypes.c_long(_CACHESTAT), ctypes.c_uint(fd), span, counts, ctypes.c_uint(0)) != 0:
        return ctypes.get_errno()
    cached, dirty, writeback, *_ = (int(pages) * PAGE for pages in counts)
    return PageCache(cached, dirty, writeback, "cachestat")


def _mincore(fd: int, offset: int, length: int, name: str) -> PageCache:
    import ctypes

    if not _mincore_tells_the_truth(fd):
        raise PermissionError(errno.EPERM, "mincore answers only for files that you own or may write to", name)
    libc = _libc(ctypes)
    pages = 0
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    end = offset + length
    while start < end:
        span = min(_WINDOW, end - start)
        # ACCESS_COPY maps privately and writably, which is what ctypes needs to give an address; no page is
        # touched.
        with mmap.mmap(fd, span, access=mmap.ACCESS_COPY, offset=start) as window:
            resident = (ctypes.c_ubyte * (-(-span // PAGE)))()
            anchor = ctypes.c_char.from_buffer(window)
            try:
                if libc.mincore(ctypes.c_void_p(ctypes.addressof(anchor)), ctypes.c_size_t(span), resident) != 0:
                    code = ctypes.get_errno()
                    raise OSError(code, f"mincore: {os.strerror(code)}", name)
            finally:
                del anchor  # the window cannot close while a ctypes object points into it
            first = (max(offset, start) - start) // PAGE
            pages += sum(byte & 1 for byte in bytes(resident)[first:])
        start += span
    return PageCache(pages * PAGE, 0, 0, "mincore")


def _mincore_tells_the_truth(fd: int) -> bool:
    """Since Linux 5.2 mincore calls every page of a foreign read-only file resident."""
    if os.fstat(fd).st_uid == os.geteuid() or os.geteuid() == 0:
        return True
    link = Path(f"/proc/self/fd/{fd}")
    return link.exists() and os.access(link, os.W_OK)


def _libc(ctypes: Any) -> Any:
    return ctypes.CDLL(None, use_errno=True)
