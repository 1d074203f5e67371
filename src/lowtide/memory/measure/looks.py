"""Close looks at the watched processes: what each one shares, which files it maps; what its allocator keeps is asked in
heaps.py.

A close look is repeated when something moved since the last one: resident bytes, a fork, or page faults, which are all
that copying on access shows; time alone causes one every half minute. In a small tree (up to 8 processes and 1,000
mappings) it is never older than two seconds while something moves; in larger ones its own measured cost decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from lowtide.machine import PAGE
from lowtide.memory.measure.heaps import HeapLooks, Reading, scaled
from lowtide.memory.measure.open_files import FileKey
from lowtide.memory.measure.pace import Pace
from lowtide.memory.measure.smaps import Detail, MappedFile, read_detail, read_sharing
from lowtide.memory.measure.tree import WatchedProcess
from lowtide.memory.samples import ProcessSample, StaleLook
from lowtide.units import MIB

# Shares of one core. With the 0.2 % each of the cheap counters and of the files the sum stays under 1 %.
_SHARING_SHARE, _DETAIL_SHARE = 0.0015, 0.002
_WORKERS_SHARE = 0.03  # of one core, while up to 8 processes move: what is being copied must be seen
EVERY = 0.5  # seconds at the least between two close looks
_EARLY = 0.5  # seconds of CPU, for short programs: until they are spent what is shared is kept as fresh as can be
FRESH = 1.5  # seconds at the most while something moves in a small tree; a sample may come half a second later
FEW_PROCESSES, _FEW_MAPPINGS = 8, 1000
_UNCHANGED = 30.0  # seconds after which even a process that did not move is looked at again
MOVED = MIB  # what moved by less is not worth asking about again
_UNSEEN = Detail(0, 0, 0)  # a process before its first close look


class CloseLooks:
    """``refresh`` decides whether to look again; the rest gives what was seen last."""

    def __init__(self, memory_devices: frozenset[int], missing: dict[str, str]) -> None:
        self._memory_devices = memory_devices
        self._missing = missing
        self._sharing: dict[int, Reading] = {}  # how much of its pages each process shares
        self._readings: dict[int, Reading] = {}  # the same by file, read less often
        self._looked_at = -_UNCHANGED
        self._sharing_at = -_UNCHANGED
        self._sharing_pace = Pace(_SHARING_SHARE, EVERY)
        self._detail_pace = Pace(_DETAIL_SHARE, EVERY)
        self._heaps = HeapLooks(missing)
        self._paced = 0.0  # seconds of CPU spent here so far

    def refresh(self, now: float, members: list[WatchedProcess], *, changed: bool, last: bool) -> bool:
        """Look again where that would tell something new. Whether files were looked at."""
        if changed:
            self._sharing_pace.hurry()
            self._detail_pace.hurry()
        looked = (last or self._detail_pace.due(now)) and self._has_moved(now, members, self._readings, self._looked_at)
        if looked:
            self._look_closely(now, members)
        elif self._sharing_pace.due(now) and self._has_moved(now, members, self._sharing, self._sharing_at):
            self._look_at_sharing(now, members)
        self._heaps.refresh(now, [(member, self._readings.get(member.pid)) for member in members], last=last)
        return looked

    @property
    def paced(self) -> float:
        """Seconds of CPU spent here so far."""
        return self._paced + self._heaps.paced

    def age(self, now: float) -> float:
        """Seconds since the processes were last looked at closely."""
        return max(0.0, now - max(self._looked_at, self._sharing_at)) if self._looked_at > 0 else 0.0

    def stale(self, now: float, members: list[WatchedProcess]) -> tuple[StaleLook, ...]:
        """What was looked at before it last moved."""
        copied = 0
        for member in members:
            reading = self._sharing.get(member.pid)
            if reading is not None:
                copied += _copied_since(reading, member)
        sharing = StaleLook("sharing", max(0.0, now - self._sharing_at), copied) if copied else None
        return tuple(look for look in (self._heaps.stale(now, members), sharing) if look is not None)

    def process(self, member: WatchedProcess) -> ProcessSample:
        counts, reading = member.counts, self._sharing.get(member.pid)
        rss_anon, rss_file, rss_shmem = counts["RssAnon"], counts["RssFile"], counts["RssShmem"]
        anon, mapped, shmem = rss_anon, rss_file, rss_shmem
        if reading is not None:
            anon = scaled(rss_anon, reading.detail.anon, reading.rss_anon)
            mapped = scaled(rss_file, reading.detail.mapped, reading.rss_file)
            shmem = scaled(rss_shmem, reading.detail.shmem, reading.rss_shmem)
        elif member.forked and "sharing" not in self._missing:
            anon = mapped = 0  # until the first look its pages are still its parent's, and counted there
        kept, said_by = self._heaps.kept(member.pid)
        seen = self._readings.get(member.pid)
        closely = seen.detail if seen is not None else _UNSEEN
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
            retained=min(kept, anon),
            retained_from=said_by,
            runtime=member.runtime,
            allocator=closely.heap.foreign,
            unread=max(0, min(anon, closely.anon - closely.heap.resident)) if closely.heap.foreign else 0,
            hugetlb=counts["HugetlbPages"],
            locked=closely.locked,
            huge=min(anon, closely.huge),
            faults=member.minor_faults,
            peak_rss=counts["VmHWM"],
        )

    def locked_files(self) -> int:
        """Bytes of files on disk that some process has locked."""
        return sum(reading.detail.locked_files for reading in self._readings.values())

    def files_by_process(self) -> dict[int, dict[FileKey, MappedFile]]:
        return {pid: reading.detail.files for pid, reading in self._readings.items()}

    def mapped_files(self) -> dict[FileKey, MappedFile]:
        """Files of the whole tree as mapped at the last close look."""
        whole: dict[FileKey, MappedFile] = {}
        for reading in self._readings.values():
            for key, file in reading.detail.files.items():
                before = whole.get(key)
                if before is not None:
                    mapped, dirty = before.mapped + file.mapped, before.dirty + file.dirty
                    file = replace(before, mapped=mapped, dirty=dirty, code=before.code or file.code)
                whole[key] = file
        return whole

    def shmem_without_file(self, members: list[WatchedProcess], measured: frozenset[FileKey]) -> int:
        """The processes' share of shared memory that no file leads to: anonymous mappings, System V, deleted files."""
        total = 0
        for member in members:
            reading = self._readings.get(member.pid)
            if reading is None:
                continue
            files = reading.detail.files
            reached = sum(file.mapped for key, file in files.items() if file.memory and key in measured)
            total += scaled(member.counts["RssShmem"], max(0, reading.detail.shmem - reached), reading.rss_shmem)
        return total

    def _look_at_sharing(self, now: float, members: list[WatchedProcess]) -> None:
        """A process alone in its tree shares with nobody that counts."""
        begin = time.thread_time()
        alone = len(members) == 1
        self._sharing = {} if alone else self._read_each(members, lambda member: read_sharing(member.pid))
        self._sharing_at = now
        cost = self._spent(begin)
        # Copying on access shows in nothing else, so it is kept fresh beyond 1,000 mappings too.
        few = len(members) <= FEW_PROCESSES
        self._sharing_pace.paid(
            now, cost, most=max(EVERY if self._paced < _EARLY else FRESH, cost / _WORKERS_SHARE) if few else None
        )

    def _look_closely(self, now: float, members: list[WatchedProcess]) -> None:
        begin = time.thread_time()
        alone = len(members) == 1
        self._readings = self._read_each(
            members, lambda member: read_detail(member.pid, self._memory_devices, alone=alone)
        )
        self._looked_at = self._sharing_at = now
        self._sharing = {} if alone else self._readings  # a close look tells the sharing as well
        if not all(reading.detail.by_file for reading in self._readings.values()):
            self._missing["files mapped"] = "a process has too many mappings to name each one's file"
        cost = self._spent(begin)
        self._detail_pace.paid(now, cost, most=self._most(members))
        self._sharing_pace.paid(now, 0.0)

    def _read_each(self, members: list[WatchedProcess], read: Callable[[WatchedProcess], Detail]) -> dict[int, Reading]:
        readings = {}
        for member in members:
            try:
                detail = read(member)
            except PermissionError:
                self._missing["sharing"] = "smaps of another user's process: shared pages count in every process"
                self._missing["retained"] = "the allocator of another user's process cannot be asked what it keeps"
                continue
            except OSError:
                continue  # ended meanwhile
            counts = member.counts
            readings[member.pid] = Reading(
                detail, counts["RssAnon"], counts["RssFile"], counts["RssShmem"], member.minor_faults
            )
        return readings

    def _has_moved(self, now: float, members: list[WatchedProcess], readings: dict[int, Reading], then: float) -> bool:
        """Whether a look would tell something new: bytes moved, pages faulted in or copied, a process came or went."""
        if now - then >= _UNCHANGED or (readings and {member.pid for member in members} != set(readings)):
            return True
        return any(member.pid not in readings or _moved(readings[member.pid], member) for member in members) and bool(
            readings or len(members) > 1
        )

    def _most(self, members: list[WatchedProcess]) -> float | None:
        mappings = sum(reading.detail.mappings for reading in self._readings.values())
        return FRESH if len(members) <= FEW_PROCESSES and mappings <= _FEW_MAPPINGS else None

    def _spent(self, begin: float) -> float:
        cost = time.thread_time() - begin
        self._paced += cost
        return cost


def _copied_since(reading: Reading, member: WatchedProcess) -> int:
    """Bytes that it may have copied since: faulted in without more being resident, of what was shared then."""
    counts = member.counts
    resident = counts["RssAnon"] + counts["RssFile"] + counts["RssShmem"]
    came = max(0, resident - reading.rss_anon - reading.rss_file - reading.rss_shmem)
    faulted = (member.minor_faults - reading.minor_faults) * PAGE - came
    return max(0, min(faulted, reading.rss_anon - reading.detail.anon))


def _moved(reading: Reading, member: WatchedProcess) -> bool:
    counts = member.counts
    return (
        abs(counts["RssAnon"] - reading.rss_anon) >= MOVED
        or abs(counts["RssFile"] + counts["RssShmem"] - reading.rss_file - reading.rss_shmem) >= MOVED
        or (member.minor_faults - reading.minor_faults) * PAGE >= MOVED
    )
