"""The expensive look at one process: which of its pages are shared, which file they belong to, which are dirty, and
where its allocator keeps its heap.

/proc/PID/smaps names every mapping with its proportional share (Pss), so sums over a tree count a shared page once.
Cost: 2 ms per GiB of resident 4 KiB pages, plus a few microseconds per mapping; a process with very many mappings is
summed up by the kernel instead (smaps_rollup), without naming files.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from lowtide.memory.measure.process import read_proc

_MANY_MAPPINGS = 8 * 1024**2  # bytes of smaps, about 10,000 mappings: beyond it, parsing costs more than it tells
_ARENA = 64 * 1024**2  # glibc puts the heaps of further threads at multiples of this address

# Field names begin with a capital and addresses do not, so "any fields" cannot run on into the next mapping.
_FIELDS = r"(?:[A-Z]\w*: .*\n)*?"
_MAPPING = (
    r"^([0-9a-f]+)-([0-9a-f]+) .(..)(.) [0-9a-f]+ ([0-9a-f]+:[0-9a-f]+) (\d+) *(.*)\n"
    rf"{_FIELDS}Rss: +(\d+) kB\nPss: +(\d+) kB\n{_FIELDS}"
    rf"Shared_Dirty: +(\d+) kB\n{_FIELDS}Private_Dirty: +(\d+) kB\n{_FIELDS}Anonymous: +(\d+) kB\n"
    rf"(?:{_FIELDS}LazyFree: +(\d+) kB\n)?(?:{_FIELDS}AnonHugePages: +(\d+) kB\n)?(?:{_FIELDS}Locked: +(\d+) kB\n)?"
)  # compiled at its first use and kept by re: compiling takes 3 ms that `import lowtide` need not pay
_SHARED_NAMES = ("/memfd:", "/SYSV", "/dev/zero", "/dev/shm/", "/drm mm object")
_LIBRARY = re.compile(r"\.so(\.[0-9.]+)?( \(deleted\))?$")
_LIBC = re.compile(r"/libc[.-][^/]*$")
# Programs and libraries that bring an allocator of their own, whose books we cannot read.
_ALLOCATORS = {
    "libjemalloc": "jemalloc",
    "libmimalloc": "mimalloc",
    "libtcmalloc": "tcmalloc",
    "_polars_runtime": "polars' own (jemalloc or mimalloc)",
    "polars": "polars' own (jemalloc or mimalloc)",
    "duckdb": "duckdb's own (jemalloc)",
    "_duckdb": "duckdb's own (jemalloc)",
    "libarrow": "arrow's own (mimalloc or jemalloc)",
    "libjvm": "the JVM's",
    "node": "V8's",
}


@dataclass(frozen=True)
class MappedFile:
    """Pages of one file in one process: proportional bytes in all, and the dirty part of them."""

    path: str
    mapped: int
    dirty: int
    memory: bool  # shared memory or tmpfs
    code: bool = False  # mapped to be run, or a shared library


@dataclass(frozen=True)
class HeapLayout:
    """Where an allocator keeps its heap: address ranges of the C library's arenas, the writable part of the library
    itself (which points to them), bytes resident in the arenas, and bytes marked as free but not yet taken."""

    arenas: tuple[tuple[int, int], ...] = ()
    library: tuple[tuple[int, int], ...] = ()
    resident: int = 0
    lazy_free: int = 0
    foreign: str = ""  # an allocator of its own that a library or the program brings


@dataclass(frozen=True)
class Detail:
    """One process's proportional bytes by kind, and by file where the kernel named files. Keys are (device, inode)."""

    anon: int
    mapped: int
    shmem: int
    files: dict[tuple[int, int], MappedFile] = field(default_factory=dict)
    by_file: bool = True
    heap: HeapLayout = HeapLayout()
    mappings: int = 0
    locked: int = 0  # of any kind
    locked_files: int = 0  # of those on disk filesystems
    huge: int = 0  # of anon


def read_detail(pid: int, memory_devices: frozenset[int], *, alone: bool = False) -> Detail:
    """smaps of one process summed by kind and file; ``memory_devices`` are the device numbers of tmpfs mounts.

    A process ``alone`` in its tree owns every file page it maps, whoever outside the tree maps it too.
    """
    text = read_proc(pid, "smaps")
    if len(text) < _MANY_MAPPINGS:
        return parse_smaps(text, memory_devices, alone=alone)
    return read_sharing(pid)


