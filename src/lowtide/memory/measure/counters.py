"""The counters of the watched processes, as one ``Sample`` each time they are asked.

Cheap counters (/proc/PID/status) are read every time, expensive ones (close looks, page cache of the files, cgroup)
when something moved and as often as their own measured cost allows. What a kernel or a permission does not give goes
into ``missing``. The cgroup is that of the process that has most of the memory, as long as it lives: a process that
has ended is shown in the root. When the last one has ended its files are asked once more: their pages outlive it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from lowtide.machine import PAGE, Cgroup, kind_named, memory_cgroup, mounted
from lowtide.memory.measure.cgroup_usage import oom_kills, sample_cgroup
from lowtide.memory.measure.looks import EVERY, FEW_PROCESSES, FRESH, MOVED, CloseLooks
from lowtide.memory.measure.open_files import FileSet, FileTotals
from lowtide.memory.measure.pace import Pace
from lowtide.memory.measure.process import being_killed, process_identity, read_proc
from lowtide.memory.measure.tmpfs import TmpfsUse
from lowtide.memory.measure.tree import Tree, WatchedProcess, pids_of_cgroup
from lowtide.memory.samples import CgroupSample, FileGroup, FileSample, ProcessSample, Sample, StaleLook
from lowtide.units import MIB

_FILES_SHARE, _CGROUP_SHARE = 0.002, 0.0005  # of one core
_FEW_FILES = 1000
_NAMED_PROCESSES = 64  # the smallest beyond these are added up
_UNREAD_CACHE = 8 * MIB  # of files whose page cache we may not ask: from here on the kind is not known
WITHOUT_FILE = "shared memory without a file"


class TreeCounters:
    """Reads one process tree, or a cgroup. ``sample()`` gives None once all of it has ended; then ``finish()``."""

    def __init__(
        self,
        pid: int | None,
        *,
        children: bool = True,
        launched: bool = False,
        every: float = 0.25,
        cgroup: Cgroup | None = None,
    ) -> None:
        self.missing: dict[str, str] = {}
        self._pid = pid
        self._whole_cgroup = cgroup is not None
        who = partial(pids_of_cgroup, cgroup.directories[0]) if cgroup is not None else lambda: [pid or 0]
        self.tree = Tree(who, descends=children and cgroup is None)  # children of a cgroup's are in cgroup.procs too
        self._begin, self._begin_clock = time.monotonic(), time.time()
        filesystems = mounted(pid) or mounted()
        memory_devices = frozenset(device for device, name in filesystems.items() if kind_named(name).memory)
        self._looks = CloseLooks(memory_devices, self.missing)
        self._files = FileSet(filesystems, self._begin_clock)
        self._totals = FileTotals()
        self._moved: int | None = 0 if launched else None  # bytes to and from storage when the files were last asked
        self._overlap = 0  # mapped pages that are dirty, and so not "mapped"
        self._mapped_then = self._raw_then = 0  # when the files were last asked
        self._asked_at = 0.0
        self.cgroup = cgroup if cgroup is not None else memory_cgroup(pid)
        self._membership = ""
        self.moved = False  # into another cgroup, since it was last asked about
        self.kills_alive = 0  # of its cgroup, when it was last seen alive
        self._kills_where, self._kills_before = "", 0
        self._tmpfs = TmpfsUse(pid)
        self._shmem_then = -1  # charged to the cgroup when it was first asked
        self._tmpfs_then = self._tmpfs.used  # when its files were last asked
        self._written_asked = 0
        self._written_then = -1  # bytes the tree had written or faulted in when its files were first asked
        self._cgroup_now: CgroupSample | None = None
        self._files_pace = Pace(_FILES_SHARE, every)
        self._cgroup_pace = Pace(_CGROUP_SHARE, every)
        self._spent = 0.0
        self._last: Sample | None = None
        if self.cgroup is None:
            self.missing["cgroup"] = "no memory cgroup is mounted here"

    @property
    def paced(self) -> float:
        """Seconds of CPU the paced counters took so far."""
        return self._spent + self._looks.paced

    def sample(self, *, last: bool = False) -> Sample | None:
        """Everything now. Costs about 0.1 ms per process, more when an expensive look is due, as in the ``last``."""
        try:
            members, changed = self.tree.members()
        except FileNotFoundError:  # the cgroup is gone
            return None
        if not members and not self._whole_cgroup:
            return None
        now = time.monotonic()
        looked = self._looks.refresh(now, members, changed=changed, last=last)
        if looked:
            # What was unmapped while we looked must not be mapped in one counter and cache in the other.
            members = self._living_again() or members
        processes = [self._looks.process(member) for member in members]
        raw_mapped = sum(each.mapped for each in processes)
        done = self.tree.done
        moved = done.read + done.written
        if not self.tree.moved_known:
            self.missing["bytes read"] = "/proc/PID/io of another user's process cannot be read"
        resting = not self._tmpfs.ask()
        asked = last or looked or self._files_due(now, members, raw_mapped, moved, resting=resting)
        if asked:
            self._ask_files(now, members, raw_mapped, moved)
        if self._cgroup_changed(members) or last or self._cgroup_pace.due(now):
            self._ask_cgroup(now)
        self._count_kills()
        self._last = replace(self._sum_up(now, members, processes, moved), files_asked=asked)
        return self._last

    def finish(self) -> Sample | None:
        """After the end: the last sample again, with what its files hold now. None when nothing was ever sampled."""
        if self._last is None:
            return None
        now = time.monotonic()
        before = self._totals
        self._follow_clock()
        mapped = self._looks.mapped_files()
        of_files = sum(file.mapped for file in mapped.values() if not file.memory)
        totals = self._files.measure(mapped, self._last.mapped + self._overlap - of_files, 0)
        seen = {file.path for file in totals.files}
        gone = [file for file in before.files if file.path not in seen]  # deleted at the end, as temporary files are
        files = tuple(sorted((*totals.files, *gone), key=lambda file: -file.cached))
        patterns = {group.name for group in totals.groups}
        gone_too = [group for group in before.groups if group.name.startswith("/") and group.name not in patterns]
        lost: list[FileSample | FileGroup] = [*gone, *gone_too]
        # The processes' own kinds stay as last seen; a page that was mapped then is counted there and not in the cache.
        mapped_then = max(totals.mapped, min(self._last.mapped, totals.clean))
        return replace(
            self._last,
            seconds=now - self._begin,
            cache=max(0, totals.clean - mapped_then) + sum(each.cache for each in lost),
            dirty=totals.dirty + sum(each.of("dirty") for each in lost),
            shmem=max(self._last.shmem, totals.shmem + sum(each.of("shmem") for each in lost)),
            found_cache=totals.found_cache + sum(file.found for file in gone if not file.memory),
            files=tuple(files),
            groups=(*totals.groups, *gone_too, *(each for each in self._last.groups if each.name == WITHOUT_FILE)),
            cgroup=self._kills_counted_in(self._last.cgroup),
            files_asked=True,
            tmpfs=self._tmpfs.at_the_end(),
            stale=tuple(
                replace(look, seconds=look.seconds + now - self._begin - self._last.seconds)
                for look in self._last.stale
                if look.what != "files"
            ),
        )

    def _kills_counted_in(self, last: CgroupSample | None) -> CgroupSample | None:
        """The cgroup as last seen alive, with what the kernel remembers of its last moments: kills, and the peak."""
        if last is None or self.cgroup is None:
            return last
        now = sample_cgroup(self.cgroup, own=self._whole_cgroup)
        if now.path != last.path:
            return last
        peak = max(last.peak or 0, now.peak or 0) or None
        return replace(
            last, oom_kills=max(last.oom_kills, now.oom_kills), peak=peak, refused=max(last.refused, now.refused)
        )

    def _sum_up(self, now: float, members: list[WatchedProcess], processes: list[ProcessSample], moved: int) -> Sample:
        totals, done = self._totals, self.tree.done
        raw = sum(each.mapped for each in processes)
        mapped = max(0, raw - self._overlap - totals.dirty_part(raw - self._raw_then))
        cache = self._cache_left(mapped, moved)
        hidden = self._looks.shmem_without_file(members, totals.measured)
        groups = (*totals.groups, FileGroup(WITHOUT_FILE, 0, shmem=hidden)) if hidden else totals.groups
        return Sample(
            seconds=now - self._begin,
            anon=sum(each.anon for each in processes),
            mapped=mapped,
            cache=cache,
            dirty=totals.dirty,
            tables=sum(each.tables for each in processes),
            shmem=totals.shmem + hidden,
            found_cache=min(cache, totals.found_cache),
            found_shmem=totals.found_shmem,
            retained=sum(each.retained for each in processes),
            major_faults=done.major_faults,
            minor_faults=done.minor_faults,
            read_bytes=done.read,
            processes=_bounded(processes),
            files=totals.placing(mapped - self._mapped_then),
            groups=groups,
            cgroup=self._cgroup_now,
            look_age=self._looks.age(now),
            hugetlb=sum(each.hugetlb for each in processes),
            locked=sum(each.locked for each in processes),
            locked_files=min(mapped, self._looks.locked_files()),
            tmpfs=self._tmpfs.last,
            stale=(*self._looks.stale(now, members), *self._stale_files(now)),
        )

    def _stale_files(self, now: float) -> tuple[StaleLook, ...]:
        """What came into a tmpfs since its files were asked, by its own account, and can be the tree's doing."""
        moved = min(self._tmpfs.used - self._tmpfs_then, self._written() - self._written_asked + MOVED)
        return (StaleLook("files", now - self._asked_at, moved),) if moved >= MOVED else ()

    def _written(self) -> int:
        """Bytes the tree has written or faulted in so far."""
        return self.tree.done.passed + self.tree.done.minor_faults * PAGE

    def _living_again(self) -> list[WatchedProcess]:
        try:
            return self.tree.members()[0]
        except FileNotFoundError:
            return []

    def _ask_files(self, now: float, members: list[WatchedProcess], raw_mapped: int, moved: int) -> None:
        begin = time.thread_time()
        self._follow_clock()
        for member in members:
            try:
                self._files.look(member.pid)
            except PermissionError:
                self.missing["cache"] = self.missing["dirty"] = "open files of another user's process cannot be seen"
            except OSError:
                continue
        for pid, files in self._looks.files_by_process().items():
            self._files.look_at_mapped(pid, files)
        self._look_for_closed()
        self._tmpfs_then, self._written_asked = self._tmpfs.used, self._written()
        mapped = self._looks.mapped_files()
        of_files = sum(file.mapped for file in mapped.values() if not file.memory)
        before = self._moved
        self._moved = moved
        totals = self._totals = self._files.measure(
            mapped, raw_mapped - of_files, 0 if before is None else moved - before
        )
        # What found no file with room for it stays mapped: its file was mapped since the last close look.
        self._overlap = max(0, raw_mapped - totals.mapped - max(0, raw_mapped - totals.placed))
        self._mapped_then = max(0, raw_mapped - self._overlap)
        self._note_refusals()
        self._raw_then, self._asked_at = raw_mapped, now
        self._files_pace.paid(now, self._pay(begin))

    def _files_due(
        self, now: float, members: list[WatchedProcess], raw_mapped: int, moved: int, *, resting: bool
    ) -> bool:
        """By its pace; in a small tree also when bytes were read, written or mapped and the answer is getting old, and
        when what came into a tmpfs has come to rest."""
        if self._files_pace.due(now):
            return True
        small = len(members) <= FEW_PROCESSES and len(self._totals.measured) <= _FEW_FILES
        moving = moved - (self._moved or 0) >= MOVED or abs(raw_mapped - self._raw_then) >= MOVED
        stale = abs(self._tmpfs.used - self._tmpfs_then) >= MOVED
        return small and (moving or stale) and now - self._asked_at >= (EVERY if stale and resting else FRESH)

    def _cache_left(self, mapped: int, moved: int) -> int:
        """The unmapped cache since the files were asked: pages mapped since came out of it, unless read just now."""
        newly_mapped = mapped - self._mapped_then - (moved - (self._moved or 0))
        return max(0, self._totals.clean - self._totals.mapped - max(0, newly_mapped))

    def _look_for_closed(self) -> None:
        """Where a tmpfs has grown by more than the files we know explain: files written there and closed again."""
        self._tmpfs.ask()
        grown = self._tmpfs.grown()
        if self._cgroup_now is not None and self._shmem_then >= 0:
            grown = min(grown, max(0, self._cgroup_now.shmem - self._shmem_then) + MOVED)
        written = self._written()
        if self._written_then < 0:
            self._written_then = written
        self._files.room_for_closed = written - self._written_then
        if grown - (self._totals.shmem - self._totals.found_shmem) >= MOVED:
            for point in self._tmpfs.growing():
                self._files.look_into(self._tmpfs.root + point, point)

    def _ask_cgroup(self, now: float) -> None:
        begin = time.thread_time()
        if self.cgroup is not None:
            self._cgroup_now = sample_cgroup(self.cgroup, own=self._whole_cgroup)
            if self._shmem_then < 0:
                self._shmem_then = self._cgroup_now.shmem
        self._cgroup_pace.paid(now, self._pay(begin))

    def _cgroup_changed(self, members: list[WatchedProcess]) -> bool:
        """A launcher moves its process, or a child of its own, into the job's cgroup after it has started."""
        if self._whole_cgroup or not members:
            return False
        largest = max(members, key=lambda each: each.counts["RssAnon"] + each.counts["RssShmem"])
        try:
            membership = read_proc(largest.pid, "cgroup")
            if membership == self._membership:
                return False
            identity = process_identity(largest.pid)
        except OSError:
            return False
        if not membership or identity.exiting or identity.state in "ZXx":
            return False
        before, self._membership = self.cgroup, membership
        self.cgroup = memory_cgroup(largest.pid) or self.cgroup
        self.moved = self.moved or before != self.cgroup
        self._shmem_then = -1 if before != self.cgroup else self._shmem_then
        return True

    def _count_kills(self) -> None:
        """Fresh in every sample. Whoever lives on after a kill was counted was not the one killed: so the count of the
        sample before is that of its life."""
        now = self._cgroup_now
        if now is None or self.cgroup is None:
            return
        paths = [self.cgroup.path_at(height) for height in range(len(self.cgroup.directories))]
        if self._kills_where != now.path:
            self.kills_alive = now.oom_kills
        elif self.kills_alive != self._kills_before and not being_killed(self._pid or 0):
            self.kills_alive = self._kills_before
        count = oom_kills(self.cgroup, paths.index(now.path) if now.path in paths else 0)
        self._kills_where, self._kills_before = now.path, count
        if count != now.oom_kills:
            self._cgroup_now = replace(now, oom_kills=max(now.oom_kills, count))

    def _follow_clock(self) -> None:
        """Files are stamped by the wall clock, which may be set back while we watch."""
        self._files.started = min(self._files.started, time.time() - (time.monotonic() - self._begin))

    def _pay(self, begin: float) -> float:
        cost = time.thread_time() - begin
        self._spent += cost
        return cost

    def _note_refusals(self) -> None:
        if self._files.refused:
            path, why = next(iter(self._files.refused.items()))
            name = "cache" if self._files.refused_bytes >= _UNREAD_CACHE else "page cache"
            self.missing[name] = f"of {len(self._files.refused)} files, for one {path}: {why}"
        if self._files.how == "mincore":
            self.missing["dirty"] = "this kernel has no cachestat (Linux 6.5), and mincore does not know dirty pages"


def _bounded(processes: list[ProcessSample]) -> tuple[ProcessSample, ...]:
    """The largest by name and the rest as one: a build may start thousands."""
    if len(processes) <= _NAMED_PROCESSES:
        return tuple(processes)
    order = sorted(processes, key=lambda each: -each.rss)
    rest = order[_NAMED_PROCESSES:]
    counted = (
        *("anon", "mapped", "shmem", "tables", "swap", "rss_anon", "rss_file", "rss_shmem"),
        *("retained", "unread", "hugetlb", "locked", "huge", "faults"),
    )
    sums = {name: sum(getattr(each, name) for each in rest) for name in counted}
    others = ProcessSample(pid=0, parent=0, name=f"{len(rest)} smaller processes", forked=False, **sums)
    return (*order[:_NAMED_PROCESSES], others)
