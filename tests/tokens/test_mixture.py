"""``lowtide.mix``: exact shares at every row, each corpus in its own order, changes, epochs, exhaustion, bad input."""

from __future__ import annotations

import json
import math
import pickle
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tokens.mixed import LENGTH, check_shares, corpus, names, planned_rows

import lowtide
from lowtide.order.mixing import MOST_PARTS, period, plan_mixing, shares

Corpora = dict[str, lowtide.Tokens]


@pytest.fixture
def corpora(tmp_path: Path) -> Corpora:
    sizes = {"web": 4_000, "code": 1_500, "math": 900}
    return {name: corpus(tmp_path, name, size) for name, size in sizes.items()}


def mixed(corpora: Corpora, weights: dict[str, Any], **options: Any) -> lowtide.Mixture:
    return lowtide.mix({name: (corpora[name], weight) for name, weight in weights.items()}, **options)


# The plan: integers only


@given(st.lists(st.integers(0, 500), min_size=1, max_size=12).filter(any))
def test_no_prefix_of_a_period_is_off_by_more_than_one_row(weights: list[int]) -> None:
    found = shares([Fraction(weight) for weight in weights])
    assert found == tuple(weight // math.gcd(*weights) for weight in weights)
    table = period(found)
    k = np.arange(1, sum(found) + 1)
    for source, share in enumerate(found):
        counts = np.cumsum(table.source == source)
        assert counts[-1] == share
        assert np.all(np.abs(counts * sum(found) - k * share) <= sum(found))


def test_weights_without_a_small_denominator_are_rounded_to_65536ths() -> None:
    weights = [Fraction(str(math.pi)), Fraction(str(math.e)), Fraction(1, 3)]
    found = shares(weights)
    assert sum(found) <= MOST_PARTS
    for weight, share in zip(weights, found, strict=True):
        assert abs(Fraction(share, sum(found)) - weight / sum(weights)) <= Fraction(1, MOST_PARTS)


def test_weights_are_taken_as_they_are_written() -> None:
    assert shares([Fraction("0.1"), Fraction("0.9")]) == (1, 9)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 60)), min_size=1, max_size=5),
    st.sampled_from(["stop", "share"]),
)
def test_a_source_that_runs_out_has_given_each_of_its_rows_once(sources: list[tuple[int, int]], exhausted: str) -> None:
    weights = tuple(Fraction(weight) for weight, _ in sources)
    limits = [rows for _, rows in sources]
    plan = plan_mixing([(0, weights)], epochs=limits, exhausted=exhausted)
    assert plan.rows is not None
    which, own = plan.at(np.arange(plan.rows))
    for source, limit in enumerate(limits):
        given = own[which == source]
        assert np.array_equal(given, np.arange(len(given)))
        assert len(given) <= limit
    if exhausted == "share":
        assert plan.rows == sum(limits)
    else:
        assert any(plan.counts(plan.rows)[source] == limit for source, limit in enumerate(limits))


def test_any_row_is_found_without_those_before_it() -> None:
    plan = plan_mixing([(0, (Fraction(7), Fraction(3))), (1000, (Fraction(1), Fraction(2)))])
    far = 10**15 + 7
    which, own = plan.at(np.arange(far, far + 9))
    before = plan.counts(far)
    for source in range(2):
        mine = own[which == source]
        assert mine.tolist() == list(range(before[source], before[source] + len(mine)))
    assert sum(before) == far


# Rows


@pytest.mark.parametrize("order", ["shuffled", "random", "sequential"])
def test_each_corpus_gives_the_rows_of_its_own_feed_in_turn(corpora: Corpora, order: str) -> None:
    weights = {"web": 0.5, "code": 0.3, "math": 0.2}
    feed = mixed(corpora, weights).batches(8, length=LENGTH, seed=5, order=order)
    steps = 24  # every corpus stays inside its first epoch
    sources = names(feed, steps)
    check_shares(sources, [(0, weights)])
    planned = planned_rows(corpora, sources, length=LENGTH, seed=5, order=order)
    got = np.concatenate([next(feed)[0] for _ in range(steps)])
    assert np.array_equal(got, planned)


def test_y_is_one_token_ahead_and_arrays_are_contiguous_and_apart(corpora: Corpora) -> None:
    x, y = next(mixed(corpora, {"web": 1, "code": 1}).batches(8, length=LENGTH))
    assert np.array_equal(x[:, 1:], y[:, :-1])
    assert x.flags.c_contiguous and y.flags.c_contiguous and not np.shares_memory(x, y)


def test_corpora_of_different_dtypes_and_openings_mix(tmp_path: Path) -> None:
    corpora = {
        "web": corpus(tmp_path, "web", 3_000),
        "code": corpus(tmp_path, "code", 2_000, "uint32"),
        "math": corpus(tmp_path, "math", 2_000, "int64", strategy="map"),
    }
    feed = mixed(corpora, {"web": 3, "code": 2, "math": 1}).batches(6, length=LENGTH, seed=1, dtype="int32")
    sources = names(feed, 30)
    got = [next(feed) for _ in range(30)]
    planned = planned_rows(corpora, sources, length=LENGTH, seed=1)
    assert np.array_equal(np.concatenate([x for x, _ in got]), planned)
    assert all(x.dtype == np.int32 and np.array_equal(x[:, 1:], y[:, :-1]) for x, y in got)


