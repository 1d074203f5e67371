"""What an opened object will hold and how it will read, before it does.

A plan is a promise in numbers, with the reason for every choice: tests assert that no kind of memory exceeds what was
projected.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lowtide.engine import FAULT_MOST
from lowtide.machine import PAGE
from lowtide.reading.opened import html_table
from lowtide.storage.store import Store
from lowtide.units import MIB, format_size


@dataclass(frozen=True)
class Plan:
    """Projected bytes by kind, and the strategy, rung and engine in use."""

    anon: int  # most bytes of buffers at once
    mapped: int  # most bytes of file pages mapped at once
    cache: int  # most bytes left in, or announced to, the page cache
    budget: int
    strategy: str
    rung: str  # how the page cache is left clean; "keep": it is not
    engine: str  # "python" | "native"
    why: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{name:10}  {value}" for name, value in self._facts().items()]
        return "\n".join([*lines, *(f"because     {reason}" for reason in self.why)])

    def _repr_html_(self) -> str:
        return html_table("lowtide plan", {**self._facts(), "because": "; ".join(self.why)})

    def _facts(self) -> dict[str, str]:
        return {
            "budget": format_size(self.budget),
            "anon": f"up to {format_size(self.anon)}",
            "mapped": f"up to {format_size(self.mapped)}",
            "cache": f"up to {format_size(self.cache)}",
            "strategy": f"{self.strategy}, engine {self.engine}",
            "page cache": "kept" if self.rung == "keep" else f"cleaned by {self.rung}",
        }


def project(store: Store, held: int, *, announced: int, why: tuple[str, ...] = (), kept: int = 0) -> Plan:
    """The plan of a store whose user and iterators hold at most ``held`` bytes of buffers.

    ``announced``: bytes of the batch being read and the next one, which pass through the page cache even when dropped.
    ``kept``: bytes that the budget has set aside for other things than mappings: indices, rows kept.
    """
    budget = store.budget
    name = store.strategy.name
    files = sum(store.files.sizes)
    aside_mapped = max(0, budget.aside - kept - store.tables) if name in ("remap", "advise") else 0
    limit = budget.limit if budget.stated else max(budget.limit, held + budget.aside)
    # However small the allowance, one span across two page tables may map everything they cover.
    strategy_mapped = max(aside_mapped, min(files, 2 * FAULT_MOST)) if aside_mapped else 0
    if strategy_mapped > limit:
        why = (*why, f"one mapped span may hold two page tables, {format_size(2 * FAULT_MOST)}")
    engine_why = f"engine {store.engine.name}: {store.engine.why}"
    # Read-ahead of sequential reads is in flight when a chunk is dropped.
    passing = announced + 16 * MIB + 512 * PAGE
    return Plan(
        anon=min(limit, held + budget.aside) - aside_mapped,
        mapped=files if name == "map" else strategy_mapped,
        cache=min(files + PAGE, passing) if store.drop else files,
        budget=limit,
        strategy=name,
        rung=store.strategy.rung,
        engine=store.engine.name,
        why=(store.strategy_why, store.cache_why, engine_why, *why),
    )
