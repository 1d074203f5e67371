"""From a trace to a verdict: which kind of memory grew, whose it is, how sure that is. Pure.

One idea: the kind that rose most, beyond noise and after start-up, is the answer, with two corrections:
page cache that mapping a file brought in goes with the mapping, and heap that grows only because forked
children copy what they inherited is ``workers``. The sentences on risk and repair are in advice.py. Nothing
is measured here and no number is made up: what the trace lacks lowers the confidence.
"""

from __future__ import annotations

from collections.abc import Iterable

from lowtide.memory.advice import fixes, headline, risks
from lowtide.memory.growth import NOISE, Course, course, courses
from lowtide.memory.model import OF_FILES, BudgetOutcome, FileSample, ProcessSample, Sample, Trace, Verdict
from lowtide.units import format_size

_READ_AROUND = 0.1  # mapped is named before cache when it is at least this part of it: the rest is read-around
_FROM_WORKERS, _PARENT_FLAT = 0.5, 0.2
_UNSEEN = 4 * NOISE  # other processes of the cgroup read files too


def judge(trace: Trace) -> Verdict:
    """The verdict on a whole trace."""
    samples = trace.samples
    if not samples:
        why = "; ".join(trace.missing.values()) or "the process ended before the first sample"
        unchecked = "" if trace.budget is None else ", so the budget was not checked"
        return Verdict("nothing", "low", f"Nothing was measured: {why}{unchecked}.")
    by_kind = courses(samples)
    grew = _which(by_kind, samples)
    about = by_kind["anon" if grew == "workers" else grew] if grew != "nothing" else None
    confidence, sentence = _confidence(trace, by_kind, about), headline(grew, trace, by_kind)
    unseen = _unseen(samples)
    if about is None and unseen >= _UNSEEN:
        confidence = "low"
        sentence += (
            f" But {format_size(unseen)} that it read stayed in the page cache, of files opened and closed between "
            "two samples."
        )
    return Verdict(
        grew=grew,
        confidence=confidence,
        headline=sentence,
        growth=tuple(each.growth for each in by_kind.values()),
        who=_who(grew, samples),
        risk=risks(grew, trace, about.growth if about else None),
        fix=fixes(grew, _grown_files(grew, samples)),
        not_it=_not_it(grew, by_kind, samples),
        evidence=_evidence(trace, by_kind, about),
        budget=_budget(trace),
    )


def _which(by_kind: dict[str, Course], samples: tuple[Sample, ...]) -> str:
    risen = sorted((each for each in by_kind.values() if each.grew), key=lambda each: -each.growth.grew)
    if not risen:
        return "nothing"
    top = risen[0].growth
    mapped = by_kind["mapped"]
    if top.kind == "cache" and mapped.grew and mapped.growth.grew >= _READ_AROUND * top.grew:
        return "mapped"
    if top.kind == "anon" and _is_workers(samples, top.grew):
        return "workers"
    return top.kind


def _is_workers(samples: tuple[Sample, ...], rise: int) -> bool:
    """Forked children copied pages while every other process stayed flat. Parents are judged by whole RSS:
    their share of common pages rises by itself when a child makes its own copies. Whole RSS also tells a copy
    from an allocation: a page copied was in the child's RSS before, a page allocated was not."""
    if not any(process.forked for sample in samples for process in sample.processes):
        return False
    forked = course("forked", [(s.seconds, sum(p.anon for p in s.processes if p.forked)) for s in samples])
    others = course("others", [(s.seconds, sum(p.rss_anon for p in s.processes if not p.forked)) for s in samples])
    allocated = course("allocated", [(s.seconds, size) for s, size in zip(samples, _allocated(samples), strict=True)])
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
    if first.cgroup is None or last.cgroup is None:
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


def _who(grew: str, samples: tuple[Sample, ...]) -> tuple[str, ...]:
    """The files or processes behind the growth, the largest first, at most three."""
    if grew == "nothing":
        return ()
    if grew in ("mapped", "cache", "dirty", "shmem"):
        grown = _grown_files(grew, samples)[:3]
        if grown:
            # A library's pages come in while a program starts; what is small beside the largest is not the
            # answer.
            return tuple(_file_line(grew, file, rise) for file, rise in grown if 20 * rise >= grown[0][1])
    processes = _grown_processes(grew, samples)
    return tuple(f"process {each.pid} ({each.name}): +{format_size(rise)}" for each, rise in processes[:3])


def _file_line(grew: str, file: FileSample, rise: int) -> str:
    where = f", on {file.filesystem}" if file.memory or file.filesystem.startswith(("nfs", "fuse", "cifs")) else ""
    held = format_size(_file_bytes(grew, file))
    return f"{file.path}: +{format_size(rise)}, now {held} of {format_size(file.size)}{where}"


