"""What ``@pytest.mark.memory_budget(...)`` allows, and whether a measurement kept it. Pure.

A budget is a size for each kind, checked when tests are collected: a misspelt kind or size is an
error that suggests the right word, instead of a budget that guards nothing.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lowtide.units import MIB, format_size, parse_size

BUDGET_KINDS = ("anon", "mapped", "shmem", "tables", "rss", "cache")
_IN_RSS = ("anon", "mapped", "shmem")
_OPTIONS = ("fresh", "files")
_JUMP = MIB  # a kind that never grew by this much in a sample did not cause a jump between samples
_EXAMPLE = '@pytest.mark.memory_budget(anon="64 MiB", mapped="16 MiB")'


@dataclass(frozen=True)
class StatedBudget:
    """Most bytes each stated kind may grow by during the test."""

    allowed: Mapping[str, int]
    fresh: bool = False
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """The most each kind grew by, in bytes, and when; ``unseen`` is how far the kernel's own
    high-water mark of RSS rose above every sample."""

    peak: Mapping[str, int]
    when: Mapping[str, float]
    unseen: int
    seconds: float
    samples: int


def read_budget(marks: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]]) -> StatedBudget:
    """One budget from the marks of a test, its class and its module, the nearest mark winning for each word.
    ValueError suggests the right word."""
    words: dict[str, Any] = {}
    for positional, named in marks:  # nearest first
        if positional:
            raise ValueError(f"expected sizes by kind, got {positional[0]!r} without a kind. Write {_EXAMPLE}.")
        words = {**named, **words}
    for word in words:
        if word not in BUDGET_KINDS + _OPTIONS:
            raise ValueError(_unknown(word))
    allowed = {kind: _stated_size(kind, words[kind]) for kind in BUDGET_KINDS if kind in words}
    if not allowed:
        raise ValueError(f"expected at least one of {', '.join(BUDGET_KINDS)}, got none. Write {_EXAMPLE}.")
    if not isinstance(words.get("fresh", False), bool):
        raise ValueError(f"fresh: expected True or False, got {words['fresh']!r}. Write fresh=True.")
    return StatedBudget(allowed, words.get("fresh", False), _paths(words.get("files", ())))


def broken(budget: StatedBudget, measured: Measured) -> bool:
    over = any(measured.peak[kind] > size for kind, size in budget.allowed.items())
    return over or _jumped(budget, measured)


def verdict(budget: StatedBudget, measured: Measured) -> str:
    """Measured against allowed, the broken kinds first, on one line."""
    order = sorted(budget.allowed, key=lambda kind: measured.peak[kind] <= budget.allowed[kind])
    parts = [_kind_words(kind, budget.allowed[kind], measured) for kind in order]
    if _jumped(budget, measured):
        parts.insert(0, f"RSS rose {format_size(measured.unseen)} between two samples, more than the budget had left")
    return "memory_budget: " + "; ".join(parts)


def summary(measured: Measured) -> str:
    """Every kind, for the report of a test."""
    grown = ", ".join(f"{kind} {format_size(size)}" for kind, size in measured.peak.items())
    jump = f"; RSS rose {format_size(measured.unseen)} more between samples" if measured.unseen > _JUMP else ""
    return f"most growth by kind: {grown} ({measured.samples:,} samples over {measured.seconds:.2f} s{jump})"


def _kind_words(kind: str, allowed: int, measured: Measured) -> str:
    grew = f"{kind} grew {format_size(measured.peak[kind])}, allowed {format_size(allowed)}"
    if measured.peak[kind] <= allowed or kind not in measured.when:
        return grew
    return f"{grew} (peak at {measured.when[kind]:.1f} s)"


def _jumped(budget: StatedBudget, measured: Measured) -> bool:
    """Memory taken and freed between two samples. It broke the budget if every kind it may have been is
    stated, and together they had less left than the jump."""
    suspects = [kind for kind in _IN_RSS if kind in budget.allowed or measured.peak[kind] >= _JUMP]
    if measured.unseen <= _JUMP or not suspects or not set(suspects) <= set(budget.allowed):
        return False
    left = sum(max(0, budget.allowed[kind] - measured.peak[kind]) for kind in suspects)
    return measured.unseen > left


def _unknown(word: str) -> str:
    near = difflib.get_close_matches(word, BUDGET_KINDS + _OPTIONS, n=1, cutoff=0.4)
    meant = {"heap": "anon", "file": "mapped", "page_cache": "cache", "shared": "shmem", "memory": "rss"}.get(word)
    hint = meant or (near[0] if near else None)
    known = ", ".join(BUDGET_KINDS + _OPTIONS)
    return f"{word}: expected one of {known}, got {word!r}. " + (
        f"Did you mean {hint!r}?" if hint else f"Write {_EXAMPLE}."
    )


def _stated_size(kind: str, value: Any) -> int:
    try:
        return parse_size(value, what=kind)
    except TypeError as problem:
        raise ValueError(str(problem)) from problem


def _paths(value: Any) -> tuple[str, ...]:
    if isinstance(value, str | os.PathLike):
        return (os.fspath(value),)
    if isinstance(value, list | tuple) and all(isinstance(each, str | os.PathLike) for each in value):
        return tuple(os.fspath(each) for each in value)
    raise ValueError(f"files: expected a path or a list of paths, got {value!r}. Write files=['data/train.bin'].")
