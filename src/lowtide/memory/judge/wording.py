"""What a verdict says in words: the sentence on growth, what it is not, and the evidence. Pure.

The words are chosen here once, so that every report says the same.
"""

from __future__ import annotations

from lowtide.memory.judge.findings import Shown, signed
from lowtide.memory.judge.growth import Course
from lowtide.memory.samples import TAKEABLE, Sample, Trace
from lowtide.units import format_duration, format_size

_MEANS = {
    "anon": "the heap grew: memory the program itself holds, which nobody can take back",
    "mapped": "not a leak: clean file pages, mapped by the program, which the kernel can take back but RSS counts",
    "cache": "not a leak: page cache of files it {used}, which no process maps and the kernel can take back",
    "dirty": "written to files and not yet to the disk, which must happen before the kernel can take it back",
    "tables": "page tables grew: huge mappings touched in many places; RSS does not show it, madvise does not free it",
    "shmem": "shared memory grew: tmpfs or /dev/shm, which looks like cache and cannot be taken back",
    "workers": "forked workers copy memory they shared with the parent (reading an object writes its reference count)",
    "copied": "copy-on-write after a fork: a forked child keeps the old pages while its parent goes on writing, "
    "as a server does that forks to save its data; it ends when the child ends",
    "hugetlb": "pages of the machine's pool of huge pages, reserved before; no RSS and no memory cgroup counts them",
}
_BECAUSE = {
    "locked": "; they are locked (mlock), so here the kernel cannot take them back",
    "huge pages": "; most of it lies in transparent huge pages: 2 MiB each, however little of one is used",
}


def headline(grew: str, trace: Trace, by_kind: dict[str, Course], last: Sample, because: str = "") -> str:
    """One sentence on growth, what can kill first; then that it was slowed down, if it was."""
    return _growth_sentence(grew, trace, by_kind, last, because) + _throttled(trace)


def _growth_sentence(grew: str, trace: Trace, by_kind: dict[str, Course], last: Sample, because: str) -> str:
    if grew == "nothing":
        return _nothing_grew(trace, by_kind)
    if grew == "retained":
        in_part = any(each.retained_from.endswith("in part") for each in last.processes)
        least = "at least " if in_part else ""
        return (
            f"retained {least}{format_size(last.retained)} of {format_size(last.anon)} of heap. Not a leak: freed by "
            "the program and kept by its allocator, which uses it again but gives it back to nobody else."
        )
    growth = by_kind["anon" if grew in ("workers", "copied") else grew].growth
    rate = f", {format_size(growth.per_minute)} per minute" if growth.per_minute > 0 and trace.about != "block" else ""
    others = [each.growth for each in by_kind.values() if each.grew and each.growth.kind in TAKEABLE]
    most = max(others, key=lambda each: each.grew, default=None)
    beside = ""
    if grew not in ("mapped", "cache", "dirty") and most is not None and most.grew > growth.grew:
        beside = f" Besides, {most.kind} +{format_size(most.grew)}, which can be taken back."
    means = _MEANS[grew].format(used=_used(last))
    means = means.removeprefix("not a leak: ") if because == "locked" else means
    return (
        f"{grew} +{format_size(growth.grew)}{rate}. {means[0].upper()}{means[1:]}{_BECAUSE.get(because, '')}.{beside}"
    )


def _used(last: Sample) -> str:
    """What was done to the files whose cache it is."""
    cached = sum(file.cache for file in last.files)
    written = sum(file.cache for file in last.files if file.written)
    if written < 0.2 * cached:
        return "read"
    return "wrote" if written > 0.8 * cached and last.read_bytes < 0.5 * cached else "wrote and read"


def _throttled(trace: Trace) -> str:
    seen = [sample.cgroup for sample in trace.samples if sample.cgroup is not None]
    times = seen[-1].throttled - seen[0].throttled if seen and seen[0].path == seen[-1].path else 0
    if times <= 0 or seen[-1].high is None:
        return ""
    return f" Throttled {times:,} times at memory.high, {format_size(seen[-1].high)}: slowed down, not killed."


def parts_text(sample: Sample) -> str:
    """What is charged to the cgroup and in no process, by name."""
    return ", ".join(f"{name} {format_size(size)}" for name, size in sample.without_process())


def shown_elsewhere(sample: Sample) -> tuple[Shown, ...]:
    """Why a dashboard differs: what other tools show at this moment, beside ours."""
    cgroup = sample.cgroup
    found = []
    if cgroup is not None:
        found = [
            Shown("usage", cgroup.current, "all that is charged to the cgroup, page cache and kernel memory included"),
            Shown(
                "working set",
                cgroup.working_set,
                f"usage without inactive file pages; {format_size(cgroup.active_file)} of active ones still count "
                "(kubectl top, docker stats)",
            ),
        ]
    ours = "the processes watched and their files, each page once, cached pages included"
    return (
        *found,
        Shown("RSS", sample.rss, "what the processes map, pages that they share counted in each (top, ps)"),
        Shown("ours", sample.total, ours),
    )


