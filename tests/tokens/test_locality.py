"""``locality=`` of token feeds: every window once per epoch, in windows of blocks; states; what the page cache sees."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.feeds import starts_of

import lowtide
from lowtide.machine import drop_page_cache, page_cache
from lowtide.order import LocalPermutation
from lowtide.units import MIB

LENGTH = 64
WINDOW = LENGTH * 2  # bytes


@pytest.fixture
def tokens(tmp_path: Path) -> lowtide.Tokens:
    path = tmp_path / "corpus.bin"
    np.arange(60_000).astype(np.uint16).tofile(path)
    return lowtide.open_tokens(path, dtype="uint16")


def firsts(feed: lowtide.Feed, rows: int) -> list[int]:
    """Which token each row begins at (ids count from 0 in these files)."""
    found: list[int] = []
    while len(found) < rows:
        found += next(feed)[0][:, 0].tolist()
    return found[:rows]


def test_every_window_comes_once_per_epoch_and_blocks_come_together(tokens: lowtide.Tokens) -> None:
    rows = (len(tokens) - LENGTH) // LENGTH
    feed = tokens.batches(10, length=LENGTH, seed=1, locality=(80 * WINDOW, 5 * WINDOW))
    got = firsts(feed, 2 * rows)
    epochs = [got[:rows], got[rows:]]
    assert all(len(set(epoch)) == rows for epoch in epochs)
    for epoch in epochs:
        blocks = (np.array(epoch) - min(epoch)) // (5 * LENGTH)
        order = LocalPermutation(rows, 5, 16, seed=0)  # any seed: as many windows as there are
        last = 0
        for number in range(order.windows):
            here = set(blocks[last : last + order.window(number).blocks * 5 - 4].tolist())
            last += order.window(number).blocks * 5
            assert len(here) <= order.blocks_per_window, "rows come from the blocks of one window"
        assert sorted(epoch) != epoch


def test_windows_of_a_batch_spread_over_the_corpus(tokens: lowtide.Tokens) -> None:
    def spans(*locality: int) -> list[float]:
        """How much of the corpus the windows of each batch of an epoch span."""
        feed = tokens.batches(64, length=LENGTH, seed=3, locality=locality)
        return [np.ptp(next(feed)[0][:, 0].astype(np.int64)) / len(tokens) for _ in range(14)]

    assert min(spans(256 * WINDOW, 4 * WINDOW)) > 0.5
    assert np.mean(spans(256 * WINDOW, 256 * WINDOW)) < 0.5, "the control: one block per window is neighbours only"


def test_a_mixture_shuffles_each_corpus_by_its_own_windows_of_blocks(tokens: lowtide.Tokens, tmp_path: Path) -> None:
    (np.arange(20_000) % 60_000).astype(np.uint16).tofile(tmp_path / "small.bin")
    small = lowtide.open_tokens(tmp_path / "small.bin", dtype="uint16")
    locality = (32 * 4 * WINDOW, 4 * WINDOW)
    feed = lowtide.mix({"a": (tokens, 0.5), "b": (small, 0.5)}).batches(8, length=LENGTH, seed=4, locality=locality)
    alone = {
        "a": iter(firsts(tokens.batches(8, length=LENGTH, seed=4, locality=locality), 400)),
        "b": iter(firsts(small.batches(8, length=LENGTH, seed=4, locality=locality), 400)),
    }
    for step in range(60):
        x, _ = next(feed)
        for place, first in zip(feed.where(step), x[:, 0].tolist(), strict=True):
            assert next(alone[place.corpus or ""]) == first
    reasons = " ".join(feed.plan().why)
    assert "a: local shuffle: a window mixes 30 blocks of 512 B" in reasons
    assert "b: local shuffle" in reasons


def test_a_plan_says_how_well_it_mixes(tokens: lowtide.Tokens) -> None:
    assert "a window mixes 63 blocks of 128 B" in str(
        tokens.batches(8, length=LENGTH, locality=(64 * WINDOW, WINDOW)).plan()
    )
    assert "4 mix little" in str(tokens.batches(8, length=LENGTH, locality=(4 * WINDOW, WINDOW)).plan())
    assert "local shuffle" not in str(tokens.batches(8, length=LENGTH).plan())


def test_a_full_shuffle_is_what_it_was(tokens: lowtide.Tokens) -> None:
    rows = range(2_000)
    assert firsts(tokens.batches(8, length=LENGTH, seed=1), 2_000) == starts_of(rows, len(tokens), LENGTH, seed=1)


def test_any_step_can_be_had_at_once_and_a_state_goes_on(tokens: lowtide.Tokens) -> None:
    feed = tokens.batches(6, length=LENGTH, seed=2, locality="4KiB")
    read = [next(feed)[0].copy() for _ in range(300)]  # into the second epoch
    other = tokens.batches(6, length=LENGTH, seed=2, locality=4096)
    assert all(np.array_equal(other[step][0], read[step]) for step in (0, 7, 155, 299))
    half = tokens.batches(3, length=LENGTH, seed=2, locality="4KiB", rank=0, world=1)
    other.seek(200)
    half.load_state_dict(json.loads(json.dumps(other.state_dict())))
    assert np.array_equal(np.concatenate([next(half)[0], next(half)[0]]), read[200])
    copied = pickle.loads(pickle.dumps(other))
    assert np.array_equal(next(copied)[0], read[200])


def test_locality_is_part_of_the_state_and_the_budget_is_not(tokens: lowtide.Tokens, tmp_path: Path) -> None:
    feed = tokens.batches(6, length=LENGTH, seed=2, locality="64KiB")
    state = feed.state_dict()
    small = lowtide.open_tokens(tmp_path / "corpus.bin", dtype="uint16", budget="64KiB")
    same = small.batches(6, length=LENGTH, seed=2, locality="64KiB")
    same.load_state_dict(state)
    assert firsts(same, 100) == firsts(feed, 100)
    with pytest.raises(lowtide.StateError, match=r"locality=None, got \[65536, 65536\]"):
        tokens.batches(6, length=LENGTH, seed=2).load_state_dict(state)
    with pytest.raises(lowtide.StateError, match=r"locality=\[32768, 32768\], got \[65536, 65536\]"):
        tokens.batches(6, length=LENGTH, seed=2, locality="32KiB").load_state_dict(state)
    with pytest.raises(lowtide.StateError, match=r"locality=\[65536, 1024\], got \[65536, 65536\]"):
        tokens.batches(6, length=LENGTH, seed=2, locality=("64KiB", "1KiB")).load_state_dict(state)
    tokens.batches(6, length=LENGTH, seed=2, locality=state["locality"]).load_state_dict(state)


def test_states_of_the_old_meaning_are_refused_by_name(tokens: lowtide.Tokens, tmp_path: Path) -> None:
    feed = tokens.batches(6, length=LENGTH, seed=2, locality="64KiB")
    old = {**feed.state_dict(), "locality": 65536}
    for other in (feed, tokens.batches(6, length=LENGTH, seed=2)):
        with pytest.raises(lowtide.StateError, match="got locality=65536, saved when locality= mixed neighbours only"):
            other.load_state_dict(old)
    np.save(tmp_path / "x.npy", np.zeros((100, 4)))
    rows = lowtide.open(tmp_path / "x.npy").shuffled(8, locality=320)
    state = rows.state_dict()
    with pytest.raises(lowtide.StateError, match="got neighbours=10, saved when locality= mixed neighbours only"):
        rows.load_state_dict({**state, "neighbours": 10})
    full = lowtide.open(tmp_path / "x.npy").shuffled(8)
    full.load_state_dict({**full.state_dict(), "neighbours": None})  # as a full shuffle's once was


def test_ranks_together_give_the_global_batch(tokens: lowtide.Tokens) -> None:
    whole = tokens.batches(8, length=LENGTH, locality="16KiB")
    ranks = [tokens.batches(8, length=LENGTH, locality="16KiB", rank=rank, world=2) for rank in range(2)]
    for step in range(20):
        assert np.array_equal(np.concatenate([next(feed)[0] for feed in ranks]), whole[step][0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"locality": WINDOW - 1}, rf"expected at least one window \({WINDOW} bytes\), got 127 bytes"),
        ({"locality": 0}, "expected at least one window"),
        ({"locality": "many"}, "locality: expected a size such as '64MiB'"),
        ({"locality": "1MiB", "order": "random"}, "expected order='shuffled', got order='random'"),
        ({"locality": "1MiB", "order": "sequential"}, "expected order='shuffled'"),
    ],
)
def test_a_locality_that_makes_no_sense_is_refused(
    tokens: lowtide.Tokens, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tokens.batches(4, length=LENGTH, **options)


@pytest.mark.parametrize("cache", ["drop", "keep"])
def test_blocks_are_dropped_behind_when_the_cache_is_to_be_dropped(disk_path: Path, cache: str) -> None:
    """``keep`` is the negative control: the same reading leaves the whole file in the page cache."""
    path = disk_path / "corpus.bin"
    np.arange(16 * MIB).astype(np.uint16).tofile(path)
    drop_page_cache(path)
    tokens = lowtide.open_tokens(path, dtype="uint16", cache=cache, budget="8MiB")
    feed = tokens.batches(64, length=1024, locality=("1MiB", "64KiB"))
    plan = feed.plan()
    most, steps = 0, 240
    for step in range(steps):
        next(feed)
        if step % 16 == 0:
            most = max(most, page_cache(path).cached)
    if cache == "drop":
        assert most <= 3 * MIB <= plan.cache < 20 * MIB
        assert "behind each window of blocks" in plan.rung
    else:
        assert page_cache(path).cached > 24 * MIB


def test_whole_blocks_of_this_window_and_the_next_are_announced_and_no_others(disk_path: Path) -> None:
    path = disk_path / "corpus.bin"
    np.arange(16 * MIB).astype(np.uint16).tofile(path)
    drop_page_cache(path)
    feed = lowtide.open_tokens(path, dtype="uint16", cache="keep").batches(8, length=1024, locality=("4MiB", "256KiB"))
    next(feed)
    assert 4 * MIB <= page_cache(path).cached <= 5 * MIB  # pages at the ends of blocks
    for _ in range(255):  # to the end of a window of 2,048 rows
        next(feed)
    # A third window would make 12. Where the disk's own read-ahead is long (8 MiB), it adds about one.
    assert 8 * MIB <= page_cache(path).cached <= 10 * MIB
