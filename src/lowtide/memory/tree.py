"""A process and all its descendants, and the counters that must not shrink when one of them ends.

One idea: once a member, always a member while it lives: a child whose parent ended belongs to init in the
kernel's eyes and still to us. A pid used again by another program has another start time and is not taken
for the old one. Faults and bytes read are summed over the living and the dead. Cost: 60 microseconds a
process, 10 a thread.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lowtide.memory import process


@dataclass(frozen=True)
class Member:
    """One living process: who it is and the memory lines of its /proc/PID/status."""

    pid: int
    parent: int
    name: str
    forked: bool
    counts: dict[str, int]


@dataclass
class _Past:
    identity: process.Identity
    forked: bool
    read: int = 0
    written: int = 0


class Tree:
    """Finds the members anew at each call of ``members`` and keeps the sums."""

    def __init__(self, pid: int, *, children: bool = True) -> None:
        self._root = pid
        self._children = children
        self._seen: dict[int, _Past] = {}
        self._ended: list[_Past] = []
        self._listed = Path(f"/proc/self/task/{os.getpid()}/children").exists()
        self.moved_known = True

    def members(self) -> tuple[list[Member], bool]:
        """Every living member, the root first, and whether one came or went since the last call."""
        before = set(self._seen)
        found: list[Member] = []
        waiting = [self._root, *(pid for pid in self._seen if pid != self._root)]
        parents = None if self._listed or not self._children else _parents()
        done = set()
        while waiting:
            pid = waiting.pop(0)
            if pid in done:
                continue
            done.add(pid)
            member = self._member(pid)
            if member is None:
                self._end(pid)
                continue
            found.append(member)
            if self._children:
                waiting += _children(pid) if parents is None else [c for c, p in parents.items() if p == pid]
        return found, set(self._seen) != before

    @property
    def minor_faults(self) -> int:
        return sum(past.identity.minor_faults for past in (*self._seen.values(), *self._ended))

    @property
    def major_faults(self) -> int:
        return sum(past.identity.major_faults for past in (*self._seen.values(), *self._ended))

    @property
    def read_bytes(self) -> int:
        return sum(past.read for past in (*self._seen.values(), *self._ended))

    @property
    def written_bytes(self) -> int:
        return sum(past.written for past in (*self._seen.values(), *self._ended))

    def _member(self, pid: int) -> Member | None:
        """None for a process that has ended, is ending, or took over the pid of one that had."""
        try:
            identity = process.identity(pid)
            past = self._seen.get(pid)
            if past is not None and past.identity.started != identity.started:
                return None
            counts = process.status(pid)
        except OSError:
            return None
        if identity.state in "ZXx" or not any(counts.values()):
            return None
        if past is None:
            past = self._seen[pid] = _Past(identity, self._is_forked(identity))
        past.identity = identity
        try:
            past.read, past.written = process.bytes_moved(pid)
        except OSError:
            self.moved_known = False
        return Member(pid, identity.parent, identity.name, past.forked, counts)

    def _is_forked(self, identity: process.Identity) -> bool:
        """Fork without exec keeps the addresses of code and stack, which exec draws at random."""
        return any(identity.image) and any(
            past.identity.image == identity.image and past.identity.pid != identity.pid for past in self._seen.values()
        )

    def _end(self, pid: int) -> None:
        past = self._seen.pop(pid, None)
        if past is not None:
            self._ended.append(past)


def _children(pid: int) -> list[int]:
    try:
        return process.children(pid)
    except OSError:
        return []


def _parents() -> dict[int, int]:
    """Parent of every process: the way for kernels that do not list children (built without
    PROC_CHILDREN)."""
    parents = {}
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    for pid in pids:
        try:
            parents[pid] = process.identity(pid).parent
        except OSError:
            continue
    return parents
