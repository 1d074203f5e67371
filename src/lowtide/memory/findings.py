"""What a trace means, as plain frozen values: what is held and by whom, what grew, what can happen, what helps.

One idea: a verdict is data first. Every line a report prints stands on a value here that a program can read: owners
with bytes, risks with a level and the seconds left. Nothing here judges; verdict.py fills it in.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.memory import glance
from lowtide.memory.samples import Ended


@dataclass(frozen=True, slots=True)
class Growth:
    """How one kind went, in bytes. ``grew`` and ``per_minute`` leave out start-up; ``first``, ``last``, ``peak`` do
    not."""

    kind: str
    first: int
    last: int
    peak: int
    grew: int
    per_minute: int


@dataclass(frozen=True, slots=True)
class Owner:
    """Who has bytes of a kind. ``what`` is file, process, library code, tmpfs file, allocator, smaller files or
    unexplained."""

    name: str
    bytes: int
    what: str


@dataclass(frozen=True, slots=True)
class KindHeld:
    """One kind: bytes at the end and at its highest, and who had those at its highest (their sum is ``peak``)."""

    kind: str
    end: int
    peak: int
    seconds: float  # when the peak was
    owners: tuple[Owner, ...] = ()


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """What the process tree had, whether or not it grew. ``takeable`` and ``stays`` share out ``end``."""

    end: int
    peak: int
    seconds: float  # when the peak of all kinds together was
    takeable: int  # clean file pages: the kernel takes them back at once
    stays: int  # heap, shared memory, page tables, and dirty pages until they are written
    limit: int | None
    limit_set_by: str
    limit_used: int  # bytes that count against the limit and cannot be taken back
    look_age: float  # seconds between the last close look and the end
    kinds: tuple[KindHeld, ...] = ()

    @property
    def share(self) -> float | None:
        """Of the limit, in what cannot be taken back."""
        return None if not self.limit else self.limit_used / self.limit


@dataclass(frozen=True, slots=True)
class Grower:
    """A file or process behind the growth: how far it rose, what it has now, and of how much (a file's size)."""

    name: str
    what: str  # file or process
    grew: int
    now: int
    size: int | None = None
    filesystem: str = ""


@dataclass(frozen=True, slots=True)
class Risk:
    """What can happen. ``what`` is oom, eviction, dirty or thrash; ``level`` is none, low or high; ``seconds`` until it
    happens at the measured rate, where that is known."""

    what: str
    level: str
    sentence: str
    limit: int | None = None
    used: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class BudgetOutcome:
    """The most that was held at once (anon + mapped + shmem + tables) beside what was allowed."""

    allowed: int
    peak: int
    seconds: float  # when the peak was

    @property
    def ok(self) -> bool:
        return self.peak <= self.allowed


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a trace means. ``grew`` is one of ``GREW``; ``confidence`` is "high", "medium" or "low"; ``headline``,
    ``fix``, ``not_it`` and ``evidence`` are sentences."""

    grew: str
    confidence: str
    headline: str
    held: HeldMemory | None = None
    ended: Ended | None = None
    growth: tuple[Growth, ...] = ()
    who: tuple[Grower, ...] = ()
    risk: tuple[Risk, ...] = ()
    fix: tuple[str, ...] = ()
    not_it: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    budget: BudgetOutcome | None = None

    @property
    def danger(self) -> bool:
        """Whether something bad is near: any risk of level high."""
        return any(risk.level == "high" for risk in self.risk)

    def __str__(self) -> str:
        return glance.as_text(self)

    def _repr_html_(self) -> str:
        return glance.as_html(self)
