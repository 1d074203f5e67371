"""What a process tree holds, by kind and by owner, whether or not it grew. Pure.

Owners are those of the sample in which the kind stood highest; their sum is that height, and what has no owner is named
so. "The end" is the last sample before the program began to shut down: an interpreter that exits unmaps and frees what
it held all along, and the last sample would not show it. Shutting down is a fall that lasts until the exit, without a
second's pause; what was given back before that was given back by the program at work.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowtide.memory.judge.findings import HeldMemory, KindHeld, Owner
from lowtide.memory.patterns import many_alike, named_files
from lowtide.memory.samples import HELD, KINDS, TAKEABLE, ProcessSample, Sample, Trace

_OF_PROCESSES = ("anon", "tables", "hugetlb")
UNEXPLAINED = "not explained"
BETWEEN = "between two samples"
_PAUSE = 1.0  # seconds in which a program that takes itself apart lets go of something
_TEARDOWN_MOST = 60.0  # seconds
_FALL, _FALL_SHARE = 8 * 1024**2, 0.02
_NEAR = 0.995  # of the peak: as good as it
_UNSEEN_LEAST, _UNSEEN_SHARE = 4 * 1024**2, 0.01  # of a peak between two samples, from which on it counts
_MOST_OF_IT = 0.6
_OWNERS_NAMED = 12  # owners of a kind; the rest are added up


def holding(trace: Trace) -> HeldMemory:
    """What the trace's processes held at its end and at their highest."""
    samples = trace.samples
    end = last_whole(trace)
    peak = max(samples, key=lambda sample: sample.total)
    limit, set_by, used = limit_of(trace, end)
    between, kind_between = unseen_peak(trace)
    kinds = tuple(_kind(kind, samples, end, between if kind == kind_between else 0) for kind in (*KINDS, "hugetlb"))
    return HeldMemory(
        end=end.total,
        peak=peak.total + between,
        seconds=peak.seconds,
        takeable=end.takeable,
        stays=end.total - end.takeable,
        limit=limit,
        limit_set_by=set_by,
        limit_used=used,
        look_age=end.look_age,
        kinds=kinds,
        end_seconds=end.seconds,
        locked=max(sample.locked for sample in samples),
        huge=max(sum(each.huge for each in sample.processes) for sample in samples),
        unread=max(sum(each.unread for each in sample.processes) for sample in samples),
        in_no_process=end.in_no_process,
        between=between,
    )


def unseen_peak(trace: Trace) -> tuple[int, str]:
    """How much higher a command's largest process stood than any sample saw, as the kernel remembers, and which kind it
    was: the one that made up most of what was seen, "" where none did."""
    if trace.about != "command":
        return 0, ""  # what is remembered of a running process may be older than the watching
    seen = [each for sample in trace.samples for each in sample.processes if each.pid]
    if not seen:
        return 0, ""
    highest = max(seen, key=lambda each: each.rss)
    remembered = max(trace.peak_rss, max(each.peak_rss for each in seen))
    between = remembered - highest.rss
    if between < max(_UNSEEN_LEAST, _UNSEEN_SHARE * remembered):
        return 0, ""
    parts = {"anon": highest.rss_anon, "mapped": highest.rss_file, "shmem": highest.rss_shmem}
    largest = max(parts, key=lambda kind: parts[kind])
    return between, largest if parts[largest] >= _MOST_OF_IT * highest.rss else ""


def last_whole(trace: Trace) -> Sample:
    """The last sample before teardown, of a program that has ended; the last one of any other."""
    samples = trace.samples
    last = samples[-1]
    if trace.ended is None and trace.exit_code is None:
        return last
    whole, pause = last, max(_PAUSE, 2 * trace.interval)
    for sample in reversed(samples[:-1]):
        if whole.seconds - sample.seconds > pause or last.seconds - sample.seconds > _TEARDOWN_MOST:
            break
        if _fell(sample, whole):
            whole = sample
    return whole


def _fell(before: Sample, after: Sample) -> bool:
    """Whether what a budget counts fell by more than a program at work lets go of; an exit shows there first."""
    fall = before.held - after.held
    return fall >= max(_FALL, _FALL_SHARE * before.held)


def limit_of(trace: Trace, sample: Sample) -> tuple[int | None, str, int]:
    """The limit, who sets it, and the bytes inside it that cannot be taken back."""
    cgroup = sample.cgroup
    if cgroup is not None and cgroup.limit is not None:
        used = cgroup.unreclaimable or cgroup.anon + cgroup.shmem
        return cgroup.limit, f"cgroup v{cgroup.version} {cgroup.path}", used
    memory = trace.machine.get("memory", "")
    used = sum(sample.of(kind) for kind in HELD if kind not in TAKEABLE)
    return (int(memory) if memory.isdigit() and int(memory) else None), "the machine", used


def _kind(kind: str, samples: Sequence[Sample], end: Sample, between: int) -> KindHeld:
    highest = max(sample.of(kind) for sample in samples)
    near = [sample for sample in samples if sample.of(kind) >= _NEAR * highest]
    # Of samples about equally high the latest knows most, and of files the one that asked about them.
    asked = [sample for sample in near if sample.files_asked] if kind not in _OF_PROCESSES else near
    sample = (asked or near)[-1]
    unseen = (Owner(BETWEEN, between, "process"),) if between else ()
    owners = (*owners_of(kind, sample), *unseen)
    return KindHeld(kind, end.of(kind), sample.of(kind) + between, sample.seconds, owners)


def owners_of(kind: str, sample: Sample) -> tuple[Owner, ...]:
    """Who has a kind's bytes in one sample, the largest first; what nobody has is the last one."""
    total = sample.of(kind)
    found = _process_owners(kind, sample) if kind in _OF_PROCESSES else _file_owners(kind, sample)
    found = sorted((owner for owner in found if owner.bytes > 0), key=lambda owner: -owner.bytes)
    named, rest = found[:_OWNERS_NAMED], found[_OWNERS_NAMED:]
    if rest:
        what = rest[0].what if len({owner.what for owner in rest}) == 1 else "others"
        named.append(Owner(f"{len(rest)} more", sum(owner.bytes for owner in rest), what))
    named = _at_most(named, total)
    left = total - sum(owner.bytes for owner in named)
    return (*named, Owner(UNEXPLAINED, left, "unexplained")) if left > 0 else tuple(named)


def _at_most(owners: list[Owner], total: int) -> list[Owner]:
    """Owners as of the last close look, brought down to a total that has fallen since."""
    whole = sum(owner.bytes for owner in owners)
    if whole <= total:
        return owners
    return [Owner(owner.name, owner.bytes * total // whole, owner.what) for owner in owners]


def _process_owners(kind: str, sample: Sample) -> list[Owner]:
    if kind != "anon":
        return [Owner(process_name(each), int(getattr(each, kind)), "process") for each in sample.processes]
    live = [Owner(process_name(each), each.anon - each.retained, "process") for each in sample.processes]
    kept = [
        Owner(f"{process_name(each)}: freed, kept by its allocator", each.retained, "allocator")
        for each in sample.processes
    ]
    return live + kept


def _file_owners(kind: str, sample: Sample) -> list[Owner]:
    what = "tmpfs file" if kind == "shmem" else "file"
    return [
        Owner(each.name, each.of(kind), what) if each.by_path else Owner(each.counted, each.of(kind), each.name)
        for each in named_files(sample, many_alike([sample]))
    ]


def process_name(process: ProcessSample) -> str:
    return f"process {process.pid} ({process.name})" if process.pid else process.name
