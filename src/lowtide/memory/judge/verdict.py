"""From a trace to a verdict: what is held, which kind of memory grew, whose it is, how sure that is. Pure.

The kind that rose most, beyond noise and after start-up, is the answer, with three corrections: page cache that mapping
a file brought in goes with the mapping; heap that grows only because forked children copy what they inherited is
``workers``; heap that the program has freed and its allocator keeps is ``retained``. What the trace lacks lowers the
confidence.
"""

from __future__ import annotations

from lowtide.memory.judge.findings import BudgetOutcome, Verdict
from lowtide.memory.judge.fixes import fixes
from lowtide.memory.judge.growers import growers, grown_files, grown_processes, largest_files
from lowtide.memory.judge.growth import NOISE, Course, course, courses
from lowtide.memory.judge.holding import holding, last_whole
from lowtide.memory.judge.risks import risks
from lowtide.memory.judge.wording import evidence, headline, not_it
from lowtide.memory.samples import OF_FILES, Sample, Trace
from lowtide.units import format_duration, format_size

_READ_AROUND = 0.1  # mapped is named before cache when it is at least this part of it: the rest is read-around
_FROM_WORKERS, _PARENT_FLAT = 0.5, 0.2
# Samples with workers and bytes copied by them from which on they are judged apart, and the share of the largest growth
# (what their parent built before it forked them) that this must be.
_FEW, _COPIED, _COPIED_SHARE = 4, 4 * NOISE, 0.25
_UNSEEN = 4 * NOISE  # other processes of the cgroup read files too
_MUCH_RETAINED, _MUCH_RETAINED_SHARE = 4 * NOISE, 0.25  # from here on what the allocator keeps is worth a verdict


def judge(trace: Trace) -> Verdict:
    """The verdict on a whole trace."""
    samples = trace.samples
    if not samples:
        why = "; ".join(trace.missing.values()) or "the process ended before the first sample"
        unchecked = "" if trace.budget is None else ", so the budget was not checked"
        ending = "" if trace.ended is None else f" It ended: {trace.ended.sentence}."
        return Verdict("nothing", "low", f"Nothing was measured: {why}{unchecked}.{ending}", ended=trace.ended)
    last = last_whole(trace)
    # What a process itself has is judged up to its teardown; what its files have, to the very end.
    alive = tuple(sample for sample in samples if sample.seconds <= last.seconds)
    by_kind = courses(alive, trace.about) | {
        kind: each for kind, each in courses(samples, trace.about).items() if kind in OF_FILES
    }
    grew = _which(by_kind, alive, trace)
    copied = _copied(alive)
    if copied is not None and grew in ("anon", "nothing", "retained") and _is_most(copied, by_kind, last):
        grew, by_kind["anon"] = "workers", copied
    about = None if grew in ("nothing", "retained") else by_kind["anon" if grew == "workers" else grew]
    processes = grown_processes(grew, alive)
    files = grown_files(grew, samples)
    # The process behind the growth, or the one that holds most where files grew.
    behind = [process for process, _ in processes] or sorted(last.processes, key=lambda each: -each.rss)
    closed = trace.ended is not None or trace.exit_code is not None
    confidence, sentence = _worded(grew, trace, by_kind, about, last)
    return Verdict(
        grew=grew,
        confidence=confidence,
        headline=sentence,
        held=holding(trace),
        ended=trace.ended,
        growth=tuple(each.growth for each in by_kind.values()),
        who=growers(grew, files, processes),
        risk=risks(grew, trace, last, about.growth if about else None),
        fix=tuple(str(fix) for fix in fixes(grew, largest_files(files), behind, closed=closed)),
        not_it=not_it(grew, by_kind, alive),
        evidence=evidence(trace, by_kind, about),
        budget=_against_budget(trace),
    )


def _worded(grew: str, trace: Trace, by_kind: dict[str, Course], about: Course | None, last: Sample) -> tuple[str, str]:
    """How sure it is, and the sentence: what ended it first, what went wrong with the measuring last."""
    samples = trace.samples
    sentence = headline(grew, trace, by_kind, last)
    confidence = _retained_confidence(last) if grew == "retained" else _confidence(trace, by_kind, about)
    unseen = _unseen(samples)
    if grew == "nothing" and unseen >= _UNSEEN:
        confidence = "low"
        sentence += (
            f" But {format_size(unseen)} that it read stayed in the page cache, of files opened and closed between "
            "two samples."
        )
    if trace.ended is not None and trace.ended.how == "oom":
        sentence = f"{trace.ended.sentence[:1].upper()}{trace.ended.sentence[1:]}. {sentence}"
    if trace.cut_short:
        sentence += (
            f" The trace stops after {format_duration(trace.seconds)} without an end: its writer was killed too."
        )
    if "sampling" in trace.missing:
        confidence = "low"
        sentence += f" Sampling failed: {trace.missing['sampling']}."
    return confidence, sentence


