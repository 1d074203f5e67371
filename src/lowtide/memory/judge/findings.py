"""What a trace means, as plain frozen values - what is held and by whom, what grew, what can happen, what helps - and
how they look at a glance.

Every line a report prints stands on a value here that a program can read; verdict.py fills them in. ``print`` shows a
few lines of text, a notebook a small table with a chart: no script and no style sheet, because what stands in a
notebook must survive being saved, mailed and shown in any theme. The whole report is ``lowtide doctor --html``.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from lowtide.memory.samples import Ended, Sample, Trace
from lowtide.units import format_duration, format_size

# Warm: cannot be taken back. Cool: can. Told apart in greyscale and by the common kinds of colour blindness too.
COLOURS = {
    "anon": "#c8453b",
    "shmem": "#e8913a",
    "tables": "#7d4e9e",
    "mapped": "#2f78b7",
    "dirty": "#8a7a55",
    "cache": "#8fc4de",
    "hugetlb": "#5b3a29",
}
_STACK = tuple(COLOURS)
_WIDTH, _HEIGHT, _CHART_POINTS = 320, 72, 120


@dataclass(frozen=True, slots=True)
class Growth:
    """One kind in bytes. ``grew`` and ``per_minute`` leave out start-up; ``first``, ``last`` and ``peak`` do not."""

    kind: str
    first: int
    last: int
    peak: int
    grew: int
    per_minute: int


@dataclass(frozen=True, slots=True)
class Owner:
    """Who has bytes of a kind. ``what`` is file, process, library code, tmpfs file, allocator, smaller files or
    unexplained."""

    name: str
    bytes: int
    what: str


@dataclass(frozen=True, slots=True)
class KindHeld:
    """One kind: bytes at the end and at its highest, and who had those at its highest (their sum is ``peak``)."""

    kind: str
    end: int
    peak: int
    seconds: float  # when the peak was
    owners: tuple[Owner, ...] = ()


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """What the process tree had, whether or not it grew: all kinds together, huge pages of the pool included.

    ``end`` is the last sample before the program began to shut down, ``peak`` the highest moment of all kinds together;
    ``takeable`` and ``stays`` share out ``end``. The same words mean the same in every report.
    """

    end: int
    peak: int
    seconds: float  # when the peak of all kinds together was
    takeable: int  # clean file pages that nobody locked: the kernel takes them back at once
    stays: int  # heap, shared memory, page tables, locked pages, and dirty pages until they are written
    limit: int | None
    limit_set_by: str
    limit_used: int  # bytes that count against the limit and cannot be taken back
    look_age: float  # seconds between the last close look and the end
    kinds: tuple[KindHeld, ...] = ()
    end_seconds: float = 0.0  # when the end was
    locked: int = 0  # pages of any kind locked in memory, at most
    huge: int = 0  # of anon, what lay in transparent huge pages, at most
    unread: int = 0  # of anon, what an allocator has whose books cannot be read, at most
    in_no_process: int = 0  # charged to the cgroup at the end and in no process
    between: int = 0  # of the peak, what no sample saw and the kernel remembers (VmHWM, wait4)

    @property
    def share(self) -> float | None:
        """Of the limit, in what cannot be taken back."""
        return None if not self.limit else self.limit_used / self.limit


@dataclass(frozen=True, slots=True)
class Grower:
    """A file or process behind the growth: how far it rose, what it has now, and of how much (a file's size)."""

    name: str
    what: str  # file or process
    grew: int
    now: int
    size: int | None = None
    filesystem: str = ""


@dataclass(frozen=True, slots=True)
class Risk:
    """What can happen. ``what`` is oom, throttled, tmpfs, eviction, dirty, pressure or thrash; ``level`` is none, low
    or high; ``seconds`` until it happens at the measured rate, where that is known."""

    what: str
    level: str
    sentence: str
    limit: int | None = None
    used: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class BudgetOutcome:
    """The most that was held at once (anon + mapped + shmem + tables) beside what was allowed."""

    allowed: int
    peak: int
    seconds: float  # when the peak was

    @property
    def ok(self) -> bool:
        return self.peak <= self.allowed


@dataclass(frozen=True, slots=True)
class Shown:
    """What another tool shows as "the memory", beside ours: whose number, how much, and what it counts."""

    name: str
    bytes: int
    counts: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a trace means. ``grew`` is one of ``GREW``; ``confidence`` is "high", "medium" or "low"; ``headline``,
    ``fix``, ``not_it`` and ``evidence`` are sentences; ``because`` is "locked" or "huge pages" where that is why."""

    grew: str
    confidence: str
    headline: str
    held: HeldMemory | None = None
    ended: Ended | None = None
    growth: tuple[Growth, ...] = ()
    who: tuple[Grower, ...] = ()
    risk: tuple[Risk, ...] = ()
    fix: tuple[str, ...] = ()
    not_it: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    budget: BudgetOutcome | None = None
    because: str = ""
    throttled: bool = False  # slowed down at memory.high while it was watched
    shown: tuple[Shown, ...] = ()

    @property
    def danger(self) -> bool:
        """Whether something bad is near: any risk of level high."""
        return any(risk.level == "high" for risk in self.risk)

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)


def as_text(verdict: Verdict) -> str:
    """The sentences and one line per kind that was there at all."""
    if verdict.held is None:
        return verdict.headline
    lines = [held_sentence(verdict.held, ended=verdict.ended is not None), verdict.headline]
    growth = {each.kind: each.grew for each in verdict.growth}
    lines.append(f"{'':<8}{'at the end':>12}{'at most':>12}{'growth':>12}  most of it")
    for each in verdict.held.kinds:
        if each.peak:
            sizes = (format_size(each.end), format_size(each.peak), signed(growth.get(each.kind, 0)))
            lines.append(f"{each.kind:<8}{''.join(f'{size:>12}' for size in sizes)}  {_largest_owner(each)}")
    return "\n".join(lines)


def as_html(verdict: Verdict, trace: Trace | None = None) -> str:
    """The same as HTML, with memory by kind over time."""
    if verdict.held is None:
        return f"<p><b>{html.escape(verdict.headline)}</b></p>"
    growth = {each.kind: each.grew for each in verdict.growth}
    rows = "".join(
        f'<tr><td style="text-align:left"><span style="display:inline-block;width:.7em;height:.7em;'
        f'background:{COLOURS[each.kind]}"></span> {each.kind}</td><td>{format_size(each.end)}</td>'
        f"<td>{format_size(each.peak)}</td><td>{signed(growth.get(each.kind, 0))}</td>"
        f'<td style="text-align:left">{html.escape(_largest_owner(each))}</td></tr>'
        for each in verdict.held.kinds
        if each.peak
    )
    head = "".join(f"<th>{name}</th>" for name in ("kind", "at the end", "at most", "growth", "most of it"))
    drawn = _small_chart(trace.samples) if trace is not None else ""
    held = html.escape(held_sentence(verdict.held, ended=verdict.ended is not None))
    return (
        f'<div class="lowtide"><p><b>{html.escape(verdict.headline)}</b> confidence: {verdict.confidence}<br>{held}</p>'
        f"{drawn}<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _small_chart(samples: Sequence[Sample]) -> str:
    """Stacked areas as one small SVG: what nobody can take back at the bottom."""
    samples = samples[:: max(1, len(samples) // _CHART_POINTS)]
    if len(samples) < 2:
        return ""
    begin, span = samples[0].seconds, (samples[-1].seconds - samples[0].seconds) or 1.0
    top = max(sample.total for sample in samples) or 1
    shapes = []
    for count in range(len(_STACK), 0, -1):
        points = " ".join(
            f"{_WIDTH * (sample.seconds - begin) / span:.1f},"
            f"{_HEIGHT * (1 - sum(sample.of(kind) for kind in _STACK[:count]) / top):.1f}"
            for sample in samples
        )
        shapes.append(
            f'<polygon fill="{COLOURS[_STACK[count - 1]]}" points="0,{_HEIGHT} {points} {_WIDTH},{_HEIGHT}"/>'
        )
    label = f"memory by kind over {format_duration(span)}, up to {format_size(top)}"
    return (
        f'<svg role="img" aria-label="{label}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}"><title>{label}</title>{"".join(shapes)}</svg><br><small>{label}</small>'
    )


def signed(size: int) -> str:
    return "0" if size == 0 else ("+" if size > 0 else "-") + format_size(abs(size))


def _largest_owner(each: KindHeld) -> str:
    return "" if not each.owners else f"{each.owners[0].name} {format_size(each.owners[0].bytes)}"


def held_sentence(held: HeldMemory, *, ended: bool) -> str:
    """What it had, most of it where, and what of that could be taken back."""
    at_end = "at the end" if ended else "now"
    largest = max(held.kinds, key=lambda each: each.peak)
    owner = largest.owners[0] if largest.owners else None
    whose = ""
    if owner is not None:  # a path by its last name: the whole one stands in the table below
        name = PurePath(owner.name).name if owner.name.startswith("/") else owner.name
        whose = f", most of that {name} ({format_size(owner.bytes)})"
    share = ""
    if held.share is not None and held.limit is not None:
        limit = f"{format_size(held.limit)} ({held.limit_set_by})"
        share = f" The limit is {limit}: {held.share:.0%} of it cannot be taken back."
    return (
        f"Held {format_size(held.peak)} at its highest and {format_size(held.end)} {at_end}. "
        f"Largest: {largest.kind} {format_size(largest.peak)}{whose}. "
        f"Of what it held {at_end}, {format_size(held.takeable)} could be taken back at once, "
        f"{format_size(held.stays)} could not.{share}"
    )
