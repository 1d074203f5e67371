"""A verdict at a glance: a few lines of text for ``print``, and a small table with a chart for a notebook.

One idea: held and growth by kind, the sentence, and nothing else; the whole report is ``lowtide doctor --html``.
Pure, no script, no style sheet: what stands in a notebook must survive being saved, mailed and shown in any theme.
Imports nothing of this room, so that the values themselves can use it: ``verdict`` is a ``Verdict``, ``trace`` a
``Trace``.
"""

from __future__ import annotations

import html
from pathlib import PurePath
from typing import Any

from lowtide.units import format_duration, format_size

# Warm: cannot be taken back. Cool: can. Told apart in greyscale and by the common kinds of colour blindness too.
COLOURS = {
    "anon": "#c8453b",
    "shmem": "#e8913a",
    "tables": "#7d4e9e",
    "mapped": "#2f78b7",
    "dirty": "#8a7a55",
    "cache": "#8fc4de",
}
_STACK = tuple(COLOURS)
_WIDTH, _HEIGHT, _POINTS = 320, 72, 120


def as_text(verdict: Any) -> str:
    """The sentences and one line per kind that was there at all."""
    lines = [str(verdict.headline)]
    if verdict.held is None:
        return lines[0]
    lines.insert(0, held_sentence(verdict.held, ended=verdict.ended is not None))
    growth = {each.kind: each.grew for each in verdict.growth}
    lines.append(f"{'':<8}{'at the end':>12}{'at most':>12}{'growth':>12}  most of it")
    for each in verdict.held.kinds:
        if each.peak:
            grew = signed(growth.get(each.kind, 0))
            lines.append(
                f"{each.kind:<8}{format_size(each.end):>12}{format_size(each.peak):>12}{grew:>12}  {_owner(each)}"
            )
    return "\n".join(lines)


def as_html(verdict: Any, trace: Any = None) -> str:
    """The same as HTML, with memory by kind over time."""
    if verdict.held is None:
        return f"<p><b>{html.escape(verdict.headline)}</b></p>"
    growth = {each.kind: each.grew for each in verdict.growth}
    rows = "".join(
        f'<tr><td style="text-align:left"><span style="display:inline-block;width:.7em;height:.7em;'
        f'background:{COLOURS[each.kind]}"></span> {each.kind}</td><td>{format_size(each.end)}</td>'
        f"<td>{format_size(each.peak)}</td><td>{signed(growth.get(each.kind, 0))}</td>"
        f'<td style="text-align:left">{html.escape(_owner(each))}</td></tr>'
        for each in verdict.held.kinds
        if each.peak
    )
    head = "".join(f"<th>{name}</th>" for name in ("kind", "at the end", "at most", "growth", "most of it"))
    drawn = chart(trace.samples) if trace is not None else ""
    held = html.escape(held_sentence(verdict.held, ended=verdict.ended is not None))
    return (
        f'<div class="lowtide"><p><b>{html.escape(verdict.headline)}</b> confidence: {verdict.confidence}<br>{held}</p>'
        f"{drawn}<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def chart(samples: Any) -> str:
    """Stacked areas as one small SVG: what nobody can take back at the bottom."""
    samples = samples[:: max(1, len(samples) // _POINTS)]
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


def _owner(each: Any) -> str:
    return "" if not each.owners else f"{each.owners[0].name} {format_size(each.owners[0].bytes)}"


def held_sentence(held: Any, *, ended: bool) -> str:
    """What it had, most of it where, and what of that could be taken back."""
    at_end = "at the end" if ended else "now"
    largest = max(held.kinds, key=lambda each: each.peak)
    owner = largest.owners[0] if largest.owners else None
    whose = f", most of that {_short(owner.name)} ({format_size(owner.bytes)})" if owner is not None else ""
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


def _short(name: str) -> str:
    """A path by its last name: the whole one stands in the table below."""
    return PurePath(name).name if name.startswith("/") else name
