"""What a verdict says in words: the headline, what the growth can lead to, and the one line that cures it.
Pure.

One idea: the same few sentences for everybody, filled with the trace's own numbers and file names. A time
until a limit is only given where growth was measured and a limit is known.
"""

from __future__ import annotations

from lowtide.memory.growth import Course
from lowtide.memory.model import FileSample, Growth, Sample, Trace
from lowtide.units import format_size

_SAYS = {
    "anon": "the heap grew: memory the program itself holds, which nobody can take back",
    "mapped": "not a leak: clean file pages, mapped by the program, which the kernel can take back but RSS counts",
    "cache": "not a leak: page cache of files it read, which no process maps and the kernel can take back",
    "dirty": "written to files and not yet to the disk, which must happen before the kernel can take it back",
    "tables": "page tables grew: huge mappings touched in many places; RSS does not show it, madvise does not free it",
    "shmem": "shared memory grew: tmpfs or /dev/shm, which looks like cache and cannot be taken back",
    "workers": "forked workers copy memory they shared with the parent (reading a Python object writes its count)",
}

_FIX = {
    "anon": (
        "find the allocation with tracemalloc or memray; usual: batches or losses kept in a list, copies by astype",
    ),
    "mapped": (
        'read instead of mapping: a = lowtide.open("{path}", budget="256MiB")',
        "or keep the np.memmap and call lowtide.release(it) after each chunk",
    ),
    "cache": (
        'leave nothing behind: lowtide.open("{path}", cache="drop")',
        "or os.posix_fadvise(fd, start, length, os.POSIX_FADV_DONTNEED) behind the reader",
    ),
    "dirty": ("write in steps: os.fdatasync(fd) after every 64 MiB written to {path}",),
    "tables": ("map a small window at a time and unmap it; or read without mapping: lowtide.open(path)",),
    "shmem": ("close and unlink {path} once it is used; prefetch fewer batches; joblib: max_nbytes=None",),
    "workers": ("give workers arrays or a path to open, not lists and dicts of objects; or start them with spawn",),
    "nothing": (),
}


def headline(grew: str, trace: Trace, by_kind: dict[str, Course]) -> str:
    """One sentence with the number that matters."""
    if grew == "nothing":
        started = max((each.growth for each in by_kind.values()), key=lambda growth: growth.peak - growth.first)
        early = started.peak - started.first
        noise = by_kind[started.kind].noise
        stayed = started.last >= started.peak - noise
        how = "at the start only" if stayed else "at most and fell again"
        after = f"; {started.kind} rose by {format_size(early)} {how}" if early >= noise else ""
        return f"Nothing grew in {_duration(trace.seconds)}{after}."
    growth = by_kind["anon" if grew == "workers" else grew].growth
    rate = f", {format_size(max(0, growth.per_minute))} a minute"
    return f"{grew} +{format_size(growth.grew)}{rate}: {_SAYS[grew]}."


def fixes(grew: str, files: list[tuple[FileSample, int]]) -> tuple[str, ...]:
    path = files[0][0].path if files else "the file"
    return tuple(line.replace("{path}", path) for line in _FIX[grew])


def risks(grew: str, trace: Trace, growth: Growth | None) -> tuple[str, ...]:
    """What can happen: the kernel's kill, kubelet's eviction, slow writers, thrashing."""
    first, last = trace.samples[0], trace.samples[-1]
    lines = []
    if growth is not None:
        lines.append(_kernel_risk(grew, trace, last, growth))
        lines += _kubelet_risk(grew, last)
    if first.cgroup and last.cgroup:
        kills = last.cgroup.oom_kills - first.cgroup.oom_kills
        if kills > 0:
            lines.append(f"the kernel killed {kills} process(es) of this cgroup while it was watched")
        if last.cgroup.refaults - first.cgroup.refaults > 10_000:
            lines.append("pages were evicted and read again: the limit is below what the program uses over and over")
    return tuple(lines)


def _kernel_risk(grew: str, trace: Trace, last: Sample, growth: Growth) -> str:
    if grew in ("mapped", "cache"):
        return "kernel OOM kill: unlikely, these pages go first when memory runs out"
    if grew == "dirty":
        return (
            "writers are made to wait at vm.dirty_ratio, in a cgroup near its limit; a crash loses what is not written"
        )
    limit, used, where = _limit(trace, last)
    if limit is None:
        return "no limit is known here, so no time can be given"
    if growth.per_minute <= 0:
        return f"{format_size(used)} of {format_size(limit)} ({where}) cannot be taken back"
    minutes = max(0, limit - used) / growth.per_minute
    return f"kernel OOM kill at {format_size(limit)} ({where}) in about {_duration(60 * minutes)} at this rate"


def _kubelet_risk(grew: str, last: Sample) -> list[str]:
    cgroup = last.cgroup
    if cgroup is None or cgroup.limit is None or grew not in ("mapped", "cache", "anon", "workers", "shmem"):
        return []
    return [
        f"kubelet eviction: working set {format_size(cgroup.working_set)} of {format_size(cgroup.limit)}, "
        f"of it {format_size(cgroup.active_file)} file pages touched more than once"
    ]


def _limit(trace: Trace, last: Sample) -> tuple[int | None, int, str]:
    """The limit, what cannot be taken back inside it, and who sets it."""
    if last.cgroup is not None and last.cgroup.limit is not None:
        used = last.cgroup.anon + last.cgroup.shmem
        return last.cgroup.limit, used, f"cgroup v{last.cgroup.version} {last.cgroup.path}"
    memory = trace.machine.get("memory", "")
    return (int(memory) if memory.isdigit() else None), last.anon + last.shmem + last.tables, "the machine"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:,.0f} h" if seconds < 360_000 else f"{seconds / 86400:,.0f} days"
