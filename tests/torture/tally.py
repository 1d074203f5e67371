"""What one program of a campaign counts, and how it tells: a line of JSON whenever something happened.

A program that hangs or is killed has told what it saw until then. ``wrong`` and ``lost`` are failures of the library;
``danger`` is what its documents call a danger (a mapped file truncated in the middle of a read ends the process) and
does not fail the run.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

# Which column of the table a kind of problem is counted in.
LOST = frozenset({"lost", "repeated"})
HUNG = frozenset({"hung"})  # a child of the program; the runner sees for itself when the program hangs
DANGERS = frozenset({"danger"})
EXAMPLES = 3  # of each kind of problem that are told in full


@dataclass
class Tally:
    """Counts of one program. ``fired`` are faults that really happened, ``tried`` those that were set up."""

    tried: int = 0
    fired: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    skipped: str = ""
    _told: float = 0.0

    def found(self, kind: str, example: str) -> None:
        """A problem: its kind, and what was seen, both numbers included."""
        self.add(kind, example)
        self.tell_now_and_then()

    def add(self, kind: str, example: str) -> None:
        """The same without telling it."""
        self.problems[kind] += 1
        told = self.examples.setdefault(kind, [])
        if len(told) < EXAMPLES:
            told.append(example)

    def skip(self, why: str) -> None:
        self.skipped = why
        self.tell()

    def tell(self) -> None:
        print("tally " + json.dumps(self.as_dict()), flush=True)
        self._told = time.monotonic()

    def tell_now_and_then(self) -> None:
        if time.monotonic() - self._told > 0.2:
            self.tell()

    def as_dict(self) -> dict[str, Any]:
        return {
            "tried": self.tried,
            "fired": self.fired,
            "problems": dict(self.problems),
            "examples": self.examples,
            "skipped": self.skipped,
        }

    @classmethod
    def from_output(cls, output: str) -> Tally:
        """The last count that a program told; an empty one when it told none."""
        told = [line for line in output.splitlines() if line.startswith("tally {")]
        for line in reversed(told):
            try:
                found = json.loads(line.removeprefix("tally "))
            except ValueError:
                continue  # cut short by a kill
            found["problems"] = Counter(found["problems"])
            return cls(**found)
        return cls()

    @property
    def wrong(self) -> int:
        return sum(count for kind, count in self.problems.items() if kind not in LOST | HUNG | DANGERS)

    @property
    def hung(self) -> int:
        return sum(count for kind, count in self.problems.items() if kind in HUNG)

    @property
    def lost(self) -> int:
        return sum(count for kind, count in self.problems.items() if kind in LOST)
