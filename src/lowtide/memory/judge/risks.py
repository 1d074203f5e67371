"""What can happen next: the kernel's kill, kubelet's eviction, waiting writers, thrashing. Pure.

Danger is what cannot be taken back, not what a dashboard shows. A cgroup at 96 % of its limit whose pages
are mostly file pages is in none; one at 60 % whose heap climbs is, whatever else climbs beside it. At ``memory.high``
the kernel slows a program down and does not kill it. A time is given only for a program that still runs, at the rate
that was measured, to a limit that is known.
"""

from __future__ import annotations

from lowtide.memory.judge.findings import Growth, Risk
from lowtide.memory.judge.growth import Course
from lowtide.memory.judge.holding import limit_of
from lowtide.memory.samples import STAYS, CgroupSample, Sample, TmpfsSample, Trace
from lowtide.units import format_duration, format_size

_FULL = 0.9  # of the limit, in bytes that cannot be taken back
_SOON = 1800.0  # seconds
_REFAULTS = 10_000
_PRESSED = 10.0  # percent of the time in which somebody waited for memory


def risks(grew: str, trace: Trace, last: Sample, by_kind: dict[str, Course]) -> tuple[Risk, ...]:
    """The risks of a trace, the kernel's kill first."""
    cgroup = last.cgroup
    seen = (sample.cgroup for sample in trace.samples if sample.cgroup is not None)
    first = next((each for each in seen if cgroup is not None and each.path == cgroup.path), None)
    final = trace.samples[-1].cgroup  # kills are counted once more after the end
    kills = final.oom_kills - first.oom_kills if final is not None and first is not None else 0
    growth = rising({kind: each for kind, each in by_kind.items() if grew != "retained" or kind != "anon"})
    found = [_kernel(trace, last, growth, kills)]
    # Full in one of the last samples: after the end its files may be gone.
    full = {tmpfs.path: tmpfs for sample in trace.samples[-8:] for tmpfs in sample.tmpfs if tmpfs.full}
    found += [_full(tmpfs) for tmpfs in full.values()]
    if first is not None and cgroup is not None:
        found += _throttled(first, cgroup, trace, growth)
    if cgroup is not None and cgroup.limit is not None:
        found.append(_kubelet(cgroup))
    if grew == "dirty":
        sentence = (
            "writers are made to wait at vm.dirty_ratio, in a cgroup near its limit; a crash loses what is not written"
        )
        found.append(Risk("dirty", "low", sentence))
    if first is not None and cgroup is not None:
        found += _kills(kills, cgroup, trace)
        found += _thrash(first, cgroup)
    if cgroup is not None and cgroup.pressure is not None and cgroup.pressure >= _PRESSED:
        waited = f"memory pressure: tasks waited for memory {cgroup.pressure:.0f} % of the last 10 s"
        found.append(Risk("pressure", "high", waited))
    return tuple(risk for risk in found if risk is not None)


def rising(by_kind: dict[str, Course]) -> Growth | None:
    """How what nobody can take back grew, all such kinds together; None where none did."""
    risen = [by_kind[kind].growth for kind in STAYS if kind in by_kind and by_kind[kind].grew]
    if not risen:
        return None
    rate = sum(max(0, each.per_minute) for each in risen)
    return Growth("stays", 0, 0, 0, sum(each.grew for each in risen), rate)


