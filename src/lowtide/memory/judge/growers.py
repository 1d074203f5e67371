"""Who is behind a growth: files, alone or by pattern, library code, or processes, by how far each rose. Pure.

A rise is counted from the first sample a thing is in, start-up included, and above what was found of it in the page
cache; the verdict's own figure leaves start-up out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from lowtide.memory.judge.findings import Grower
from lowtide.memory.judge.holding import process_name
from lowtide.memory.patterns import NamedFiles, many_alike, named_files
from lowtide.memory.samples import FileSample, ProcessSample, Sample

_Seen = TypeVar("_Seen", NamedFiles, ProcessSample)
_NAMED = 3
_SMALL = 20  # what is this many times smaller than the largest is not the answer


def growers(
    grew: str, files: list[tuple[NamedFiles, int]], processes: list[tuple[ProcessSample, int]]
) -> tuple[Grower, ...]:
    """The files or processes behind the growth, the largest first, at most three."""
    if grew == "nothing":
        return ()
    if files:
        return tuple(_of_files(grew, each, rise) for each, rise in files[:_NAMED] if _SMALL * rise >= files[0][1])
    kind = _process_kind(grew)
    return tuple(
        Grower(process_name(each), "process", rise, int(getattr(each, kind))) for each, rise in processes[:_NAMED]
    )


def _of_files(grew: str, each: NamedFiles, rise: int) -> Grower:
    if not each.by_path:
        return Grower(each.counted, each.name, rise, each.of(grew))
    sizes = sum(file.size for file in each.files) if not each.groups else None
    filesystem = each.files[0].filesystem if each.files else ""
    return Grower(each.name, "file", rise, each.of(grew), sizes, filesystem)


def largest_files(files: list[tuple[NamedFiles, int]]) -> list[FileSample]:
    """One file for each name, the largest: for what is said of files one by one."""
    if not files or not files[0][0].files:  # library code, say: no file of it is the answer
        return []
    return [max(each.files, key=lambda file: file.cached) for each, _ in files if each.files]


def grown_files(grew: str, samples: tuple[Sample, ...]) -> list[tuple[NamedFiles, int]]:
    """Files by how far they rose above what was found of them, over the whole trace."""
    if grew not in ("mapped", "cache", "dirty", "shmem"):
        return []
    many = many_alike(samples)
    seen = ((each, each.of(grew)) for sample in samples for each in named_files(sample, many))
    return _risen((each.key, each, size, _base(grew, each, size)) for each, size in seen)


def _base(grew: str, each: NamedFiles, size: int) -> int:
    if not each.by_path:
        return size
    return sum(file.found for file in each.files) if grew in ("cache", "shmem") else 0


def grown_processes(grew: str, samples: tuple[Sample, ...]) -> list[tuple[ProcessSample, int]]:
    if grew == "nothing":
        return []
    kind = _process_kind(grew)
    wanted = {"workers": (True,), "copied": (False,)}.get(grew, (True, False))
    seen = [each for sample in samples for each in sample.processes if each.forked in wanted]
    return _risen((each.pid, each, int(getattr(each, kind)), int(getattr(each, kind))) for each in seen)


def _process_kind(grew: str) -> str:
    return {"workers": "anon", "copied": "anon", "cache": "mapped", "dirty": "mapped"}.get(grew, grew)


def _risen(seen: Iterable[tuple[object, _Seen, int, int]]) -> list[tuple[_Seen, int]]:
    """Things by how far they rose above their base, the largest first, each as it was then. ``seen`` has a key, the
    thing, its size, and its base if it is seen for the first time."""
    first: dict[object, int] = {}
    best: dict[object, tuple[_Seen, int]] = {}
    for key, thing, size, base in seen:
        rise = size - first.setdefault(key, min(size, base))
        if rise > 0 and (key not in best or rise >= best[key][1]):
            best[key] = (thing, rise)
    return sorted(best.values(), key=lambda pair: -pair[1])
