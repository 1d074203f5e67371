"""Epochs, ends and ranks: every window once an epoch, every token predicted once, every row to one rank."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.feeds import STRATEGIES, numbered, raw_file, rows_of, same, starts_of

import lowtide

COUNT = 5000
IDS = np.arange(COUNT)  # token i is i: a window's first id says where it begins
LEFT_BY_RANK = [1, 2, 3, 4, 8]


def first_tokens(feed: lowtide.Feed, rows: int) -> list[int]:
    found: list[int] = []
    while len(found) < rows:
        found += next(feed)[0][:, 0].tolist()
    return found[:rows]


@pytest.mark.parametrize(("length", "batch"), [(16, 32), (7, 13), (100, 8), (1, 64), (2500, 3), (999, 1)])
def test_every_window_of_an_epochs_phase_comes_exactly_once(tokens: lowtide.Tokens, length: int, batch: int) -> None:
    windows = (COUNT - length) // length
    epochs = 4
    starts = np.array(first_tokens(tokens.batches(batch, length=length, seed=3), epochs * windows))
    for epoch in range(epochs):
        mine = starts[epoch * windows : (epoch + 1) * windows]
        phase = mine.min()
        assert 0 <= phase < length
        assert sorted(mine.tolist()) == [phase + k * length for k in range(windows)]


@pytest.mark.parametrize("length", [16, 7, 100, 333])
def test_each_epoch_has_a_phase_and_an_order_of_its_own(tokens: lowtide.Tokens, length: int) -> None:
    windows = (COUNT - length) // length
    starts = np.array(first_tokens(tokens.batches(8, length=length, seed=3), 12 * windows)).reshape(12, windows)
    phases = starts.min(axis=1)
    assert len(set(phases.tolist())) > 3
    orders = {tuple((epoch // length).tolist()) for epoch in starts}
    assert len(orders) == 12
    assert all(order != tuple(range(windows)) for order in orders)


def test_other_seeds_have_other_orders_and_equal_seeds_the_same(tokens: lowtide.Tokens) -> None:
    orders = {seed: tuple(first_tokens(tokens.batches(50, length=16, seed=seed), 300)) for seed in (0, 1, 2, -1, 2**70)}
    assert len(set(orders.values())) == 5
    assert tuple(first_tokens(tokens.batches(20, length=16, seed=2**70), 300)) == orders[2**70]


def test_an_epoch_leaves_out_fewer_than_two_lengths_of_tokens_and_others_each_time(tokens: lowtide.Tokens) -> None:
    length = 100
    windows = (COUNT - length) // length
    starts = np.array(first_tokens(tokens.batches(7, length=length), 20 * windows)).reshape(20, windows)
    never = set(range(1, COUNT))
    for epoch in starts:
        predicted = {start + k for start in epoch.tolist() for k in range(1, length + 1)}
        assert len(predicted) == windows * length
        assert COUNT - len(predicted) < 2 * length
        never -= predicted
    assert len(never) < length // 2  # what is left over in all of twenty epochs is hardly anything


@given(st.integers(1, 5000), st.integers(0, 10_000), st.integers(0, 4999))
def test_an_epoch_has_as_many_windows_from_any_phase(length: int, extra: int, phase: int) -> None:
    """What lets row k be in epoch k // windows: (n - length) // length windows fit from every phase below length."""
    n, phase = 2 * length + extra, phase % length
    windows = (n - length) // length
    assert windows >= 1
    assert phase + windows * length + 1 <= n
    assert n - windows * length < 2 * length


def test_a_batch_may_reach_over_several_epochs(tokens: lowtide.Tokens) -> None:
    length, batch = 1000, 64  # four windows an epoch
    feed = tokens.batches(batch, length=length, seed=1)
    ids = np.arange(COUNT)
    for step in range(3):
        rows = range(step * batch, (step + 1) * batch)
        same(next(feed), rows_of(ids, starts_of(rows, COUNT, length, seed=1), length))


def test_random_windows_reach_every_start_about_equally_often(tokens: lowtide.Tokens) -> None:
    length, draws = 4980, 20_000
    counts = Counter(first_tokens(tokens.batches(500, length=length, order="random", seed=1), draws))
    assert set(counts) == set(range(COUNT - length))  # the last start has its y end with the last token
    # 20 starts, 1,000 expected each: chi-squared of 19 degrees of freedom is below 53.5 but for one seed in 30,000.
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 53.5


