"""What every report says, on a terminal, a page or a picture: growth by kind, sections, machine facts, tables. Pure.

The terminal, the page and the picture never disagree, because the words are chosen once, here. Everything from outside
(paths, command lines, process names) passes ``visible``: a file name may hold escape sequences or characters that
reverse the line, which must have no effect in a report.
"""

from __future__ import annotations

import time
import unicodedata
from dataclasses import dataclass

from lowtide.memory import KINDS, Trace, Verdict
from lowtide.memory.judge.findings import Grower, Owner, held_sentence, signed
from lowtide.memory.judge.growth import NOISE
from lowtide.memory.samples import HELD, CgroupSample, FileSample, ProcessSample
from lowtide.units import format_duration, format_size

_ACTING = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")  # control, direction, unassigned, private, undecodable, line ends
_LONGEST = 600  # characters of one outside text; a command line can be 2 MiB long
_TOP = 30  # processes and files named; a tree of thousands is summed up in one line
_FACTS_IN_BYTES = ("memory", "available", "limit", "page")
_NOT_MEASURED, _SHOWN = "not measured: ", "shown as "  # what has a section of its own
_OWNERS = 4  # of a kind, in a line
_LEVELS = {"none": "", "low": "", "high": "DANGER: "}

TAKEN_BACK = {  # whether the kernel can take a kind back, in words that fit beside its numbers at 80 columns
    "anon": "no: heap, the program's own",
    "mapped": "yes: file pages, in RSS",
    "cache": "yes: file pages, unmapped",
    "dirty": "once it is written",
    "tables": "no: goes with its mapping",
    "shmem": "no: stays until unlinked",
    "hugetlb": "no: reserved for it",
}
HEADINGS = ("kind", "at most", "growth", "per min", "can it be taken back?")

Section = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class GrowthRow:
    """One kind of memory as a line of a table. ``before`` is the part of ``now`` that was cached before we looked."""

    kind: str
    now: int
    most: int
    before: int
    grew: int
    per_minute: int | None  # None within noise: a rate over it would say something where nothing was seen
    meaning: str
    guilty: bool  # the kind the verdict names
    measured: bool
    owners: tuple[Owner, ...] = ()  # at its most


@dataclass(frozen=True)
class Table:
    """Rows of text under headings; ``more`` says what was left out."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: str


def visible(text: str) -> str:
    """``text`` on one line, with control characters written as escapes."""
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text) - _LONGEST:,} more characters)"
    return "".join(_escaped(letter) if unicodedata.category(letter) in _ACTING else letter for letter in shown)


def started_text(trace: Trace) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(trace.started))


def now_text(trace: Trace) -> str:
    """What the last sample of a trace is called."""
    return "now" if trace.exit_code is None and trace.ended is None else "at the end"


def held_text(trace: Trace, verdict: Verdict) -> str:
    """The sentence every report begins with."""
    ended = trace.exit_code is not None or trace.ended is not None
    return "" if verdict.held is None else visible(held_sentence(verdict.held, ended=ended))


def growth_rows(trace: Trace, verdict: Verdict) -> tuple[GrowthRow, ...]:
    """A row for each kind; without samples the verdict has no growth and neither has the table."""
    guilty = "anon" if verdict.grew in ("workers", "copied", "retained") else verdict.grew
    by_kind = {growth.kind: growth for growth in verdict.growth}
    if not trace.samples or verdict.held is None:
        return ()
    last = trace.samples[-1]
    held = {each.kind: each for each in verdict.held.kinds}
    before = {"cache": last.found_cache, "shmem": last.found_shmem}
    return tuple(
        GrowthRow(
            kind=kind,
            now=held[kind].end,
            most=held[kind].peak,
            before=before.get(kind, 0),
            grew=by_kind[kind].grew,
            per_minute=by_kind[kind].per_minute if abs(by_kind[kind].grew) >= NOISE else None,
            meaning=TAKEN_BACK[kind],
            guilty=kind == guilty,
            measured=kind not in trace.missing,
            owners=held[kind].owners,
        )
        for kind in (*KINDS, "hugetlb")
        if kind in by_kind
    )


def row_texts(row: GrowthRow) -> tuple[str, str, str, str, str]:
    """A kind's sizes now and at most, its growth, its rate, and whether it can be taken back."""
    if not row.measured:
        return "?", "?", "?", "?", "not measured here"
    rate = "" if row.per_minute is None else signed(row.per_minute)
    before = f"; {format_size(row.before)} was there before" if row.before else ""
    return format_size(row.now), format_size(row.most), signed(row.grew), rate, row.meaning + before