def _which(by_kind: dict[str, Course], samples: tuple[Sample, ...], trace: Trace) -> str:
    risen = sorted((each for each in by_kind.values() if each.grew), key=lambda each: -each.growth.grew)
    top = risen[0].growth if risen else None
    if _is_retained(samples, top.grew if top is not None else 0, of_heap=top is not None and top.kind == "anon"):
        return "retained"
    if top is None:
        return "nothing"
    mapped = by_kind["mapped"]
    if top.kind == "cache" and mapped.grew and mapped.growth.grew >= _READ_AROUND * top.grew:
        return "mapped"
    if top.kind == "anon" and _is_workers(samples, top.grew, trace.about):
        return "workers"
    return top.kind


def _is_retained(samples: tuple[Sample, ...], rise: int, *, of_heap: bool) -> bool:
    """What the allocators keep at the end is much, came while watching, and is most of what rose."""
    last = samples[-1]
    came = last.retained - samples[0].retained
    if min(last.retained, came) < max(_MUCH_RETAINED, _MUCH_RETAINED_SHARE * last.anon):
        return False
    return came >= (0.5 * rise if of_heap else rise)


def _retained_confidence(last: Sample) -> str:
    """The allocator's own account is as good as it gets; pages marked as free say so of themselves only."""
    said_by = {process.retained_from for process in last.processes if process.retained}
    return "high" if said_by == {"allocator"} else "medium"


def _is_most(copied: Course, by_kind: dict[str, Course], last: Sample) -> bool:
    """Whether what workers copied outweighs what their parent built before it forked them, and what it has freed."""
    most = max((each.growth.grew for each in by_kind.values() if each.grew), default=0)
    return copied.growth.grew >= max(_COPIED_SHARE * most, last.retained)


def _copied(samples: tuple[Sample, ...]) -> Course | None:
    """The course of the heap while forked workers lived, if they copied it: they may have begun late and ended
    early."""
    places = [place for place, sample in enumerate(samples) if any(each.forked for each in sample.processes)]
    if len(places) < _FEW:
        return None
    span = samples[places[0] : places[-1] + 1]
    anon = course("anon", [(sample.seconds, sample.anon) for sample in span], "process")
    enough = anon.grew and anon.growth.grew >= _COPIED
    return anon if enough and _is_workers(span, anon.growth.grew, "process") else None


def _is_workers(samples: tuple[Sample, ...], rise: int, about: str) -> bool:
    """Forked children copied pages while every other process stayed flat. Parents are judged by whole RSS:
    their share of common pages rises by itself when a child makes its own copies. Whole RSS also tells a copy
    from an allocation: a page copied was in the child's RSS before, a page allocated was not."""
    if not any(process.forked for sample in samples for process in sample.processes):
        return False
    forked = course("forked", [(s.seconds, sum(p.anon for p in s.processes if p.forked)) for s in samples], about)
    parents = [(s.seconds, sum(p.rss_anon for p in s.processes if not p.forked)) for s in samples]
    others = course("others", parents, about)
    allocated = course("allocated", list(zip((s.seconds for s in samples), _allocated(samples), strict=True)), about)
    return (
        forked.growth.grew >= _FROM_WORKERS * rise
        and others.growth.grew < _PARENT_FLAT * rise
        and allocated.growth.grew < _FROM_WORKERS * rise
    )


def _allocated(samples: tuple[Sample, ...]) -> list[int]:
    """For each sample, the heap of forked children beyond what they can have inherited: their first RSS, or
    their parent's then if that was less."""
    inherited: dict[int, int] = {}
    sizes = []
    for sample in samples:
        now = {process.pid: process.rss_anon for process in sample.processes}
        size = 0
        for process in sample.processes:
            if process.forked:
                most = min(process.rss_anon, now.get(process.parent, process.rss_anon))
                size += max(0, process.rss_anon - inherited.setdefault(process.pid, most))
        sizes.append(size)
    return sizes


def _unseen(samples: tuple[Sample, ...]) -> int:
    """Bytes the tree read from storage that the cgroup still holds as file pages, in no file that was seen."""
    first, last = samples[0], samples[-1]
    if first.cgroup is None or last.cgroup is None or first.cgroup.path != last.cgroup.path:
        return 0
    seen = [sample.cache + sample.mapped + sample.dirty + sample.shmem for sample in samples]
    held = min(last.cgroup.file - first.cgroup.file, last.read_bytes - first.read_bytes)
    return held - (max(seen) - seen[0])


def _confidence(trace: Trace, by_kind: dict[str, Course], about: Course | None) -> str:
    blind = {"sharing", "cache", "dirty", "shmem", *by_kind} & set(trace.missing)
    if about is None:
        calm = all(each.growth.grew < each.noise / 2 for each in by_kind.values())
        # Files are asked less often than processes; kinds that were hardly looked at cannot be said to be flat.
        enough = by_kind["anon"].samples >= 8 and min(by_kind[kind].samples for kind in OF_FILES) >= 4
        return "high" if enough and calm and not blind else "medium" if enough else "low"
    if about.samples >= 6 and about.growth.grew >= 4 * about.noise and about.rising >= 0.6 and not blind:
        return "high"
    return "medium" if about.samples >= 4 and about.rising >= 0.3 else "low"


def _against_budget(trace: Trace) -> BudgetOutcome | None:
    if trace.budget is None:
        return None
    peak = max(trace.samples, key=lambda sample: sample.held)
    return BudgetOutcome(trace.budget, peak.held, peak.seconds)
