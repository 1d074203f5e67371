"""What is measured: processes, files and the cgroup at one moment (a sample), and samples over time (a trace).

There are six disjoint kinds of memory (``KINDS``), in bytes, of a process and its children together. A page is in one
kind only: a dirty page that is also mapped is ``dirty``. Of one process, ``anon`` counts a page shared by n processes
as 1/n (Pss), ``rss_anon`` counts it whole, as the kernel's RSS does. Beside them stands ``hugetlb``: pages of the
machine's pool of huge pages, which were set apart before and which neither RSS nor a memory cgroup counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

KINDS = ("anon", "mapped", "cache", "dirty", "tables", "shmem")
OF_FILES = ("cache", "dirty", "shmem")  # read by asking about files, which costs more than reading a process
# What a budget counts: bytes in the processes' own page tables, and those tables.
HELD = ("anon", "mapped", "shmem", "tables")
TAKEABLE = ("mapped", "cache")  # clean pages of files: the kernel takes them back the moment it needs room
STAYS = ("anon", "shmem", "tables", "hugetlb")  # nobody can take these back: they are what kills
GREW = (*KINDS, "hugetlb", "workers", "copied", "retained", "nothing")

MOST_SAMPLES = 1200
NEWEST = 400  # never thinned: 100 seconds at the default rate
_SPAN = 32


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """One process as /proc/PID/status has it, in bytes; pages shared with others count whole."""

    anon: int
    mapped: int
    shmem: int
    tables: int


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process of the tree. ``anon``, ``mapped``, ``shmem`` share out common pages (Pss); the rss_ ones do not.

    Where a tree has very many processes the smallest are added up into one with pid 0.
    """

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
    retained: int = 0  # part of anon that the program freed and its allocator keeps
    retained_from: str = ""  # "allocator": its own account; "allocator, in part"; "lazyfree": marked as free; ""
    runtime: str = ""  # python, node, java; "" for anything else
    allocator: str = ""  # beside the C library's: jemalloc, mimalloc, tcmalloc, V8, JVM; "" where none is known
    unread: int = 0  # part of anon that lies outside the C library's books: what of it is free nobody can say
    hugetlb: int = 0  # pages of the machine's pool of huge pages
    locked: int = 0  # resident pages that were locked (mlock), of any kind
    huge: int = 0  # part of anon in transparent huge pages
    faults: int = 0  # minor faults so far: copies made on writing are among them
    peak_rss: int = 0  # the highest its RSS ever was, as the kernel remembers

    @property
    def rss(self) -> int:
        return self.rss_anon + self.rss_file + self.rss_shmem


