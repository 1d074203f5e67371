"""How a watched program ended: by itself, by a signal, or killed by the kernel for want of memory.

The exit code says SIGKILL and not who sent it; the cgroup's count of kills, read again after the end, says that the
kernel killed somebody; the kernel's log, where it may be read, says whom, in which cgroup and how much heap it had.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
from collections.abc import Collection
from dataclasses import dataclass

from lowtide.memory.samples import CgroupSample, Ended, Sample
from lowtide.units import format_size

_KILLED = re.compile(
    r"(Memory cgroup out|Out) of memory[^:]*: Killed process (\d+) \((.*)\) total-vm:.*?anon-rss:(\d+)kB"
)
_LIMIT = re.compile(r"memory: usage \d+kB, limit (\d+)kB")
_RECORD = 8192  # bytes: the kernel's longest record


@dataclass(frozen=True)
class Kill:
    """One line of the kernel's log."""

    pid: int
    name: str
    anon: int
    by_cgroup: bool
    limit: int | None = None  # of the cgroup that ran full


class KernelLog:
    """What the kernel logs from now on. Nothing where /dev/kmsg may not be read."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self._fd = -1
        with contextlib.suppress(OSError):
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)

    @property
    def readable(self) -> bool:
        return self._fd >= 0

    def kills(self) -> list[Kill]:
        """Every kill for want of memory since this log was opened, or last asked."""
        found = []
        limit = None
        while self.readable:
            try:
                record = os.read(self._fd, _RECORD).decode(errors="replace")
            except OSError as problem:
                if problem.errno == errno.EPIPE:  # older records were overwritten: go on with those that are there
                    continue
                break  # EAGAIN: no more
            if not record:
                break
            stated = _LIMIT.search(record)
            if stated is not None:
                limit = int(stated[1]) * 1024
            match = _KILLED.search(record)
            if match is not None:
                by_cgroup = match[1] != "Out"
                kill = Kill(int(match[2]), match[3], int(match[4]) * 1024, by_cgroup, limit if by_cgroup else None)
                found.append(kill)
        return found

    def close(self) -> None:
        if self.readable:
            os.close(self._fd)
            self._fd = -1


def how_it_ended(
    returned: int | None,
    last: Sample | None,
    *,
    pids: Collection[int],
    kills: list[Kill],
    log_readable: bool,
    kills_counted: int,
    machine_memory: int,
) -> Ended:
    """``returned`` is Popen's return code, None where nobody waited for the process. ``kills`` are those of the
    kernel's log, ``kills_counted`` how far the cgroup's own count rose while it was watched."""
    ours = [kill for kill in kills if kill.pid in pids]
    names = tuple(f"{kill.name} ({kill.pid})" for kill in ours)
    code = None if returned is None else 128 - returned if returned < 0 else returned
    by_kill = code == 128 + signal.SIGKILL or returned is None
    if by_kill and (ours or (kills_counted > 0 and not log_readable)):
        return _killed(code, last, ours, names, machine_memory)
    lost = f"; the kernel killed {', '.join(names)} of its processes for want of memory" if ours else ""
    if not ours and kills_counted > 0:
        lost = f"; {kills_counted} process(es) of its cgroup were killed for want of memory meanwhile"
    if returned is None:
        return Ended("gone", None, "", f"ended; its exit code went to its parent{lost}", names)
    if returned < 0:
        name = _signal_name(-returned)
        return Ended("signal", code, name, f"killed by {name}, not by the kernel for want of memory{lost}", names)
    return Ended("exit", code, "", f"exit code {code}{lost}", names)


def _killed(
    code: int | None, last: Sample | None, ours: list[Kill], names: tuple[str, ...], machine_memory: int
) -> Ended:
    cgroup: CgroupSample | None = last.cgroup if last is not None else None
    in_cgroup = ours[-1].by_cgroup if ours else True
    limit = ours[-1].limit if ours else None
    if limit is None:
        limit = cgroup.limit if in_cgroup and cgroup is not None else machine_memory or None
    anon = max((kill.anon for kill in ours), default=cgroup.anon if cgroup is not None else None)
    if anon is not None and limit:
        anon = min(anon, limit)  # what it touched before it was moved into the cgroup is charged elsewhere
    who = "the cgroup" if in_cgroup else "the machine"
    reached = f" reached {format_size(limit)}" if limit else " ran out of memory"
    of_it = f", of it anon {format_size(anon)}" if anon is not None else ""
    by = f" in {names[-1]}" if names and of_it else ""
    return Ended("oom", code, "SIGKILL", f"killed by the kernel: {who}{reached}{of_it}{by}", names, limit, anon)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
