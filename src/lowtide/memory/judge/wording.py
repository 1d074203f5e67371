"""What a verdict says in words: the sentence on growth, what it is not, and the evidence. Pure.

The words are chosen here once, so that every report says the same.
"""

from __future__ import annotations

from lowtide.memory.judge.growth import Course
from lowtide.memory.samples import Sample, Trace
from lowtide.units import format_duration, format_size

_MEANS = {
    "anon": "the heap grew: memory the program itself holds, which nobody can take back",
    "mapped": "not a leak: clean file pages, mapped by the program, which the kernel can take back but RSS counts",
    "cache": "not a leak: page cache of files it {used}, which no process maps and the kernel can take back",
    "dirty": "written to files and not yet to the disk, which must happen before the kernel can take it back",
    "tables": "page tables grew: huge mappings touched in many places; RSS does not show it, madvise does not free it",
    "shmem": "shared memory grew: tmpfs or /dev/shm, which looks like cache and cannot be taken back",
    "workers": "forked workers copy memory they shared with the parent (reading a Python object writes its count)",
}


def headline(grew: str, trace: Trace, by_kind: dict[str, Course], last: Sample) -> str:
    """One sentence on growth."""
    if grew == "nothing":
        return _nothing_grew(trace, by_kind)
    if grew == "retained":
        return (
            f"retained {format_size(last.retained)} of {format_size(last.anon)} of heap: not a leak: freed by the "
            "program and kept by its allocator, which uses it again but gives it back to nobody else."
        )
    growth = by_kind["anon" if grew == "workers" else grew].growth
    rate = f", {format_size(growth.per_minute)} per minute" if growth.per_minute > 0 and trace.about != "block" else ""
    return f"{grew} +{format_size(growth.grew)}{rate}: {_MEANS[grew].format(used=_used(last))}."


def _used(last: Sample) -> str:
    """What was done to the files whose cache it is."""
    cached = sum(file.cache for file in last.files)
    written = sum(file.cache for file in last.files if file.written)
    return "wrote" if written > 0.8 * cached else "read" if written < 0.2 * cached else "read and wrote"


def _nothing_grew(trace: Trace, by_kind: dict[str, Course]) -> str:
    started = max((each.growth for each in by_kind.values()), key=lambda growth: growth.peak - growth.first)
    early = started.peak - started.first
    noise = by_kind[started.kind].noise
    stayed = started.last >= started.peak - noise
    how = "at the start only" if stayed else "at most and fell again"
    after = f"; {started.kind} rose by {format_size(early)} {how}" if early >= noise else ""
    return f"Nothing grew in {format_duration(trace.seconds)}{after}."


def not_it(grew: str, by_kind: dict[str, Course], samples: tuple[Sample, ...]) -> tuple[str, ...]:
    involved = {"workers": "anon", "retained": "anon"}.get(grew, grew)
    lines = [
        f"{kind}: fell by {format_size(-each.growth.grew)}"
        if each.growth.grew <= -each.noise
        else f"{kind}: {_signed(each.growth.grew)}, within noise"
        for kind, each in by_kind.items()
        if kind != involved and not each.grew
    ]
    forked = {process.pid for sample in samples for process in sample.processes if process.forked}
    if grew != "retained" and samples[-1].retained:
        lines.append(f"retained: {format_size(samples[-1].retained)} freed and kept by allocators")
    if grew != "workers":
        lines.append(
            "workers: " + (f"{len(forked)} forked, no growth of theirs alone" if forked else "no forked children")
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
            f"{about.growth.kind}: {share:.0%} of sample pairs rise, {_signed(about.growth.per_minute)} per minute"
        )
    others = [each.growth for each in by_kind.values() if each.grew and each is not about]
    lines += [f"{each.kind} rose too: {_signed(each.grew)}" for each in others]
    cgroup = last.cgroup
    seen = [each.cgroup for each in trace.samples if each.cgroup is not None]
    if cgroup is not None:
        begin = next(each for each in seen if each.path == cgroup.path)
        lines.append(
            f"cgroup v{cgroup.version} {cgroup.path}: anon {_signed(cgroup.anon - begin.anon)}, "
            f"file {_signed(cgroup.file - begin.file)}, shmem {_signed(cgroup.shmem - begin.shmem)}, "
            f"refaults {cgroup.refaults - begin.refaults:,}"
        )
    lines += [f"not measured: {name} ({why})" for name, why in trace.missing.items()]
    if trace.cut_short:
        lines.append("the trace file ends in the middle of a line or without its last one; what came before was judged")
    return tuple(lines)


def _signed(size: int) -> str:
    return ("+" if size >= 0 else "-") + format_size(abs(size))
