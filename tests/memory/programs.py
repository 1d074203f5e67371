"""Programs that do one thing to memory on purpose, what is true of each, and what ``lowtide doctor`` must say.

One list for the tests and for the table that ``make doctors`` writes. A program tells what it knows of itself, from the
kernel or its allocator, in a file (planted/truth.py); where it cannot, ``truth`` has the bytes that were planted. Both
are keyed by places in the doctor's JSON document. ``judged`` runs one, ``wrong`` says what the doctor got wrong.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lowtide.machine import memory_cgroup

MIB = 1024**2
PLANTED = Path(__file__).with_name("planted")
TOLERANCE = 0.05
SLACK = 8 * MIB  # of small programs: the interpreter's own, which comes and goes


@dataclass(frozen=True)
class Expected:
    """What the doctor must say. ``grew`` are the words that are right; ``owner`` stands in the name of the largest
    grower, or of the largest owner of ``kind``; ``says`` are words of the report, ``never`` words that must not stand
    in its fixes."""

    grew: tuple[str, ...]
    kind: str = "anon"
    owner: str = ""
    how: str = "exit"
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    high: bool = True  # False: must not be said with high confidence


@dataclass(frozen=True)
class Program:
    """``command`` may hold {python}, {planted} and {directory}; ``needs`` are commands and modules (``import x``);
    ``limit`` puts it into a cgroup of its own; ``truth`` beside what the program itself tells."""

    name: str
    command: tuple[str, ...]
    truth: dict[str, int]
    expected: Expected
    needs: tuple[str, ...] = ()
    limit: int | None = None
    seconds: str = "4"
    environment: dict[str, str] = field(default_factory=dict)


def _python(name: str, *words: str) -> tuple[str, ...]:
    return ("{python}", f"{{planted}}/{name}.py", *(words or ("{directory}",)))


def _planted(name: str, script: str, expected: Expected, **options: Any) -> Program:
    return Program(name, _python(script), options.pop("truth", {}), expected, **options)


PROGRAMS: tuple[Program, ...] = (
    _planted("Python, a list that grows", "anon", Expected(("anon",), "anon", "process ")),
    _planted(
        "np.memmap in shuffled order",
        "mapped",
        Expected(("mapped",), "mapped", "rows.bin"),
        truth={"owner": 256 * MIB},
        needs=("import numpy",),
    ),
    _planted(
        "reads a file", "cache", Expected(("cache",), "cache", "read.bin"), truth={"owner": 256 * MIB}, seconds="4"
    ),
    # When anybody on the machine calls sync() meanwhile it is cache, and rightly so.
    _planted("writes a file, no sync", "dirty", Expected(("dirty", "cache"), "dirty", "written.bin")),
    _planted(
        "page tables", "tables", Expected(("tables",), "tables", "process "), truth={"held.tables.peak": 128 * MIB}
    ),
    _planted("tmpfs, file kept open", "shmem", Expected(("shmem",), "shmem", "/dev/shm/"), truth={"owner": 200 * MIB}),
    _planted("tmpfs, files closed", "closed_tmpfs", Expected(("shmem",), "shmem", "/dev/shm/")),
    _planted("healthy reader", "healthy", Expected(("nothing",))),
    _planted("forked workers copy", "workers", Expected(("workers",), "anon", "process ")),
    _planted(
        "leak behind a file that is read",
        "masked",
        Expected(("anon",), "anon", "process "),
        limit=320 * MIB,
        seconds="8",
    ),
    _planted("freed heap, 100 kB blocks", "retained", Expected(("retained",)), truth={"retained": 260_000_000}),
    _planted("freed heap, 100,000 small chunks", "small_chunks", Expected(("retained",)), seconds="9"),
    _planted("freed heap in 16 arenas", "arenas", Expected(("retained",)), seconds="6"),
    _planted("gives memory back before its end", "gives_back", Expected(("nothing",)), seconds="12"),
    _planted(
        "mlock of a mapped file",
        "locked",
        Expected(("mapped",), "mapped", "index.bin", says=("locked",)),
        truth={"held.total.locked": 160 * MIB},
    ),
    _planted("huge pages of the pool", "huge_pool", Expected(("hugetlb",), "hugetlb", "process "), needs=("hugetlb",)),
    _planted("transparent huge pages", "huge_pages", Expected(("anon",), "anon", "process ", says=("huge pages",))),
    _planted("copy-on-write behind a snapshot", "snapshot", Expected(("copied",), "anon", "process "), seconds="6"),
    _planted("io_uring, registered buffers", "uring", Expected(("anon",), "anon", "process "), needs=("io_uring",)),
    Program(
        "C, 500 MiB in 0.3 s",
        ("{directory}/short",),
        {"held.total.peak": 500 * MIB},
        Expected(("anon", "nothing")),
        ("gcc",),
    ),
    _planted(
        "killed by its cgroup",
        "climbs",
        Expected(("anon",), "anon", "process ", how="oom", says=("the cgroup reached 100 MiB",)),
        limit=100 * MIB,
    ),
    _planted(
        "its child killed by the cgroup",
        "killed_child",
        Expected(("anon", "nothing", "workers"), how="exit", says=("the kernel killed",), never=("did not happen",)),
        limit=100 * MIB,
    ),
    _planted(
        "its sibling killed by the cgroup",
        "beside",
        Expected(("nothing",), how="exit", says=("the kernel killed",), never=("did not happen",)),
        needs=("sibling",),
        limit=100 * MIB,
        seconds="6",
    ),
    _planted(
        "bus error, tmpfs full",
        "bus_error",
        Expected(("shmem",), "shmem", "batch", how="signal", says=("is full", "--shm-size")),
        needs=("tmpfs",),
    ),
    _planted(
        "bus error, file truncated",
        "truncated",
        Expected(("mapped", "nothing"), how="signal", says=("cut short",)),
    ),
    _planted(
        "torch workers over a list",
        "loader",
        Expected(("workers",), "anon", "pt_data_worker", never=(".so",)),
        needs=("import torch",),
    ),
    _planted(
        "torch batches kept",
        "kept_batches",
        Expected(("shmem",), "shmem", "/dev/shm/"),
        needs=("import torch",),
        seconds="6",
    ),
    _planted(
        "HF dataset",
        "arrow_dataset",
        Expected(("mapped",), "mapped", ".arrow", never=("lowtide.open",)),
        truth={"owner": 192 * MIB},
        needs=("import datasets",),
        seconds="6",
    ),
    _planted("pandas", "of_pandas", Expected(("anon",), "anon", "process "), needs=("import pandas",)),
    _planted(
        "polars", "of_polars", Expected(("anon",), "anon", "process ", says=("unknown",)), needs=("import polars",)
    ),
    _planted(
        "duckdb", "of_duckdb", Expected(("anon",), "anon", "process ", says=("unknown",)), needs=("import duckdb",)
    ),
    _planted(
        "lmdb",
        "of_lmdb",
        Expected(("mapped",), "mapped", "data.mdb", never=("lowtide.open",)),
        truth={"owner": 160 * MIB},
        needs=("import lmdb",),
    ),
    _planted(
        "sqlite",
        "of_sqlite",
        Expected(("cache",), "cache", "rows.db", never=("lowtide.open",)),
        truth={"owner": 160 * MIB},
    ),
    _planted(
        "leveldb",
        "of_leveldb",
        Expected(("mapped", "cache"), "mapped", "", never=("lowtide.open",)),
        needs=("import plyvel",),
    ),
    _planted(
        "redis, BGSAVE",
        "of_redis",
        Expected(("copied",), "anon", "redis", never=("DataLoader",)),
        needs=("redis-server",),
        seconds="8",
    ),
    _planted(
        "gunicorn",
        "of_gunicorn",
        Expected(("anon",), "anon", "process ", never=("DataLoader",)),
        needs=("import gunicorn",),
        seconds="6",
    ),
    Program(
        "node, Buffers",
        ("node", "{planted}/heap.js"),
        {},
        Expected(("anon",), "anon", "node", never=("tracemalloc", "--max-old-space-size")),
        ("node",),
    ),
    Program("node, objects", ("node", "{planted}/objects.js"), {}, Expected(("anon",), "anon", "node"), ("node",)),
    Program(
        "Java",
        ("java", "{planted}/Heap.java"),
        {},
        Expected(("anon",), "anon", "java", never=("tracemalloc",)),
        ("java",),
    ),
    Program(
        "dd",
        ("dd", "if={directory}/big.bin", "of=/dev/null", "bs=1M", "status=none"),
        {"owner": 512 * MIB, "held.cache.end": 512 * MIB},
        Expected(("cache", "nothing"), "cache", "big.bin", never=("lowtide.open",)),
        ("dd",),
    ),
)


def cannot(program: Program) -> str:
    """Why a program cannot be run here; "" where it can."""
    for need in program.needs:
        if need.startswith("import "):
            if importlib.util.find_spec(need.removeprefix("import ")) is None:
                return f"the module {need.removeprefix('import ')} is not installed"
        elif need == "sibling":
            continue  # only a cgroup of our own
        elif need in ("hugetlb", "tmpfs"):
            if os.geteuid() != 0:
                return f"{need} needs root"
        elif need == "io_uring":
            state = Path("/proc/sys/kernel/io_uring_disabled")
            if state.exists() and state.read_text().strip() != "0":
                return "io_uring is switched off"
        elif shutil.which(need) is None:
            return f"{need} is not installed"
    if program.limit is not None and (memory_cgroup() is None or os.geteuid() != 0):
        return "a cgroup of our own needs root and a memory cgroup mounted"
    return ""


def judged(program: Program, directory: Path, options: tuple[str, ...] = ()) -> tuple[dict[str, Any], dict[str, int]]:
    """The doctor's JSON document on a program, and what is true of it. OSError where this machine refuses."""
    told = directory / "truth.json"
    with contextlib.ExitStack() as stack:
        words = _prepared(program, directory, stack)
        doctor = [*_alone(), sys.executable, "-m", "lowtide", "doctor", "--json", *options, "--", *words]
        settings = {**os.environ, "SECONDS": program.seconds, "TRUTH": str(told), **program.environment}
        done = subprocess.run(doctor, capture_output=True, text=True, env=settings)
    if not done.stdout:
        raise AssertionError(done.stderr)
    truth = json.loads(told.read_text()) if told.exists() else {}
    return json.loads(done.stdout), {**program.truth, **truth}


