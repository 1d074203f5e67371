"""What a memory cgroup holds, version 1 or 2, as one ``CgroupSample``.

A pod's limit on an ancestor kills its children, so usage is read at the directory that sets the smallest limit, at
the process's own when none does. The page cache is charged to whoever touched a page first: another cgroup may hold
ours. Cost: a few small reads; ``memory.stat`` makes the kernel sum counters over CPUs (0.1 ms here).
"""

from __future__ import annotations

import re
from pathlib import Path

from lowtide.machine.cgroups import Cgroup, directory_limit, directory_usage, read_int, read_pairs, read_stat
from lowtide.machine.cgroups import unreclaimable as bytes_that_stay
from lowtide.memory.samples import CgroupSample

# Our word for it: (names in version 1, names in version 2); several are added up.
_STAT: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "anon": (("total_rss",), ("anon",)),
    "file": (("total_cache",), ("file",)),
    "active_file": (("total_active_file",), ("active_file",)),
    "inactive_file": (("total_inactive_file",), ("inactive_file",)),
    "shmem": (("total_shmem",), ("shmem",)),
    "dirty": (("total_dirty", "total_writeback"), ("file_dirty", "file_writeback")),
    "refaults": (("total_workingset_refault_file",), ("workingset_refault_file",)),
    "slab_reclaimable": ((), ("slab_reclaimable",)),
}
_PRESSURE = re.compile(r"some avg10=([0-9.]+)")


def sample_cgroup(cgroup: Cgroup, *, own: bool = False) -> CgroupSample:
    """A cgroup at the height of its smallest limit; ``own``: its own usage, wherever that limit is."""
    limits = [directory_limit(directory, cgroup.version) for directory in cgroup.directories]
    known = [limit for limit in limits if limit is not None]
    height = limits.index(min(known)) if known and not own else 0
    directory = cgroup.directories[height]
    stat = read_stat(directory)
    counts = {word: sum(stat.get(name, 0) for name in names[cgroup.version - 1]) for word, names in _STAT.items()}
    usage = directory_usage(directory, cgroup.version)
    if usage is None:  # the root of version 2 does not count itself
        usage = counts["anon"] + counts["file"]
    return CgroupSample(
        version=cgroup.version,
        path=cgroup.path_at(height),
        current=usage,
        limit=min(known) if known else None,
        oom_kills=oom_kills(cgroup, height),
        unreclaimable=bytes_that_stay(stat, cgroup.version),
        pressure=_pressure(directory),
        peak=read_int(directory / ("memory.peak" if cgroup.version == 2 else "memory.max_usage_in_bytes")),
        **counts,
    )


def oom_kills(cgroup: Cgroup, height: int = 0) -> int:
    """Processes the kernel has killed for want of memory, ever, up to the cgroup that sets the limit. Version 2 counts
    a kill in every ancestor, version 1 only in the cgroup of the process that was killed."""
    if cgroup.version == 2:
        return read_pairs(cgroup.directories[height] / "memory.events").get("oom_kill", 0)
    counted = cgroup.directories[: height + 1]
    return sum(read_pairs(directory / "memory.oom_control").get("oom_kill", 0) for directory in counted)


def _pressure(directory: Path) -> float | None:
    """Version 2 only, and only in kernels built with PSI."""
    try:
        match = _PRESSURE.search((directory / "memory.pressure").read_text())
    except OSError:
        return None
    return float(match[1]) if match else None
