"""Close looks at the watched processes: what each one shares, which files it maps, what its allocator keeps.

One idea: a close look is repeated when something moved since the last one - resident bytes, a fork, or page faults,
which are all that copying on access shows - and never because time has passed alone, but for one every half minute.
For a tree of up to 8 processes and 1,000 mappings it is then never older than two seconds; beyond that its own
measured cost decides. Between two looks a process's sharing is taken to stay as it was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from lowtide.memory.allocator import account_of, own_account
from lowtide.memory.detail import Detail, MappedFile, read_detail, read_sharing
from lowtide.memory.open_files import FileKey
from lowtide.memory.paces import Pace
from lowtide.memory.samples import ProcessSample
from lowtide.memory.tree import Member

# Shares of one core. With the 0.2 % each of the cheap counters and of the files the sum stays under 1 %.
_SHARING_SHARE, _DETAIL_SHARE, _HEAP_SHARE = 0.0015, 0.002, 0.0005
_WORKERS_SHARE = 0.03  # of one core, while up to 8 processes move: what is being copied must be seen
_EVERY = 0.5  # seconds at the least between two close looks
_FRESH = 1.5  # seconds at the most while something moves; a sample may come half a second later
_FEW_PROCESSES, _FEW_MAPPINGS = 8, 1000
_UNCHANGED = 30.0  # seconds after which even a process that did not move is looked at again
_CHANGED = 1024**2
_PAGE = 4096
_WORTH_ASKING = 16 * 1024**2  # of resident heap: below it nobody asks what the allocator keeps


@dataclass(frozen=True)
class _Reading:
    """A close look at one process and the plain counters at that moment, to scale later ones by."""

    detail: Detail
    rss_anon: int
    rss_file: int
    rss_shmem: int
    minor_faults: int


class CloseLooks:
    """``refresh`` decides whether to look again; the rest gives what was seen last."""

    def __init__(self, memory_devices: frozenset[int], missing: dict[str, str]) -> None:
        self._memory_devices = memory_devices
        self._missing = missing
        self._sharing: dict[int, _Reading] = {}  # how much of its pages each process shares
        self._readings: dict[int, _Reading] = {}  # the same by file, read less often
        self._kept: dict[int, tuple[int, str]] = {}  # bytes its allocator keeps, and who said so
        self._looked_at = -_UNCHANGED
        self._sharing_at = -_UNCHANGED
        self._sharing_pace = Pace(_SHARING_SHARE, _EVERY)
        self._detail_pace = Pace(_DETAIL_SHARE, _EVERY)
        self._heap_pace = Pace(_HEAP_SHARE, _EVERY)
        self.paced = 0.0  # seconds of CPU spent here so far

    def refresh(self, now: float, members: list[Member], *, changed: bool, last: bool) -> bool:
        """Look again where that would tell something new. Whether files were looked at."""
        if changed:
            self._sharing_pace.hurry()
            self._detail_pace.hurry()
        looked = (last or self._detail_pace.due(now)) and self._has_moved(now, members, self._readings, self._looked_at)
        if looked:
            self._look_closely(now, members)
        elif self._sharing_pace.due(now) and self._has_moved(now, members, self._sharing, self._sharing_at):
            self._look_at_sharing(now, members)
        if last or self._heap_pace.due(now):
            self._look_at_heaps(now, members)
        return looked

    def age(self, now: float) -> float:
        """Seconds since the processes were last looked at closely."""
        return max(0.0, now - max(self._looked_at, self._sharing_at)) if self._looked_at > 0 else 0.0

    def process(self, member: Member) -> ProcessSample:
        counts, reading = member.counts, self._sharing.get(member.pid)
        rss_anon, rss_file, rss_shmem = counts["RssAnon"], counts["RssFile"], counts["RssShmem"]
        anon, mapped, shmem = rss_anon, rss_file, rss_shmem
        if reading is not None:
            anon = _scale(rss_anon, reading.detail.anon, reading.rss_anon)
            mapped = _scale(rss_file, reading.detail.mapped, reading.rss_file)
            shmem = _scale(rss_shmem, reading.detail.shmem, reading.rss_shmem)
        elif member.forked and "sharing" not in self._missing:
            anon = mapped = 0  # until the first look its pages are still its parent's, and counted there
        kept, said_by = self._kept.get(member.pid, (0, ""))
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
        )

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

    def shmem_without_file(self, members: list[Member], measured: frozenset[FileKey]) -> int:
        """Shared memory no file leads to (anonymous shared mappings, System V, deleted files): the processes' share of
        it."""
        total = 0
        for member in members:
            reading = self._readings.get(member.pid)
            if reading is None:
                continue
            files = reading.detail.files
            reached = sum(file.mapped for key, file in files.items() if file.memory and key in measured)
            total += _scale(member.counts["RssShmem"], max(0, reading.detail.shmem - reached), reading.rss_shmem)
        return total

    def _look_at_sharing(self, now: float, members: list[Member]) -> None:
        """A process alone in its tree shares with nobody that counts."""
        begin = time.thread_time()
        alone = len(members) == 1
        self._sharing = {} if alone else self._read_each(members, lambda member: read_sharing(member.pid))
        self._sharing_at = now
        cost = self._spent(begin)
        # Copying on access shows in nothing else, so it is kept fresh beyond 1,000 mappings too.
        few = len(members) <= _FEW_PROCESSES
        self._sharing_pace.paid(now, cost, most=max(_FRESH, cost / _WORKERS_SHARE) if few else None)

    def _look_closely(self, now: float, members: list[Member]) -> None:
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

    def _look_at_heaps(self, now: float, members: list[Member]) -> None:
        """What each allocator keeps. Freeing moves no counter, so this goes by time alone."""
        begin = time.thread_time()
        kept = {}
        for member in members:
            reading = self._readings.get(member.pid)
            if reading is None or member.counts["RssAnon"] < _WORTH_ASKING:
                continue
            found = self._ask_allocator(member, reading)
            if found is not None:
                kept[member.pid] = found
        self._kept = kept
        few = len(members) <= _FEW_PROCESSES
        self._heap_pace.paid(now, self._spent(begin), most=_FRESH if few else None)

    def _ask_allocator(self, member: Member, reading: _Reading) -> tuple[int, str] | None:
        heap = reading.detail.heap
        lazy = min(heap.lazy_free, member.counts["RssAnon"])
        try:
            account = own_account() if member.pid == os.getpid() else account_of(member.pid, heap)
        except OSError:
            self._missing.setdefault(
                "retained", "the allocator of another user's process cannot be asked what it keeps"
            )
            account = None
        if account is None:
            return (lazy, "lazyfree") if lazy else None
        # Pages that a fork shares are in both; the part of this process is as large as its part of the heap.
        resident = _scale(heap.resident, reading.detail.anon, reading.rss_anon)
        kept = _scale(account.kept(heap.resident), resident, heap.resident)
        return kept + lazy, "allocator"

    def _read_each(self, members: list[Member], read: Callable[[Member], Detail]) -> dict[int, _Reading]:
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
            readings[member.pid] = _Reading(
                detail, counts["RssAnon"], counts["RssFile"], counts["RssShmem"], member.minor_faults
            )
        return readings

    def _has_moved(self, now: float, members: list[Member], readings: dict[int, _Reading], then: float) -> bool:
        """Whether a look would tell something new: bytes moved, pages were faulted in or copied, a process came or
        went."""
        if now - then >= _UNCHANGED or (readings and {member.pid for member in members} != set(readings)):
            return True
        return any(member.pid not in readings or _moved(readings[member.pid], member) for member in members) and bool(
            readings or len(members) > 1
        )

    def _most(self, members: list[Member]) -> float | None:
        mappings = sum(reading.detail.mappings for reading in self._readings.values())
        return _FRESH if len(members) <= _FEW_PROCESSES and mappings <= _FEW_MAPPINGS else None

    def _spent(self, begin: float) -> float:
        cost = time.thread_time() - begin
        self.paced += cost
        return cost


def _moved(reading: _Reading, member: Member) -> bool:
    counts = member.counts
    return (
        abs(counts["RssAnon"] - reading.rss_anon) >= _CHANGED
        or abs(counts["RssFile"] + counts["RssShmem"] - reading.rss_file - reading.rss_shmem) >= _CHANGED
        or (member.minor_faults - reading.minor_faults) * _PAGE >= _CHANGED
    )


def _scale(now: int, share_then: int, whole_then: int) -> int:
    """``now`` reduced as the process's share was reduced at the last close look."""
    return now * min(share_then, whole_then) // whole_then if whole_then else now
