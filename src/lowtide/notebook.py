"""``%load_ext lowtide.notebook``, then ``%%lowtide`` above a cell: what the cell held and what grew, by kind.

The cell runs as it always does, inside ``lowtide.watch()``, and the verdict is shown below its output with
the small chart. ``%lowtide EXPRESSION`` does the same for one line. The trace stays in ``_lowtide``. Options:
``--interval S`` (0.05), ``--budget SIZE``, ``--save FILE``. Imports IPython only when it is loaded into it.
"""

from __future__ import annotations

import argparse
import shlex
from typing import Any, NoReturn

from lowtide.memory import watch

__all__ = ["load_ipython_extension"]

_INTERVAL = 0.05  # seconds: cells are short


def load_ipython_extension(shell: Any) -> None:
    """What ``%load_ext lowtide.notebook`` calls."""

    def lowtide(line: str, cell: str | None = None) -> None:
        """%%lowtide [--interval S] [--budget SIZE] [--save FILE]: report the memory of this cell by kind."""
        _run(shell, line, cell)

    shell.register_magic_function(lowtide, "line_cell", "lowtide")


class _Options(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"%%lowtide: {message}. Write %%lowtide, or %%lowtide --budget 2GiB --save trace.jsonl.")


def _run(shell: Any, line: str, cell: str | None) -> None:
    from IPython.display import display

    parser = _Options(prog="%%lowtide", add_help=False, allow_abbrev=False)
    parser.add_argument("--interval", type=float, default=_INTERVAL)
    parser.add_argument("--budget")
    parser.add_argument("--save")
    parsed = parser.parse_args(shlex.split(line) if cell is not None else [])
    code = line if cell is None else cell
    with watch(interval=parsed.interval, budget=parsed.budget, save=parsed.save, command="%%lowtide") as trace:
        shell.run_cell(code)  # shows its own output, value and error
    shell.push({"_lowtide": trace})
    display(trace)  # type: ignore[no-untyped-call]
