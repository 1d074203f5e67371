"""Small corpora of known ids, and what a mixture of them must give, said independently of how it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

import lowtide

LENGTH = 16
Schedule = Sequence[tuple[int, Mapping[str, Any]]]


def corpus(directory: Path, name: str, tokens: int, dtype: str = "uint16", **options: Any) -> lowtide.Tokens:
    """A file whose ids tell which corpus and which place they are from."""
    first = {"web": 0, "code": 20_000, "math": 40_000}.get(name, 60_000)
    path = directory / f"{name}.bin"
    (first + np.arange(tokens) % 20_000).astype(dtype).tofile(path)
    return lowtide.open_tokens(path, dtype=dtype, **options)


def names(feed: lowtide.Feed, steps: int) -> list[str]:
    """The corpus of every row of the first steps."""
    return [str(place.corpus) for step in range(steps) for place in feed.where(step)]


def check_shares(sources: Sequence[str], schedule: Schedule) -> None:
    """After any number of rows since a change, each corpus has given its share of them to within one row."""
    stops = [*(row for row, _ in schedule[1:]), len(sources)]
    for (start, weights), stop in zip(schedule, stops, strict=True):
        total = sum(Fraction(str(weight)) for weight in weights.values())
        seen = dict.fromkeys(weights, 0)
        for k, name in enumerate(sources[start:stop], 1):
            assert name in weights, f"row {start + k - 1}: {name} takes no part"
            seen[name] += 1
            for each, weight in weights.items():
                off = abs(seen[each] - k * Fraction(str(weight)) / total)
                assert off <= 1 + Fraction(k, 65_536), f"row {start + k - 1}: {each} gave {seen[each]} of {k}"


def planned_rows(
    corpora: Mapping[str, lowtide.Tokens], sources: Sequence[str], **settings: Any
) -> np.ndarray[Any, Any]:
    """x of every row: each corpus's own feed, row after row, whenever it is its turn."""
    feeds = {name: tokens.batches(1, **settings) for name, tokens in corpora.items()}
    return np.concatenate([next(feeds[name])[0] for name in sources])
