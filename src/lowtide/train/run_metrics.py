"""``metrics.jsonl``: the figures of a run, one JSON object per line, for plots and for finding a spike.

One idea: always written, appended to by every run in the directory. A ``start`` line says at which step a run began:
lines of that step and later ones that stand before it were overtaken. It is a by-product: when the disk is full the run
says so once and goes on without it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lowtide.train.progress import Facts, RunOutcome, Stepped
from lowtide.train.run_lock import reason
from lowtide.train.whole_lines import WholeLines

METRICS = "metrics.jsonl"


class MetricsFile:
    """A `RunProgress` that writes what a plot needs."""

    def __init__(self, directory: Path, note: Callable[[str], None]) -> None:
        self._path = directory / METRICS
        self._note = note
        self._lines: WholeLines | None = None

    def started(self, facts: Facts) -> None:
        try:
            self._lines = WholeLines(self._path)
        except OSError as problem:
            self._note(f"no metrics: {self._path}: {reason(problem)}")
        self._write(event="start", step=facts.first_step, max_iters=facts.max_iters, parameters=facts.parameters)

    def stepped(self, now: Stepped) -> None:
        self._write(
            event="step",
            step=now.step,
            loss=now.loss,
            learning_rate=now.learning_rate,
            tokens_per_s=now.tokens_per_s,
            data_wait=now.data_wait,
            anon=now.reading.anon,
            mapped=now.reading.mapped,
            cache=now.reading.cache,
            **({} if now.shares is None else {"shares": now.shares, "epochs": now.epochs}),
        )

    def evaluated(self, step: int, val_loss: float) -> None:
        self._write(event="eval", step=step, val_loss=val_loss)

    def note(self, text: str) -> None: ...

    def ended(self, outcome: RunOutcome) -> None:
        control = {} if outcome.control is None else {"control_mapped": outcome.control.mapped}
        self._write(event="end", step=outcome.steps, val_loss=outcome.val_loss, budget=outcome.verdict.word, **control)

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()
            self._lines = None

    def _write(self, **values: Any) -> None:
        if self._lines is None:
            return
        safe = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}
        try:
            self._lines.append(json.dumps(safe).encode() + b"\n")
        except OSError as problem:
            self.close()
            self._note(f"no more metrics, training goes on: {self._path}: {reason(problem)}")
