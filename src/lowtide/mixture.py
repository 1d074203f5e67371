"""``lowtide.mix`` and ``Mixture``: named corpora with weights, read as one stream.

One idea: a mixture is a plan - which corpus gives which row - over corpora that stay as they are. The plan is exact at
every row and may change at stated rows; each corpus goes through its own epochs meanwhile. Opens nothing itself: the
corpora's files are opened once more, all of one kind together, so that a batch is one read however many there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from itertools import accumulate
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from lowtide.arguments import at_least, one_of
from lowtide.feed import Feed, Skips
from lowtide.formats.layout import join
from lowtide.order.mixing import MOST_PARTS, Mixing, Weights, plan_mixing, shares
from lowtide.reading.mixed_cut import JoinedRange, MixedCut, MixedGroup, MixedPart, MixedRuns
from lowtide.reading.run_ahead import RunAhead, TokenStretches, store_for_runs
from lowtide.reading.streams import ShuffledStream, locality_of, make_stream
from lowtide.reading.window_filler import WindowFiller
from lowtide.storage import Store
from lowtide.storage.budget import Budget
from lowtide.tokens import Tokens
from lowtide.windows import checked_ranks, long_enough

EXHAUSTED = ("repeat", "stop", "share")

Corpora = Mapping[str, tuple[Tokens, float | Fraction]]
Change = Mapping[str, Any]  # a weight for each name; (tokens, weight) for one that joins


def mix(
    corpora: Corpora,
    *,
    then: Mapping[int, Change] | None = None,
    exhausted: str = "repeat",
    budget: int | str | None = None,
) -> Mixture:
    """Several corpora as one. Weights are shares of rows, kept to within one row at any point.

    ``then``: new weights from a row on; a name that is missing leaves, a new one comes with its tokens. ``exhausted``:
    what happens when a corpus has given all its windows once: ``repeat`` (its next epoch), ``stop`` (the feed ends
    there) or ``share`` (the others go on without it). ``budget``: for all together; unstated, the sum of theirs. Reads
    nothing; seeking costs arithmetic. Raises ``ValueError`` for a negative weight, or a share below 1 in 65,536.

    >>> train, val = tokens.split(val=0.3)
    >>> mixture = lowtide.mix({"web": (train, 0.7), "code": (val, 0.3)})
    """
    return Mixture(*_schedule(corpora, then or {}), one_of("exhausted", exhausted, EXHAUSTED), budget)


class Mixture:
    """Named corpora and the weights each has from which row on.

    >>> train, val = tokens.split(val=0.3)
    >>> feed = lowtide.mix({"web": (train, 0.7), "code": (val, 0.3)}).batches(64, length=128, seed=1337)
    """

    def __init__(
        self,
        corpora: dict[str, Tokens],
        changes: list[tuple[int, Weights]],
        exhausted: str,
        budget: int | str | None,
    ) -> None:
        self.corpora = corpora
        self.exhausted = exhausted
        self._changes = changes
        self.budget = Budget(_summed(corpora) if budget is None else budget)
        kinds: dict[tuple[Any, ...], list[str]] = {}
        for name, tokens in corpora.items():
            kinds.setdefault((tokens.dtype.str, *tokens.store.asked), []).append(name)
        self._groups = tuple((tuple(names), self._store(names, *asked)) for (_, *asked), names in kinds.items())

    def _store(self, names: list[str], strategy: str, cache: str, engine: str) -> Store:
        extents = tuple(extent for name in names for extent in self.corpora[name].layout.extents)
        return Store(extents, strategy=strategy, cache=cache, budget=self.budget, engine=engine)

    @property
    def schedule(self) -> list[tuple[int, dict[str, Fraction]]]:
        """The shares in use from each row on, as exact fractions that sum to 1; corpora without one left out."""
        found = []
        for row, weights in self._changes:
            parts = shares(weights)
            named = zip(self.corpora, parts, strict=True)
            found.append((row, {name: Fraction(part, sum(parts)) for name, part in named if part}))
        return found

    def batches(  # noqa: PLR0913 - each by name: what there is to say about a feed
        self,
        batch: int,
        *,
        length: int,
        seed: int = 0,
        order: str = "shuffled",
        locality: int | str | None = None,
        rank: int | None = None,
        world: int | None = None,
        dtype: DTypeLike = "int64",
        skip: Skips = (),
    ) -> Feed:
        """A feed of ``(x, y)``, as ``Tokens.batches`` gives it, with each row from the corpus whose turn it is.

        A corpus's rows come in the order its own feed of this seed has. ``locality`` is per corpus.
        """
        batch = at_least("batch", batch, 1)
        ranks = checked_ranks(batch, rank, world)
        parts = self._parts(length, seed, order, locality)
        for _, store in self._groups:
            store.keep_for_ranks(ranks.world)
        cut = self._cut(parts, self._mixing(parts), length, dtype)
        feed = Feed(cut, batch, ranks, skip)
        cut.admit(batch // ranks.world)
        return feed

    def epochs(self, row: int, *, length: int, order: str = "shuffled") -> dict[str, float]:
        """Epochs each corpus has been through before ``row`` (a feed's ``cursor``): 1.25 is one and a
        quarter."""
        parts = self._parts(length, 0, order, None)
        counts = self._mixing(parts).counts(at_least("row", row, 0))
        return {part.name: part.epochs(count) for part, count in zip(parts, counts, strict=True)}

    def _parts(self, length: int, seed: int, order: str, locality: int | str | None) -> list[MixedPart]:
        length = at_least("length", length, 1)
        parts = []
        for name, tokens in self.corpora.items():
            near = locality_of(locality, length, tokens.dtype.itemsize, order)
            stream = make_stream(order, len(tokens), length, seed, near)
            long_enough(tokens, length, order)
            parts.append(MixedPart(name, tokens, stream))
        return parts

    def _mixing(self, parts: list[MixedPart]) -> Mixing:
        epochs = [part.stream.epoch_rows for part in parts]
        if self.exhausted != "repeat" and None in epochs:
            raise ValueError(
                f"order: expected 'shuffled' or 'sequential' for exhausted={self.exhausted!r}, got 'random', with "
                "which no corpus runs out. Use exhausted='repeat'."
            )
        return plan_mixing(self._changes, epochs=epochs, exhausted=self.exhausted)

    def _cut(self, parts: list[MixedPart], mixing: Mixing, length: int, dtype: DTypeLike) -> MixedCut:
        """All corpora of a group end to end in one store, and the groups end to end in the numbers of the mixture."""
        by_name = {part.name: part for part in parts}
        bases: dict[str, int] = {}
        runs: dict[str, RunAhead] = {}
        groups, first = [], 0
        for names, store in self._groups:
            members = [by_name[name] for name in names]
            layout = join([part.tokens.layout for part in members])
            sizes = (part.tokens.layout.shape[0] for part in members)
            begins = list(accumulate(sizes, initial=first))
            bases |= zip(names, begins, strict=False)
            reading = store
            if members[0].local:
                reading, announcing = _stretches(members, [base - first for base in begins[:-1]], store)
                runs |= announcing
            joined = JoinedRange(layout, reading, [part.tokens for part in members])
            groups.append(MixedGroup(WindowFiller(joined, length, dtype), first))
            first += layout.shape[0]
        together = MixedRuns(mixing, [runs[part.name] for part in parts]) if len(runs) == len(parts) else None
        return MixedCut(parts, [bases[part.name] for part in parts], groups, mixing, together)

    # Life

    def close(self) -> None:
        """Close what the mixture opened, for all its feeds. The corpora stay open."""
        for _, store in self._groups:
            store.close()

    def __enter__(self) -> Mixture:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        phases = []
        for row, parts in self.schedule:
            named = ", ".join(f"{name} {share}" for name, share in parts.items())
            phases.append(f"from row {row:,}: {named}" if row else named)
        return f"<lowtide.Mixture {'; '.join(phases)}; exhausted={self.exhausted!r}>"


def _stretches(members: list[MixedPart], bases: list[int], store: Store) -> tuple[Store, dict[str, RunAhead]]:
    """The store to read local shuffles of these corpora through, and what announces the stretches of each."""
    located = {}
    for part, base in zip(members, bases, strict=True):
        assert isinstance(part.stream, ShuffledStream)
        located[part.name] = TokenStretches(part.stream, base + part.tokens.first, part.tokens.dtype.itemsize)
    reading = store_for_runs(store, sum(stretches.largest for stretches in located.values()))
    if reading is None:
        return store, {}
    drop = reading is not store
    return reading, {
        name: RunAhead(reading, stretches, largest=stretches.largest, drop=drop) for name, stretches in located.items()
    }


# What was asked for


def _schedule(corpora: Corpora, then: Mapping[int, Change]) -> tuple[dict[str, Tokens], list[tuple[int, Weights]]]:
    """Every corpus by name, in alphabetical order (the plan must not depend on how a dict was written), and the weights
    of each from every row on."""
    if not isinstance(corpora, Mapping) or not corpora:
        raise ValueError(
            f"mix: expected corpora by name, got {corpora!r}. Use mix({{'web': (web, 0.7), 'code': (code, 0.3)}})."
        )
    known: dict[str, Tokens] = {}
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


def _named(where: str, change: Change, known: dict[str, Tokens]) -> dict[str, Fraction]:
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
            if not isinstance(tokens, Tokens):
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


def _summed(corpora: dict[str, Tokens]) -> int | str:
    """The sum of the corpora's budgets; splits of one corpus share one. ``auto`` where none was stated."""
    budgets = {id(tokens.store.budget): tokens.store.budget for tokens in corpora.values()}
    if not any(budget.stated for budget in budgets.values()):
        return "auto"
    return sum(budget.limit for budget in budgets.values())
