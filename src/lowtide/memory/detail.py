"""The expensive look at one process: which of its pages are shared, which file they belong to, which are
dirty.

One idea: /proc/PID/smaps names every mapping with its proportional share (Pss), so sums over a tree count a
shared page once. Cost: the kernel walks the resident part of the page tables, 2 ms a GiB of 4 KiB pages,
plus about 1 microsecond a mapping here; the caller decides how often that is worth it. A process with very
many mappings is summed up by the kernel instead (smaps_rollup), without naming files. In a tree of several
processes Pss also shares pages with processes outside it, which lowers this tree's part.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from lowtide.memory.process import read_proc

_MANY_MAPPINGS = 8 * 1024**2  # bytes of smaps, about 10,000 mappings: beyond it, parsing costs more than it tells

# Field names begin with a capital and addresses do not, so "any fields" cannot run on into the next mapping.
_FIELDS = r"(?:[A-Z]\w*: .*\n)*?"
_MAPPING = (
    r"^[0-9a-f]+-[0-9a-f]+ ...(.) [0-9a-f]+ ([0-9a-f]+:[0-9a-f]+) (\d+) *(.*)\n"
    rf"{_FIELDS}Rss: +(\d+) kB\nPss: +(\d+) kB\n{_FIELDS}"
    rf"Shared_Dirty: +(\d+) kB\n{_FIELDS}Private_Dirty: +(\d+) kB\n{_FIELDS}Anonymous: +(\d+) kB\n"
)  # compiled at its first use and kept by re: compiling takes 3 ms that `import lowtide` need not pay
_SHARED_NAMES = ("/memfd:", "/SYSV", "/dev/zero", "/dev/shm/", "/drm mm object")


@dataclass(frozen=True)
class MappedFile:
    """Pages of one file in one process: proportional bytes in all, and the dirty part of them."""

    path: str
    mapped: int
    dirty: int
    memory: bool  # shared memory or tmpfs


@dataclass(frozen=True)
class Detail:
    """One process's proportional bytes by kind, and by file where the kernel named files. Keys are (device,
    inode)."""

    anon: int
    mapped: int
    shmem: int
    files: dict[tuple[int, int], MappedFile] = field(default_factory=dict)
    by_file: bool = True


def read_detail(pid: int, memory_devices: frozenset[int], *, alone: bool = False) -> Detail:
    """smaps of one process summed by kind and file; ``memory_devices`` are the device numbers of tmpfs
    mounts.

    A process ``alone`` in its tree owns every file page it maps, whoever outside the tree maps it too.
    """
    text = read_proc(pid, "smaps")
    if len(text) < _MANY_MAPPINGS:
        return parse_smaps(text, memory_devices, alone=alone)
    return read_sharing(pid)


def read_sharing(pid: int) -> Detail:
    """The kernel's own sum over all mappings: proportional bytes by kind, no files. Costs the walk and
    little else."""
    return parse_rollup(read_proc(pid, "smaps_rollup"))


def parse_smaps(text: str, memory_devices: frozenset[int], *, alone: bool = False) -> Detail:
    anon = mapped = shmem = 0
    files: dict[tuple[int, int], MappedFile] = {}
    for match in re.finditer(_MAPPING, text, re.MULTILINE):
        rss = int(match[5])
        if rss == 0:
            continue
        pss, anonymous = int(match[6]) * 1024, int(match[9])
        inode = int(match[3])
        if inode == 0:
            anon += pss
            continue
        # A private mapping of a file holds the pages it wrote to as heap; they share its Pss in proportion.
        in_file = max(0, rss - anonymous)
        of_file = pss * in_file // rss
        anon += pss - of_file
        if alone:
            of_file = in_file * 1024
        device = os.makedev(*(int(part, 16) for part in match[2].split(":")))
        memory = device in memory_devices or match[4].startswith(_SHARED_NAMES)
        dirty = of_file * min(rss, int(match[7]) + int(match[8])) // rss if match[1] == "s" else 0
        if memory:
            shmem += of_file
        else:
            mapped += of_file
        key = (device, inode)
        before = files.get(key)
        if before is not None:
            of_file, dirty = of_file + before.mapped, dirty + before.dirty
        files[key] = MappedFile(match[4], of_file, dirty, memory)
    return Detail(anon, mapped, shmem, files)


def parse_rollup(text: str) -> Detail:
    counts = {}
    for line in text.splitlines()[1:]:
        name, _, rest = line.partition(":")
        counts[name] = int(rest.split()[0]) * 1024
    return Detail(counts.get("Pss_Anon", 0), counts.get("Pss_File", 0), counts.get("Pss_Shmem", 0), by_file=False)
