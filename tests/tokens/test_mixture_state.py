"""A mixture's state: only the past must agree. And a ledger over a run that changes its mind and is resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tokens.mixed import LENGTH, check_shares, corpus, planned_rows

import lowtide
from lowtide.reading.mixtures.mixture_state import KEPT_PHASES

Corpora = dict[str, lowtide.Tokens]


@pytest.fixture
def corpora(tmp_path: Path) -> Corpora:
    return {name: corpus(tmp_path, name, size) for name, size in {"web": 4_000, "code": 1_500, "math": 900}.items()}


def feed_of(
    corpora: Corpora, weights: dict[str, Any], then: dict[int, Any] | None = None, batch: int = 10
) -> lowtide.Feed:
    mixture = lowtide.mix({name: (corpora[name], weight) for name, weight in weights.items()}, then=then or {})
    return mixture.batches(batch, length=LENGTH, seed=6)


def saved(feed: lowtide.Feed, steps: int) -> dict[str, Any]:
    for _ in range(steps):
        next(feed)
    state: dict[str, Any] = json.loads(json.dumps(feed.state_dict()))
    return state


def test_a_running_job_can_change_its_future(corpora: Corpora) -> None:
    state = saved(feed_of(corpora, {"web": 7, "code": 3}, {500: {"web": 1}}), 20)
    changed = feed_of(corpora, {"web": 0.7, "code": 0.3}, {200: {"code": 1, "math": (corpora["math"], 1)}})
    changed.load_state_dict(state)
    assert changed.cursor == 200
    assert {place.corpus for place in changed.where(20)} == {"code", "math"}


@pytest.mark.parametrize(
    ("weights", "then", "row"),
    [
        ({"web": 6, "code": 4}, {}, "0"),
        ({"web": 7, "code": 3}, {150: {"web": 1, "code": 1}}, "150"),
        ({"web": 7, "code": 3, "math": 1}, {}, "0"),
        ({"web": 7, "code": 3}, {100: {"web": 1, "code": 2}}, "100"),
        ({"web": 7, "code": 3}, {}, "100"),
    ],
)
def test_a_change_at_a_row_already_passed_is_refused_and_named(
    corpora: Corpora, weights: dict[str, Any], then: dict[int, Any], row: str
) -> None:
    stated = {100: {"web": 1, "code": 1}}
    if row == "150":
        then = {**stated, **then}
    state = saved(feed_of(corpora, {"web": 7, "code": 3}, stated), 20)
    with pytest.raises(lowtide.StateError, match=rf"differs at row {row}: .* from row 200 on"):
        feed_of(corpora, weights, then).load_state_dict(state)


def test_a_corpus_that_is_another_one_is_named(corpora: Corpora, tmp_path: Path) -> None:
    state = saved(feed_of(corpora, {"web": 1, "code": 1}), 3)
    (tmp_path / "other").mkdir()
    others = {**corpora, "code": corpus(tmp_path / "other", "code", 1_700)}
    with pytest.raises(lowtide.StateError, match="the same data for 'code', which takes part from row 0 on"):
        feed_of(others, {"web": 1, "code": 1}).load_state_dict(state)
    later = feed_of(others, {"web": 1, "code": 1})
    later.load_state_dict(saved(feed_of(corpora, {"web": 1, "code": 1}), 0))  # nobody took part yet


def test_a_copied_corpus_is_the_same_corpus(corpora: Corpora, tmp_path: Path) -> None:
    state = saved(feed_of(corpora, {"web": 1, "code": 1}), 3)
    (tmp_path / "copy").mkdir()
    copies = {name: corpus(tmp_path / "copy", name, len(tokens)) for name, tokens in corpora.items()}
    feed = feed_of(copies, {"web": 1, "code": 1})
    feed.load_state_dict(state)
    assert feed.cursor == 30


def test_states_of_mixtures_and_of_single_corpora_are_told_apart(corpora: Corpora) -> None:
    mixed, single = feed_of(corpora, {"web": 1}), corpora["web"].batches(10, length=LENGTH, seed=6)
    with pytest.raises(lowtide.StateError, match="expected one of a single corpus, got one of a mixture"):
        single.load_state_dict(saved(mixed, 1))
    with pytest.raises(lowtide.StateError, match="expected one of a mixture, got one of a single corpus"):
        mixed.load_state_dict(saved(single, 1))


@pytest.mark.parametrize(
    "damage", [{}, {"corpora": 3, "phases": []}, {"corpora": [["web", "0"]], "phases": [["x"]]}, "?"]
)
def test_a_damaged_plan_is_refused(corpora: Corpora, damage: Any) -> None:
    feed = feed_of(corpora, {"web": 1})
    with pytest.raises(lowtide.StateError):
        feed.load_state_dict({**saved(feed, 1), "mixture": damage})


def test_many_changes_are_kept_as_a_hash_and_still_compared(corpora: Corpora) -> None:
    changes = {row: {"web": row // 10 % 5 + 1, "code": 2} for row in range(10, 10 * (KEPT_PHASES + 9), 10)}
    state = saved(feed_of(corpora, {"web": 1, "code": 1}, changes), KEPT_PHASES + 8)
    feed_of(corpora, {"web": 1, "code": 1}, changes).load_state_dict(state)
    with pytest.raises(lowtide.StateError, match="differs before row"):
        feed_of(corpora, {"web": 1, "code": 1}, {**changes, 20: {"web": 9, "code": 2}}).load_state_dict(state)


def test_a_ledger_of_a_run_with_changes_a_joining_corpus_three_resumes_and_two_world_sizes(corpora: Corpora) -> None:
    """Every row as planned, none lost, none twice. Each resume knows more of the plan than the one before."""
    first: dict[int, Any] = {60: {"web": 1, "code": 1}}
    second: dict[int, Any] = {**first, 150: {"web": 2, "code": 1, "math": (corpora["math"], 1)}}
    third: dict[int, Any] = {**second, 260: {"web": 1, "math": 3}}
    legs = [({}, 1, 40), (first, 2, 120), (second, 2, 220), (third, 1, 360)]  # plan, world, row to stop at
    ledger: dict[int, tuple[str, bytes]] = {}
    state: dict[str, Any] | None = None
    for then, world, stop in legs:
        mixture = lowtide.mix({"web": (corpora["web"], 0.7), "code": (corpora["code"], 0.3)}, then=then)
        ranks = [mixture.batches(20, length=LENGTH, seed=9, rank=rank, world=world) for rank in range(world)]
        for feed in ranks:
            if state is not None:
                feed.load_state_dict(state)
        while ranks[0].cursor < stop:
            for feed in ranks:
                row, places = feed.cursor + feed.rank * 20 // world, feed.where(feed.step)
                for place, x in zip(places, next(feed)[0], strict=True):
                    assert row not in ledger, f"row {row} came twice"
                    ledger[row] = str(place.corpus), x.tobytes()
                    row += 1
        state = json.loads(json.dumps(ranks[-1].state_dict()))
    assert sorted(ledger) == list(range(360))
    sources = [ledger[row][0] for row in range(360)]
    check_shares(
        sources,
        [
            (0, {"web": 0.7, "code": 0.3}),
            (60, {"web": 1, "code": 1}),
            (150, {"web": 2, "code": 1, "math": 1}),
            (260, {"web": 1, "math": 3}),
        ],
    )
    planned = planned_rows(corpora, sources, length=LENGTH, seed=9)
    assert all(np.array_equal(np.frombuffer(ledger[row][1], np.int64), planned[row]) for row in range(360))
