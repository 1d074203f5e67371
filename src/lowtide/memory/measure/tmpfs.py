"""What every tmpfs holds that a process sees, by the filesystem's own account.

A file written to /dev/shm and closed again is in no process and under no descriptor; the filesystem still counts it.
It says too which one is full when a program died of a bus error. Cost: a few microseconds for each mount.
"""

from __future__ import annotations

import os

from lowtide.machine import tmpfs_mounts
from lowtide.memory.samples import TmpfsSample
from lowtide.units import MIB

_MOST_TMPFS = 16
_MOVED = MIB


class TmpfsUse:
    def __init__(self, pid: int | None) -> None:
        self._points = tmpfs_mounts(pid)[:_MOST_TMPFS]
        self.root = f"/proc/{pid}/root" if pid is not None and _elsewhere(pid) else ""
        self._first: dict[str, int] = {}
        self.last: tuple[TmpfsSample, ...] = ()
        self.ask()

    def ask(self) -> bool:
        """Whether one has moved since the last time. Costs a few microseconds for each."""
        found = []
        for point in self._points:
            try:
                facts = os.statvfs(self.root + point)
            except OSError:
                continue
            used = (facts.f_blocks - facts.f_bfree) * facts.f_frsize
            if used - self._first.setdefault(point, used) or used >= _MOVED:
                found.append(TmpfsSample(point, facts.f_blocks * facts.f_frsize, used))
        before, now = self.used, sum(each.used for each in found)
        if tuple(found) != self.last:  # an equal one is shared by all samples
            self.last = tuple(found)
        return abs(now - before) >= _MOVED

    def at_the_end(self) -> tuple[TmpfsSample, ...]:
        """Now, and as last seen alive where that was more: a file without a name goes with its process."""
        alive = {each.path: each for each in self.last}
        self.ask()
        now = {each.path: each for each in self.last}
        more = (max(filter(None, (alive.get(path), now.get(path))), key=lambda each: each.used) for path in alive | now)
        return tuple(more)

    @property
    def used(self) -> int:
        """Bytes in all of them."""
        return sum(each.used for each in self.last)

    def growing(self) -> list[str]:
        return [each.path for each in self.last if each.used > self._first[each.path]]

    def grown(self) -> int:
        return sum(max(0, each.used - self._first[each.path]) for each in self.last)


def _elsewhere(pid: int) -> bool:
    """Whether a process sees other mounts than we do."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt")  # noqa: PTH115  # text
    except OSError:
        return False