def test_the_plan_does_not_depend_on_the_order_in_which_corpora_are_named(corpora: Corpora) -> None:
    one = mixed(corpora, {"web": 3, "code": 2, "math": 2}).batches(7, length=LENGTH)
    other = mixed(corpora, {"math": 2, "code": 2, "web": 3}).batches(7, length=LENGTH)
    assert names(one, 20) == names(other, 20)


def test_weights_change_and_corpora_join_and_leave_at_their_rows(corpora: Corpora) -> None:
    then: dict[int, Any] = {50: {"web": 1, "code": 1, "math": (corpora["math"], 2)}, 130: {"math": 1, "web": 3}}
    mixture = mixed(corpora, {"web": 0.7, "code": 0.3}, then=then)
    feed = mixture.batches(10, length=LENGTH, seed=2)
    sources = names(feed, 20)
    check_shares(
        sources, [(0, {"web": 7, "code": 3}), (50, {"web": 1, "code": 1, "math": 2}), (130, {"math": 1, "web": 3})]
    )
    planned = planned_rows(corpora, sources, length=LENGTH, seed=2)
    assert np.array_equal(np.concatenate([next(feed)[0] for _ in range(20)]), planned)
    assert mixture.schedule[1] == (50, {"code": Fraction(1, 4), "math": Fraction(1, 2), "web": Fraction(1, 4)})
    assert "from row 130: math 1/4, web 3/4" in repr(mixture)


