"""``lowtide.mix`` and ``Mixture``: named corpora with weights, read as one stream.

A mixture is a plan - which corpus gives which row - over corpora that stay as they are. The plan is exact at every row
and may change at stated rows; each corpus goes through its own epochs meanwhile. The request is checked here, before
anything is opened: weights are taken as written, 0.1 is one tenth. The corpora's files are opened once more, all of one
kind together, so that a batch is one read however many there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from lowtide.arguments import at_least, one_of
from lowtide.blocks.block_store import open_store
from lowtide.feed import Feed, FeedRows
from lowtide.order.locality import Stated
from lowtide.order.mixing import MOST_PARTS, Mixing, Weights, plan_mixing, shares
from lowtide.order.steps import Skips
from lowtide.reading.blocks_ahead import BlockFollower, follow
from lowtide.reading.habits import answers_habits
from lowtide.reading.mixtures.mixed import JoinedWindows, MixedFollower, MixturePart, MixtureReader, MixtureStream
from lowtide.reading.mixtures.mixture_state import check_past
from lowtide.reading.opened import Opened
from lowtide.reading.token_range import TokenRange
from lowtide.reading.window_reader import WindowReader
from lowtide.storage.budget import Budget
from lowtide.storage.read import SCATTERED
from lowtide.storage.store import Store
from lowtide.tokens import Tokens
from lowtide.windows import Windows, checked_ranks, window_stream

EXHAUSTED = ("repeat", "stop", "share")

Parts = Mapping[str, tuple[Any, float | Fraction]]  # tokens, or windows, and a weight
Change = Mapping[str, Any]  # a weight for each name; (tokens, weight) for one that joins


def mix(
    corpora: Parts,
    *,
    then: Mapping[int, Change] | None = None,
    exhausted: str = "repeat",
    budget: int | str | None = None,
) -> Mixture:
    """Several corpora as one. Weights are shares of rows, kept to within one row at any point.

    ``then``: new weights from a row on; a corpus that is not named leaves, a new one is given with its tokens.
    ``exhausted``: what happens when a corpus has given all its windows once: ``repeat`` (its next epoch), ``stop`` (the
    feed ends there) or ``share`` (the others go on without it). ``budget``: for all together; by default the sum of
    theirs. Reads nothing; seeking is arithmetic. Raises ``ValueError`` for a negative weight, or a share below 1 in
    65,536.

    >>> train, val = tokens.split(val=0.3)
    >>> mixture = lowtide.mix({"web": (train, 0.7), "code": (val, 0.3)})
    """
    known, changes = schedule_of(corpora, then or {})
    return Mixture(known, changes, one_of("exhausted", exhausted, EXHAUSTED), budget)


class MixtureFeed(Feed):
    """A feed whose state also holds the plan so far. Only the past must agree: the future may change."""

    _stream: MixtureStream

    def _settings(self, position: int) -> dict[str, Any]:
        return {**super()._settings(position), "mixture": self._stream.past(position)}

    def checked_position(self, state: Any) -> int:
        mine = self.state_dict()["mixture"]
        rows = super().checked_position({**state, "mixture": mine} if isinstance(state, dict) else state)
        check_past(state.get("mixture"), self._stream.past(rows), rows)
        return rows


class Mixture(Opened):
    """Named corpora, or windows of one length and cut, and their weights from each row on.

    >>> train, val = tokens.split(val=0.3)
    >>> feed = lowtide.mix({"web": (train, 0.7), "code": (val, 0.3)}).batches(64, length=128, seed=1337)
    """

    def __init__(
        self, corpora: dict[str, Any], changes: list[tuple[int, Weights]], exhausted: str, budget: int | str | None
    ) -> None:
        laid = {name: one for name, one in corpora.items() if isinstance(one, Windows)}
        if laid:
            check_alike(corpora)
        self.corpora: dict[str, Tokens] = {name: one.tokens if laid else one for name, one in corpora.items()}
        self.exhausted = exhausted
        self._changes = changes
        self.budget = Budget(summed(self.corpora) if budget is None else budget)
        self._windows = {name: self._again(windows) for name, windows in laid.items()}
        self._groups: list[tuple[tuple[str, ...], Store]] = []  # corpora that are read through one store
        kinds: dict[tuple[Any, ...], list[str]] = {}
        for name, tokens in () if laid else self.corpora.items():
            kinds.setdefault((tokens.dtype.str, *tokens.store.asked), []).append(name)
        for (_, *asked), names in kinds.items():
            extents = tuple(extent for name in names for extent in self.corpora[name].layout.extents)
            self._groups.append((tuple(names), self._store(extents, *asked)))

    def _store(self, extents: tuple[Any, ...], strategy: str, cache: str, engine: str) -> Store:
        return open_store(extents, strategy=strategy, cache=cache, budget=self.budget, engine=engine)

    def _again(self, windows: Windows) -> Windows:
        """The same windows over the mixture's own store, inside its budget."""
        mine = windows.tokens
        store = self._store(mine.layout.extents, *mine.store.asked)
        tokens = TokenRange(mine.layout, store, mine.first, mine.last, mine.vocab, mine.eot, mine.bos)
        return Windows(tokens, windows.length, cut=windows.cut, documents=windows.documents, dtype=windows.dtype)

    @property
    def schedule(self) -> list[tuple[int, dict[str, Fraction]]]:
        """The shares in use from each row on, as exact fractions that sum to 1, without corpora that have none."""
        found = []
        for row, weights in self._changes:
            given = shares(weights)
            named = zip(self.corpora, given, strict=True)
            found.append((row, {name: Fraction(share, sum(given)) for name, share in named if share}))
        return found

    @answers_habits
    def batches(  # noqa: PLR0913 - each by name: what there is to say about a feed
        self,
        batch: int,
        *,
        length: int | None = None,
        seed: int = 0,
        order: str = "shuffled",
        locality: Stated | None = None,
        rank: int | None = None,
        world: int | None = None,
        dtype: DTypeLike | None = None,
        skip: Skips = (),
    ) -> Feed:
        """A feed of ``(x, y)``, as ``Tokens.batches`` gives it, or of what the windows give, with each row from the
        corpus whose turn it is.

        A corpus's rows come in the same order as in its own feed with this seed. ``locality`` is per corpus. ``length``
        is required for corpora and refused for windows, which have their own; ``dtype`` (int64 by default) too.
        """
        if not self._windows:
            length = at_least("length", length, 1, example="length=1024")
        for name, stated in (("length", length), ("dtype", dtype)) if self._windows else ():
            if stated is not None:
                raise ValueError(
                    f"{name}: expected none for a mixture of windows, which have their own, got {stated!r}. "
                    f"Leave {name}= out."
                )
        batch = at_least("batch", batch, 1)
        ranks = checked_ranks(batch, rank, world)
        for store in self.stores:
            store.keep_for_ranks(ranks.world)
        ordered = order, seed, locality
        if self._windows:
            rows = self._laid(ordered, ranks.world)
        else:
            rows = self._cut(length or 0, dtype or "int64", ordered, ranks.world)
        return MixtureFeed(rows, batch, ranks, skip)

    def epochs(self, row: int, *, length: int | None = None, order: str = "shuffled") -> dict[str, float]:
        """Epochs that each corpus has completed before ``row`` (a feed's ``cursor``): 1.25 is one and a
        quarter. ``length`` is that of the feed; windows have their own."""
        if self._windows:
            epochs: list[int | None] = [len(windows) for windows in self._windows.values()]
        else:
            length = at_least("length", length, 1, example="length=1024")
            epochs = [window_stream(tokens, length, order, 0, None).epoch for tokens in self.corpora.values()]
        counts = self._mixing(epochs).counts(at_least("row", row, 0))
        each = zip(self.corpora, counts, epochs, strict=True)
        return {name: count / rows if rows else 0.0 for name, count, rows in each}

    def _mixing(self, epochs: list[int | None]) -> Mixing:
        if self.exhausted != "repeat" and None in epochs:
            raise ValueError(
                f"order: expected 'shuffled' or 'sequential' for exhausted={self.exhausted!r}, got 'random', with "
                "which no corpus runs out. Use exhausted='repeat'."
            )
        return plan_mixing(self._changes, epochs=epochs, exhausted=self.exhausted)

    def _cut(self, length: int, dtype: DTypeLike, ordered: tuple[Any, Any, Any], world: int) -> FeedRows:
        """Rows of corpora: all of a group laid end to end, read by one reader."""
        readers: list[WindowReader] = []
        parts: dict[str, MixturePart] = {}
        followers: dict[str, BlockFollower | None] = {}
        for number, (names, store) in enumerate(self._groups):
            plain = JoinedWindows({name: self.corpora[name] for name in names}, store, length, dtype)
            reader: WindowReader = plain
            for name, base in zip(names, plain.bases.tolist(), strict=True):
                tokens = self.corpora[name]
                stream = window_stream(tokens, length, *ordered)
                item, begin = tokens.dtype.itemsize, base + tokens.first
                parts[name] = MixturePart(name, stream, number, begin, tokens.fingerprint)
                reader, followers[name] = follow(reader, stream, world, length * item, begin * item, item)
            readers.append(reader)
        each = [parts[name] for name in self.corpora]
        mixing = self._mixing([part.stream.epoch for part in each])
        return self._joined(readers, [None] * len(readers), each, mixing, [followers[name] for name in self.corpora])

    def _laid(self, ordered: tuple[Any, Any, Any], world: int) -> FeedRows:
        """Rows of windows: each read by its own reader."""
        each = [windows.rows_in(*ordered, world) for windows in self._windows.values()]
        parts = [
            MixturePart(name, stream, number, 0, reader.fingerprint)
            for number, (name, (reader, stream, *_)) in enumerate(zip(self._windows, each, strict=True))
        ]
        mixing = self._mixing([len(windows) for windows in self._windows.values()])
        return self._joined([one[0] for one in each], list(self._windows), parts, mixing, [one[2] for one in each])

    def _joined(
        self,
        readers: list[WindowReader],
        names: Sequence[str | None],
        parts: list[MixturePart],
        mixing: Mixing,
        followers: Sequence[BlockFollower | None],
    ) -> FeedRows:
        """One reader and one stream for all; with a local shuffle, all corpora are followed or none."""
        found = [follower for follower in followers if follower is not None]
        together = MixedFollower(mixing, found) if len(found) == len(followers) else None
        if together is None:
            readers = [reader.read_as(SCATTERED) for reader in readers]
        stream = MixtureStream(parts, mixing, len(readers))
        if isinstance(readers[0], JoinedWindows) and len(readers) == 1:
            return FeedRows(readers[0], stream, together)
        return FeedRows(MixtureReader(readers, names, tuple(self.corpora)), stream, together)

    @property
    def stores(self) -> list[Store]:
        return [store for _, store in self._groups] + [windows.tokens.store for windows in self._windows.values()]

    def __repr__(self) -> str:
        phases = []
        for row, given in self.schedule:
            named = ", ".join(f"{name} {share}" for name, share in given.items())
            phases.append(f"from row {row:,}: {named}" if row else named)
        return f"<lowtide.Mixture {'; '.join(phases)}; exhausted={self.exhausted!r}>"


# What was asked for


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
    """Every corpus by name, in alphabetical order (the plan must not depend on the order of a dict), and the weights of
    each from every row on."""
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
        raise ValueError(f"{where}: expected weights with a sum above 0, got 0. Give at least one corpus a weight.")
    for (name, weight), share in zip(weights.items(), shares(list(weights.values())), strict=True):
        if weight and not share:
            raise ValueError(
                f"{where}: expected a share of 1/{MOST_PARTS} or more for {name!r}, got {float(weight / total):.3g}. "
                "Raise its weight, or leave it out."
            )


def summed(corpora: dict[str, Any]) -> int | str:
    """The sum of the corpora's budgets; splits of one corpus share one. ``auto`` if none was stated."""
    budgets = {id(tokens.store.budget): tokens.store.budget for tokens in corpora.values()}
    if not any(budget.stated for budget in budgets.values()):
        return "auto"
    return int(sum(budget.limit for budget in budgets.values()))
