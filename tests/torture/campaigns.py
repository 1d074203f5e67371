"""The campaigns by name: what each does, how many faults a program of it tries, and how long it may be silent."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.torture import interrupts
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


CAMPAIGNS = {
    campaign.name: campaign
    for campaign in (Campaign("interrupts", "exceptions in the middle of next()", interrupts.program, rounds=150),)
}