@dataclass(frozen=True, slots=True)
class FileSample:
    """One file the tree has or had open. ``cached`` is all of it in memory: clean and mapped (``mapped``), not yet
    written (``dirty``) and the rest (``cache``). ``found`` was in the page cache before we looked."""

    path: str
    size: int
    cached: int
    dirty: int
    mapped: int
    found: int
    filesystem: str
    memory: bool  # tmpfs: its pages are shmem
    format: str = ""  # npy, arrow, safetensors, ... as its first bytes say; "" where nothing was recognised
    open: bool = True  # a process of the tree had it open or mapped when it was asked
    written: bool = False  # changed since the watching began

    @property
    def cache(self) -> int:
        """Its clean pages that no process of the tree maps."""
        return 0 if self.memory else max(0, self.cached - self.dirty - self.mapped)

    def of(self, kind: str) -> int:
        """Bytes of it in one of ``KINDS``; 0 for anon and tables."""
        if kind == "shmem":
            return self.cached if self.memory else 0
        return 0 if self.memory else {"mapped": self.mapped, "cache": self.cache, "dirty": self.dirty}.get(kind, 0)


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Files too many or too small to be named one by one, added up: those of one pattern (``/db/*.ldb``), library
    code, smaller files, shared memory that no file leads to."""

    name: str
    files: int
    mapped: int = 0
    cache: int = 0
    dirty: int = 0
    shmem: int = 0

    def of(self, kind: str) -> int:
        return int(getattr(self, kind)) if kind in ("mapped", "cache", "dirty", "shmem") else 0


@dataclass(frozen=True, slots=True)
class TmpfsSample:
    """A filesystem in memory that the tree sees: what it may hold (0: as much as there is) and what it holds."""

    path: str
    size: int
    used: int

    @property
    def full(self) -> bool:
        """Whether hardly a page fits any more."""
        return 0 < self.size <= self.used + max(self.size // 64, 4096)


@dataclass(frozen=True, slots=True)
class CgroupSample:
    """A memory cgroup. ``current`` and the rest cover the cgroup, ``limit`` is the smallest over its ancestors at which
    the kernel kills, ``high`` the smallest at which it slows the program down instead (version 2)."""

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
    unreclaimable: int = 0  # heap, shared memory, locked pages and the kernel's own: must stay while nothing is swapped
    slab_reclaimable: int = 0
    pressure: float | None = None  # percent of the last 10 s in which some task waited for memory (PSI)
    peak: int | None = None  # the most it ever held, as the kernel remembers
    high: int | None = None
    throttled: int = 0  # times a task was slowed down at ``high``, ever
    refused: int = 0  # times it stood at its limit, ever
    slab: int = 0  # the kernel's own objects for it: files, directories, sockets
    sockets: int = 0  # data on its way through sockets
    kernel_other: int = 0  # stacks, per-CPU data and what else the kernel keeps for it, page tables left out
    unlisted: int = 0  # charged and in no counter: pinned for devices, or set apart ahead of use
    mapped_file: int = 0  # of file and shmem, what some process of it maps

    @property
    def working_set(self) -> int:
        """What kubelet compares with its eviction threshold: everything but inactive file pages."""
        return max(0, self.current - self.inactive_file)

    @property
    def reclaimable(self) -> int:
        """Clean file pages and the kernel's own caches: what a full cgroup takes back instead of killing."""
        clean = max(0, self.active_file + self.inactive_file - self.dirty)
        return min(self.current, clean + self.slab_reclaimable)


@dataclass(frozen=True, slots=True)
class StaleLook:
    """Figures of a sample that were taken before it, and that have moved since by what cheaper counters tell.
    ``what``: "heap" (what allocators keep), "sharing" (what processes share), "files" (of a tmpfs)."""

    what: str
    seconds: float  # before the sample; 0 where it moved while it was looked at
    moved: int  # bytes, at the most


@dataclass(frozen=True, slots=True)
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
    retained: int = 0  # part of anon that the programs freed and their allocators keep
    major_faults: int = 0
    minor_faults: int = 0
    read_bytes: int = 0
    processes: tuple[ProcessSample, ...] = ()
    files: tuple[FileSample, ...] = ()
    groups: tuple[FileGroup, ...] = ()
    cgroup: CgroupSample | None = None
    files_asked: bool = True  # False: cache, dirty and shmem are those of an earlier sample, carried on
    look_age: float = 0.0  # seconds since mappings and sharing were last read
    hugetlb: int = 0  # pages of the machine's pool of huge pages
    locked: int = 0  # pages of any kind that were locked in memory
    locked_files: int = 0  # part of mapped that was locked, and so cannot be taken back
    tmpfs: tuple[TmpfsSample, ...] = ()
    stale: tuple[StaleLook, ...] = ()

    def of(self, kind: str) -> int:
        """Bytes of one of ``KINDS``, of ``hugetlb`` or of ``retained``."""
        return int(getattr(self, kind))

    @property
    def takeable(self) -> int:
        """What the kernel can take back the moment it needs room: clean file pages that nobody locked."""
        return max(0, sum(self.of(kind) for kind in TAKEABLE) - self.locked_files)

    @property
    def in_no_process(self) -> int:
        """Bytes charged to the cgroup that no process maps and no file of the tree leads to: the kernel's own, data in
        sockets, closed tmpfs files, pinned pages."""
        return sum(size for _, size in self.without_process())

    def without_process(self) -> tuple[tuple[str, int], ...]:
        """The same in parts, by name, those of nothing left out."""
        cgroup = self.cgroup
        if cgroup is None:
            return ()
        closed = sum(file.cached for file in self.files if file.memory and not file.open)
        kernel = cgroup.kernel_other - (self.tables if cgroup.version == 1 else 0)  # version 1 counts them in one sum
        parts = (
            ("closed tmpfs files", cgroup.shmem - (self.shmem - closed)),
            ("slab", cgroup.slab),
            ("sockets", cgroup.sockets),
            ("pinned pages", cgroup.unlisted),
            ("other kernel memory" if cgroup.version == 2 else "slab and other kernel memory", kernel),
        )
        return tuple((name, size) for name, size in parts if size > 0)

    @property
    def held(self) -> int:
        """What a budget counts: anon + mapped + shmem + tables."""
        return sum(self.of(kind) for kind in HELD)

    @property
    def total(self) -> int:
        """All kinds together."""
        return sum(self.of(kind) for kind in KINDS) + self.hugetlb

    @property
    def rss(self) -> int:
        """The one number other tools show: RSS summed over the processes, shared pages counted in each."""
        return sum(process.rss for process in self.processes)


@dataclass(frozen=True, slots=True)
class Ended:
    """How the watched program ended. ``how``: "exit" or "signal" with its ``code`` (128 + the signal's number, as
    shells have it), "oom" when the kernel killed it for want of memory, "gone" when it ended and nobody could say
    how."""

    how: str
    code: int | None = None
    signal: str = ""  # SIGKILL
    sentence: str = ""
    killed: tuple[str, ...] = ()  # processes the kernel killed for want of memory, as "name (pid)"
    limit: int | None = None  # of the cgroup, or of the machine, that ran full
    anon: int | None = None  # heap of the killed process at that moment
    # Who killed it: "cgroup", "machine", "systemd-oomd", "passed on" (by us); "" where nobody left a trace.
    by: str = ""


@dataclass(frozen=True)
class Trace:
    """Samples over time of a command, process, cgroup or block, the machine's facts, and what was not measured."""

    command: str
    started: float  # seconds since 1970
    interval: float
    machine: dict[str, str] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    budget: int | None = None
    exit_code: int | None = None
    cut_short: bool = False  # read back from a file without its last line: the writer was killed
    about: str = "command"  # command: its start-up is not judged; process and cgroup: were running; block: all of it is
    ended: Ended | None = None
    peak_rss: int = 0  # the highest RSS of any one process, as the kernel told when it ended; 0 where it did not

    @property
    def seconds(self) -> float:
        return self.samples[-1].seconds - self.samples[0].seconds if self.samples else 0.0


class Ring:
    """Samples in bounded memory, however long the watching lasts.

    When it is full, every other sample of the older part goes, but each kind's highest of a span of time stays; the
    newest are never thinned. So a week has the same number of samples as an hour, finer towards its end, and no peak is
    lost. Costs about 8 KB per sample.
    """

    def __init__(self, most: int = MOST_SAMPLES) -> None:
        self._most = most
        self._samples: list[Sample] = []
        self.taken = 0  # samples ever added

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)
        self.taken += 1
        if len(self._samples) > self._most:
            cut = len(self._samples) - min(NEWEST, self._most // 3)
            self._samples = [*thinned(self._samples[:cut]), *self._samples[cut:]]

    def samples(self) -> tuple[Sample, ...]:
        return tuple(self._samples)

    def last(self) -> Sample | None:
        return self._samples[-1] if self._samples else None


def thinned(samples: list[Sample]) -> list[Sample]:
    """About half of them: the first, every other, and of each span every kind's highest."""
    keep = set(range(0, len(samples), 2)) if len(samples) < 2 * _SPAN else _spread(samples)
    return [samples[place] for place in sorted({0, *keep})]


def _spread(samples: list[Sample]) -> set[int]:
    """Even in time, not in number: what was thinned before is not thinned again before the rest has caught up."""
    keep: set[int] = set()
    begin, end = samples[0].seconds, samples[-1].seconds
    step = max(1e-9, (end - begin) / (len(samples) // 2))
    after = begin - step
    for place, sample in enumerate(samples):
        if sample.seconds - after >= step:
            keep.add(place)
            after = sample.seconds
    for start in range(0, len(samples), len(samples) // (_SPAN // 4)):
        span = range(start, min(len(samples), start + len(samples) // (_SPAN // 4)))
        keep.update(max(span, key=lambda place: samples[place].of(kind)) for kind in KINDS)
        keep.add(max(span, key=lambda place: samples[place].total))
    return keep
