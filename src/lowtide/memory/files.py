"""The files a process tree has or had open, and how much of each the page cache holds.

One idea: a file once seen (in /proc/PID/fd, or mapped) stays in the set until it is gone from the disk,
because its cached pages stay too. Bytes that were cached before the tree opened the file are ``found``, not
grown. Files are opened for the moment of one question only: holding a descriptor would keep a deleted
file's space. Cost: 20 microseconds a file, plus cachestat's walk over cached pages. A file opened, used and
closed between two looks is missed; the cgroup's totals still show it.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field

from lowtide.machine import file_kind, kind_named, page_cache
from lowtide.memory.detail import MappedFile
from lowtide.memory.model import FileSample

Key = tuple[int, int]  # (device, inode)

_KEPT = 24  # files a sample names; the rest are in its sums
_WORTH_NAMING = 256 * 1024
_SMALL = 256 * 1024


@dataclass
class _Known:
    path: str
    filesystem: str
    memory: bool
    links: list[str] = field(default_factory=list)  # where to open it now, best first
    found: int | None = None
    last: _Answer | None = None


@dataclass(frozen=True)
class _Answer:
    size: int
    changed: float
    cached: int
    dirty: int


@dataclass(frozen=True)
class FileTotals:
    """Sums over all files of the set, in bytes, and the largest of them by name."""

    clean: int = 0  # cached on disk filesystems, dirty pages left out
    dirty: int = 0
    shmem: int = 0  # cached on tmpfs
    found_cache: int = 0
    found_shmem: int = 0
    measured: frozenset[Key] = frozenset()
    files: tuple[FileSample, ...] = ()


class FileSet:
    """Remembers files; ``look`` at each process, then ``measure``."""

    def __init__(self, filesystems: dict[int, str], started: float) -> None:
        self._filesystems = filesystems
        self._started = started
        self._known: dict[Key, _Known] = {}
        self._round = 0
        self.how = ""
        self.refused: dict[str, str] = {}  # path -> why its page cache is unknown

    def look(self, pid: int) -> None:
        """Take in what the process has open now. OSError when that is not ours to see."""
        with os.scandir(f"/proc/{pid}/fd") as entries:
            links = [entry.path for entry in entries]
        for link in links:
            try:
                facts = os.stat(link)  # noqa: PTH116  # a Path object per descriptor costs more than the call
            except OSError:
                continue  # closed meanwhile
            if stat.S_ISREG(facts.st_mode):
                self._take((facts.st_dev, facts.st_ino), link, None)

    def look_at_mapped(self, pid: int, mapped: dict[Key, MappedFile]) -> None:
        """Take in the files a process maps; those that were deleted can be asked only through a
        descriptor."""
        for key, file in mapped.items():
            if not file.path.endswith(" (deleted)") and not file.path.startswith("/memfd:"):
                self._take(key, f"/proc/{pid}/root{file.path}", file.path)

    def measure(self, mapped: dict[Key, int], unplaced: int, fresh: int) -> FileTotals:
        """Ask the page cache about every file.

        ``mapped`` are the tree's mapped bytes by file at the last detailed look and ``unplaced`` those
        mapped since (negative: unmapped). ``fresh`` are the bytes the tree moved from or to storage since
        the last time: the most that can be its own doing in a file first seen now.
        """
        self._round += 1
        answers = {key: self._answer(key, known) for key, known in list(self._known.items())}
        asked = {key: answer for key, answer in answers.items() if answer is not None}
        mapped = _place(mapped, unplaced, asked)
        samples = []
        for key, answer in asked.items():
            known = self._known[key]
            if known.found is None:
                # Changed since we began to watch: written by the tree, or at least not there before.
                found = 0 if answer.changed >= self._started else max(0, answer.cached - fresh)
                fresh -= answer.cached - found
                known.found = found
            samples.append(_sample(known, answer, min(mapped.get(key, 0), answer.cached)))
        disk = [sample for sample in samples if not sample.memory]
        memory = [sample for sample in samples if sample.memory]
        large = sorted(samples, key=lambda sample: sample.cached, reverse=True)[:_KEPT]
        return FileTotals(
            clean=sum(sample.cached - sample.dirty for sample in disk),
            dirty=sum(sample.dirty for sample in disk),
            shmem=sum(sample.cached for sample in memory),
            found_cache=sum(sample.found for sample in disk),
            found_shmem=sum(sample.found for sample in memory),
            measured=frozenset(asked),
            files=tuple(sample for sample in large if sample.cached >= _WORTH_NAMING),
        )

    def _take(self, key: Key, link: str, path: str | None) -> None:
        known = self._known.get(key)
        if known is not None:
            known.links.insert(0, link)
            return
        if path is None:
            try:
                path = os.readlink(link)  # noqa: PTH115  # the text, not a path to follow
            except OSError:
                return
        if path.startswith(("/proc/", "/sys/")):
            return
        filesystem = self._filesystems.get(key[0]) or _filesystem_of(link)
        memory = kind_named(filesystem).memory or path.startswith("/memfd:")
        self._known[key] = _Known(path, filesystem, memory, [link])

    def _answer(self, key: Key, known: _Known) -> _Answer | None:
        """Small files are asked in every eighth round only, each in its turn: there can be thousands, and
        they weigh nothing."""
        last = known.last
        if last is not None and last.size < _SMALL and (key[1] + self._round) % 8:
            known.links = []
            return last
        known.last = self._ask(key, known)
        return known.last

    def _ask(self, key: Key, known: _Known) -> _Answer | None:
        links, known.links = [*known.links, known.path], []  # descriptors are looked up anew each time
        gone = True
        for link in links:
            try:
                fd = os.open(link, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError as problem:
                if problem.errno != errno.ENOENT:
                    gone = False
                    self.refused[known.path] = os.strerror(problem.errno or 0)
                continue
            try:
                facts = os.fstat(fd)
                if (facts.st_dev, facts.st_ino) != key:
                    continue  # another file has taken its name
                cache = page_cache(fd)
            except OSError as problem:
                gone = False
                self.refused[known.path] = os.strerror(problem.errno or 0)
                continue
            finally:
                os.close(fd)
            self.how = cache.how
            return _Answer(
                facts.st_size, facts.st_ctime, cache.cached, min(cache.cached, cache.dirty + cache.writeback)
            )
        if gone:
            del self._known[key]
        return None


def _sample(known: _Known, answer: _Answer, mapped: int) -> FileSample:
    dirty = 0 if known.memory else answer.dirty
    unmapped = answer.cached if known.memory else max(0, answer.cached - dirty - mapped)
    return FileSample(
        path=known.path,
        size=answer.size,
        cached=answer.cached,
        dirty=dirty,
        mapped=mapped,
        found=min(known.found or 0, unmapped),
        filesystem=known.filesystem,
        memory=known.memory,
    )


def _place(mapped: dict[Key, int], unplaced: int, answers: dict[Key, _Answer]) -> dict[Key, int]:
    """Mapped bytes by file now: what came since the detailed look goes where cached pages are not mapped
    yet."""
    total = sum(mapped.values())
    if unplaced < 0 and total > 0:
        return {key: max(0, size + unplaced * size // total) for key, size in mapped.items()}
    room = {key: answers[key].cached - size for key, size in mapped.items() if key in answers}
    room = {key: size for key, size in room.items() if size > 0}
    if unplaced <= 0 or not room:
        return mapped
    share = min(1.0, unplaced / sum(room.values()))
    return {key: size + int(share * room.get(key, 0)) for key, size in mapped.items()}


def _filesystem_of(link: str) -> str:
    try:
        return file_kind(link).name
    except OSError:
        return "unknown"
