"""What ``lowtide.mix`` was asked for: names, weights and changes, checked and in exact fractions.

One idea: a mixture is refused here, before anything is opened or planned, with the entry that is wrong. Weights are
taken as written: 0.1 is one tenth. Reads nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from lowtide.arguments import at_least
from lowtide.order.mixing import MOST_PARTS, Weights, shares
from lowtide.tokens import Tokens
from lowtide.windows import Windows

Parts = Mapping[str, tuple[Any, float | Fraction]]  # tokens, or windows, and a weight
Change = Mapping[str, Any]  # a weight for each name; (tokens, weight) for one that joins


def check_alike(corpora: Mapping[str, Any]) -> None:
    """All of them windows, of one length, cut and dtype, with documents or without."""
    first_name, first = next((name, one) for name, one in corpora.items() if isinstance(one, Windows))
    for name, one in corpora.items():
        if not isinstance(one, Windows):
            raise TypeError(
                f"mix: expected windows for {name!r} as for {first_name!r}, got {type(one).__name__}. "
                f"Use tokens.windows({first.length}, cut={first.cut!r}) for all of them, or tokens for all."
            )
        for what in ("length", "cut", "documents", "dtype"):
            mine, theirs = getattr(one, what), getattr(first, what)
            if mine != theirs:
                raise ValueError(
                    f"mix: expected windows of equal {what}, got {theirs!r} for {first_name!r} and {mine!r} for "
                    f"{name!r}. Make them with the same {what}=."
                )


def schedule_of(corpora: Parts, then: Mapping[int, Change]) -> tuple[dict[str, Any], list[tuple[int, Weights]]]:
    """Every corpus by name, in alphabetical order (the plan must not depend on how a dict was written), and the weights
    of each from every row on."""
    if not isinstance(corpora, Mapping) or not corpora:
        raise ValueError(
            f"mix: expected corpora by name, got {corpora!r}. Use mix({{'web': (web, 0.7), 'code': (code, 0.3)}})."
        )
    known: dict[str, Any] = {}
    stated = [(0, _named("mix", corpora, known))]
    for row in sorted(_rows(then)):
        if not isinstance(then[row], Mapping):
            raise TypeError(f"then[{row}]: expected weights by name, got {then[row]!r}. Use {{'web': 0.5}}.")
        stated.append((row, _named(f"then[{row}]", then[row], known)))
    names = sorted(known)
    changes = [(row, tuple(weights.get(name, Fraction(0)) for name in names)) for row, weights in stated]
    for row, weights in changes:
        _check_sum(f"then[{row}]" if row else "mix", dict(zip(names, weights, strict=True)))
    return {name: known[name] for name in names}, changes


def _rows(then: Mapping[int, Change]) -> list[int]:
    if not isinstance(then, Mapping):
        raise TypeError(f"then: expected changes by row, got {type(then).__name__}. Use then={{1_000_000: {{...}}}}.")
    return [at_least("then", row, 1, example="then={1_000_000: {...}}, rows counted from 0") for row in then]


def _named(where: str, change: Change, known: dict[str, Any]) -> dict[str, Fraction]:
    """The weights of one entry; names with tokens become known."""
    found = {}
    for name, value in change.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"{where}: expected names of corpora, got {name!r}. Use {{'web': (web, 0.7)}}.")
        tokens, weight = value if isinstance(value, (tuple, list)) and len(value) == 2 else (None, value)
        if tokens is None and name not in known:
            raise ValueError(
                f"{where}: expected one of {', '.join(sorted(known)) or 'the corpora'}, or tokens with the weight for "
                f"a new name, got {name!r} with {value!r}. Use {{{name!r}: (tokens, weight)}}."
            )
        if tokens is not None:
            if not isinstance(tokens, (Tokens, Windows)):
                raise TypeError(
                    f"{where}: expected (tokens, weight) for {name!r}, got {type(tokens).__name__}. "
                    "Open it with lowtide.open_tokens(...)."
                )
            if known.setdefault(name, tokens) is not tokens:
                raise ValueError(
                    f"{where}: expected the {name!r} that is in the mixture already, got other tokens. "
                    f"Give them another name, or leave them out: {{{name!r}: {weight!r}}}."
                )
        found[name] = _weight(where, name, weight)
    return found


def _weight(where: str, name: str, weight: Any) -> Fraction:
    """As written: 0.1 is one tenth, not the float nearest to it."""
    if isinstance(weight, bool) or not isinstance(weight, (int, float, Fraction, np.integer, np.floating)):
        raise TypeError(f"{where}: expected a number for {name!r}, got {type(weight).__name__}. Use 0.5, say.")
    if not math.isfinite(weight) or weight < 0:
        raise ValueError(f"{where}: expected a weight of 0 or more for {name!r}, got {weight}. Use 0.5, say.")
    if isinstance(weight, Fraction):
        return weight
    return Fraction(int(weight)) if isinstance(weight, (int, np.integer)) else Fraction(str(float(weight)))


def _check_sum(where: str, weights: dict[str, Fraction]) -> None:
    total = sum(weights.values())
    if not total:
        raise ValueError(f"{where}: expected weights above 0 in sum, got 0. Give at least one corpus a weight.")
    for (name, weight), share in zip(weights.items(), shares(list(weights.values())), strict=True):
        if weight and not share:
            raise ValueError(
                f"{where}: expected a share of 1/{MOST_PARTS} or more for {name!r}, got {float(weight / total):.3g}. "
                "Raise its weight, or leave it out."
            )


def summed(corpora: dict[str, Any]) -> int | str:
    """The sum of the corpora's budgets; splits of one corpus share one. ``auto`` where none was stated."""
    budgets = {id(tokens.store.budget): tokens.store.budget for tokens in corpora.values()}
    if not any(budget.stated for budget in budgets.values()):
        return "auto"
    return int(sum(budget.limit for budget in budgets.values()))
