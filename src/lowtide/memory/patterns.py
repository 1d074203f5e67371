"""Files as a report names them: one by one, or many that differ only in a number or an id (``000123.ldb``,
``part-7.parquet``, ``c/0/1``) as one pattern. Pure."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from lowtide.memory.samples import FileGroup, FileSample, Sample

FEW = 4  # files alike from which on they are added up; fewer are named one by one
_VARIES = re.compile(r"([0-9a-f]{8,}|[0-9]+|\*)")


@dataclass(frozen=True)
class NamedFiles:
    """What has one name in a sample: a file, many files that are alike, or a group such as library code."""

    key: str  # the same in every sample
    name: str
    files: tuple[FileSample, ...] = ()
    groups: tuple[FileGroup, ...] = ()

    @property
    def by_path(self) -> bool:
        return bool(self.files) or self.key.startswith("/")

    @property
    def count(self) -> int:
        return len(self.files) + sum(group.files for group in self.groups)

    @property
    def counted(self) -> str:
        return f"{self.name} ({self.count:,} files)" if self.count else self.name

    def of(self, kind: str) -> int:
        return sum(file.of(kind) for file in self.files) + sum(group.of(kind) for group in self.groups)


@functools.lru_cache(4096)
def alike(path: str) -> str:
    """The same text for all files of a pattern."""
    return _VARIES.sub("*", path)


def pattern(paths: Iterable[str]) -> str:
    """What files that are ``alike`` have in common, with ``*`` where they differ."""
    places = zip(*(_VARIES.split(path) for path in paths), strict=True)
    return "".join(each[0] if len(set(each)) == 1 else "*" for each in places)


def many_alike(samples: Sequence[Sample]) -> frozenset[str]:
    """The patterns of which some sample has at least ``FEW`` files."""
    most: Counter[str] = Counter()
    for sample in samples:
        most |= _counts(sample)
    return frozenset(key for key, count in most.items() if count >= FEW)


def named_files(sample: Sample, many: Collection[str]) -> list[NamedFiles]:
    """A sample's files and groups by name, those of the patterns in ``many`` added up."""
    alone = [NamedFiles(file.path, file.path, (file,)) for file in sample.files if alike(file.path) not in many]
    found = []
    for key in many:
        files = tuple(file for file in sample.files if alike(file.path) == key)
        groups = tuple(group for group in sample.groups if alike(group.name) == key)
        if files or groups:
            shared = pattern([*(file.path for file in files), *(group.name for group in groups)])
            count = len(files) + sum(group.files for group in groups)
            found.append(NamedFiles(key, f"{count:,} files {shared}" if count > 1 else shared, files, groups))
    others = [
        NamedFiles(group.name, group.name, (), (group,)) for group in sample.groups if alike(group.name) not in many
    ]
    return [*alone, *found, *others]


def _counts(sample: Sample) -> Counter[str]:
    counts = Counter(alike(file.path) for file in sample.files)
    for group in sample.groups:
        if group.name.startswith("/"):
            counts[alike(group.name)] += group.files
    return counts
