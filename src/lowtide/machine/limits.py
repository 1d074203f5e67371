"""How much memory may be used here: the machine's, or the smallest enclosing cgroup's.

Every level that limits us (each ancestor cgroup, then the machine) has a limit and bytes that cannot be reclaimed; the
smallest difference is left for the page cache. Cost: a handful of small reads in /proc and /sys. macOS: the machine's
size through sysconf, no cgroups, and "unreclaimable" unknown, reported as 0.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lowtide.machine.cgroups import ROOT, directory_limit, memory_cgroup, read_stat, unreclaimable
from lowtide.units import format_size


@dataclass(frozen=True)
class MemoryLimit:
    """A limit in bytes (None: unknown), the bytes in it that cannot be reclaimed, and who sets it."""

    limit: int | None
    unreclaimable: int
    source: str

    @property
    def left(self) -> int | None:
        return None if self.limit is None else max(0, self.limit - self.unreclaimable)


def available_memory(*, root: Path = ROOT) -> int:
    """Bytes the machine can hand out without swapping (MemAvailable; free pages if the kernel does not say; else 0)."""
    facts = _meminfo(root)
    if "MemAvailable" in facts:
        return facts["MemAvailable"]
    return _sysconf_bytes("SC_AVPHYS_PAGES")


def total_memory(*, root: Path = ROOT) -> int:
    """Bytes of memory in the machine, 0 if unknown."""
    return _meminfo(root).get("MemTotal") or _sysconf_bytes("SC_PHYS_PAGES")


def memory_limit(pid: int | None = None, *, root: Path = ROOT) -> MemoryLimit:
    """The smallest limit enclosing a process (this one by default): over all its cgroup's ancestors and the machine."""
    levels = _levels(pid, root)
    known = [level for level in levels if level.limit is not None]
    # On a tie the nearest level wins: it is the one a user can find and change.
    return min(known, key=lambda level: level.limit or 0) if known else levels[-1]


def room_for_cache(*, root: Path = ROOT) -> tuple[int, str]:
    """Bytes left for the page cache beside what cannot be reclaimed, at the tightest level, and the reason in words."""
    known = [level for level in _levels(None, root) if level.left is not None]
    if not known:
        return available_memory(root=root), "no limit could be read; this is the memory now available"
    tightest = min(known, key=lambda level: level.left or 0)
    allows, holds = format_size(tightest.limit or 0), format_size(tightest.unreclaimable)
    return tightest.left or 0, f"{tightest.source} allows {allows} and holds {holds} that cannot be reclaimed"


def _levels(pid: int | None, root: Path) -> list[MemoryLimit]:
    levels = []
    cgroup = memory_cgroup(pid, root=root)
    if cgroup is not None:
        for height, directory in enumerate(cgroup.directories):
            limit = directory_limit(directory, cgroup.version)
            if limit is not None:
                must_stay = unreclaimable(read_stat(directory), cgroup.version)
                levels.append(MemoryLimit(limit, must_stay, f"cgroup v{cgroup.version} {cgroup.path_at(height)}"))
    return [*levels, _machine(root)]


def _machine(root: Path) -> MemoryLimit:
    facts = _meminfo(root)
    stays = ("Active(anon)", "Inactive(anon)", "Unevictable", "SUnreclaim", "KernelStack", "PageTables")
    return MemoryLimit(total_memory(root=root) or None, sum(facts.get(name, 0) for name in stays), "machine")


def _meminfo(root: Path) -> dict[str, int]:
    """/proc/meminfo in bytes; empty if there is none."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    facts = {}
    for line in lines:
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            facts[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return facts


def _sysconf_bytes(name: str) -> int:
    try:
        return max(0, os.sysconf(name)) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