def _file_bytes(grew: str, file: FileSample) -> int:
    kinds = {"mapped": file.mapped, "dirty": file.dirty, "cache": file.cache, "shmem": file.cached}
    return kinds[grew] if file.memory == (grew == "shmem") else 0


def _grown_files(grew: str, samples: tuple[Sample, ...]) -> list[tuple[FileSample, int]]:
    """Files by how far they rose above what was found of them, over the whole trace."""
    if grew not in ("mapped", "cache", "dirty", "shmem"):
        return []
    first: dict[str, int] = {}
    best: dict[str, tuple[FileSample, int]] = {}
    for sample in samples:
        for file in sample.files:
            size = _file_bytes(grew, file)
            base = file.found if grew in ("cache", "shmem") else 0
            rise = size - first.setdefault(file.path, min(size, base))
            if rise > 0 and (file.path not in best or rise >= best[file.path][1]):
                best[file.path] = (file, rise)
    return sorted(best.values(), key=lambda pair: -pair[1])


def _grown_processes(grew: str, samples: tuple[Sample, ...]) -> list[tuple[ProcessSample, int]]:
    first: dict[int, int] = {}
    best: dict[int, tuple[ProcessSample, int]] = {}
    for sample in samples:
        for process in sample.processes:
            if grew == "workers" and not process.forked:
                continue
            kind = {"workers": "anon", "cache": "mapped", "dirty": "mapped"}.get(grew, grew)
            size = int(getattr(process, kind))
            rise = size - first.setdefault(process.pid, size)
            if rise > 0 and (process.pid not in best or rise >= best[process.pid][1]):
                best[process.pid] = (process, rise)
    return sorted(best.values(), key=lambda pair: -pair[1])


def _not_it(grew: str, by_kind: dict[str, Course], samples: tuple[Sample, ...]) -> tuple[str, ...]:
    involved = {"workers": "anon"}.get(grew, grew)
    lines = [
        f"{kind}: fell by {format_size(-each.growth.grew)}"
        if each.growth.grew <= -each.noise
        else f"{kind}: {_signed(each.growth.grew)}, within noise"
        for kind, each in by_kind.items()
        if kind != involved and not each.grew
    ]
    forked = {process.pid for sample in samples for process in sample.processes if process.forked}
    if grew != "workers":
        lines.append(
            "workers: " + (f"{len(forked)} forked, no growth of theirs alone" if forked else "no forked children")
        )
    return tuple(lines)


def _evidence(trace: Trace, by_kind: dict[str, Course], about: Course | None) -> tuple[str, ...]:
    first, last = trace.samples[0], trace.samples[-1]
    lines = [
        f"{len(trace.samples)} samples over {trace.seconds:.1f} s, processes seen: {len(_all_pids(trace.samples))}",
        f"RSS as other tools add it up: {format_size(first.rss)} -> {format_size(last.rss)}, "
        f"at most {format_size(max(sample.rss for sample in trace.samples))}",
        f"faults: {last.major_faults - first.major_faults:,} major, {last.minor_faults - first.minor_faults:,} minor; "
        f"read from storage: {format_size(last.read_bytes - first.read_bytes)}",
    ]
    if about is not None:
        share = (1 + about.rising) / 2
        lines.append(
            f"{about.growth.kind}: {share:.0%} of sample pairs rise, {_signed(about.growth.per_minute)} a minute"
        )
    others = [each.growth for each in by_kind.values() if each.grew and each is not about]
    lines += [f"{each.kind} rose too: {_signed(each.grew)}" for each in others]
    if first.cgroup is not None and last.cgroup is not None:
        lines.append(
            f"cgroup v{last.cgroup.version} {last.cgroup.path}: anon {_signed(last.cgroup.anon - first.cgroup.anon)}, "
            f"file {_signed(last.cgroup.file - first.cgroup.file)}, "
            f"shmem {_signed(last.cgroup.shmem - first.cgroup.shmem)}, "
            f"refaults {last.cgroup.refaults - first.cgroup.refaults:,}"
        )
    lines += [f"not measured: {name} ({why})" for name, why in trace.missing.items()]
    if trace.cut_short:
        lines.append("the trace file ends in the middle of a line; what came before it was judged")
    return tuple(lines)


def _budget(trace: Trace) -> BudgetOutcome | None:
    if trace.budget is None:
        return None
    peak = max(trace.samples, key=lambda sample: sample.held)
    return BudgetOutcome(trace.budget, peak.held, peak.seconds)


def _all_pids(samples: Iterable[Sample]) -> set[int]:
    return {process.pid for sample in samples for process in sample.processes}


def _signed(size: int) -> str:
    return ("+" if size >= 0 else "-") + format_size(abs(size))
