"""What this machine and its cgroups allow, and how much of a file is in the page cache.

Each function asks the kernel one small question and returns a plain number; nothing is asked at import and nothing is
remembered between calls. Linux answers everything; docstrings say what happens on other systems. Nothing here knows of
stores, arrays or budgets.
"""

from lowtide.machine.cgroups import Cgroup, cgroup_at, container_cgroup, memory_cgroup
from lowtide.machine.files import (
    FileKind,
    direct_alignment,
    file_kind,
    kind_named,
    mounted,
    read_ahead_bytes,
    tmpfs_mounts,
)
from lowtide.machine.limits import MemoryLimit, available_memory, memory_limit, room_for_cache, total_memory
from lowtide.machine.opening import Descriptor, open_regular, owned
from lowtide.machine.pages import PAGE, PageCache, drop_page_cache, page_cache

__all__ = [
    "PAGE",
    "Cgroup",
    "Descriptor",
    "FileKind",
    "MemoryLimit",
    "PageCache",
    "available_memory",
    "cgroup_at",
    "container_cgroup",
    "direct_alignment",
    "drop_page_cache",
    "file_kind",
    "kind_named",
    "memory_cgroup",
    "memory_limit",
    "mounted",
    "open_regular",
    "owned",
    "page_cache",
    "read_ahead_bytes",
    "room_for_cache",
    "tmpfs_mounts",
    "total_memory",
]
