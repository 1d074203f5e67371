"""How a corpus is made: engine, workers and memory, none of which changes a byte of it.

These settings may change between two tries of the same command; those in `lowtide.corpus.request` may not. Checked here
and nowhere else. If a cgroup leaves little memory, there are fewer workers, or none: then this process encodes alone. A
run that cannot do even that is refused before it begins.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from lowtide.arguments import at_least, one_of
from lowtide.errors import BudgetError
from lowtide.machine import MemoryLimit, memory_limit
from lowtide.units import MIB, format_size, parse_size

ENCODING_ENGINES = ("local", "ray")
# An idle worker holds Python and its libraries, which no setting of ours changes. Counted here is what it may hold in
# addition: its block of text, the encoded block and the tokenizer's cache.
WORKER_SHARE = 64 * MIB
_PROCESS = 40 * MIB  # Python and NumPy
LEAST_PREPARE_BUDGET = 96 * MIB


@dataclass(frozen=True)
class Resources:
    """How a corpus is made: nothing here changes a byte of it."""

    engine: str = "local"
    address: str = ""
    workers: int = 0  # 0: as many as the processors and the memory allow
    budget: int | str = "auto"
    dedup_memory: int | str = "256MiB"
    tokenizer_engine: str = "auto"  # "auto" or "tokenizers"

    def __post_init__(self) -> None:
        one_of("--engine", self.engine, ENCODING_ENGINES)
        one_of("--tokenizer-engine", self.tokenizer_engine, ("auto", "tokenizers"))
        at_least("--workers", self.workers, 0, example="--workers 2")
        if self.address and self.engine != "ray":
            raise ValueError("--address: expected --engine ray with it, got --engine local. Add --engine ray.")
        if self.budget != "auto" and parse_size(self.budget, what="--budget") < LEAST_PREPARE_BUDGET:
            raise ValueError(
                f"--budget: expected {LEAST_PREPARE_BUDGET // MIB}MiB or more, got {self.budget}. "
                f"Use --budget {LEAST_PREPARE_BUDGET // MIB}MiB."
            )

    @property
    def seen_bytes(self) -> int:
        return parse_size(self.dedup_memory, what="--dedup")

    def worker_count(self, each: int, left: int | None) -> int:
        """The number stated, or as many workers as the processors, the budget and ``left`` bytes of memory allow if one
        needs ``each`` bytes beside Python; 0: this process encodes."""
        if self.workers:
            return self.workers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if self.budget != "auto":
            cores = max(1, min(cores, (parse_size(self.budget) - WORKER_SHARE // 2) // WORKER_SHARE))
        if left is None:
            return cores
        return max(0, min(cores, (left - WORKER_SHARE) // (_PROCESS + each + WORKER_SHARE // 2)))

    def budget_bytes(self, workers: int) -> int:
        if self.budget == "auto":
            return max(256 * MIB, (workers + 1) * WORKER_SHARE) if workers else WORKER_SHARE
        return parse_size(self.budget)


def refuse_little_memory(what: str, needed: int, limit: MemoryLimit | None = None) -> None:
    """BudgetError if the tightest memory limit of this process leaves less than ``needed`` bytes."""
    limit = limit or memory_limit()
    if limit.left is not None and limit.left < needed:
        # What is in use is not the same to the byte next time.
        enough = -(-((limit.limit or 0) - limit.left + needed + MIB) // (16 * MIB)) * 16
        raise BudgetError(
            f"{what}: expected {format_size(needed)} of memory beside what is in use, got {format_size(limit.left)} "
            f"({limit.source} allows {format_size(limit.limit or 0)}). Allow {enough}MiB."
        )
