"""The processes that are watched - a process and its descendants, or all of a cgroup - and the counters that must not
shrink when one of them ends.

Once a member, always a member while it lives: a child whose parent ended belongs to init in the kernel's eyes and
still to us. A pid used again has another start time and is not taken for the old one. Cost: 60 microseconds per
process, 10 per thread.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lowtide.memory.measure import process


@dataclass(frozen=True)
class WatchedProcess:
    """One living process: who it is and the memory lines of its /proc/PID/status."""

    pid: int
    parent: int
    name: str
    forked: bool
    runtime: str
    counts: dict[str, int]
    minor_faults: int


class WorkDone(NamedTuple):
    """Counters that only rise: faults, bytes moved from and to storage, bytes written to anything."""

    minor_faults: int = 0
    major_faults: int = 0
    read: int = 0
    written: int = 0
    passed: int = 0  # given to write(), also for tmpfs


@dataclass
class _Past:
    identity: process.ProcessIdentity
    forked: bool
    runtime: str
    read: int = 0
    written: int = 0
    passed: int = 0

    @property
    def done(self) -> WorkDone:
        return WorkDone(self.identity.minor_faults, self.identity.major_faults, self.read, self.written, self.passed)


def pids_of_cgroup(directory: Path) -> list[int]:
    """Every process of a cgroup directory and those below it. FileNotFoundError once it is gone."""
    found: list[int] = []
    for place, _, names in os.walk(directory):
        if "cgroup.procs" in names:
            try:
                found += [int(word) for word in Path(place, "cgroup.procs").read_text().split()]
            except FileNotFoundError:
                continue  # a cgroup below it ended meanwhile
    if not found and not directory.is_dir():
        raise FileNotFoundError(f"{directory}: the cgroup is gone")
    return [pid for pid in found if pid > 0]  # 0: a process outside our pid namespace


class Tree:
    """Finds the members again at each call of ``members`` and keeps the sums. ``who`` gives the pids to begin with;
    ``descends``: their children belong to them."""

    def __init__(self, who: Callable[[], list[int]], *, descends: bool) -> None:
        self._who, self._descends = who, descends
        self._seen: dict[int, _Past] = {}
        self._dead = WorkDone()
        self._listed = Path(f"/proc/self/task/{os.getpid()}/children").exists()
        self.moved_known = True
        self.pids: set[int] = set()  # of every process seen so far

    def members(self) -> tuple[list[WatchedProcess], bool]:
        """Every living member, the first one first, and whether one came or went since the last call."""
        before = set(self._seen)
        found: list[WatchedProcess] = []
        waiting = deque([*self._who(), *self._seen])
        parents = None if self._listed or not self._descends else _parents()
        done = set()
        while waiting:
            pid = waiting.popleft()
            if pid in done:
                continue
            done.add(pid)
            member = self._member(pid)
            if member is None:
                self._end(pid)
                continue
            found.append(member)
            if self._descends:
                waiting += process.children(pid) if parents is None else [c for c, p in parents.items() if p == pid]
        return found, set(self._seen) != before

    @property
    def done(self) -> WorkDone:
        """What the living and the dead have done together."""
        return WorkDone(*map(sum, zip(self._dead, *(past.done for past in self._seen.values()), strict=True)))

    def _member(self, pid: int) -> WatchedProcess | None:
        """None for a process that has ended, is ending, or took over the pid of one that had."""
        try:
            identity = process.process_identity(pid)
            past = self._seen.get(pid)
            if past is not None and past.identity.started != identity.started:
                return None
            counts = process.status(pid)
        except OSError:
            return None
        if identity.state in "ZXx" or identity.exiting or not any(counts.values()):
            return None
        if past is None:
            past = self._seen[pid] = _Past(identity, self._is_forked(identity), process.runtime(pid))
            self.pids.add(pid)
        elif past.identity.image != identity.image:  # another program since: exec
            past.forked, past.runtime = False, process.runtime(pid)
        past.identity = identity
        try:
            past.read, past.written, past.passed = process.bytes_moved(pid)
        except OSError:
            self.moved_known = False
        return WatchedProcess(
            pid, identity.parent, identity.name, past.forked, past.runtime, counts, past.identity.minor_faults
        )

    def _is_forked(self, identity: process.ProcessIdentity) -> bool:
        """Fork without exec keeps the addresses of code and stack, which exec draws at random."""
        return any(identity.image) and any(
            past.identity.image == identity.image and past.identity.pid != identity.pid for past in self._seen.values()
        )

    def _end(self, pid: int) -> None:
        past = self._seen.pop(pid, None)
        if past is not None:
            self._dead = WorkDone(*map(sum, zip(self._dead, past.done, strict=True)))


def _parents() -> dict[int, int]:
    """Parent of every process: the way for kernels that do not list children (built without PROC_CHILDREN)."""
    parents = {}
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    for pid in pids:
        try:
            parents[pid] = process.process_identity(pid).parent
        except OSError:
            continue
    return parents
