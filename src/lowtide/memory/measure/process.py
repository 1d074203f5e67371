"""One process's counters, straight from /proc: what it holds, who its children are, what it has open.

Each function reads one file of /proc and returns numbers; a process that has gone, or is not ours, raises the OSError
the kernel gave. Cost: ``status`` 30 microseconds, ``stat`` and ``io`` 15 each. What walks page tables is in smaps.py.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from lowtide.memory.samples import ProcessMemory

_SIGKILL = 1 << 8  # signal 9 in a mask of signals
_EXITING = 0x4  # PF_EXITING of include/linux/sched.h
_STATUS = ("RssAnon", "RssFile", "RssShmem", "VmPTE", "VmPMD", "VmSwap", "VmHWM", "HugetlbPages")


@dataclass(frozen=True)
class ProcessIdentity:
    """Who a process is. ``image`` is equal in parent and child after fork; exec draws other addresses at random."""

    pid: int
    parent: int
    name: str
    state: str  # one letter; Z and X are processes that have ended
    started: int  # clock ticks since boot: a pid used again has another one
    image: tuple[int, int]
    minor_faults: int
    major_faults: int
    exiting: bool = False  # the kernel is taking its memory apart


def process_memory(pid: int | None = None) -> ProcessMemory:
    """Bytes of heap, mapped files, shared memory and page tables of one process (this one by default)."""
    counts = status(os.getpid() if pid is None else pid)
    return ProcessMemory(counts["RssAnon"], counts["RssFile"], counts["RssShmem"], counts["VmPTE"] + counts["VmPMD"])


def status(pid: int) -> dict[str, int]:
    """The memory lines of /proc/PID/status in bytes; 0 for those a kernel thread or a zombie does not have."""
    counts = dict.fromkeys(_STATUS, 0)
    for line in read_proc(pid, "status").splitlines():
        name, _, rest = line.partition(":")
        if name in counts:
            counts[name] = int(rest.split()[0]) * 1024
    return counts


def process_identity(pid: int) -> ProcessIdentity:
    """/proc/PID/stat. Its second field is the name in parentheses, which may itself hold blanks and parentheses."""
    text = read_proc(pid, "stat")
    name = text[text.index("(") + 1 : text.rindex(")")]
    rest = text[text.rindex(")") + 2 :].split()  # rest[0] is field 3 of proc(5)
    return ProcessIdentity(
        pid=pid,
        parent=int(rest[1]),
        name=name,
        state=rest[0],
        started=int(rest[19]),
        image=(int(rest[23]), int(rest[25])),
        minor_faults=int(rest[7]),
        major_faults=int(rest[9]),
        exiting=bool(int(rest[6]) & _EXITING),
    )


def bytes_moved(pid: int) -> tuple[int, int, int]:
    """Bytes read from and sent to storage (page-cache hits count in neither), and all it wrote to files, tmpfs too."""
    counts = {}
    for line in read_proc(pid, "io").splitlines():
        name, _, value = line.partition(":")
        counts[name] = int(value)
    return counts["read_bytes"], counts["write_bytes"], counts["wchar"]


def being_killed(pid: int) -> bool:
    """Whether a SIGKILL waits for it to run again, or it has ended: it is still listed, and as good as dead."""
    try:
        lines = read_proc(pid, "status").splitlines()
    except OSError:
        return True
    waiting = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(signals & _SIGKILL for signals in waiting)


def runtime(pid: int) -> str:
    """python, node or java by the program it runs; "" for any other, and for another user's process."""
    try:
        name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))  # noqa: PTH115, PTH119  # text, not a path to follow
    except OSError:
        return ""
    return next((word for word in ("python", "node", "java") if name.startswith(word)), "")


def children(pid: int) -> list[int]:
    """Its direct children, those started by any of its threads. Empty on a kernel built without this list."""
    found: list[int] = []
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/task") as threads:
        for thread in threads:
            with contextlib.suppress(OSError):  # the thread ended while we looked
                found += [int(word) for word in read_proc(pid, f"task/{thread.name}/children").split()]
    return found


def read_proc(pid: int, name: str) -> str:
    """A whole file of /proc/PID. Plain descriptors: a file object costs more than the kernel's answer."""
    fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, 65536):
            parts.append(part)
    except ProcessLookupError as problem:  # it ended between open and read
        raise FileNotFoundError(problem.errno, "the process has ended", f"/proc/{pid}") from problem
    finally:
        os.close(fd)
    return b"".join(parts).decode(errors="replace")


def command_line(pid: int) -> str:
    """How a process was started, as one line; its own when asked about this process."""
    if pid == os.getpid():
        return " ".join([Path(sys.executable).name, *sys.argv])
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return f"pid {pid}"
    return b" ".join(words).decode(errors="replace").strip() or f"pid {pid}"


def no_such_process(pid: int) -> ProcessLookupError:
    """The error for a pid that is not there, or that /proc hides from us."""
    if _hides_processes():
        return ProcessLookupError(
            f"pid {pid}: expected a running process of this user, got none; /proc hides those of others (hidepid). "
            "Run as that user or as root."
        )
    return ProcessLookupError(f"pid {pid}: expected a running process, got none. Check the number with ps.")


def _hides_processes() -> bool:
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return False
    lines = [line for line in mounts.splitlines() if " - proc " in line and line.split()[4] == "/proc"]
    return any("hidepid=" in line and "hidepid=0" not in line and "hidepid=off" not in line for line in lines)
