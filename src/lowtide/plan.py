"""What an opened object will hold and how it will read, before it does.

One idea: a plan is measured against afterwards - tests assert that no kind of memory passes what was projected - so
it is a promise in numbers, with the reason for every choice beside it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lowtide.units import format_size


@dataclass(frozen=True)
class Plan:
    """Projected bytes by kind, and the strategy, rung and engine in use."""

    anon: int  # most bytes of buffers at once
    mapped: int  # most bytes of file pages mapped at once
    cache: int  # most bytes left in, or announced to, the page cache
    budget: int
    strategy: str
    rung: str  # how the page cache is left
    engine: str  # "python" | "native"
    why: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"budget    {format_size(self.budget)}",
            f"anon      up to {format_size(self.anon)}",
            f"mapped    up to {format_size(self.mapped)}",
            f"cache     up to {format_size(self.cache)}",
            f"strategy  {self.strategy}, engine {self.engine}",
            f"rung      {self.rung}",
        ]
        return "\n".join([*lines, *(f"because   {reason}" for reason in self.why)])
