"""A verdict for the terminal: what it is, whose it is and what helps first, then what is held, then the rest.

Built from rich ``Text``, never from markup, so a path such as ``[red]`` stays a path; at 80 columns nothing is cut.
Costs rich's import (about 60 ms), which only the command line pays.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from lowtide.memory import Trace, Verdict
from lowtide.report.content import (
    HEADINGS,
    GrowthRow,
    Section,
    first_sections,
    growth_rows,
    held_text,
    mood,
    now_text,
    row_texts,
    visible,
)

_KIND, _NUMBER = 7, 11  # columns
_NUMBERS = _KIND + 4 * _NUMBER + 2  # columns of the table before its last one
_NARROW = 16  # columns below which its last one gets lines of its own
_BROKEN = "bold red"


def show(trace: Trace, verdict: Verdict, *, stderr: bool) -> None:
    """Print the report; into a file or a pipe without the blanks that fill up its lines."""
    console = Console(stderr=stderr)
    if console.is_terminal:
        console.print(render(trace, verdict))
        return
    with console.capture() as captured:
        console.print(render(trace, verdict))
    for line in captured.get().splitlines():
        console.file.write(f"{line.rstrip()}\n")


def render(trace: Trace, verdict: Verdict) -> RenderableType:
    """The whole report, for ``rich.console.Console.print``."""
    first, then = first_sections(trace, verdict)
    top = _grid()
    top.add_row(*_headline(verdict))
    _add(top, first, verdict)
    if verdict.held is not None:
        top.add_row("HELD", Text(held_text(trace, verdict)))
    parts: list[RenderableType] = [top]
    rows = growth_rows(trace, verdict)
    if rows:
        parts += [Text(), _GrowthTable(trace, rows), Text()]
    rest = _grid()
    _add(rest, then, verdict)
    return Group(*parts, rest)


def _headline(verdict: Verdict) -> tuple[Text, Text]:
    style = {"calm": "bold green", "told": "bold yellow", "broken": _BROKEN}[mood(verdict)]
    line = Text(visible(verdict.headline), style="bold")
    return Text("VERDICT", style=style), line.append(f"  confidence: {verdict.confidence}", style="not bold dim")


class _GrowthTable:
    """Held and grown by kind. Numbers keep their columns; where it is narrow, the words beside them go on below."""

    def __init__(self, trace: Trace, rows: tuple[GrowthRow, ...]) -> None:
        self._headings = (HEADINGS[0], now_text(trace), *HEADINGS[1:])
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from _lines(self._headings, options.max_width, style="dim")
        for row in self._rows:
            style = "bold yellow" if row.guilty else ""
            yield from _lines((row.kind, *row_texts(row)), options.max_width, style=style)


def _lines(cells: tuple[str, ...], width: int, *, style: str) -> Iterator[Text]:
    numbers = f"{cells[0]:<{_KIND}}" + "".join(f"{cell:>{_NUMBER}}" for cell in cells[1:5])
    beside = width - _NUMBERS >= _NARROW
    before = _NUMBERS if beside else _KIND
    words = textwrap.wrap(cells[5], max(_NARROW, width - before))
    if not beside:
        yield Text(numbers.rstrip(), style=style, no_wrap=True)
    for place, line in enumerate(words):
        left = f"{numbers}  " if beside and place == 0 else " " * before
        yield Text(left + line, style=style, no_wrap=True)


def _grid() -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True, min_width=8)
    table.add_column(overflow="fold")
    return table


def _add(table: Table, sections: Sequence[Section], verdict: Verdict) -> None:
    for title, lines in sections:
        for place, line in enumerate(lines):
            mark = f"{place + 1}) {line}" if title == "fix" and len(lines) > 1 else line
            table.add_row(title if place == 0 else "", Text(mark, style=_style(title, verdict)))


def _style(title: str, verdict: Verdict) -> str:
    if title == "budget" and verdict.budget is not None:
        return "green" if verdict.budget.ok else _BROKEN
    if title == "ended" and verdict.ended is not None:
        return _BROKEN if verdict.ended.how == "oom" else ""
    return "dim" if title in ("not it", "evidence") else ""
