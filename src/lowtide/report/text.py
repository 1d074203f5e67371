"""A verdict for the terminal.

One idea: the answer in the first line, the numbers in a table, then one labelled line for each thing a
reader asks next. Built from rich ``Text``, never from markup, so a path such as ``[red]`` stays a path.
Costs rich's import (about 60 ms), which only the command line pays.
"""

from __future__ import annotations

import io

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from lowtide.memory import Trace, Verdict
from lowtide.report.content import GrowthRow, growth_rows, now_text, seconds_text, sections, signed, visible
from lowtide.units import format_size

_CALM, _TOLD, _BROKEN = "bold green", "bold yellow", "bold red"


def render(trace: Trace, verdict: Verdict) -> RenderableType:
    """The whole report, for ``rich.console.Console.print``."""
    parts: list[RenderableType] = [_headline(verdict)]
    rows = growth_rows(trace, verdict)
    if rows:
        parts += [Text(), _growth_table(trace, rows), Text()]
    parts.append(_section_table(trace, verdict))
    return Group(*parts)


def plain(trace: Trace, verdict: Verdict, width: int = 110) -> str:
    """The same as a string without colour."""
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(render(trace, verdict))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _headline(verdict: Verdict) -> Text:
    broken = verdict.budget is not None and not verdict.budget.ok
    style = _BROKEN if broken else _CALM if verdict.grew == "nothing" else _TOLD
    line = Text("VERDICT  ", style=style, overflow="fold")
    line.append(visible(verdict.headline), style="bold")
    return line.append(f"  confidence: {verdict.confidence}", style="dim")


def _growth_table(trace: Trace, rows: tuple[GrowthRow, ...]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", title_justify="left")
    table.add_column(f"growth over {seconds_text(trace.seconds)}", no_wrap=True)
    for name in (now_text(trace), "most", "growth", "a minute"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("meaning", style="dim", overflow="fold")
    for row in rows:
        table.add_row(*_cells(row), style="bold yellow" if row.guilty else "")
    return table


def _cells(row: GrowthRow) -> tuple[str, ...]:
    if not row.measured:
        return row.kind, "?", "?", "?", "?", f"not measured here ({row.meaning})"
    rate = "" if row.per_minute is None else signed(row.per_minute)
    before = f"; {format_size(row.before)} was there before" if row.before else ""
    return row.kind, format_size(row.now), format_size(row.most), signed(row.grew), rate, row.meaning + before


def _section_table(trace: Trace, verdict: Verdict) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for title, lines in sections(trace, verdict):
        for place, line in enumerate(lines):
            mark = f"{place + 1}) {line}" if title == "fix" and len(lines) > 1 else line
            table.add_row(title if place == 0 else "", Text(mark, style=_style(title, verdict)))
    return table


def _style(title: str, verdict: Verdict) -> str:
    if title == "budget" and verdict.budget is not None:
        return "green" if verdict.budget.ok else _BROKEN
    return "dim" if title in ("not it", "evidence") else ""
