"""The files a process tree has or had open, how much of each the page cache holds, and what format it has, so that a
repair can be named that works for it.

A file once seen (in /proc/PID/fd, or mapped) stays in the set until it is gone from the disk, because its cached
pages stay too. Bytes that were cached before the tree opened the file are ``found``, not grown. Files are opened for
the moment of one question only: a held descriptor would keep a deleted file's space. Cost: 20 microseconds per file,
plus cachestat's walk. A file opened, used and closed between two looks is missed; the cgroup's totals still show it,
and in a tmpfs that fills up faster than the files we know the new ones are looked for by name.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from lowtide.machine import PAGE, file_kind, kind_named, page_cache
from lowtide.memory.measure.smaps import MappedFile
from lowtide.memory.patterns import FEW, alike, pattern
from lowtide.memory.samples import FileGroup, FileSample

FileKey = tuple[int, int]  # (device, inode)

CODE, SMALLER = "library code", "smaller files"
_KEPT, _PATTERNS = 24, 8  # files, and patterns of further files, that a sample names; the rest are added up
_WORTH_NAMING = 256 * 1024
_SMALL = 256 * 1024
_MOST_ENTRIES = 8192  # of a tmpfs, looked through by name
_FORMAT_MAGIC = {
    b"\x93NUMPY": "npy",
    b"ARROW1": "arrow",
    b"\xff\xff\xff\xff": "arrow",  # a stream, as HF datasets writes it
    b"PAR1": "parquet",
    b"\x89HDF": "hdf5",
    b"PK\x03\x04": "zip",
    b"\x1f\x8b": "gzip",
    b"SQLite format": "sqlite",
    b"\x7fELF": "program",
}
_FORMAT_INSIDE = {(8, b"DUCK"): "duckdb", (16, b"\xde\xc0\xef\xbe"): "lmdb"}  # where it is not at the start
_OTHER_NAMES = {"feather": "arrow", "h5": "hdf5", "npz": "zip", "pt": "zip", "gz": "gzip", "so": "program"}
_OTHER_NAMES |= {"mdb": "lmdb", "ldb": "leveldb", "sst": "leveldb", "duckdb": "duckdb", "sqlite": "sqlite"}
_NAMES = {name: name for name in ("npy", "arrow", "parquet", "hdf5", "zip", "safetensors", "gguf")} | _OTHER_NAMES


@dataclass
class _Known:
    path: str
    filesystem: str
    memory: bool
    links: list[str] = field(default_factory=list)  # where to open it now, best first
    found: int | None = None
    last: _Answer | None = None
    format: str | None = None
    code: bool = False
    seen: int = 0  # the round in which a process had it open or mapped; 0: none ever had, it was found by its name
    size: int = 0  # of a file that was open, before its page cache was asked


@dataclass(frozen=True)
class _Answer:
    size: int
    changed: float
    cached: int
    dirty: int


@dataclass(frozen=True)
class FileTotals:
    """Sums over all files of the set, in bytes, the largest of them by name and the others in groups."""

    clean: int = 0  # cached on disk filesystems, dirty pages left out
    dirty: int = 0
    mapped: int = 0  # clean and mapped by the tree, of all files that were asked or mapped
    placed: int = 0  # bytes mapped by the tree that belong to a file here, dirty ones included
    dirty_room: int = 0  # dirty pages of mapped files that were not mapped yet
    shmem: int = 0  # cached on tmpfs
    found_cache: int = 0
    found_shmem: int = 0
    measured: frozenset[FileKey] = frozenset()
    files: tuple[FileSample, ...] = ()
    groups: tuple[FileGroup, ...] = ()

    def dirty_part(self, more: int) -> int:
        """Of ``more`` bytes mapped since the files were asked, those that are dirty pages, as far as there is room."""
        clean = sum(file.cache for file in self.files if file.mapped)
        return max(0, more) * self.dirty_room // (self.dirty_room + clean) if self.dirty_room else 0

    def placing(self, more: int) -> tuple[FileSample, ...]:
        """The files with ``more`` bytes mapped since they were asked, out of the cache of those mapped already."""
        room = sum(file.cache for file in self.files if file.mapped)
        if more <= 0 or not room:
            return self.files
        share = min(1.0, more / room)
        return tuple(
            replace(file, mapped=file.mapped + int(share * file.cache)) if file.mapped else file for file in self.files
        )


class FileSet:
    """Remembers files: ``look`` at each process, then ``measure``. ``started``: when watching began, by their clock."""

    def __init__(self, filesystems: dict[int, str], started: float) -> None:
        self._filesystems = filesystems
        self.started = started
        self._known: dict[FileKey, _Known] = {}
        self._round = 0
        self.how = ""
        self.refused: dict[str, str] = {}  # path -> why its page cache is unknown
        self.refused_bytes = 0  # size of those that were open and are no program's code: the most that is not seen
        self.room_for_closed = 0  # bytes the tree can have put into files it has closed again

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
                key = (facts.st_dev, facts.st_ino)
                self._take(key, link, None)
                if key in self._known:
                    self._known[key].size = facts.st_size

    def look_at_mapped(self, pid: int, mapped: dict[FileKey, MappedFile]) -> None:
        """Take in the files a process maps; those that were deleted can be asked only through a descriptor."""
        for key, file in mapped.items():
            if not file.path.endswith(" (deleted)") and not file.path.startswith("/memfd:"):
                self._take(key, f"/proc/{pid}/root{file.path}", file.path)
            if file.code and key in self._known:
                self._known[key].code = True

    def look_into(self, directory: str, shown: str) -> None:
        """Take in what came into a tmpfs since watching began, though no process of the tree has it open any more."""
        waiting, entries = [directory], 0
        while waiting and entries < _MOST_ENTRIES:
            try:
                with os.scandir(waiting.pop()) as found:
                    for entry in found:
                        entries += 1
                        facts = entry.stat(follow_symlinks=False)
                        if stat.S_ISDIR(facts.st_mode):
                            waiting.append(entry.path)
                        elif stat.S_ISREG(facts.st_mode) and facts.st_blocks and facts.st_ctime >= self.started:
                            path = shown + entry.path.removeprefix(directory)
                            key = (facts.st_dev, facts.st_ino)
                            known = self._known.setdefault(key, _Known(path, "tmpfs", True))
                            known.links.append(entry.path)
            except OSError:
                continue  # not ours to list, or gone

    def measure(self, mapped: Mapping[FileKey, MappedFile], unplaced: int, fresh: int) -> FileTotals:
        """Ask the page cache about every file.

        ``mapped`` are the tree's mapped files at the last close look, added up over its processes, and ``unplaced``
        the bytes mapped since (negative: unmapped). ``fresh`` are the bytes the tree moved from or to storage since
        the last time: the most that can be its own doing in a file first seen now.
        """
        self._round += 1
        answers = {key: self._answer(key, known) for key, known in list(self._known.items())}
        asked = {key: answer for key, answer in answers.items() if answer is not None}
        closed = [key for key in asked if self._known[key].seen == 0]
        if sum(asked[key].cached for key in closed) > self.room_for_closed:
            for key in closed:  # more than the tree can have written: somebody else's
                del asked[key]
        on_disk = {key: answer for key, answer in asked.items() if not self._known[key].memory}
        placed = _place({key: file.mapped for key, file in mapped.items() if not file.memory}, unplaced, on_disk)
        named: list[FileSample] = []
        code: list[FileSample] = []
        dirty_room = 0
        for key, answer in asked.items():
            known = self._known[key]
            if known.found is None:
                # Changed since we began to watch: written by the tree, or at least not there before.
                found = 0 if answer.changed >= self.started else max(0, answer.cached - fresh)
                fresh = max(0, fresh - (answer.cached - found))
                known.found = found
            dirty_in_map = mapped[key].dirty if key in mapped else 0
            dirty_room += max(0, answer.dirty - dirty_in_map) if key in mapped and not known.memory else 0
            sample = _sample(known, answer, placed.get(key, 0) - dirty_in_map, opened=known.seen == self._round)
            sample = replace(sample, written=answer.changed >= self.started)
            (code if known.code else named).append(sample)
        for key, size in placed.items():
            if key not in asked:  # deleted, or not ours to open: what is mapped of it is all that is known
                name = mapped[key].path.removesuffix(" (deleted)")
                sample = FileSample(name, 0, size, 0, size, 0, "unknown", False, format_by_name(name))
                (code if mapped[key].code else named).append(sample)
        totals = _totals(named, code, frozenset(asked))
        return replace(totals, placed=sum(placed.values()), dirty_room=dirty_room)

    def _take(self, key: FileKey, link: str, path: str | None) -> None:
        known = self._known.get(key)
        if known is not None:
            known.seen = self._round + 1
            known.links.insert(0, link)
            known.path = path or known.path  # it may have been renamed since, as files are that were written first
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
        self._known[key] = _Known(path, filesystem, memory, [link], seen=self._round + 1)

    def _answer(self, key: FileKey, known: _Known) -> _Answer | None:
        """Small files are asked in every eighth round, each in its turn: there may be thousands of little weight."""
        last = known.last
        if last is not None and last.size < _SMALL and (key[1] + self._round) % 8:
            known.links = []
            return last
        known.last = self._ask(key, known)
        return known.last

    def _ask(self, key: FileKey, known: _Known) -> _Answer | None:
        links, known.links = [*known.links, known.path], []  # descriptors are looked up again each time
        gone = True
        for link in links:
            try:
                fd = os.open(link, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError as problem:
                if problem.errno != errno.ENOENT:
                    gone = False
                    self._refuse(known, problem)
                continue
            try:
                facts = os.fstat(fd)
                if (facts.st_dev, facts.st_ino) != key:
                    continue  # another file has taken its name
                cache = page_cache(fd)
                if known.format is None and facts.st_size >= _SMALL and not known.code:
                    known.format = format_of(fd, known.path)
            except OSError as problem:
                gone = False
                self._refuse(known, problem)
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

    def _refuse(self, known: _Known, problem: OSError) -> None:
        if known.path not in self.refused and not known.code:
            self.refused_bytes += known.size
        self.refused[known.path] = os.strerror(problem.errno or 0)


def _sample(known: _Known, answer: _Answer, mapped_clean: int, *, opened: bool) -> FileSample:
    dirty = 0 if known.memory else answer.dirty
    mapped = max(0, min(mapped_clean, answer.cached - dirty))
    unmapped = answer.cached if known.memory else answer.cached - dirty - mapped
    return FileSample(
        path=known.path,
        size=answer.size,
        cached=answer.cached,
        dirty=dirty,
        mapped=0 if known.memory else mapped,
        found=min(known.found or 0, unmapped),
        filesystem=known.filesystem,
        memory=known.memory,
        format=known.format or "",
        open=opened,
    )


def _totals(named: list[FileSample], code: list[FileSample], measured: frozenset[FileKey]) -> FileTotals:
    disk = [sample for sample in (*named, *code) if not sample.memory]
    memory = [sample for sample in named if sample.memory]
    order = sorted(named, key=lambda sample: sample.cached, reverse=True)
    large = [sample for sample in order[:_KEPT] if sample.cached >= _WORTH_NAMING]
    groups = (_group(CODE, code), *_grouped(order, order[len(large) :]))
    return FileTotals(
        clean=sum(sample.cached - sample.dirty for sample in disk),
        dirty=sum(sample.dirty for sample in disk),
        mapped=sum(sample.mapped for sample in disk),
        shmem=sum(sample.cached for sample in memory),
        found_cache=sum(sample.found for sample in disk),
        found_shmem=sum(sample.found for sample in memory),
        measured=measured,
        files=tuple(large),
        groups=tuple(group for group in groups if group.files),
    )


def _grouped(files: list[FileSample], small: list[FileSample]) -> list[FileGroup]:
    """The small ones of all files: by pattern where many are alike, the others together."""
    paths: dict[str, list[str]] = {}
    for file in files:
        paths.setdefault(alike(file.path), []).append(file.path)
    rest: dict[str, list[FileSample]] = {}
    for file in small:
        rest.setdefault(alike(file.path), []).append(file)
    many = [name for name in rest if len(paths[name]) >= FEW]
    many = sorted(many, key=lambda name: -sum(file.cached for file in rest[name]))[:_PATTERNS]
    others = [file for name, members in rest.items() if name not in many for file in members]
    return [*(_group(pattern(paths[name]), rest[name]) for name in many), _group(SMALLER, others)]


def _group(name: str, files: list[FileSample]) -> FileGroup:
    kinds = {kind: sum(file.of(kind) for file in files) for kind in ("mapped", "cache", "dirty", "shmem")}
    return FileGroup(name, len(files), **kinds)


def _place(mapped: dict[FileKey, int], unplaced: int, answers: dict[FileKey, _Answer]) -> dict[FileKey, int]:
    """Mapped bytes by file now: what came since the close look goes where cached pages are not mapped yet."""
    total = sum(mapped.values())
    if unplaced < 0 and total > 0:
        return {key: max(0, size + unplaced * size // total) for key, size in mapped.items()}
    placed = dict(mapped)
    # Files that were mapped at the close look first, then any other: a page that is mapped is no longer cache alone.
    for keys in (list(mapped), [key for key in answers if key not in mapped]):
        room = {key: answers[key].cached - placed.get(key, 0) for key in keys if key in answers}
        room = {key: size for key, size in room.items() if size > 0}
        if unplaced >= PAGE and room:
            share = min(1.0, unplaced / sum(room.values()))
            placed |= {key: placed.get(key, 0) + int(share * size) for key, size in room.items()}
            unplaced -= int(share * sum(room.values()))
    return placed


def _filesystem_of(link: str) -> str:
    try:
        return file_kind(link).name
    except OSError:
        return "unknown"


def format_by_name(path: str) -> str:
    """The same of a file that cannot be looked at: its name's ending decides."""
    return _NAMES.get(PurePath(path.removesuffix(" (deleted)")).suffix.lower()[1:], "")


def format_of(fd: int, path: str) -> str:
    """npy, arrow, parquet, hdf5, zip, gzip, safetensors, gguf, sqlite, duckdb, lmdb, leveldb or program; "" for bytes
    without a header.

    Only what is cached already is read (RWF_NOWAIT): a read that went to the disk would bring in a read-ahead window
    and change what is being measured. Where that is refused, the name's ending decides.
    """
    head = bytearray(20)
    try:
        os.preadv(fd, [head], 0, getattr(os, "RWF_NOWAIT", 0))
    except OSError:
        return format_by_name(path)
    if head[8:10] == b'{"':  # a length of eight bytes, then JSON
        return "safetensors"
    known = next((word for magic, word in _FORMAT_MAGIC.items() if head.startswith(magic)), None)
    known = known or next((word for (at, magic), word in _FORMAT_INSIDE.items() if head.startswith(magic, at)), None)
    return known if known is not None else format_by_name(path)
