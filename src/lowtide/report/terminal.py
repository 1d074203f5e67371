"""A verdict for the terminal.

Built from rich ``Text``, never from markup, so a path such as ``[red]`` stays a path; the table fits 80 columns.
Costs rich's import (about 60 ms), which only the command line pays.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from lowtide.memory import Trace, Verdict
from lowtide.report.content import GrowthRow, growth_rows, held_text, mood, now_text, row_texts, sections, visible

_NUMBERS = 6 + 4 * 12 + 2  # columns of the table before what a kind means
_BROKEN = "bold red"


def render(trace: Trace, verdict: Verdict) -> RenderableType:
    """The whole report, for ``rich.console.Console.print``."""
    parts: list[RenderableType] = []
    if verdict.held is not None:
        parts.append(Text("HELD     ", style="bold", overflow="fold").append(held_text(trace, verdict)))
    parts.append(_headline(verdict))
    rows = growth_rows(trace, verdict)
    if rows:
        parts += [Text(), _GrowthTable(trace, rows), Text()]
    parts.append(_section_table(trace, verdict))
    return Group(*parts)


def _headline(verdict: Verdict) -> Text:
    style = {"calm": "bold green", "told": "bold yellow", "broken": _BROKEN}[mood(verdict)]
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
            yield Text(
                _line((row.kind, *row_texts(row)), options.max_width),
                style="bold yellow" if row.guilty else "",
                no_wrap=True,
            )


def _line(cells: tuple[str, ...], width: int) -> str:
    numbers = "".join(f"{cell:>12}" for cell in cells[1:5])
    meaning, room = cells[5], width - _NUMBERS
    if len(meaning) > room:
        meaning = meaning[: room - 1] + "…" if room > 8 else ""
    return f"{cells[0]:<6}{numbers}  {meaning}".rstrip()


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
