"""Facts and tables as aligned lines: rich's colours on a terminal, plain text everywhere else; and progress.

Widths are worked out here, once, and the lines are the same with and without colour. rich is imported only when stdout
is a terminal.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass

WIDEST = 120  # longer lines are hard to read, however wide the window is


@dataclass(frozen=True)
class Styled:
    """Text and how it looks on a terminal: a rich style, '' for plain."""

    text: str
    style: str = ""


def counted(number: int, what: str) -> str:
    """A number and its noun: '1 file', '2,048 files'."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def width() -> int:
    return min(WIDEST, shutil.get_terminal_size((100, 24)).columns)


def facts(pairs: Sequence[tuple[str, str]], styles: dict[str, str] | None = None, *, as_is: str = "") -> list[Styled]:
    """``name  value`` lines, values wrapped under themselves; a name repeated is left blank; styled by name.

    ``as_is``: the name whose value is for copying and never wrapped.
    """
    if not pairs:
        return []
    indent = max(len(name) for name, _ in pairs) + 2
    lines, before = [], ""
    for name, value in pairs:
        room = max(30, width() - indent)
        parts = textwrap.wrap(value, room, break_long_words=False, break_on_hyphens=False) or [""]
        if name == as_is:
            parts = [value]
        for place, part in enumerate(parts):
            shown = name if place == 0 and name != before else ""
            lines.append(Styled(f"{shown:<{indent}}{part}".rstrip(), (styles or {}).get(name, "")))
        before = name
    return lines


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str] = (), gap: int = 2
) -> list[Styled]:
    """Columns as wide as they need: the first to the left, the others to the right; closer where that is too wide."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    if sum(widths) + gap * (len(widths) - 1) > width():
        gap = 1

    def line(row: Sequence[str]) -> str:
        cells = [cell.rjust(size) for cell, size in zip(row[1:], widths[1:], strict=True)]
        return (" " * gap).join([row[0].ljust(widths[0]), *cells]).rstrip()

    looks = [*styles, *[""] * (len(rows) - len(styles))]
    return [Styled(line(header), "dim"), *(Styled(line(row), look) for row, look in zip(rows, looks, strict=True))]


def watched() -> bool:
    """Whether a person sees stderr as it is written."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


class HowFar:
    """One line on stderr, a few times a second, if that is a terminal; gone when the block ends."""

    def __init__(self) -> None:
        self._last = 0.0

    def __enter__(self) -> HowFar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._last:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def show(self, text: str) -> None:
        if watched() and time.monotonic() - self._last > 0.2:
            self._last = time.monotonic()
            print(f"\r{text} ", end="", file=sys.stderr, flush=True)


def show(lines: Sequence[Styled]) -> None:
    """Print to stdout. Text from outside is never taken for markup; control characters in it are shown, not obeyed."""
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        for line in lines:
            print(visible(line.text))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for line in lines:
        console.print(Text(visible(line.text), style=line.style))


def visible(text: str) -> str:
    """A file's name may hold anything, also an escape sequence."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
