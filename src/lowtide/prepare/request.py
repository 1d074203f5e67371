"""What somebody asked for: the settings that fix a corpus's bytes, and those that only say how to get there.

One idea: two frozen values. `Request` is compared when a run goes on after a stop, and a hash of it stands in the
manifest; `Resources` may change between two tries without changing a byte. Both are checked here and nowhere else.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from typing import Any

from lowtide.arguments import at_least, one_of
from lowtide.units import MIB, parse_size

FORMATS = ("lowtide", "nanogpt", "llmc", "megatron")
ENGINES = ("local", "ray")
POLICIES = ("refuse", "replace")
SHARD_TOKENS = 100_000_000
MOST_SHARD_TOKENS = 2**31 - 1  # llm.c's header counts in int32, and no reader gains from larger files

# A worker at rest is Python and its libraries, which no setting of ours changes; what it may hold beside
# that is counted here: its block of text, the encoded piece and the tokenizer's cache.
WORKER_SHARE = 64 * MIB
LEAST_BUDGET = 96 * MIB


@dataclass(frozen=True)
class Request:
    """What fixes the bytes of a corpus, beside the inputs themselves."""

    tokenizer: str = "bytes"  # "bytes", or the path of a tokenizer.json, .tiktoken or .model
    train_bpe: int = 0  # ids of a BPE to train first; 0: use ``tokenizer``
    eot: str = ""  # the end-of-text token, by its spelling or id, where the tokenizer's own is not found
    lines: bool = False
    separator: str = ""
    field: str = "text"
    column: str = "text"
    val: float = 0.0
    dedup: bool = False
    shard_tokens: int = SHARD_TOKENS
    invalid_utf8: str = "refuse"
    skip_bad: bool = False
    format: str = "lowtide"

    def __post_init__(self) -> None:
        one_of("--format", self.format, FORMATS)
        one_of("--invalid-utf8", self.invalid_utf8, POLICIES)
        at_least("--shard-tokens", self.shard_tokens, 1, example=f"--shard-tokens {SHARD_TOKENS}")
        if self.shard_tokens > MOST_SHARD_TOKENS:
            raise ValueError(
                f"--shard-tokens: expected at most {MOST_SHARD_TOKENS}, got {self.shard_tokens}. "
                f"Use --shard-tokens {SHARD_TOKENS}."
            )
        if not 0 <= self.val < 1:
            raise ValueError(f"--val: expected a share from 0 up to 1, got {self.val}. Use --val 0.005.")
        if self.lines and self.separator:
            raise ValueError(
                "--separator: expected one way to tell documents apart, got --lines too. Leave one of them out."
            )
        if self.train_bpe and self.tokenizer != "bytes":
            raise ValueError(
                f"--train-bpe: expected no other tokenizer, got --tokenizer {self.tokenizer}. Leave one of them out."
            )
        if self.train_bpe and self.train_bpe < 300:
            raise ValueError(
                f"--train-bpe: expected 300 ids or more (256 are bytes), got {self.train_bpe}. Use --train-bpe 8192."
            )

    def differences(self, other: dict[str, Any]) -> list[tuple[str, Any, Any]]:
        """(name, before, now) of every setting that is not as it was."""
        now = asdict(self)
        return [(name, other.get(name), value) for name, value in now.items() if other.get(name) != value]


@dataclass(frozen=True)
class Resources:
    """How to get there: nothing here changes a byte of the corpus."""

    engine: str = "local"
    address: str = ""
    workers: int = 0  # 0: as many as the processors and the budget allow
    budget: int | str = "auto"
    dedup_memory: int | str = "256MiB"
    tokenizer_engine: str = "auto"  # "auto" or "tokenizers"

    def __post_init__(self) -> None:
        one_of("--engine", self.engine, ENGINES)
        one_of("--tokenizer-engine", self.tokenizer_engine, ("auto", "tokenizers"))
        at_least("--workers", self.workers, 0, example="--workers 2")
        if self.address and self.engine != "ray":
            raise ValueError("--address: expected --engine ray with it, got --engine local. Add --engine ray.")
        if self.budget != "auto" and parse_size(self.budget, what="--budget") < LEAST_BUDGET:
            raise ValueError(
                f"--budget: expected {LEAST_BUDGET // MIB}MiB or more, got {self.budget}. "
                f"Use --budget {LEAST_BUDGET // MIB}MiB."
            )

    @property
    def seen_bytes(self) -> int:
        return parse_size(self.dedup_memory, what="--dedup")

    @property
    def worker_count(self) -> int:
        """Workers the processors and the budget allow, or what was stated."""
        if self.workers:
            return self.workers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if self.budget == "auto":
            return cores
        return max(1, min(cores, (parse_size(self.budget) - WORKER_SHARE // 2) // WORKER_SHARE))

    @property
    def budget_bytes(self) -> int:
        if self.budget == "auto":
            return max(256 * MIB, (self.worker_count + 1) * WORKER_SHARE)
        return parse_size(self.budget)


def setting_flag(name: str) -> str:
    """The flag that sets a field of `Request`."""
    return "--" + name.replace("_", "-")


REQUEST_FIELDS = tuple(field.name for field in fields(Request))