def _questions(trace: Trace, last: Sample) -> list[str]:
    """What people with a killed job ask, one line each: in no process, another dashboard, slowed down."""
    lines = [f"shown as {each.name}: {format_size(each.bytes)}: {each.counts}" for each in shown_elsewhere(last)]
    cgroup = last.cgroup
    if cgroup is not None:
        parts = parts_text(last)
        lines.append(
            f"charged to the cgroup, in no process: {format_size(last.in_no_process)}"
            + (f" ({parts})" if parts else "")
        )
        if cgroup.version == 1:
            lines.append("throttled: no, cgroups of version 1 have no memory.high")
        elif cgroup.high is None:
            lines.append("throttled: no, memory.high is not set")
        elif not _throttled(trace):
            lines.append(f"throttled: not while it was watched, memory.high is {format_size(cgroup.high)}")
    return lines


def _heap_lines(trace: Trace) -> list[str]:
    """What of the heap is huge pages, locked, or with an allocator that cannot be asked."""
    lines = []
    locked = max(sample.locked for sample in trace.samples)
    if locked:
        lines.append(f"locked in memory (mlock): {format_size(locked)}, which nobody can take back")
    huge = max(trace.samples, key=lambda sample: sum(each.huge for each in sample.processes))
    size = sum(each.huge for each in huge.processes)
    if size:
        lines.append(f"transparent huge pages (AnonHugePages): {format_size(size)} of {format_size(huge.anon)} of heap")
    unread = max(trace.samples, key=lambda sample: sum(each.unread for each in sample.processes))
    size = sum(each.unread for each in unread.processes)
    if size:
        names = " and ".join(dict.fromkeys(each.allocator for each in unread.processes if each.unread))
        lines.append(
            f"retained: unknown for {format_size(size)} of heap that is not the C library's; an allocator that cannot "
            f"be asked is there: {names}"
        )
    return lines


def _nothing_grew(trace: Trace, by_kind: dict[str, Course]) -> str:
    started = max((each.growth for each in by_kind.values()), key=lambda growth: growth.peak - growth.first)
    early = started.peak - started.first
    noise = by_kind[started.kind].noise
    stayed = started.last >= started.peak - noise
    how = "at the start only" if stayed else "at most and fell again"
    after = f"; {started.kind} rose by {format_size(early)} {how}" if early >= noise else ""
    return f"Nothing grew in {format_duration(trace.seconds)}{after}."


def not_it(grew: str, by_kind: dict[str, Course], samples: tuple[Sample, ...]) -> tuple[str, ...]:
    involved = {"workers": "anon", "copied": "anon", "retained": "anon"}.get(grew, grew)
    lines = [
        f"{kind}: fell by {format_size(-each.growth.grew)}"
        if each.growth.grew <= -each.noise
        else f"{kind}: {signed(each.growth.grew)}, within noise"
        for kind, each in by_kind.items()
        if kind != involved and not each.grew
    ]
    forked = {process.pid for sample in samples for process in sample.processes if process.forked}
    if grew != "retained" and samples[-1].retained:
        lines.append(f"retained: {format_size(samples[-1].retained)} freed and kept by allocators")
    if grew not in ("workers", "copied"):
        lines.append(
            "workers: " + (f"{len(forked)} forked, none of them grew on its own" if forked else "no forked children")
        )
    return tuple(lines)


def evidence(trace: Trace, by_kind: dict[str, Course], about: Course | None) -> tuple[str, ...]:
    first, last = trace.samples[0], trace.samples[-1]
    lines = [
        f"{len(trace.samples)} samples over {format_duration(trace.seconds)}, "
        f"processes seen: {len({each.pid for sample in trace.samples for each in sample.processes})}; last close look "
        f"{format_duration(last.look_age)} before the last sample",
        f"RSS as other tools add it up: {format_size(first.rss)} -> {format_size(last.rss)}, "
        f"at most {format_size(max(sample.rss for sample in trace.samples))}",
        f"faults: {last.major_faults - first.major_faults:,} major, {last.minor_faults - first.minor_faults:,} minor; "
        f"read from storage: {format_size(last.read_bytes - first.read_bytes)}",
    ]
    if about is not None:
        share = (1 + about.rising) / 2
        lines.append(
            f"{about.growth.kind}: {share:.0%} of sample pairs rise, {signed(about.growth.per_minute)} per minute"
        )
    others = [each.growth for each in by_kind.values() if each.grew and each is not about]
    lines += [f"{each.kind} rose too: {signed(each.grew)}" for each in others]
    cgroup = last.cgroup
    seen = [each.cgroup for each in trace.samples if each.cgroup is not None]
    if cgroup is not None:
        begin = next(each for each in seen if each.path == cgroup.path)
        lines.append(
            f"cgroup v{cgroup.version} {cgroup.path}: anon {signed(cgroup.anon - begin.anon)}, "
            f"file {signed(cgroup.file - begin.file)}, shmem {signed(cgroup.shmem - begin.shmem)}, "
            f"refaults {cgroup.refaults - begin.refaults:,}"
        )
    lines += _heap_lines(trace)
    lines += _questions(trace, last)
    lines += [f"not measured: {name} ({why})" for name, why in trace.missing.items()]
    if trace.cut_short:
        lines.append("the trace file ends in the middle of a line or without its last one; what came before was judged")
    return tuple(lines)