def mood(verdict: Verdict) -> str:
    """broken: a budget was broken, or the kernel killed it; calm: nothing grew; told: something grew."""
    broken = verdict.budget is not None and not verdict.budget.ok
    killed = verdict.ended is not None and verdict.ended.how == "oom"
    return "broken" if broken or killed else "calm" if verdict.grew == "nothing" else "told"


def sections(trace: Trace, verdict: Verdict) -> tuple[Section, ...]:
    """What there is to say beside the sentences and the table, in the order a reader asks; empty ones are left out."""
    evidence = tuple(line for line in verdict.evidence if not line.startswith((_NOT_MEASURED, _SHOWN)))
    missing = tuple(f"{name}: {why}" for name, why in trace.missing.items())
    found: tuple[Section, ...] = (
        ("grown by", _grower_lines(trace, verdict)),
        ("fix", verdict.fix),
        ("budget", _budget_lines(verdict)),
        ("risk", tuple(f"{_LEVELS[risk.level]}{risk.sentence}" for risk in verdict.risk)),
        ("ended", () if verdict.ended is None else (verdict.ended.sentence,)),
        ("held by", _held_lines(verdict)),
        ("shown as", tuple(f"{each.name} {format_size(each.bytes)}: {each.counts}" for each in verdict.shown)),
        ("cgroup", _cgroup_lines(trace)),
        ("not it", (" · ".join(verdict.not_it),) if verdict.not_it else ()),
        ("evidence", evidence),
        ("not measured", missing),
    )
    return tuple((title, tuple(visible(line) for line in lines)) for title, lines in found if lines)


def first_sections(trace: Trace, verdict: Verdict) -> tuple[tuple[Section, ...], tuple[Section, ...]]:
    """What stands below the verdict - who is behind it, what helps, what is wrong or near - and the rest."""
    wanted = ["grown by", "fix"]
    wanted += ["budget"] if verdict.budget is not None and not verdict.budget.ok else []
    wanted += ["risk"] if verdict.danger else []
    every = sections(trace, verdict)
    return tuple(each for each in every if each[0] in wanted), tuple(each for each in every if each[0] not in wanted)


def owner_text(owner: Owner) -> str:
    return f"{owner.name} {format_size(owner.bytes)}"


def _held_lines(verdict: Verdict) -> tuple[str, ...]:
    """One line per kind that weighs something: who had it when there was most of it."""
    if verdict.held is None:
        return ()
    worth = [each for each in verdict.held.kinds if each.peak >= NOISE or each.peak >= 0.05 * verdict.held.peak]
    lines = []
    for each in worth:
        shown = [owner for owner in each.owners if 50 * owner.bytes >= each.peak][:_OWNERS]
        rest = each.peak - sum(owner.bytes for owner in shown)
        words = [owner_text(owner) for owner in shown] + ([f"others {format_size(rest)}"] if rest > 0 else [])
        lines.append(f"{each.kind} {format_size(each.peak)}: {' · '.join(words)}")
    return tuple(lines)


def _grower_lines(trace: Trace, verdict: Verdict) -> tuple[str, ...]:
    """How far each owner rose and, if that differs from the verdict's own figure, why."""
    lines = [_grower_line(grower) for grower in verdict.who]
    kind = "anon" if verdict.grew in ("workers", "copied") else verdict.grew
    after = next((growth.grew for growth in verdict.growth if growth.kind == kind), 0)
    rose = sum(grower.grew for grower in verdict.who)
    if lines and after and trace.about == "command" and rose - after >= max(NOISE, 0.1 * after):
        lines.append(f"({signed(rose)} since it was started, {signed(after)} of {kind} after start-up)")
    return tuple(lines)


def _grower_line(grower: Grower) -> str:
    of = f" of {format_size(grower.size)}" if grower.size else ""
    odd = grower.filesystem.startswith(("nfs", "fuse", "cifs", "tmpfs"))
    return f"{grower.name}: +{format_size(grower.grew)}, now {format_size(grower.now)}{of}" + (
        f", on {grower.filesystem}" if odd else ""
    )


