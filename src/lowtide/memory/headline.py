"""The sentence that says what grew. Pure.

One idea: one sentence with the number that matters, the same for everybody.
"""

from __future__ import annotations

from lowtide.memory.growth import Course
from lowtide.memory.samples import Sample, Trace
from lowtide.units import format_duration, format_size

_SAYS = {
    "anon": "the heap grew: memory the program itself holds, which nobody can take back",
    "mapped": "not a leak: clean file pages, mapped by the program, which the kernel can take back but RSS counts",
    "cache": "not a leak: page cache of files it read, which no process maps and the kernel can take back",
    "dirty": "written to files and not yet to the disk, which must happen before the kernel can take it back",
    "tables": "page tables grew: huge mappings touched in many places; RSS does not show it, madvise does not free it",
    "shmem": "shared memory grew: tmpfs or /dev/shm, which looks like cache and cannot be taken back",
    "workers": "forked workers copy memory they shared with the parent (reading a Python object writes its count)",
}


def headline(grew: str, trace: Trace, by_kind: dict[str, Course], last: Sample) -> str:
    """One sentence on growth."""
    if grew == "nothing":
        return _nothing(trace, by_kind)
    if grew == "retained":
        return (
            f"retained {format_size(last.retained)} of {format_size(last.anon)} of heap: not a leak: freed by the "
            "program and kept by its allocator, which uses it again but gives it back to nobody else."
        )
    growth = by_kind["anon" if grew == "workers" else grew].growth
    rate = f", {format_size(growth.per_minute)} per minute" if growth.per_minute > 0 and trace.about != "block" else ""
    return f"{grew} +{format_size(growth.grew)}{rate}: {_SAYS[grew]}."


def _nothing(trace: Trace, by_kind: dict[str, Course]) -> str:
    started = max((each.growth for each in by_kind.values()), key=lambda growth: growth.peak - growth.first)
    early = started.peak - started.first
    noise = by_kind[started.kind].noise
    stayed = started.last >= started.peak - noise
    how = "at the start only" if stayed else "at most and fell again"
    after = f"; {started.kind} rose by {format_size(early)} {how}" if early >= noise else ""
    return f"Nothing grew in {format_duration(trace.seconds)}{after}."