def test_every_corpus_has_epochs_of_its_own_and_reports_them(corpora: Corpora) -> None:
    mixture = mixed(corpora, {"web": 1, "math": 1})
    feed = mixture.batches(10, length=LENGTH, seed=3)
    windows = {name: (len(corpora[name]) - LENGTH) // LENGTH for name in ("web", "math")}
    steps = 2 * windows["math"] // 5 + 2
    rows: dict[str, list[bytes]] = {"web": [], "math": []}
    for step in range(steps):
        x, _ = next(feed)
        for place, row in zip(feed.where(step), x, strict=True):
            rows[str(place.corpus)].append(row.tobytes())
    once = rows["math"][: windows["math"]]
    again = rows["math"][windows["math"] : 2 * windows["math"]]
    assert len(set(once)) == len(once) and len(set(again)) == len(again) == len(once)
    assert once != again
    assert mixture.epochs(feed.cursor, length=LENGTH) == {
        name: len(rows[name]) / windows[name] for name in ("math", "web")
    }


def test_stop_ends_the_feed_at_the_first_row_that_no_corpus_can_give(corpora: Corpora) -> None:
    windows = (len(corpora["math"]) - LENGTH) // LENGTH
    feed = mixed(corpora, {"web": 1, "math": 1}, exhausted="stop").batches(4, length=LENGTH)
    rows = sum(len(x) for x, _ in feed)
    assert rows in (2 * windows, 2 * windows + 1)
    assert len(feed) == -(-rows // 4)


def test_share_lets_the_others_go_on_until_all_are_out(corpora: Corpora) -> None:
    windows = {name: (len(tokens) - LENGTH) // LENGTH for name, tokens in corpora.items()}
    feed = mixed(corpora, {"web": 2, "code": 1, "math": 1}, exhausted="share").batches(5, length=LENGTH)
    sources = names(feed, len(feed))
    assert {name: sources.count(name) for name in windows} == windows
    got = [row.tobytes() for x, _ in feed for row in x]
    assert len(set(got)) == len(got) == sum(windows.values())


def test_ranks_together_give_the_global_batch(corpora: Corpora) -> None:
    mixture = mixed(corpora, {"web": 2, "code": 1})
    whole = mixture.batches(12, length=LENGTH, seed=4)
    for world in (2, 3):
        ranks = [mixture.batches(12, length=LENGTH, seed=4, rank=rank, world=world) for rank in range(world)]
        for step in (0, 3, 11):
            assert np.array_equal(np.concatenate([feed[step][0] for feed in ranks]), whole[step][0])


def test_a_mixture_and_its_feed_survive_a_pickle(corpora: Corpora) -> None:
    feed = mixed(corpora, {"web": 2, "code": 1}).batches(6, length=LENGTH, seed=4)
    next(feed)
    copied = pickle.loads(pickle.dumps(feed))
    assert np.array_equal(next(copied)[0], next(feed)[0])


def test_a_budget_is_for_all_parts_together_and_unstated_the_sum_of_theirs(tmp_path: Path) -> None:
    parts = {name: corpus(tmp_path, name, 4_000, budget="1MiB") for name in ("web", "code")}
    mixture = mixed(parts, {"web": 1, "code": 1})
    assert mixture.budget.limit == 2 * 1024**2
    with pytest.raises(lowtide.BudgetError, match="expected a budget of"):
        mixture.batches(512, length=256)
    small = mixed(parts, {"web": 1, "code": 1}, budget="64KiB")
    with pytest.raises(lowtide.BudgetError, match="expected a budget of"):
        small.batches(64, length=128)
    assert small.batches(4, length=64).plan().anon <= 64 * 1024


def test_ids_are_checked_against_the_vocabulary_of_their_own_corpus(tmp_path: Path) -> None:
    fine = {"web": corpus(tmp_path, "web", 3_000, vocab=3_000), "code": corpus(tmp_path, "code", 3_000)}
    feed = mixed(fine, {"web": 1, "code": 1}).batches(8, length=LENGTH)
    for _ in range(20):
        next(feed)
    wrong = {"web": fine["web"], "code": corpus(tmp_path, "code", 3_000, vocab=22_000)}
    feed = mixed(wrong, {"web": 1, "code": 1}).batches(8, length=LENGTH)
    with pytest.raises(lowtide.FormatError, match=r"code\.bin: expected ids from 0 to 21999"):
        for _ in range(50):
            next(feed)


def test_stats_count_steps_and_bytes_of_all_corpora(corpora: Corpora) -> None:
    feed = mixed(corpora, {"web": 2, "code": 1}).batches(6, length=LENGTH)
    assert feed.stats().steps == 0 and feed.stats().cached is None
    for _ in range(5):
        next(feed)
    found = feed.stats()
    assert found.steps == 5
    assert found.asked == 5 * 6 * (LENGTH + 1) * 2
    assert found.read >= found.asked and found.seconds > 0
    assert found.cached is not None and 0 <= found.cached <= 1


# Bad input


@pytest.mark.parametrize(
    ("weights", "then", "message"),
    [
        ({"web": -0.1, "code": 1}, {}, "expected a weight of 0 or more for 'web', got -0.1"),
        ({"web": math.nan, "code": 1}, {}, "expected a weight of 0 or more for 'web', got nan"),
        ({"web": 0, "code": 0.0}, {}, "expected weights with a sum above 0, got 0"),
        ({"web": 1, "code": 1e-9}, {}, "expected a share of 1/65536 or more for 'code'"),
        ({"web": 1}, {10: {"maths": 1}}, r"then\[10\]: expected one of web, or tokens with the weight"),
        ({"web": 1}, {10: {"web": 0}}, r"then\[10\]: expected weights with a sum above 0"),
        ({"web": 1}, {0: {"web": 1}}, "then: expected 1 or more, got 0"),
        ({"web": 1}, {-5: {"web": 1}}, "then: expected 1 or more, got -5"),
    ],
)
def test_wrong_weights_are_refused(
    corpora: Corpora, weights: dict[str, Any], then: dict[int, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        mixed(corpora, weights, then=then)


def test_wrong_types_are_refused(corpora: Corpora) -> None:
    with pytest.raises(TypeError, match="expected a number for 'web', got str"):
        mixed(corpora, {"web": "0.5"})
    with pytest.raises(TypeError, match=r"expected \(tokens, weight\) for 'web', got str"):
        lowtide.mix({"web": ("web.bin", 1)})
    with pytest.raises(ValueError, match="expected corpora by name"):
        lowtide.mix({})
    with pytest.raises(ValueError, match="exhausted: expected one of repeat, stop, share"):
        mixed(corpora, {"web": 1}, exhausted="wrap")
    with pytest.raises(ValueError, match="the 'web' that is in the mixture already, got other tokens"):
        mixed(corpora, {"web": 1}, then={9: {"web": (corpora["code"], 1)}})
    with pytest.raises(ValueError, match="order: expected 'shuffled' or 'sequential' for exhausted='stop'"):
        mixed(corpora, {"web": 1}, exhausted="stop").batches(4, length=LENGTH, order="random")


def test_a_corpus_too_short_for_the_length_is_named(corpora: Corpora) -> None:
    with pytest.raises(lowtide.FormatError, match=r"math\.bin: expected 2000 tokens or more for length=1000"):
        mixed(corpora, {"web": 1, "math": 1}).batches(4, length=1000)


def test_a_state_of_16_corpora_is_small_and_a_seek_reads_nothing(tmp_path: Path) -> None:
    parts = {f"corpus-number-{n:02}": (corpus(tmp_path, f"c{n}", 2_000, "uint32"), n + 1) for n in range(16)}
    changes = {row: {name: (row * 7 + n) % 11 + 1 for n, name in enumerate(parts)} for row in range(100, 3_100, 100)}
    feed = lowtide.mix(parts, then=changes).batches(16, length=LENGTH)
    feed.seek(10**9)
    assert len(json.dumps(feed.state_dict())) < 4096
    before = feed.stats().asked
    feed.seek(10**12)
    assert feed.stats().asked == before
