"""From a trace to a verdict: what is held, which kind of memory grew, whose it is, how sure that is. Pure.

What nobody can take back is judged apart and first, because it is what kills: of those kinds the one that rose most,
beyond noise and after start-up, is the answer, however much page cache came beside it. Where none rose, it is the kind
that rose most of the others. Four corrections: page cache that mapping a file brought in goes with the mapping; heap
that grows only because forked children copy what they inherited is ``workers``; because their parent goes on writing to
what they keep, ``copied``; heap that the program has freed and its allocator keeps is ``retained``. Whatever the trace
lacks lowers the confidence, and so does outdated evidence (freshness.py). If the cgroup or a tmpfs shows memory that no
process holds, "nothing" never has high confidence.
"""

from __future__ import annotations

from lowtide.memory.judge.findings import BudgetOutcome, Verdict
from lowtide.memory.judge.fixes import fixes
from lowtide.memory.judge.freshness import outdated
from lowtide.memory.judge.growers import growers, grown_files, grown_processes, largest_files
from lowtide.memory.judge.growth import NOISE, Course, course, courses
from lowtide.memory.judge.holding import holding, last_whole, unseen_peak
from lowtide.memory.judge.risks import risks
from lowtide.memory.judge.wording import evidence, headline, not_it, parts_text, shown_elsewhere
from lowtide.memory.samples import OF_FILES, STAYS, Sample, Trace
from lowtide.units import format_duration, format_size

_SURE = ("low", "medium", "high")
_READ_AROUND = 0.1  # mapped is named before cache when it is at least this part of it: the rest is read-around
# Growth that cannot be taken back leads from twice its noise on where it is steady, else from a share of the largest.
_LEADS, _STEADY, _LEADING_SHARE = 2, 0.5, 0.1
_FROM_WORKERS, _ALLOCATED, _PARENT_FLAT = 0.4, 0.5, 0.2
_BY_PARENT = 0.6  # of the faults, while forked children live: it is the parent that writes and so copies
_MOSTLY = 0.5  # of a growth: locked, or in huge pages
# Samples with workers and bytes copied by them from which on they are judged apart, and the share of the largest growth
# (what their parent built before it forked them) that this must be.
_FEW, _COPIED, _COPIED_SHARE = 4, 4 * NOISE, 0.25
_SHORT = 1.0  # seconds: a program that ends sooner has hardly a course
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
    if copied is not None and grew in ("anon", "nothing", "retained", "workers") and _is_most(copied, by_kind, last):
        grew, by_kind["anon"] = _copying(alive, copied.growth.grew, "process", span=True), copied
    about = None if grew in ("nothing", "retained") else by_kind["anon" if grew in ("workers", "copied") else grew]
    because = _because(grew, alive, about)
    processes = grown_processes(grew, alive)
    files = grown_files(grew, samples)
    # The process behind the growth, or the one that holds most where files grew.
    behind = [process for process, _ in processes] or sorted(last.processes, key=lambda each: -each.rss)
    closed = trace.ended is not None or trace.exit_code is not None
    confidence, sentence = _worded(grew, trace, by_kind, about, last, because)
    stale = outdated(grew, samples, last)
    if stale:
        confidence = min(confidence, "medium", key=_SURE.index)
    at_risk = risks(grew, trace, last, by_kind)
    return Verdict(
        grew=grew,
        confidence=confidence,
        headline=sentence,
        held=holding(trace),
        ended=trace.ended,
        growth=tuple(each.growth for each in by_kind.values()),
        who=growers(grew, files, processes),
        risk=at_risk,
        fix=tuple(str(fix) for fix in fixes(grew, largest_files(files), behind, closed=closed)),
        not_it=not_it(grew, by_kind, alive),
        evidence=(*((stale,) if stale else ()), *evidence(trace, by_kind, about)),
        budget=_against_budget(trace),
        because=because,
        throttled=any(risk.what == "throttled" and risk.seconds is None for risk in at_risk),
        shown=shown_elsewhere(last),
    )


def _worded(
    grew: str, trace: Trace, by_kind: dict[str, Course], about: Course | None, last: Sample, because: str
) -> tuple[str, str]:
    """How sure it is, and the sentence: how it ended comes first, problems with the measuring last."""
    samples = trace.samples
    sentence = headline(grew, trace, by_kind, last, because)
    confidence = _retained_confidence(last) if grew == "retained" else _confidence(trace, by_kind, about)
    unseen = _unseen(samples)
    if grew == "nothing" and unseen >= _UNSEEN:
        confidence = "low"
        sentence += (
            f" But {format_size(unseen)} that it read stayed in the page cache, of files opened and closed between "
            "two samples."
        )
    beside = _beside(samples, last)
    if grew == "nothing" and beside >= _UNSEEN:
        confidence = "low"
        sentence += (
            f" But {format_size(beside)} more than before is charged to its cgroup and held by no process: "
            f"{parts_text(last)}."
        )
    if grew == "anon" and about is not None and _unreadable(samples, about):
        confidence = min(confidence, "medium", key=_SURE.index)
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
    stay = [each for each in risen if each.growth.kind in STAYS or _is_locked(samples, each)]
    leading = next((each for each in stay if _leads(each, risen[0])), risen[0] if risen else None)
    top = leading.growth if leading is not None else None
    if _is_retained(samples, top.grew if top is not None else 0, of_heap=top is not None and top.kind == "anon"):
        return "retained"
    if top is None:
        return "nothing"
    mapped = by_kind["mapped"]
    if top.kind == "cache" and mapped.grew and mapped.growth.grew >= _READ_AROUND * top.grew:
        return "mapped"
    return (_copying(samples, top.grew, trace.about) if top.kind == "anon" else "") or top.kind


