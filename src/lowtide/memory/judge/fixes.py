"""What helps against each kind of growth: lines that can be run as they stand, with the trace's own file in them. Pure.

A fix is printed only where it works. A file's format and a process's runtime decide which one: nobody is told
to open a library, or an Arrow file, with a reader for arrays, and nobody is sent to tracemalloc for node. Each line is
``what it does: code``; the tests run the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowtide.memory.samples import FileSample, ProcessSample


@dataclass(frozen=True)
class Fix:
    """What it does, and the line to run: Python unless it begins with a command."""

    text: str
    run: str = ""

    def __str__(self) -> str:
        return f"{self.text}: {self.run}" if self.run else self.text


_READ_IT = {
    "npy": Fix("read instead of mapping", 'a = lowtide.open({path!r}, budget="256MiB")'),
    "": Fix(
        "read instead of mapping, with the dtype you gave np.memmap",
        'a = lowtide.open({path!r}, dtype="uint8", budget="256MiB")',
    ),
    "safetensors": Fix(
        "load one tensor at a time and drop it before the next",
        'tensors = safetensors.safe_open({path!r}, framework="np"); t = tensors.get_tensor(tensors.keys()[0])',
    ),
    "arrow": Fix(
        "read the record batches instead of mapping them",
        "batches = pyarrow.ipc.open_stream(pyarrow.OSFile({path!r}))",
    ),
    "hdf5": Fix("read slices and close the file between epochs", "h5py.File({path!r}, rdcc_nbytes=0)"),
}
_NOTHING_TO_DO = Fix("nothing has to be done: these pages are clean, and the kernel takes them back when it needs room")
_RELEASE = Fix("or keep the np.memmap and give its pages back after each chunk", "lowtide.release(memmap)")
_READERS = ("npy", "")  # what lowtide.open reads
_FADVISE = "fd = os.open({path!r}, os.O_RDONLY); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)"

_ALLOCATES = {
    "python": (
        Fix(
            "find the lines that allocate",
            "import tracemalloc; tracemalloc.start()  # later: "
            'print(*tracemalloc.take_snapshot().statistics("lineno")[:10], sep="\\n")',
        ),
        Fix("usual causes: batches or losses kept in a list, copies made by astype"),
    ),
    "node": (
        Fix("write a heap snapshot for Chrome's memory tab on demand", "node --heapsnapshot-signal=SIGUSR2 APP.js"),
        Fix("or set the heap's bound", "node --max-old-space-size=512 APP.js"),
    ),
    "java": (
        Fix("list the classes that fill the heap", "jcmd {pid} GC.class_histogram"),
        Fix("or set the heap's bound", "java -Xmx512m -jar APP.jar"),
    ),
    "": (Fix("count allocations by size with the C library's own tool", "LD_PRELOAD=libmemusage.so COMMAND"),),
}
_KEEPS = {
    "python": (
        Fix("give it back now, from inside", "lowtide.release()"),
        Fix(
            "or start it with fewer arenas and trimming on", "MALLOC_ARENA_MAX=2 MALLOC_TRIM_THRESHOLD_=131072 COMMAND"
        ),
    ),
    "": (
        Fix("start it with fewer arenas and trimming on", "MALLOC_ARENA_MAX=2 MALLOC_TRIM_THRESHOLD_=131072 COMMAND"),
        Fix("or from inside: malloc_trim(0) after large frees; or link jemalloc, which gives back by itself"),
    ),
}


def fixes(
    grew: str, files: Sequence[FileSample], processes: Sequence[ProcessSample], *, closed: bool = False
) -> tuple[Fix, ...]:
    """What helps, most useful first. ``files`` and ``processes`` are those behind the growth, the largest first;
    ``closed``: the program has ended, so that nothing can be asked of its pid."""
    process = processes[0] if processes else None
    runtime = process.runtime if process is not None else ""
    file = files[0] if files else None
    found: tuple[Fix, ...]
    if grew == "mapped":
        found = _against_mapping(file, runtime)
    elif grew == "cache":
        found = _against_cache(file, runtime)
    elif grew in ("anon", "retained"):
        table = _ALLOCATES if grew == "anon" else _KEEPS
        found = table.get(runtime, table[""])
    else:
        found = _OTHERS.get(grew, ())
    pid = "PID" if process is None or closed else str(process.pid)
    return tuple(_filled(fix, file, pid) for fix in found)


_OTHERS = {
    "dirty": (Fix("write in steps, after every 64 MiB", "os.fdatasync(file.fileno())"),),
    "tables": (
        Fix("map a window at a time and close it again", "memmap = None  # unmaps when its last view is gone"),
        Fix("or read without mapping: lowtide.open"),
    ),
    "shmem": (
        Fix("unlink it once it is used", "os.unlink({path!r})"),
        Fix("prefetch fewer batches", "DataLoader(dataset, num_workers=2, prefetch_factor=1)"),
    ),
    "workers": (
        Fix("give workers one array instead of a list of objects", "items = np.array(items)"),
        Fix("or start them without a copy of the parent", 'DataLoader(dataset, multiprocessing_context="spawn")'),
    ),
}


def _against_mapping(file: FileSample | None, runtime: str) -> tuple[Fix, ...]:
    if file is None or runtime not in ("python", "") or file.format not in _READ_IT:
        return (_NOTHING_TO_DO,)
    if runtime == "":
        return (_NOTHING_TO_DO, Fix("or from C: madvise(address, length, MADV_DONTNEED) behind the reader"))
    found = (_READ_IT[file.format],)
    return (*found, _RELEASE) if file.format in _READERS else (*found, _NOTHING_TO_DO)


def _against_cache(file: FileSample | None, runtime: str) -> tuple[Fix, ...]:
    drop = Fix("drop what was read, from any process", _FADVISE)
    if file is None:
        return (_NOTHING_TO_DO,)
    if runtime == "python" and file.format in _READERS:
        dtype = "" if file.format == "npy" else ', dtype="uint8"'
        return (Fix("leave nothing behind", f'a = lowtide.open({{path!r}}{dtype}, cache="drop")'), drop)
    return (_NOTHING_TO_DO, drop)


def _filled(fix: Fix, file: FileSample | None, pid: str) -> Fix:
    path = file.path if file is not None else "FILE"
    return Fix(fix.text, fix.run.replace("{path!r}", repr(path)).replace("{pid}", pid))
