"""``lowtide.mix`` and ``Mixture``: named corpora with weights, read as one stream.

One idea: a mixture is a plan - which corpus gives which row - over corpora that stay as they are. The plan is exact at
every row and may change at stated rows; each corpus goes through its own epochs meanwhile. Opens nothing itself: the
corpora's files are opened once more, all of one kind together, so that a batch is one read however many there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from itertools import accumulate
from types import TracebackType
from typing import Any

from numpy.typing import DTypeLike

from lowtide.arguments import at_least, one_of
from lowtide.feed import Feed, Skips
from lowtide.formats import join
from lowtide.mixture_terms import Change, Parts, check_alike, schedule_of, summed
from lowtide.order.mixing import Mixing, Weights, plan_mixing, shares
from lowtide.reading.mixed_cut import JoinedRange, MixedCut, MixedGroup, MixedPart, MixedRuns
from lowtide.reading.mixed_windows import MixedWindowsCut, WindowsPart
from lowtide.reading.run_ahead import RunAhead, TokenStretches, store_for_runs
from lowtide.reading.streams import ShuffledStream, locality_of, make_stream
from lowtide.reading.token_range import TokenRange
from lowtide.reading.window_filler import WindowFiller
from lowtide.storage import Store
from lowtide.storage.budget import Budget
from lowtide.tokens import Tokens
from lowtide.windows import Windows, checked_ranks, long_enough

EXHAUSTED = ("repeat", "stop", "share")


def mix(
    corpora: Parts,
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
    known, changes = schedule_of(corpora, then or {})
    made = WindowsMixture if any(isinstance(one, Windows) for one in known.values()) else Mixture
    return made(known, changes, one_of("exhausted", exhausted, EXHAUSTED), budget)


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
        self.budget = Budget(summed(corpora) if budget is None else budget)
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
        length: int | None = None,
        seed: int = 0,
        order: str = "shuffled",
        locality: int | str | None = None,
        rank: int | None = None,
        world: int | None = None,
        dtype: DTypeLike | None = None,
        skip: Skips = (),
    ) -> Feed:
        """A feed of ``(x, y)``, as ``Tokens.batches`` gives it, with each row from the corpus whose turn it is.

        A corpus's rows come in the order its own feed of this seed has. ``locality`` is per corpus. ``length`` is
        required for corpora and refused for windows, which have theirs; likewise ``dtype`` (int64 unless stated).
        """
        batch = at_least("batch", batch, 1)
        if length is None:
            raise TypeError("length: expected a number of tokens per row, got none. Use length=1024.")
        ranks = checked_ranks(batch, rank, world)
        parts = self._parts(length, seed, order, locality)
        for _, store in self._groups:
            store.keep_for_ranks(ranks.world)
        cut = self._cut(parts, self._mixing(parts), length, "int64" if dtype is None else dtype)
        feed = Feed(cut, batch, ranks, skip)
        cut.admit(batch // ranks.world)
        return feed

    def epochs(self, row: int, *, length: int | None = None, order: str = "shuffled") -> dict[str, float]:
        """Epochs each corpus has been through before ``row`` (a feed's ``cursor``): 1.25 is one and a
        quarter. ``length`` is that of the feed; windows have theirs."""
        if length is None:
            raise TypeError("length: expected the number of tokens per row of the feed, got none. Use length=1024.")
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


class WindowsMixture(Mixture):
    """Named windows of one length and cut, and the weights they have from which row on."""

    def __init__(
        self, corpora: dict[str, Any], changes: list[tuple[int, Weights]], exhausted: str, budget: int | str | None
    ) -> None:
        check_alike(corpora)
        tokens = {name: windows.tokens for name, windows in corpora.items()}
        super().__init__(tokens, changes, exhausted, budget)
        self._windows = {name: self._again(windows) for name, windows in corpora.items()}

    def _again(self, windows: Windows) -> Windows:
        """The same windows over a store of the mixture's own, inside its budget."""
        mine = windows.tokens
        strategy, cache, engine = mine.store.asked
        store = Store(mine.layout.extents, strategy=strategy, cache=cache, budget=self.budget, engine=engine)
        tokens = TokenRange(mine.layout, store, first=mine.first, last=mine.last)
        tokens.vocab, tokens.eot, tokens.bos = mine.vocab, mine.eot, mine.bos
        return Windows(tokens, windows.length, cut=windows.cut, documents=windows.documents, dtype=windows.dtype)

    def batches(  # noqa: PLR0913 - each by name: what there is to say about a feed
        self,
        batch: int,
        *,
        length: int | None = None,
        seed: int = 0,
        order: str = "shuffled",
        locality: int | str | None = None,
        rank: int | None = None,
        world: int | None = None,
        dtype: DTypeLike | None = None,
        skip: Skips = (),
    ) -> Feed:
        """A feed of ``(x, y)``, or ``(x, y, docs)``, as the windows give them, each row from those whose turn it is."""
        for name, stated in (("length", length), ("dtype", dtype)):
            if stated is not None:
                raise ValueError(
                    f"{name}: expected none for a mixture of windows, which have theirs, got {stated!r}. "
                    f"Leave {name}= out."
                )
        batch = at_least("batch", batch, 1)
        ranks = checked_ranks(batch, rank, world)
        parts, most_runs = [], 0
        for name, windows in self._windows.items():
            windows.tokens.store.keep_for_ranks(ranks.world)
            parts.append(WindowsPart(name, windows.rows_in(order, seed, locality)[0], len(windows)))
            most_runs = max(most_runs, windows.most_runs)
        mixing = plan_mixing(self._changes, epochs=[part.epoch_rows for part in parts], exhausted=self.exhausted)
        any_windows = next(iter(self._windows.values()))
        cut = MixedWindowsCut(parts, mixing, any_windows.dtype, most_runs=most_runs)
        feed = Feed(cut, batch, ranks, skip)
        cut.admit(batch // ranks.world)
        return feed

    def epochs(self, row: int, *, length: int | None = None, order: str = "shuffled") -> dict[str, float]:  # noqa: ARG002
        epochs: list[int | None] = [len(windows) for windows in self._windows.values()]
        counts = plan_mixing(self._changes, epochs=epochs, exhausted=self.exhausted).counts(at_least("row", row, 0))
        return {name: count / len(self._windows[name]) for name, count in zip(self._windows, counts, strict=True)}

    def close(self) -> None:
        super().close()
        for windows in self._windows.values():
            windows.tokens.store.close()