def _alone() -> tuple[str, ...]:
    """A /dev/shm of its own, as in a container: others put files into a shared one meanwhile."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return ()
    return ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs planted /dev/shm && exec "$@"', "sh")


def _prepared(program: Program, directory: Path, stack: contextlib.ExitStack) -> list[str]:
    """The command as it is run here, with what it needs set up until the stack closes."""
    if "gcc" in program.needs:
        subprocess.run(["gcc", "-O1", "-o", directory / "short", PLANTED / "short.c"], check=True)
    if "dd" in program.needs:
        with (directory / "big.bin").open("wb") as file:
            for _ in range(512):
                file.write(bytes(MIB))
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    place = stack.enter_context(small_tmpfs(48 * MIB)) if "tmpfs" in program.needs else directory
    if "hugetlb" in program.needs:
        stack.enter_context(pool_of_huge_pages(24))
    words = [
        word.format(python=sys.executable, planted=PLANTED, directory=place) if "{" in word else word
        for word in program.command
    ]
    if program.limit is not None:
        inside = stack.enter_context(limited(program.limit))
        if "sibling" in program.needs:  # no child of the command's, and killed while the command is watched
            climbs = (sys.executable, PLANTED / "inside.py", inside, sys.executable, PLANTED / "climbs.py")
            stack.callback(subprocess.Popen(["sh", "-c", 'sleep 2; exec "$@"', "sh", *climbs]).wait)
        words = [sys.executable, str(PLANTED / "inside.py"), str(inside), *words]
    return words


def wrong(program: Program, found: dict[str, Any], truth: dict[str, int]) -> list[str]:
    """What the doctor got wrong, one line each; empty: wholly right."""
    expected, verdict = program.expected, found["verdict"]
    lines = []
    if verdict["grew"] not in expected.grew:
        lines.append(f"grew: {verdict['grew']}, expected {' or '.join(expected.grew)} ({verdict['headline']})")
    if found["ended"]["how"] != expected.how:
        lines.append(f"ended: {found['ended']}, expected {expected.how}")
    if expected.how == "exit" and found["ended"]["code"] != 0:
        lines.append(f"the program failed: {found['ended']['sentence']}")
    names = [each["name"] for each in verdict["who"][:1]] + [
        owner["name"] for owner in _owners(found, expected.kind)[:1]
    ]
    if expected.owner and not any(expected.owner in name for name in names):
        lines.append(f"owner: {names}, expected {expected.owner}")
    report = json.dumps([found["ended"], verdict])
    lines += [f"not said: {word}" for word in expected.says if word not in report]
    fixes = json.dumps(verdict["fix"])
    lines += [f"said in its fixes or risks: {w}" for w in expected.never if w in fixes + json.dumps(verdict["risk"])]
    if verdict["confidence"] == "high" and not expected.high:
        lines.append("said with high confidence")
    for place, size in truth.items():
        said = size_at(place, found, expected.kind)
        if abs(said - size) > max(TOLERANCE * size, SLACK if size < 160 * MIB else 0):
            lines.append(f"{place}: {said / MIB:.1f} MiB, truth {size / MIB:.1f} MiB")
    return lines


def size_at(place: str, found: dict[str, Any], kind: str) -> int:
    """Bytes in the document: at a place, of the largest ``owner`` of a kind, or freed and kept (``retained``)."""
    if place == "owner":
        return max((int(owner["bytes"]) for owner in _owners(found, kind)), default=0)
    if place == "retained":
        return sum(int(owner["bytes"]) for owner in _owners(found, "anon") if owner["what"] == "allocator")
    value: Any = found
    for word in place.split("."):
        value = value[word]
    return int(value)


def _owners(found: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """Owners of a kind, library code aside: the interpreter brings that along."""
    held = found["held"].get(kind, {"owners": []})["owners"]
    return [owner for owner in held if owner["what"] not in ("library code", "smaller files")]


@contextlib.contextmanager
def limited(size: int) -> Iterator[Path]:
    """A memory cgroup of our own with a limit, removed afterwards with what still runs in it. OSError where this
    machine refuses."""
    cgroup = memory_cgroup()
    if cgroup is None or os.geteuid() != 0:
        raise PermissionError("a cgroup of our own needs root and a memory cgroup mounted")
    parent = cgroup.directories[-1] if cgroup.version == 1 else cgroup.directories[0]
    directory = parent / f"lowtide-test-{os.getpid()}-{time.monotonic_ns()}"
    directory.mkdir()
    try:
        (directory / ("memory.limit_in_bytes" if cgroup.version == 1 else "memory.max")).write_text(str(size))
        yield directory
    finally:
        removed(directory)


def removed(directory: Path) -> None:
    for _ in range(600):
        if not directory.exists():
            return
        for pid in (directory / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        try:
            directory.rmdir()
        except OSError:  # its last process is still being taken apart
            time.sleep(0.1)


@contextlib.contextmanager
def small_tmpfs(size: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "planted", place], check=True)
        try:
            yield Path(place)
        finally:
            subprocess.run(["umount", "--lazy", place], check=True)


@contextlib.contextmanager
def pool_of_huge_pages(count: int) -> Iterator[None]:
    pool = Path("/proc/sys/vm/nr_hugepages")
    before = int(pool.read_text())
    pool.write_text(str(before + count))
    try:
        if int(pool.read_text()) < before + count:
            raise OSError("the kernel has no huge pages to give")
        yield
    finally:
        pool.write_text(str(before))
