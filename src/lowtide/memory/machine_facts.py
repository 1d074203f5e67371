"""Facts about the machine and a process that a reader of the numbers wants beside them."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from lowtide.machine import PAGE, available_memory, memory_limit, total_memory


def machine_facts(pid: int | None = None) -> dict[str, str]:
    """What a reader of the numbers will want to know about the machine; sizes in bytes."""
    limit = memory_limit(pid)
    return {
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "cpus": str(os.cpu_count() or 1),
        "page": str(PAGE),
        "memory": str(total_memory()),
        "available": str(available_memory()),
        "limit": str(limit.limit or 0),
        "limit set by": limit.source,
    }


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
