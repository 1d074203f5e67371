"""What a memory cgroup holds, version 1 or 2, as one ``CgroupSample``.

A pod's limit on an ancestor kills its children, so usage is read at the directory that sets the smallest limit, at
the process's own when none does. The page cache is charged to whoever touched a page first: another cgroup may hold
ours. Cost: a few small reads; ``memory.stat`` makes the kernel sum counters over CPUs (0.1 ms here).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from lowtide.machine.cgroups import (
    Cgroup,
    directory_usage,
    kill_limit,
    read_int,
    read_pairs,
    read_stat,
    throttle_limit,
)
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
    "slab": ((), ("slab",)),
    "sockets": ((), ("sock",)),
    "mapped_file": (("total_mapped_file",), ("file_mapped",)),
}
_AHEAD, _STALE = 64 * 4096 * 64, 0.05  # 64 pages for each of 64 processors; share of all that is charged
_PRESSURE = re.compile(r"some avg10=([0-9.]+)")


def sample_cgroup(cgroup: Cgroup, *, own: bool = False) -> CgroupSample:
    """A cgroup at the height of its smallest limit; ``own``: its own usage, wherever that limit is."""
    limits = [kill_limit(directory, cgroup.version) for directory in cgroup.directories]
    known = [limit for limit in limits if limit is not None]
    highs = [throttle_limit(directory) for directory in cgroup.directories] if cgroup.version == 2 else []
    height = limits.index(min(known)) if known and not own else 0
    directory = cgroup.directories[height]
    stat = read_stat(directory)
    counts = {word: sum(stat.get(name, 0) for name in names[cgroup.version - 1]) for word, names in _STAT.items()}
    usage = directory_usage(directory, cgroup.version)
    kernel = _kernel(directory, stat, cgroup.version)
    listed = counts["anon"] + counts["file"] + kernel + counts["sockets"] + stat.get("zswap", 0)
    if usage is None:  # the root of version 2 does not count itself
        usage = listed
    if cgroup.version == 1:
        counts["sockets"] = read_int(directory / "memory.kmem.tcp.usage_in_bytes") or 0
    events = _events(cgroup, highs)
    return CgroupSample(
        version=cgroup.version,
        path=cgroup.path_at(height),
        current=usage,
        limit=min(known) if known else None,
        oom_kills=oom_kills(cgroup, height),
        unreclaimable=bytes_that_stay(stat, cgroup.version),
        pressure=_pressure(directory),
        peak=read_int(directory / ("memory.peak" if cgroup.version == 2 else "memory.max_usage_in_bytes")),
        high=min((high for high in highs if high is not None), default=None),
        throttled=events.get("high", 0),
        refused=events.get("max", 0) if cgroup.version == 2 else read_int(directory / "memory.failcnt") or 0,
        kernel_other=max(0, kernel - counts["slab"] - stat.get("pagetables", 0) - stat.get("sec_pagetables", 0)),
        # The kernel charges ahead of use, and its statistics are up to two seconds old: a little is nothing.
        unlisted=usage - listed if usage - listed > max(_AHEAD, _STALE * usage) else 0,
        **counts,
    )


def _kernel(directory: Path, stat: dict[str, int], version: int) -> int:
    """What the kernel keeps for the cgroup, page tables included; kernels before 5.18 do not add it up."""
    if version == 1:
        return read_int(directory / "memory.kmem.usage_in_bytes") or 0
    parts = ("slab", "kernel_stack", "pagetables", "sec_pagetables", "percpu", "vmalloc")
    return stat.get("kernel", sum(stat.get(name, 0) for name in parts))


def _events(cgroup: Cgroup, highs: list[int | None]) -> dict[str, int]:
    """memory.events where the smallest throttling limit is set: a task is slowed down there, whoever set it."""
    known = [high for high in highs if high is not None]
    if cgroup.version == 1:
        return {}
    return read_pairs(cgroup.directories[highs.index(min(known)) if known else 0] / "memory.events")


def killed_by_oomd(cgroup: Cgroup) -> int:
    """Processes that systemd-oomd has killed in a cgroup or one above it, as it notes on the directories themselves."""
    most = 0
    for directory in cgroup.directories:
        try:
            text = os.getxattr(directory, "user.oomd_kill")
        except OSError:  # no such note, no such directory, or no notes in this filesystem
            continue
        most = max(most, int(text) if text.isdigit() else 0)
    return most


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