def _kernel(trace: Trace, last: Sample, growth: Growth | None, kills: int) -> Risk | None:
    limit, where, used = limit_of(trace, last)
    if trace.ended is not None and trace.ended.how == "oom":
        return Risk("oom", "high", trace.ended.sentence, trace.ended.limit, trace.ended.anon, 0.0)
    if trace.ended is not None and trace.ended.killed:
        names = ", ".join(trace.ended.killed)
        return Risk("oom", "high", f"kernel OOM kill: it killed {names}, not the program itself", limit, used, 0.0)
    if limit is None:
        return Risk("oom", "low", "no limit is known here, so no time can be given") if growth is not None else None
    share = used / limit
    amount = f"{format_size(used)} of {format_size(limit)} ({where}) cannot be taken back"
    if trace.ended is not None or trace.exit_code is not None:
        hit = "did not hit the program itself" if kills > 0 else "did not happen"
        sentence = f"kernel OOM kill: {hit}; {amount.replace('cannot', 'could not')} when it ended"
        return Risk("oom", "none", sentence, limit, used)
    level = "high" if share >= _FULL else "none"
    if growth is None:
        unlikely = "kernel OOM kill: " + ("near, " if level == "high" else "unlikely, ")
        return Risk("oom", level, unlikely + amount, limit, used)
    if growth.per_minute <= 0:
        return Risk("oom", level, f"kernel OOM kill: {amount}", limit, used)
    seconds = 60 * max(0, limit - used) / growth.per_minute
    soon = seconds <= max(_SOON, 2 * trace.seconds)
    sentence = f"kernel OOM kill at {format_size(limit)} ({where}) in about {format_duration(seconds)} at this rate"
    return Risk("oom", "high" if soon or level == "high" else "low", sentence, limit, used, seconds)


def _full(tmpfs: TmpfsSample) -> Risk:
    sentence = (
        f"{tmpfs.path} is full ({format_size(tmpfs.used)} of {format_size(tmpfs.size)}): the next write there fails, "
        "and one through a mapping ends in a bus error (--shm-size, emptyDir sizeLimit)"
    )
    return Risk("tmpfs", "high", sentence, tmpfs.size, tmpfs.used)


def _throttled(first: CgroupSample, last: CgroupSample, trace: Trace, growth: Growth | None) -> list[Risk]:
    """At memory.high: slowed down, not killed."""
    if last.high is None:
        return []
    times, high = last.throttled - first.throttled, format_size(last.high)
    if times > 0:
        sentence = f"throttled {times:,} times at memory.high, {high}: slowed down, not killed"
        return [Risk("throttled", "low", sentence, last.high, last.current)]
    running = trace.ended is None and trace.exit_code is None
    if growth is None or growth.per_minute <= 0 or not running or (last.limit or last.high + 1) <= last.high:
        return []
    seconds = 60 * max(0, last.high - last.unreclaimable) / growth.per_minute
    sentence = f"throttled at memory.high, {high}, in about {format_duration(seconds)} at this rate"
    return [Risk("throttled", "low", sentence, last.high, last.unreclaimable, seconds)]


def _kubelet(cgroup: CgroupSample) -> Risk:
    limit = cgroup.limit or 1
    sentence = (
        f"kubelet eviction: working set {format_size(cgroup.working_set)} of {format_size(limit)} "
        f"({cgroup.working_set / limit:.0%}), of it {format_size(cgroup.active_file)} file pages touched more than "
        "once, which the kernel takes back before it kills"
    )
    level = "low" if cgroup.working_set >= _FULL * limit else "none"
    return Risk("eviction", level, sentence, limit, cgroup.working_set)


def _kills(kills: int, last: CgroupSample, trace: Trace) -> list[Risk]:
    if kills <= 0 or (trace.ended is not None and (trace.ended.how == "oom" or trace.ended.killed)):
        return []
    sentence = f"the kernel killed {kills} process(es) of this cgroup while it was watched"
    return [Risk("oom", "high", sentence, last.limit, last.current)]


def _thrash(first: CgroupSample, last: CgroupSample) -> list[Risk]:
    """Refaults against the cgroup's own limit: without one, or far from it, somebody else takes the pages."""
    if last.refaults - first.refaults <= _REFAULTS:
        return []
    if last.limit is not None and last.current >= _FULL * last.limit:
        limit = format_size(last.limit)
        sentence = f"pages were evicted and read again: {limit} is below what the program uses over and over"
        return [Risk("thrash", "high", sentence, last.limit, last.current)]
    why = "its cgroup is far from its limit" if last.limit is not None else "its cgroup has no limit"
    sentence = f"pages were evicted and read again, though {why}: somebody else on this machine needs the room"
    return [Risk("thrash", "low", sentence, last.limit, last.current)]
