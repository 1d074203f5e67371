"""The campaigns by name: what each does, how many faults a program of it tries, and how long it may be silent."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.torture import changes, descriptors, headers, interrupts, limits, orders, programs, reads, training
from tests.torture.tally import Tally


def nothing(directory: Path) -> None:
    """Most campaigns leave nothing outside their directory."""


@dataclass(frozen=True)
class Campaign:
    """``program(rng, directory, tally, rounds)`` runs one program; ``clean`` undoes what a killed one left mounted."""

    name: str
    what: str
    program: Callable[[random.Random, Path, Tally, int], None]
    rounds: int
    patience: float = 45.0
    clean: Callable[[Path], None] = nothing


_ALL = (
    Campaign("interrupts", "exceptions in the middle of next()", interrupts.program, rounds=150),
    Campaign("reads", "the n-th read fails", reads.program, rounds=60),
    Campaign("changes", "files change under readers", changes.program, rounds=40),
    Campaign("programs", "forks, spawns and threads", programs.program, rounds=12, patience=150),
    Campaign("descriptors", "few descriptors", descriptors.program, rounds=3),
    Campaign("limits", "tiny cgroups and stated budgets", limits.program, rounds=6, patience=330, clean=limits.clean),
    Campaign("headers", "damaged headers", headers.program, rounds=400),
    Campaign("orders", "shuffles of any size", orders.program, rounds=8, patience=120),
    Campaign("training", "runs killed, branched and starved", training.program, 4, patience=400, clean=training.clean),
)
CAMPAIGNS = {campaign.name: campaign for campaign in _ALL}
