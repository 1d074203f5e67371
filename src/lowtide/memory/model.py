"""What memory measuring is made of: samples, a trace of them, and the verdict on it. Plain frozen values.

One idea: six disjoint kinds of memory (``KINDS``), in bytes, of a process and its children together. Every
value here turns into JSON-safe dicts and back, so a trace judged today can be judged again tomorrow from
its file. Nothing here measures, judges or prints.

Two words for one process: ``anon`` counts a page shared by n processes as 1/n (Pss), ``rss_anon`` counts it
whole, as the kernel's RSS does.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lowtide.errors import FormatError

KINDS = ("anon", "mapped", "cache", "dirty", "tables", "shmem")
OF_FILES = ("cache", "dirty", "shmem")  # read by asking about files, which costs more than reading a process
HELD = (
    "anon",
    "mapped",
    "shmem",
    "tables",
)  # what a budget counts: bytes in the processes' own page tables, and those tables
GREW = (*KINDS, "workers", "nothing")

MEANING = {
    "anon": "heap: yours, cannot be reclaimed",
    "mapped": "file pages mapped by the processes: clean, reclaimable, counted in RSS",
    "cache": "page cache of their files that no process maps: clean, reclaimable, charged to the cgroup",
    "dirty": "file pages not yet written to disk: must be written before they can be reclaimed",
    "tables": "page tables: freed by unmapping, not by madvise; not counted in RSS",
    "shmem": "tmpfs and shared memory: looks like cache, cannot be reclaimed before it is unlinked",
}

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class ProcessMemory:
    """One process as /proc/PID/status has it, in bytes; pages shared with others count whole."""

    anon: int
    mapped: int
    shmem: int
    tables: int


@dataclass(frozen=True)
class ProcessSample:
    """One process of the tree. ``anon``, ``mapped``, ``shmem`` share out common pages (Pss); the rss_ ones
    do not."""

    pid: int
    parent: int
    name: str
    anon: int
    mapped: int
    shmem: int
    tables: int
    swap: int
    rss_anon: int
    rss_file: int
    rss_shmem: int
    forked: bool  # runs its parent's memory image: fork without exec

    @property
    def rss(self) -> int:
        return self.rss_anon + self.rss_file + self.rss_shmem


@dataclass(frozen=True)
class FileSample:
    """One file the tree has or had open. ``cached`` includes ``mapped`` and ``dirty``; ``found`` was cached
    before we looked."""

    path: str
    size: int
    cached: int
    dirty: int
    mapped: int
    found: int
    filesystem: str
    memory: bool  # tmpfs: its pages are shmem

    @property
    def cache(self) -> int:
        """Its clean pages that no process of the tree maps."""
        return 0 if self.memory else max(0, self.cached - self.dirty - self.mapped)


@dataclass(frozen=True)
class CgroupSample:
    """The process's memory cgroup. ``current`` and the rest cover the cgroup, ``limit`` is the smallest
    over its ancestors."""

    version: int
    path: str
    current: int
    limit: int | None
    anon: int
    file: int
    active_file: int
    inactive_file: int
    shmem: int
    dirty: int
    refaults: int
    oom_kills: int

    @property
    def working_set(self) -> int:
        """What kubelet compares with its eviction threshold: everything but inactive file pages."""
        return max(0, self.current - self.inactive_file)


@dataclass(frozen=True)
class Sample:
    """One reading: bytes of each kind for the whole tree, and where they were found."""

    seconds: float
    anon: int
    mapped: int
    cache: int
    dirty: int
    tables: int
    shmem: int
    found_cache: int = 0  # part of cache that was there before the tree opened the files: not its doing
    found_shmem: int = 0  # the same part of shmem
    major_faults: int = 0
    minor_faults: int = 0
    read_bytes: int = 0
    processes: tuple[ProcessSample, ...] = ()
    files: tuple[FileSample, ...] = ()
    cgroup: CgroupSample | None = None
    files_asked: bool = True  # False: cache, dirty and shmem are those of an earlier sample, carried on

    def of(self, kind: str) -> int:
        """Bytes of one of ``KINDS``."""
        return int(getattr(self, kind))

    @property
    def held(self) -> int:
        """What a budget counts: anon + mapped + shmem + tables."""
        return sum(self.of(kind) for kind in HELD)

    @property
    def rss(self) -> int:
        """The one number other tools show: RSS summed over the processes, shared pages counted in each."""
        return sum(process.rss for process in self.processes)


@dataclass(frozen=True)
class Trace:
    """Samples over time of one command or process, the machine's facts, and what could not be measured and
    why."""

    command: str
    started: float  # seconds since 1970
    interval: float
    machine: dict[str, str] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    budget: int | None = None
    exit_code: int | None = None
    cut_short: bool = False  # read back from a file that ended in the middle of a line

    @property
    def seconds(self) -> float:
        return self.samples[-1].seconds - self.samples[0].seconds if self.samples else 0.0


@dataclass(frozen=True)
class Growth:
    """How one kind went, in bytes. ``grew`` and ``per_minute`` leave out start-up; ``first``, ``last``,
    ``peak`` do not."""

    kind: str
    first: int
    last: int
    peak: int
    grew: int
    per_minute: int


@dataclass(frozen=True)
class BudgetOutcome:
    """The most that was held at once (anon + mapped + shmem + tables) beside what was allowed."""

    allowed: int
    peak: int
    seconds: float  # when the peak was

    @property
    def ok(self) -> bool:
        return self.peak <= self.allowed


@dataclass(frozen=True)
class Verdict:
    """What a trace means. ``grew`` is one of ``GREW``; ``confidence`` is "high", "medium" or "low"; the
    rest are sentences."""

    grew: str
    confidence: str
    headline: str
    growth: tuple[Growth, ...] = ()
    who: tuple[str, ...] = ()
    risk: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()
    not_it: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    budget: BudgetOutcome | None = None


def to_dict(value: Any) -> dict[str, Any]:
    """A value of this file as dicts, lists, numbers and text, with the computed parts a reader of JSON
    would want."""
    data = dataclasses.asdict(value)
    if isinstance(value, Verdict) and value.budget is not None:
        data["budget"]["ok"] = value.budget.ok
    return data


def from_dict(kind: type[_Value], data: object) -> _Value:
    """The value back from its dict; keys it does not know are passed over, FormatError when one is missing
    or of another type."""
    if not isinstance(data, dict):
        raise FormatError(f"trace: expected {kind.__name__} as an object, got {type(data).__name__}. Record it again.")
    known = {}
    for item in dataclasses.fields(kind):  # type: ignore[arg-type]  # every kind passed in is a dataclass of this file
        if item.name in data:
            known[item.name] = _read(f"{kind.__name__}.{item.name}", str(item.type), data[item.name])
    try:
        return kind(**known)
    except TypeError as problem:  # a field without default is missing
        raise FormatError(
            f"trace: expected a whole {kind.__name__}, got one with keys {sorted(data)}. Record it again."
        ) from problem


_PLAIN: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
_NESTED = {
    "tuple[ProcessSample, ...]": ProcessSample,
    "tuple[FileSample, ...]": FileSample,
    "tuple[Sample, ...]": Sample,
}
_NESTED |= {
    "tuple[Growth, ...]": Growth,
    "CgroupSample | None": CgroupSample,
    "BudgetOutcome | None": BudgetOutcome,
}


def _read(name: str, declared: str, value: Any) -> Any:
    """``value`` if it is what the field declares, built up where that is another value of this file."""
    if declared.endswith(" | None") and value is None:
        return None
    if declared.startswith("tuple[") and isinstance(value, list | tuple):
        inner = _NESTED.get(declared)
        if inner is not None:
            return tuple(from_dict(inner, item) for item in value)
        if all(isinstance(item, str) for item in value):
            return tuple(value)
    elif declared in _NESTED and isinstance(value, dict):
        return from_dict(_NESTED[declared], value)
    elif declared == "dict[str, str]" and isinstance(value, dict):
        return {str(key): str(item) for key, item in value.items()}
    wanted = _PLAIN.get(declared.removesuffix(" | None"), ())
    if isinstance(value, wanted) and (declared == "bool" or not isinstance(value, bool)):
        return value
    raise FormatError(f"trace: expected {name} to be {declared}, got {value!r:.60}. Record it again.")