# Sequential


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("length", "batch"), [(16, 32), (7, 13), (100, 7), (1, 999), (4999, 2), (4998, 1), (9000, 4)])
def test_sequential_predicts_every_token_once(path: Path, length: int, batch: int, strategy: str) -> None:
    with lowtide.open_tokens(path, dtype="uint16", strategy=strategy) as tokens:
        feed = tokens.batches(batch, length=length, order="sequential")
        batches = [(x.copy(), y.copy()) for x, y in feed]
        assert len(batches) == len(feed)
        assert np.concatenate([y.reshape(-1) for _, y in batches]).tolist() == list(range(1, COUNT))
        assert np.concatenate([x.reshape(-1) for x, _ in batches]).tolist() == list(range(COUNT - 1))
        assert all(len(x) <= batch for x, _ in batches)
        assert next(feed, None) is None
        for step, batch_of_step in enumerate(batches):
            same(feed[step], batch_of_step)


@pytest.mark.parametrize(("length", "batch"), [(16, 32), (7, 13), (100, 49), (4999, 1), (5, 5000)])
def test_whole_batches_leaves_out_what_does_not_fill_one(tokens: lowtide.Tokens, length: int, batch: int) -> None:
    feed = tokens.batches(batch, length=length, order="sequential").whole_batches()
    steps = (COUNT - 1) // length // batch
    batches = [(x.copy(), y.copy()) for x, y in feed]
    assert len(feed) == len(batches) == steps
    assert all(x.shape == (batch, length) for x, _ in batches)
    if steps:
        joined = np.concatenate([y.reshape(-1) for _, y in batches])
        assert joined.tolist() == list(range(1, steps * batch * length + 1))
    with pytest.raises(IndexError, match=f"expected a step from 0 to {steps - 1}, got {steps}"):
        feed[steps]


@pytest.mark.parametrize("world", LEFT_BY_RANK)
@pytest.mark.parametrize("length", [16, 17, 100])
def test_ranks_of_a_sequential_feed_take_equally_many_steps_and_predict_every_token_once(
    tokens: lowtide.Tokens, world: int, length: int
) -> None:
    whole = list(tokens.batches(24, length=length, order="sequential"))
    ranks = [
        list(tokens.batches(24, length=length, order="sequential", rank=rank, world=world)) for rank in range(world)
    ]
    assert {len(steps) for steps in ranks} == {len(whole)}
    for step, batch in enumerate(whole):
        parts = [steps[step] for steps in ranks]
        same(tuple(np.concatenate([part[half] for part in parts]) for half in (0, 1)), batch)  # type: ignore[arg-type]
        sizes = [len(part[0]) for part in parts]
        assert max(sizes) - min(sizes) <= 1


def test_a_sequential_feed_has_an_end_and_a_shuffled_one_no_length(tokens: lowtide.Tokens) -> None:
    assert len(tokens.batches(8, length=100, order="sequential")) == 8  # 49 windows, and the 99 tokens left over
    with pytest.raises(TypeError, match="expected a sequential order to have a length, got 'shuffled'"):
        len(tokens.batches(8, length=100))
    with pytest.raises(IndexError, match="expected a step from 0 to 7, got 8"):
        tokens.batches(8, length=100, order="sequential").seek(8)


def test_the_seed_plays_no_part_in_a_sequential_feed(tokens: lowtide.Tokens) -> None:
    one, two = (tokens.batches(8, length=100, order="sequential", seed=seed) for seed in (0, 9))
    same(next(one), next(two))
    two.load_state_dict(one.state_dict())


# Ranks