def read_sharing(pid: int) -> Detail:
    """The kernel's own sum over all mappings: proportional bytes by kind, no files. Costs the walk and little else."""
    return parse_rollup(read_proc(pid, "smaps_rollup"))


def parse_smaps(text: str, memory_devices: frozenset[int], *, alone: bool = False) -> Detail:
    anon = mapped = shmem = count = lazy = resident = huge = locked = locked_files = 0
    foreign = ""
    files: dict[tuple[int, int], MappedFile] = {}
    arenas: list[tuple[int, int]] = []
    library: list[tuple[int, int]] = []
    for match in re.finditer(_MAPPING, text, re.MULTILINE):
        count += 1
        path, rss = match[7], int(match[8])
        if match[3][0] == "w" and _LIBC.search(path):
            library.append((int(match[1], 16), int(match[2], 16)))
        if rss == 0:
            continue
        pss, anonymous = int(match[9]) * 1024, int(match[12])
        lazy += int(match[13] or 0) * 1024
        huge += int(match[14] or 0) * 1024
        locked_here = int(match[15] or 0) * 1024
        locked += locked_here
        inode = int(match[6])
        if inode == 0:
            anon += pss
            begin, end = int(match[1], 16), int(match[2], 16)
            # A mapping below an arena may have grown together with it: the arena begins at the multiple inside.
            arena = begin if path == "[heap]" else -(-begin // _ARENA) * _ARENA
            if path == "[heap]" or (not path and (arena == begin or arena < end <= arena + _ARENA)):
                arenas.append((arena, end))
                resident += rss * 1024 * (end - arena) // (end - begin)
            continue
        # A private mapping of a file holds the pages it wrote to as heap; they share its Pss in proportion.
        in_file = max(0, rss - anonymous)
        of_file = pss * in_file // rss
        anon += pss - of_file
        if alone:
            of_file = in_file * 1024
        device = os.makedev(*(int(part, 16) for part in match[5].split(":")))
        memory = device in memory_devices or path.startswith(_SHARED_NAMES)
        # Dirty are the file's own pages only: what a private mapping wrote is heap, and counted in Private_Dirty too.
        dirty_in_file = min(in_file, max(0, int(match[10]) + int(match[11]) - anonymous))
        dirty = of_file * dirty_in_file // in_file if in_file else 0
        if memory:
            shmem += of_file
        else:
            mapped += of_file
            locked_files += min(locked_here, of_file)
        code = match[3][1] == "x" or _LIBRARY.search(path) is not None
        foreign = foreign or (_foreign(path) if code else "")
        key = (device, inode)
        before = files.get(key)
        if before is not None:
            of_file, dirty, code = of_file + before.mapped, dirty + before.dirty, code or before.code
        files[key] = MappedFile(path, of_file, dirty, memory, code)
    heap = HeapLayout(tuple(arenas), tuple(library), resident, lazy, foreign)
    return Detail(anon, mapped, shmem, files, True, heap, count, locked, locked_files, huge)


def _foreign(path: str) -> str:
    """The allocator that a program or library brings, by its name; "" where none is known."""
    name = path.rsplit("/", 1)[-1]
    return next((word for begin, word in _ALLOCATORS.items() if name == begin or name.startswith(begin + ".")), "")


def parse_rollup(text: str) -> Detail:
    counts: dict[str, int] = {}
    for line in text.splitlines()[1:]:
        name, _, rest = line.partition(":")
        counts[name] = int(rest.split()[0]) * 1024
    heap = HeapLayout(lazy_free=counts.get("LazyFree", 0))
    anon, mapped, shmem = (counts.get(name, 0) for name in ("Pss_Anon", "Pss_File", "Pss_Shmem"))
    locked, huge = counts.get("Locked", 0), counts.get("AnonHugePages", 0)
    # The sum does not say what was locked: heap first, which must stay in any case.
    locked_files = max(0, min(mapped, locked - anon - shmem))
    return Detail(anon, mapped, shmem, {}, False, heap, 10_000, locked=locked, locked_files=locked_files, huge=huge)
