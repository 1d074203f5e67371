"""The figures of a run for TensorBoard, where it is installed (``--tensorboard``).

One idea: the same calls that write ``metrics.jsonl`` also go to torch's own event writer. Nothing of TensorBoard is
imported without the flag; costs a background thread of TensorBoard's that writes to ``OUT_DIR/tensorboard``.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from lowtide.train.progress import Facts, RunOutcome, Stepped
from lowtide.units import MIB


def check_installed() -> None:
    """ValueError with the way out when the package is missing."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ValueError(
            "--tensorboard: expected the package tensorboard, got none. Install it with: pip install tensorboard"
        )


class Board:
    """A `RunProgress` that draws curves."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "tensorboard"
        self._writer: Any = None

    def started(self, facts: Facts) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = facts.first_step or None  # a resumed run hides what it overtakes
        self._writer = SummaryWriter(str(self._directory), purge_step=purge)

    def stepped(self, now: Stepped) -> None:
        self._add(
            now.step,
            {
                "loss/train": now.loss,
                "learning_rate": now.learning_rate,
                "tokens_per_s": now.tokens_per_s,
                "data_wait": now.data_wait,
                "memory_mib/anon": now.reading.anon / MIB,
                "memory_mib/mapped": now.reading.mapped / MIB,
                "memory_mib/cache": now.reading.cache / MIB,
            },
        )

    def evaluated(self, step: int, val_loss: float) -> None:
        self._add(step, {"loss/val": val_loss})

    def note(self, text: str) -> None: ...

    def ended(self, outcome: RunOutcome) -> None: ...

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _add(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
