"""What helps against each kind of growth: lines that can be run as they stand, with the trace's own file in them. Pure.

A fix is printed only where it fits: a file's format and whether it was written, a process's runtime and its name decide
which one. ``lowtide.open`` is never suggested for a database or a library, DataLoader never for a server without torch,
and reading advice never for a program that only writes; if nothing is known to help, no fix is printed. Each line is
``what it does: code``; the tests run the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from lowtide.memory.samples import FileSample, ProcessSample


@dataclass(frozen=True)
class Fix:
    """What it does, and the line to run: Python unless it begins with a command."""

    text: str
    run: str = ""

    def __str__(self) -> str:
        return f"{self.text}: {self.run}" if self.run else self.text


_NOTHING_TO_DO = Fix("nothing has to be done: these pages are clean, and the kernel takes them back when it needs room")
_READ_ARRAY = (
    Fix("read instead of mapping", 'a = lowtide.open({path!r}, budget="256MiB")'),
    Fix("or keep the np.memmap and give its pages back after each chunk", "lowtide.release(memmap)"),
)
_READ_RAW = (
    Fix(
        "read instead of mapping, with the dtype you gave np.memmap",
        'a = lowtide.open({path!r}, dtype="uint8", budget="256MiB")',
    ),
    _READ_ARRAY[1],
)
_NOT_MAPPED = {  # by format, for a Python program that maps such a file
    "npy": _READ_ARRAY,
    "raw": _READ_RAW,
    "safetensors": (
        Fix(
            "load one tensor at a time and drop it before the next",
            'tensors = safetensors.safe_open({path!r}, framework="np"); t = tensors.get_tensor(tensors.keys()[0])',
        ),
    ),
    "arrow": (
        Fix(
            "read the record batches instead of mapping them",
            "batches = pyarrow.ipc.open_stream(pyarrow.OSFile({path!r}))",
        ),
    ),
    "hdf5": (Fix("read slices and close the file between epochs", "h5py.File({path!r}, rdcc_nbytes=0)"),),
    "lmdb": (
        _NOTHING_TO_DO,
        Fix(
            "or, for random reads, bring in fewer pages around each",
            "env = lmdb.open({path!r}, subdir=False, readonly=True, lock=False, readahead=False)",
        ),
    ),
    "sqlite": (
        Fix("read instead of mapping, on each connection", 'sqlite3.connect({path!r}).execute("PRAGMA mmap_size=0")'),
    ),
}
_DATABASES = ("leveldb", "lmdb", "duckdb")  # they bound what they keep open themselves
# Names under which people keep bare numbers; another name is no reason to call a file an array.
_RAW_NAMES = {"", "bin", "dat", "data", "raw", "mmap", "memmap", "mm", "arr", "array", "tok", "tokens", "bytes"}
_RAW_LETTERS = ("f", "i", "u", "float", "int", "uint", "bf")  # before a number of bits: x.f32, x.uint16
_FADVISE = "fd = os.open({path!r}, os.O_RDONLY); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)"

_TRACEMALLOC = Fix(
    "find the lines that allocate Python objects and NumPy arrays",
    'import tracemalloc; tracemalloc.start()  # later: print(*tracemalloc.take_snapshot().statistics("lineno")[:10], '
    'sep="\\n")',
)
_ALLOCATES = {
    "gunicorn": (
        _TRACEMALLOC,
        Fix("or restart each worker after so many requests", "gunicorn --max-requests 1000 APP:app"),
    ),
    "redis": (
        Fix("ask it what fills its memory", "redis-cli memory stats"),
        Fix("or limit its memory", "redis-cli config set maxmemory 512mb"),
    ),
    "python": (
        _TRACEMALLOC,
        Fix("or those of compiled libraries too (torch, polars, duckdb)", "memray run --native APP.py"),
    ),
    "node": (
        Fix("tell objects (heapUsed) from Buffers (arrayBuffers)", "console.log(process.memoryUsage())"),
        Fix("for objects: a heap snapshot for Chrome's memory tab", "node --heapsnapshot-signal=SIGUSR2 APP.js"),
    ),
    "java": (
        Fix("list the classes that fill the heap", "jcmd {pid} GC.class_histogram"),
        Fix(
            "or set bounds for objects and for direct buffers",
            "java -Xmx512m -XX:MaxDirectMemorySize=128m -jar APP.jar",
        ),
    ),
    "": (Fix("count allocations by size with the C library's own tool", "LD_PRELOAD=libmemusage.so COMMAND"),),
}
_TRIM = "MALLOC_ARENA_MAX=2 MALLOC_TRIM_THRESHOLD_=131072 COMMAND"
_KEEPS = {
    "python": (
        Fix("give it back now, from inside", "lowtide.release()"),
        Fix("or start it with fewer arenas and trimming on", _TRIM),
    ),
    "": (
        Fix("start it with fewer arenas and trimming on", _TRIM),
        Fix("or from inside: malloc_trim(0) after large frees"),
    ),
}
_MARKED_FREE = (
    Fix("nothing has to be done: these pages are marked as free, and the kernel takes them when it needs room"),
    Fix(
        "or, where the allocator is jemalloc, give back at once",
        "MALLOC_CONF=dirty_decay_ms:0,muzzy_decay_ms:0 COMMAND",
    ),
)
_COPIES = {
    "torch": (
        Fix("give workers one array instead of a list of objects", "items = np.array(items)"),
        Fix("or start them without a copy of the parent", 'DataLoader(dataset, multiprocessing_context="spawn")'),
    ),
    "gunicorn": (
        Fix("before forking, exempt what the workers share from garbage collection", "gc.collect(); gc.freeze()"),
        Fix("or restart each worker after so many requests", "gunicorn --max-requests 1000 APP:app"),
    ),
    "python": (
        Fix("give workers one array instead of a list of objects", "items = np.array(items)"),
        Fix("or start them without a copy of the parent", 'multiprocessing.get_context("spawn")'),
    ),
    "": (Fix("start workers before the parent has loaded what they do not need, or by exec"),),
}
_COPIED = {  # the parent writes what a forked child still shares
    "redis": (
        Fix("save in quiet hours, when little is written while the child saves", "redis-cli config set save ''"),
        Fix("and copy 4 KiB per write, not 2 MiB", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"),
    ),
    "": (Fix("it goes when the forked child ends: write less while it lives, or end it sooner"),),
}
_HUGE = Fix("huge pages are reserved for the whole machine; give back those nobody uses", "sysctl -w vm.nr_hugepages=0")


def fixes(
    grew: str, files: Sequence[FileSample], processes: Sequence[ProcessSample], *, closed: bool = False
) -> tuple[Fix, ...]:
    """What helps, most useful first. ``files`` and ``processes`` are those behind the growth, the largest first;
    ``closed``: the program has ended, so that nothing can be asked of its pid."""
    process = processes[0] if processes else None
    file = files[0] if files else None
    runtime = process.runtime if process is not None else ""
    program = _program(processes, files) or runtime
    found: tuple[Fix, ...] = ()
    if grew == "mapped":
        found = _against_mapping(file, runtime)
    elif grew == "cache":
        found = _against_cache(file, runtime)
    elif grew == "anon":
        found = _ALLOCATES.get(program) or _ALLOCATES[runtime]
    elif grew == "retained":
        marked = process is not None and process.retained_from == "lazyfree"
        found = _MARKED_FREE if marked else _KEEPS.get(runtime, _KEEPS[""])
    elif grew == "workers":
        found = _COPIES.get(program, _COPIES[""])
    elif grew == "copied":
        found = _COPIED.get(program, _COPIED[""])
    elif grew == "hugetlb":
        found = (_HUGE,)
    elif grew == "dirty":
        found = _against_dirty(runtime)
    elif grew == "tables":
        found = _against_tables(runtime)
    elif grew == "shmem":
        found = _against_shmem(file, runtime, program)
    pid = "PID" if process is None or closed else str(process.pid)
    return tuple(_filled(fix, file, pid) for fix in found)


def _program(processes: Sequence[ProcessSample], files: Sequence[FileSample]) -> str:
    """The program that a process's name reveals: torch's loader, gunicorn, redis."""
    names = [process.name for process in processes]
    if any("pt_data_worker" in name for name in names) or any("/torch_" in file.path for file in files[:1]):
        return "torch"
    return next((word for word in ("gunicorn", "redis") if any(word in name for name in names)), "")


def _read_as(file: FileSample) -> str:
    """The format by which a file is read; "raw" for bare numbers, "" for what nobody knows."""
    if file.format:
        return file.format
    ending = PurePath(file.path).suffix.lower()[1:]
    return "raw" if ending in _RAW_NAMES or ending.rstrip("0123456789") in _RAW_LETTERS else ""


def _against_mapping(file: FileSample | None, runtime: str) -> tuple[Fix, ...]:
    if file is None or file.format == "program" or runtime not in ("python", ""):
        return (_NOTHING_TO_DO,)
    if runtime == "" and file.format in _DATABASES:
        return (_NOTHING_TO_DO,)
    if runtime == "":
        return (_NOTHING_TO_DO, Fix("or from C: madvise(address, length, MADV_DONTNEED) behind the reader"))
    return _NOT_MAPPED.get(_read_as(file), (_NOTHING_TO_DO,))


def _against_cache(file: FileSample | None, runtime: str) -> tuple[Fix, ...]:
    if file is None or file.format in (*_DATABASES, "program", "sqlite"):
        return (_NOTHING_TO_DO,)  # a database reads its file again and again, and everybody their libraries
    if file.written:
        return (_NOTHING_TO_DO, Fix("or, once it is on the disk, drop what was written", _FADVISE))
    drop = Fix("drop what was read, from any process", _FADVISE)
    if runtime == "python" and _read_as(file) in ("npy", "raw"):
        dtype = "" if file.format == "npy" else ', dtype="uint8"'
        return (Fix("leave nothing behind", f'a = lowtide.open({{path!r}}{dtype}, cache="drop")'), drop)
    return (_NOTHING_TO_DO, drop)


def _against_dirty(runtime: str) -> tuple[Fix, ...]:
    calls = {"python": "os.fdatasync(file.fileno())", "node": "fs.fdatasyncSync(fd)"}
    step = (Fix("write in steps, after every 64 MiB", calls[runtime]),) if runtime in calls else ()
    return (*step, Fix("bound what may wait to be written, for the machine", "sysctl -w vm.dirty_bytes=268435456"))


def _against_tables(runtime: str) -> tuple[Fix, ...]:
    if runtime != "python":
        return (Fix("map a window at a time and unmap it again: page tables go with their mapping"),)
    return (
        Fix("map a window at a time and close it again", "memmap = None  # unmaps when its last view is gone"),
        Fix("or read without mapping: lowtide.open"),
    )


def _against_shmem(file: FileSample | None, runtime: str, program: str) -> tuple[Fix, ...]:
    if program == "torch" and (file is None or "/torch_" in file.path):
        return (Fix("prefetch fewer batches", "DataLoader(dataset, num_workers=2, prefetch_factor=1)"),)
    if file is None or not file.memory or not file.path.startswith("/") or file.path.startswith("/memfd:"):
        return (Fix("it has no name to unlink: unmap it, or end the processes that share it"),)
    return (Fix("unlink it once it is used", "os.unlink({path!r})" if runtime == "python" else "rm {path!r}"),)


def _filled(fix: Fix, file: FileSample | None, pid: str) -> Fix:
    path = file.path if file is not None else "FILE"
    return Fix(fix.text, fix.run.replace("{path!r}", repr(path)).replace("{pid}", pid))
