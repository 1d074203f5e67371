"""A verdict for the terminal.

What was held in the first line, what grew in the second, the numbers in a table that fits 80 columns, then
one labelled line for each thing a reader asks next. Built from rich ``Text``, never from markup, so a path such as
``[red]`` stays a path. Costs rich's import (about 60 ms), which only the command line pays.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from lowtide.memory import Trace, Verdict
from lowtide.memory.judge.findings import signed
from lowtide.report.content import GrowthRow, growth_rows, held_text, now_text, sections, visible
from lowtide.units import format_size

_NUMBERS = 6 + 4 * 12 + 2  # columns of the table before what a kind means
_CALM, _TOLD, _BROKEN = "bold green", "bold yellow", "bold red"


def render(trace: Trace, verdict: Verdict) -> RenderableType:
    """The whole report, for ``rich.console.Console.print``."""
    parts: list[RenderableType] = [_held(trace, verdict), _headline(verdict)]
    if verdict.held is None:
        parts = parts[1:]
    rows = growth_rows(trace, verdict)
    if rows:
        parts += [Text(), _GrowthTable(trace, rows), Text()]
    parts.append(_section_table(trace, verdict))
    return Group(*parts)


def plain(trace: Trace, verdict: Verdict, width: int = 110) -> str:
    """The same as a string without colour."""
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(render(trace, verdict))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _held(trace: Trace, verdict: Verdict) -> Text:
    line = Text("HELD     ", style="bold", overflow="fold")
    return line.append(held_text(trace, verdict))


def _headline(verdict: Verdict) -> Text:
    broken = verdict.budget is not None and not verdict.budget.ok
    killed = verdict.ended is not None and verdict.ended.how == "oom"
    style = _BROKEN if broken or killed else _CALM if verdict.grew == "nothing" else _TOLD
    line = Text("VERDICT  ", style=style, overflow="fold")
    line.append(visible(verdict.headline), style="bold")
    return line.append(f"  confidence: {verdict.confidence}", style="dim")


class _GrowthTable:
    """Held and grown by kind. The numbers keep their columns; what a kind means is cut where the terminal is narrow."""

    def __init__(self, trace: Trace, rows: tuple[GrowthRow, ...]) -> None:
        self._headings = ("kind", now_text(trace), "at most", "growth", "per minute", "meaning")
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(_line(self._headings, options.max_width), style="dim", no_wrap=True)
        for row in self._rows:
            yield Text(_line(_cells(row), options.max_width), style="bold yellow" if row.guilty else "", no_wrap=True)


def _line(cells: tuple[str, ...], width: int) -> str:
    numbers = "".join(f"{cell:>12}" for cell in cells[1:5])
    meaning, room = cells[5], width - _NUMBERS
    if len(meaning) > room:
        meaning = meaning[: room - 1] + "…" if room > 8 else ""
    return f"{cells[0]:<6}{numbers}  {meaning}".rstrip()


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
    if title == "ended" and verdict.ended is not None:
        return _BROKEN if verdict.ended.how == "oom" else ""
    return "dim" if title in ("not it", "evidence") else ""
