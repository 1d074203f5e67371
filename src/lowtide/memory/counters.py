"""The counters of a process and its children, as one ``Sample`` each time they are asked.

One idea: cheap counters (/proc/PID/status) every time, expensive ones (shared pages, page cache of the
files, cgroup) as often as their own measured cost allows, so that watching stays under 1 % of one core
whatever is watched. Between two expensive looks a process's sharing is taken to stay as it was. What a
kernel or a permission does not give goes into ``missing`` with the reason. The only part of this room that
is not pure.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from lowtide.machine import kind_named, memory_cgroup, mounted
from lowtide.memory.cgroup import sample_cgroup
from lowtide.memory.detail import Detail, read_detail, read_sharing
from lowtide.memory.files import FileSet, FileTotals, Key
from lowtide.memory.model import CgroupSample, ProcessSample, Sample
from lowtide.memory.tree import Member, Tree

# Shares of one core. With the 0.2 % of the cheap counters the sum stays under 1 %.
_SHARING_SHARE, _DETAIL_SHARE, _FILES_SHARE, _CGROUP_SHARE = 0.0015, 0.001, 0.002, 0.0005
_BURST, _ALLOWANCE = 0.03, 0.06
_EVERY = 0.5  # seconds at the least between two close looks
_UNCHANGED = 10.0  # seconds after which even a process whose mapped bytes stay is looked at again
_CHANGED = 1024**2


class Pace:
    """Says when a counter may be read again, so that reading it takes at most ``share`` of one core in the long run.

    The first ``_ALLOWANCE`` seconds of CPU are free, so that a program of a few seconds is seen closely too.
    """

    def __init__(self, share: float, every: float) -> None:
        self._share, self._every = share, every
        self._spent = self._next = self._last = 0.0
        self.rest = every

    def due(self, now: float) -> bool:
        return now >= self._next

    def paid(self, now: float, cost: float) -> None:
        self._spent += cost
        share = _BURST if self._spent < _ALLOWANCE else self._share
        self.rest = max(self._every, cost / share)
        self._last, self._next = now, now + self.rest

    def hurry(self) -> None:
        """Something changed: come back in a quarter of the time."""
        self._next = min(self._next, self._last + self.rest / 4)


@dataclass(frozen=True)
class _Reading:
    """A close look at one process and the plain counters at that moment, to scale later ones by."""

    detail: Detail
    rss_anon: int
    rss_file: int
    rss_shmem: int


class Counters:
    """Reads one process tree. ``sample()`` gives None once all of it has ended."""

    def __init__(self, pid: int, *, children: bool = True, launched: bool = False, every: float = 0.25) -> None:
        self.missing: dict[str, str] = {}
        self.paced = 0.0  # seconds of CPU the paced counters took so far
        self._tree = Tree(pid, children=children)
        self._begin = time.monotonic()
        filesystems = mounted(pid) or mounted()
        self._memory_devices = frozenset(device for device, name in filesystems.items() if kind_named(name).memory)
        self._files = FileSet(filesystems, time.time())
        self._totals = FileTotals()
        self._sharing: dict[int, _Reading] = {}  # how much of its pages each process shares
        self._readings: dict[int, _Reading] = {}  # the same by file, read less often
        self._read_at = -_UNCHANGED
        self._moved: int | None = 0 if launched else None  # bytes to and from storage when the files were last asked
        self._overlap = 0  # mapped pages that are dirty, and so not "mapped"
        self._cache_then = self._mapped_then = 0  # when the files were last asked
        self._memory_cgroup = memory_cgroup(pid)
        self._cgroup: CgroupSample | None = None
        self._sharing_pace = Pace(_SHARING_SHARE, _EVERY)
        self._detail_pace = Pace(_DETAIL_SHARE, _EVERY)
        self._files_pace = Pace(_FILES_SHARE, every)
        self._cgroup_pace = Pace(_CGROUP_SHARE, 4 * every)
        if self._memory_cgroup is None:
            self.missing["cgroup"] = "no memory cgroup is mounted here"

    def sample(self, *, last: bool = False) -> Sample | None:
        """Everything now. Costs about 0.1 ms a process, more when an expensive look is due, as in the ``last`` one."""
        members, changed = self._tree.members()
        if not members:
            return None
        now = time.monotonic()
        if changed:
            self._sharing_pace.hurry()
        looked = (last or self._detail_pace.due(now)) and self._has_changed(now, members)
        if looked:
            self._look_closely(now, members)
        elif self._sharing_pace.due(now):
            self._look_at_sharing(now, members)
        processes = [self._process(member) for member in members]
        raw_mapped = sum(each.mapped for each in processes)
        moved = self._tree.read_bytes + self._tree.written_bytes
        if not self._tree.moved_known:
            self.missing["bytes read"] = "/proc/PID/io of another user's process cannot be read"
        asked = last or looked or self._files_pace.due(now)
        if asked:
            self._ask_files(now, members, raw_mapped, moved, looked)
        if self._memory_cgroup is not None and self._cgroup_pace.due(now):
            begin = time.thread_time()
            self._cgroup = sample_cgroup(self._memory_cgroup)
            self._pay(self._cgroup_pace, now, begin)
        return replace(self._sum_up(now, members, processes, moved), files_asked=asked)

    def _sum_up(self, now: float, members: list[Member], processes: list[ProcessSample], moved: int) -> Sample:
        totals = self._totals
        mapped = max(0, sum(each.mapped for each in processes) - self._overlap)
        cache = self._cache_now(mapped, moved)
        return Sample(
            seconds=now - self._begin,
            anon=sum(each.anon for each in processes),
            mapped=mapped,
            cache=cache,
            dirty=totals.dirty,
            tables=sum(each.tables for each in processes),
            shmem=totals.shmem + self._shmem_without_file(members),
            found_cache=min(cache, totals.found_cache),
            found_shmem=totals.found_shmem,
            major_faults=self._tree.major_faults,
            minor_faults=self._tree.minor_faults,
            read_bytes=self._tree.read_bytes,
            processes=tuple(processes),
            files=totals.files,
            cgroup=self._cgroup,
        )

    def _look_at_sharing(self, now: float, members: list[Member]) -> None:
        """A process alone in its tree shares with nobody that counts."""
        begin = time.thread_time()
        self._sharing = {} if len(members) == 1 else self._read_each(members, lambda member: read_sharing(member.pid))
        self._pay(self._sharing_pace, now, begin)

    def _look_closely(self, now: float, members: list[Member]) -> None:
        begin = time.thread_time()
        alone = len(members) == 1
        self._readings = self._read_each(
            members, lambda member: read_detail(member.pid, self._memory_devices, alone=alone)
        )
        self._read_at = now
        self._sharing = {} if alone else self._readings  # a close look tells the sharing as well
        if not all(reading.detail.by_file for reading in self._readings.values()):
            self.missing["files mapped"] = "a process has too many mappings to name each one's file"
        self._pay(self._detail_pace, now, begin)

    def _read_each(self, members: list[Member], read: Callable[[Member], Detail]) -> dict[int, _Reading]:
        readings = {}
        for member in members:
            try:
                detail = read(member)
            except PermissionError:
                self.missing["sharing"] = "smaps of another user's process: shared pages count in every process"
                continue
            except OSError:
                continue  # ended meanwhile
            counts = member.counts
            readings[member.pid] = _Reading(detail, counts["RssAnon"], counts["RssFile"], counts["RssShmem"])
        return readings

    def _has_changed(self, now: float, members: list[Member]) -> bool:
        """Whether a close look would tell something new: mapped bytes moved, or a process came or went."""
        if now - self._read_at >= _UNCHANGED or {member.pid for member in members} != set(self._readings):
            return True
        for member in members:
            reading, counts = self._readings[member.pid], member.counts
            then, now_mapped = reading.rss_file + reading.rss_shmem, counts["RssFile"] + counts["RssShmem"]
            if abs(now_mapped - then) >= _CHANGED:
                return True
        return False

    def _process(self, member: Member) -> ProcessSample:
        counts, reading = member.counts, self._sharing.get(member.pid)
        rss_anon, rss_file, rss_shmem = counts["RssAnon"], counts["RssFile"], counts["RssShmem"]
        anon, mapped, shmem = rss_anon, rss_file, rss_shmem
        if reading is not None:
            anon = _scale(rss_anon, reading.detail.anon, reading.rss_anon)
            mapped = _scale(rss_file, reading.detail.mapped, reading.rss_file)
            shmem = _scale(rss_shmem, reading.detail.shmem, reading.rss_shmem)
        elif member.forked and self._sharing:
            anon = mapped = 0  # until the first look its pages are still its parent's, and counted there
        return ProcessSample(
            pid=member.pid,
            parent=member.parent,
            name=member.name,
            anon=anon,
            mapped=mapped,
            shmem=shmem,
            tables=counts["VmPTE"] + counts["VmPMD"],
            swap=counts["VmSwap"],
            rss_anon=rss_anon,
            rss_file=rss_file,
            rss_shmem=rss_shmem,
            forked=member.forked,
        )

    def _ask_files(self, now: float, members: list[Member], raw_mapped: int, moved: int, looked: bool) -> None:
        begin = time.thread_time()
        for member in members:
            try:
                self._files.look(member.pid)
            except PermissionError:
                self.missing["cache"] = self.missing["dirty"] = "open files of another user's process cannot be seen"
            except OSError:
                continue
        for pid, reading in self._readings.items():
            self._files.look_at_mapped(pid, reading.detail.files)
        mapped, mapped_dirty = self._mapped_by_file()
        fresh = 0 if self._moved is None else moved - self._moved
        self._moved = moved
        totals = self._files.measure(mapped, raw_mapped - sum(mapped.values()), fresh)
        self._totals = totals
        unasked = sum(size for key, size in mapped.items() if key not in totals.measured)
        if looked:  # only then is every mapped file in the set, so that its clean cached pages bound what can be mapped
            self._overlap = raw_mapped - min(max(0, raw_mapped - mapped_dirty), totals.clean + unasked)
        self._mapped_then = max(0, raw_mapped - self._overlap)
        self._cache_then = max(0, totals.clean - max(0, self._mapped_then - unasked))
        self._note_refusals()
        self._pay(self._files_pace, now, begin)

    def _cache_now(self, mapped: int, moved: int) -> int:
        """The unmapped cache since the files were asked: pages mapped since came out of it, unless they
        were read just now."""
        newly_mapped = mapped - self._mapped_then - (moved - (self._moved or 0))
        return max(0, self._cache_then - max(0, newly_mapped))

    def _mapped_by_file(self) -> tuple[dict[Key, int], int]:
        """Bytes of disk files mapped by the whole tree at the last close look, by file, and the dirty part
        of all."""
        mapped: dict[Key, int] = {}
        dirty = 0
        for reading in self._readings.values():
            for key, file in reading.detail.files.items():
                if not file.memory:
                    mapped[key] = mapped.get(key, 0) + file.mapped
                    dirty += file.dirty
        return mapped, dirty

    def _shmem_without_file(self, members: list[Member]) -> int:
        """Shared memory no file leads to (anonymous shared mappings, System V, deleted files): the
        processes' share of it."""
        total = 0
        for member in members:
            reading = self._readings.get(member.pid)
            if reading is None:
                continue
            files = reading.detail.files
            reached = sum(file.mapped for key, file in files.items() if file.memory and key in self._totals.measured)
            total += _scale(member.counts["RssShmem"], max(0, reading.detail.shmem - reached), reading.rss_shmem)
        return total

    def _pay(self, pace: Pace, now: float, begin: float) -> None:
        cost = time.thread_time() - begin
        pace.paid(now, cost)
        self.paced += cost

    def _note_refusals(self) -> None:
        if self._files.refused:
            path, why = next(iter(self._files.refused.items()))
            self.missing["page cache"] = f"of {len(self._files.refused)} files, for one {path}: {why}"
        if self._files.how == "mincore":
            self.missing["dirty"] = "this kernel has no cachestat (Linux 6.5), and mincore does not know dirty pages"


def _scale(now: int, share_then: int, whole_then: int) -> int:
    """``now`` reduced as the process's share was reduced at the last close look."""
    return now * min(share_then, whole_then) // whole_then if whole_then else now
