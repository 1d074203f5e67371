"""The campaigns by name: what each does, how many faults a program of it tries, and how long it may be silent.

A campaign is a module of this package with ``program(rng, directory, tally, rounds)``, which runs one program, and
perhaps ``clean(directory)``, which undoes what a killed one left mounted. Modules are imported when they are used: a
program must not wait for what only another one needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Campaign:
    name: str
    what: str
    rounds: int
    patience: float = 45.0  # seconds without a sign of life that mean a hang

    @property
    def module(self) -> Any:
        return import_module(f"tests.torture.{self.name}")

    def clean(self, directory: Path) -> None:
        if self.name in ("limits", "training"):
            self.module.clean(directory)


_ALL = (
    Campaign("interrupts", "exceptions in the middle of next()", 150),
    Campaign("reads", "the n-th read fails", 60),
    Campaign("changes", "files change under readers", 40),
    Campaign("programs", "forks, spawns and threads", 12, patience=150),
    Campaign("descriptors", "few descriptors", 3),
    Campaign("limits", "tiny cgroups and stated budgets", 6, patience=330),
    Campaign("headers", "damaged headers", 400),
    Campaign("orders", "shuffles of any size", 8, patience=120),
    Campaign("surroundings", "handlers, no threads, few descriptors, strangers' files", 30, patience=120),
    Campaign("preparing", "prepare killed at every change, and in 64 MiB", 200, patience=120),
    Campaign("training", "runs killed, branched and starved of disk", 4, patience=400),
)
CAMPAIGNS = {campaign.name: campaign for campaign in _ALL}