@pytest.mark.parametrize("order", ["shuffled", "random"])
@pytest.mark.parametrize("world", LEFT_BY_RANK)
def test_the_ranks_shares_side_by_side_are_the_global_batch(tokens: lowtide.Tokens, world: int, order: str) -> None:
    whole = tokens.batches(24, length=33, seed=9, order=order)
    ranks = [tokens.batches(24, length=33, seed=9, order=order, rank=rank, world=world) for rank in range(world)]
    for _ in range(20):  # three epochs
        x, y = next(whole)
        parts = [next(feed) for feed in ranks]
        assert all(len(part[0]) == 24 // world for part in parts)
        assert np.array_equal(np.concatenate([part[0] for part in parts]), x)
        assert np.array_equal(np.concatenate([part[1] for part in parts]), y)
    assert {feed.cursor for feed in ranks} == {whole.cursor} == {480}


@pytest.mark.parametrize(
    ("batch", "world", "nearest"), [(10, 3, "batch=9 or batch=12"), (64, 7, "batch=63 or batch=70"), (2, 5, "batch=5")]
)
def test_a_batch_that_does_not_divide_is_refused_with_the_nearest_that_do(
    tokens: lowtide.Tokens, batch: int, world: int, nearest: str
) -> None:
    with pytest.raises(ValueError, match=f"divides among world={world} ranks, got {batch}. Use {nearest}."):
        tokens.batches(batch, length=8, rank=0, world=world)


@pytest.mark.parametrize(
    ("rank", "world", "kind", "words"),
    [
        (4, 4, ValueError, "rank: expected 0 to 3 for world=4, got 4"),
        (-1, 4, ValueError, "rank: expected 0 or more, got -1"),
        (1, None, ValueError, "rank= and world= together, got rank=1 and world=None"),
        (0, None, ValueError, "rank= and world= together"),
        (None, 4, ValueError, "rank= and world= together, got rank=None and world=4"),
        (0, 0, ValueError, "world: expected 1 or more, got 0"),
        (1.0, 4, TypeError, "rank: expected a whole number, got float"),
        ("0", 4, TypeError, "rank: expected a whole number, got str"),
    ],
)
def test_ranks_outside_the_world_are_refused(
    tokens: lowtide.Tokens, rank: int, world: int, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        tokens.batches(8, length=8, rank=rank, world=world)


# Everything at once


@pytest.mark.slow
@given(data=st.data())
def test_any_row_of_any_feed_is_the_oracles(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 40), "length")
    count = data.draw(st.integers(2 * length, 1500), "tokens")
    world = data.draw(st.integers(1, 5), "world")
    batch = world * data.draw(st.integers(1, 9), "rows a rank")
    rank = data.draw(st.integers(0, world - 1), "rank")
    seed = data.draw(st.integers(-(2**80), 2**80), "seed")
    cursor = data.draw(st.integers(0, 5000) | st.integers(0, 10**12), "cursor")
    order = data.draw(st.sampled_from(["shuffled", "random"]), "order")
    ids = numbered(count)
    path = raw_file(tmp_path_factory.mktemp("any"), ids)
    with lowtide.open_tokens(path, dtype="uint16") as tokens:
        feed = tokens.batches(batch, length=length, seed=seed, order=order, rank=rank, world=world)
        feed.load_state_dict({**feed.state_dict(), "rows": cursor})
        share = batch // world
        for step in range(3):
            first = cursor + step * batch + rank * share
            starts = starts_of(range(first, first + share), count, length, order, seed)
            assert max(starts) + length < count
            same(next(feed), rows_of(ids, starts, length))
        assert feed.cursor == cursor + 3 * batch


@pytest.mark.slow
@given(st.integers(2, 400), st.integers(1, 60), st.integers(1, 12), st.integers(1, 4), st.data())
def test_a_sequential_feed_resumed_anywhere_with_any_batch_size_predicts_the_rest_once(
    tmp_path_factory: pytest.TempPathFactory, count: int, length: int, batch: int, world: int, data: st.DataObject
) -> None:
    path = raw_file(tmp_path_factory.mktemp("any"), np.arange(count))
    with lowtide.open_tokens(path, dtype="uint16") as tokens:
        feed = tokens.batches(batch, length=length, order="sequential")
        stop = data.draw(st.integers(0, len(feed)), "steps before the stop")
        seen = [y.reshape(-1).copy() for _, (_, y) in zip(range(stop), feed, strict=False)]
        assert feed.step == stop
        state = feed.state_dict()
        for rank in range(world):
            rest = tokens.batches(world * batch, length=length, order="sequential", rank=rank, world=world)
            rest.load_state_dict(state)
            seen += [y.reshape(-1).copy() for _, y in rest]
        assert sorted(np.concatenate(seen).tolist()) == list(range(1, count))
