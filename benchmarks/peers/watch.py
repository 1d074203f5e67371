"""A process and its children from outside: memory by kind, processor seconds, bytes that came from the device."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
EVERY = 0.05  # seconds; a look at a process that maps 1 GiB takes milliseconds


def tree(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:
        return [pid]
    return [pid, *(each for child in children for each in tree(child))]


def read_bytes_of_tree(pid: int) -> int:
    """What the kernel fetched from the device for these processes, read-ahead included."""
    return sum(_field(Path(f"/proc/{each}/io"), "read_bytes:") for each in tree(pid))


def seconds_of_tree(pid: int) -> float:
    """Processor seconds, with those of children that have ended."""
    total = 0
    for each in tree(pid):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(int(field) for field in fields[11 : 15 if each == pid else 13])
    return total / TICKS


def _field(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(name))


@dataclass
class Kinds:
    """Bytes of a process tree: its own memory, and pages of files and shared memory that it has mapped."""

    anon: int = 0
    mapped: int = 0


def kinds(pid: int) -> Kinds:
    found = Kinds()
    for each in tree(pid):
        path = Path(f"/proc/{each}/smaps_rollup")
        found.anon += 1024 * _field(path, "Pss_Anon:")
        found.mapped += 1024 * (_field(path, "Pss_File:") + _field(path, "Pss_Shmem:"))
    return found


def forget_peak(pid: int) -> int:
    """The kernel's own peak of resident memory begins anew; what is resident now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return 1024 * _field(Path(f"/proc/{pid}/status"), "VmRSS:")


def peak_resident(pid: int) -> int:
    """Of the process itself, since ``forget_peak``: no moment is missed between two looks."""
    return 1024 * _field(Path(f"/proc/{pid}/status"), "VmHWM:")


class Watch(threading.Thread):
    """The highest of each kind while a job runs."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.most = pid, Kinds()
        self._over = threading.Event()

    def look(self) -> None:
        now = kinds(self.pid)
        self.most = Kinds(max(self.most.anon, now.anon), max(self.most.mapped, now.mapped))

    def run(self) -> None:
        while not self._over.wait(EVERY):
            self.look()

    def stop(self) -> Kinds:
        self._over.set()
        self.join()
        return self.most