def _leads(each: Course, most: Course) -> bool:
    """Whether growth that cannot be taken back is the answer, beside the largest of any kind."""
    growth = each.growth.grew
    return (growth >= _LEADS * each.noise and each.rising >= _STEADY) or growth >= _LEADING_SHARE * most.growth.grew


def _is_locked(samples: tuple[Sample, ...], each: Course) -> bool:
    """Mapped pages that were locked stay as heap does."""
    rise = samples[-1].locked_files - samples[0].locked_files
    return each.growth.kind == "mapped" and rise >= _MOSTLY * each.growth.grew


def _because(grew: str, samples: tuple[Sample, ...], about: Course | None) -> str:
    if about is None:
        return ""
    if grew == "mapped" and _is_locked(samples, about):
        return "locked"
    huge = [sum(each.huge for each in sample.processes) for sample in samples]
    if grew == "anon" and max(huge) - huge[0] >= _MOSTLY * about.growth.grew:
        return "huge pages"
    return ""


def _unreadable(samples: tuple[Sample, ...], about: Course) -> bool:
    """Whether most of the heap's growth lies with an allocator that cannot be asked what of it is free."""
    unread = [sum(each.unread for each in sample.processes) for sample in samples]
    return max(unread) - unread[0] >= _MOSTLY * about.growth.grew


def _beside(samples: tuple[Sample, ...], last: Sample) -> int:
    """By how much memory grew that is charged to the cgroup and held by no process."""
    if last.cgroup is None:
        return 0
    first = next((s for s in samples if s.cgroup is not None and s.cgroup.path == last.cgroup.path), last)
    return last.in_no_process - first.in_no_process


def _parent_writes(samples: tuple[Sample, ...]) -> bool:
    """Whether the parent made the copies by writing on, as a server does that saves itself by a fork: faults tell."""
    first: dict[int, int] = {}
    rise: dict[bool, dict[int, int]] = {True: {}, False: {}}
    for sample in samples:
        if any(each.forked for each in sample.processes):
            for each in sample.processes:
                rise[each.forked][each.pid] = each.faults - first.setdefault(each.pid, each.faults)
    by_parent, by_children = sum(rise[False].values()), sum(rise[True].values())
    return by_parent > 0 and by_parent >= _BY_PARENT * (by_parent + by_children)


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
    """The course of the heap while forked workers lived, if they copied it; they may begin late and end early."""
    span = _with_forked(samples)
    if len(span) < _FEW:
        return None
    anon = course("anon", [(sample.seconds, sample.anon) for sample in span], "process")
    enough = anon.grew and anon.growth.grew >= _COPIED
    return anon if enough and _copying(span, anon.growth.grew, "process") else None


def _with_forked(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """The samples from the first to the last in which a forked child lived."""
    places = [place for place, sample in enumerate(samples) if any(each.forked for each in sample.processes)]
    return samples[places[0] : places[-1] + 1] if places else ()


def _copying(samples: tuple[Sample, ...], rise: int, about: str, *, span: bool = False) -> str:
    """ "workers" where forked children copied pages, "copied" where their parent did, "" where nobody: every process
    that was not forked stayed flat. Parents are judged by whole RSS: their share of common pages rises by itself when a
    child makes its own copies. Whole RSS also tells a copy from an allocation: a page copied was in the process's RSS
    before, a page allocated was not. ``span``: judge only while forked children lived."""
    samples = _with_forked(samples) if span else samples
    if not any(process.forked for sample in samples for process in sample.processes):
        return ""
    forked = course("forked", [(s.seconds, sum(p.anon for p in s.processes if p.forked)) for s in samples], about)
    parents = [(s.seconds, sum(p.rss_anon for p in s.processes if not p.forked)) for s in samples]
    others = course("others", parents, about)
    allocated = course("allocated", list(zip((s.seconds for s in samples), _allocated(samples), strict=True)), about)
    if others.growth.grew >= _PARENT_FLAT * rise or allocated.growth.grew >= _ALLOCATED * rise:
        return ""
    if _parent_writes(samples):
        shares = [(s.seconds, sum(p.anon for p in s.processes if not p.forked)) for s in samples]
        return "copied" if course("parents", shares, about).growth.grew >= _FROM_WORKERS * rise else ""
    return "workers" if forked.growth.grew >= _FROM_WORKERS * rise else ""


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
        enough = enough and trace.seconds >= _SHORT
        return "high" if enough and calm and not blind else "medium" if enough else "low"
    if about.samples >= 6 and about.growth.grew >= 4 * about.noise and about.rising >= 0.6 and not blind:
        return "high"
    return "medium" if about.samples >= 4 and about.rising >= 0.3 else "low"


def _against_budget(trace: Trace) -> BudgetOutcome | None:
    if trace.budget is None:
        return None
    peak = max(trace.samples, key=lambda sample: sample.held)
    return BudgetOutcome(trace.budget, peak.held + unseen_peak(trace)[0], peak.seconds)