def trace_facts(trace: Trace, verdict: Verdict) -> tuple[tuple[str, str], ...]:
    """The machine and the run, for whoever compares two reports. The limit is the one that was judged by."""
    facts = dict(trace.machine)
    if verdict.held is not None and verdict.held.limit:
        facts |= {"limit": str(verdict.held.limit), "limit set by": verdict.held.limit_set_by}
    machine = [
        (name, format_size(int(value)) if name in _FACTS_IN_BYTES and value.isdigit() else visible(value))
        for name, value in facts.items()
    ]
    ended = [] if trace.exit_code is None else [("exit code", str(trace.exit_code))]
    run = [("started", started_text(trace)), ("watched", format_duration(trace.seconds))]
    return (*run, ("samples", f"{len(trace.samples):,}"), *ended, *machine)


def process_table(trace: Trace) -> Table:
    """Every process seen, as it was when last seen, those that held most first."""
    last: dict[int, ProcessSample] = {}
    peak: dict[int, int] = {}
    for sample in trace.samples:
        for process in sample.processes:
            last[process.pid] = process
            peak[process.pid] = max(process.rss, peak.get(process.pid, 0))
    order = sorted(last.values(), key=lambda process: -peak[process.pid])
    rows = tuple(
        (
            *(str(each.pid), visible(each.name), str(each.parent), "forked" if each.forked else ""),
            *_sizes(
                each.anon, each.retained, each.mapped, each.shmem, each.tables, each.swap, each.rss, peak[each.pid]
            ),
        )
        for each in order[:_TOP]
    )
    headings = ("pid", "name", "parent", "", "anon", "retained", "mapped", "shmem", "tables", "swap", "RSS", "peak RSS")
    return Table(headings, rows, _left_out(len(order), "processes"))


def file_table(trace: Trace) -> Table:
    """Every file seen, each as it was when most of it was in memory."""
    fullest: dict[str, FileSample] = {}
    for sample in trace.samples:
        for file in sample.files:
            if file.path not in fullest or file.cached >= fullest[file.path].cached:
                fullest[file.path] = file
    order = sorted(fullest.values(), key=lambda file: -file.cached)
    rows = tuple(
        (
            visible(each.path),
            *_sizes(each.mapped, each.cache, each.dirty, each.cached, each.size, each.found),
            visible(each.filesystem),
        )
        for each in order[:_TOP]
    )
    headings = ("file", "mapped", "cache", "dirty", "in memory", "size", "before", "filesystem")
    return Table(headings, rows, _left_out(len(order), "files"))


def _sizes(*sizes: int) -> tuple[str, ...]:
    return tuple(format_size(size) for size in sizes)


def _left_out(count: int, what: str) -> str:
    return f"and {count - _TOP:,} more {what} that held less" if count > _TOP else ""


def _budget_lines(verdict: Verdict) -> tuple[str, ...]:
    budget = verdict.budget
    if budget is None:
        return ()
    word = "kept" if budget.ok else "broken"
    peak, allowed = format_size(budget.peak), format_size(budget.allowed)
    return (f"{word}: held at most {peak} of {allowed} ({' + '.join(HELD)}), after {format_duration(budget.seconds)}",)


def _cgroup_lines(trace: Trace) -> tuple[str, ...]:
    """The memory cgroup now; it may hold other processes too."""
    seen: list[tuple[float, CgroupSample]] = [(each.seconds, each.cgroup) for each in trace.samples if each.cgroup]
    if not seen:
        return ()
    end, last = seen[-1]
    begin, first = next(each for each in seen if each[1].path == last.path)  # it may have been moved meanwhile
    limit = f"of {format_size(last.limit)}" if last.limit is not None else "(no limit)"
    pressure = "" if last.pressure is None else f" · pressure {last.pressure:.0f} %"
    refaults = (last.refaults - first.refaults) / (end - begin) if end > begin else 0.0
    return (
        f"current {format_size(last.current)} {limit} · working set {format_size(last.working_set)} "
        f"(what kubelet compares), of which active file {format_size(last.active_file)} · "
        f"reclaimable {format_size(last.reclaimable)}{pressure}",
        f"anon {format_size(last.anon)} · file {format_size(last.file)} · shmem {format_size(last.shmem)} · "
        f"dirty {format_size(last.dirty)} · {refaults:,.0f} refaults/s · {last.oom_kills:,} OOM kills · "
        f"v{last.version} {last.path}",
    )


def _escaped(letter: str) -> str:
    return letter.encode("ascii", "backslashreplace").decode() if ord(letter) > 127 else repr(letter)[1:-1]
