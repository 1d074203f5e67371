"""The bar of a run in a terminal.

One idea: rich redraws two short lines on stderr (80 columns are enough) with the newest figures; everything
else is said as `Lines` says it, above the bar.
"""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from lowtide.train.progress import Facts, Lines, RunOutcome, Stepped, describe, held, pace


class Live:
    """Progress for a person at a terminal."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._bar = Bar(
            BarColumn(bar_width=20),
            TextColumn("{task.completed}/{task.total}  {task.fields[figures]}", markup=False),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("train", total=None, figures="")

    def started(self, facts: Facts) -> None:
        for line in describe(facts):
            self.note(line)
        self._bar.update(self._task, total=facts.max_iters, completed=facts.first_step)
        self._bar.start()

    def stepped(self, now: Stepped) -> None:
        self._bar.update(self._task, completed=now.step, figures=f"{pace(now)}\n{held(now)}")

    def evaluated(self, step: int, val_loss: float) -> None:
        self.note(f"step {step:>6}  val loss {val_loss:.4f}")

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def ended(self, outcome: RunOutcome) -> None:
        self.close()
        Lines().ended(outcome)

    def close(self) -> None:
        self._bar.stop()
