"""``locality=`` of token feeds: every window once per epoch, stretch by stretch; states; what the page cache sees."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
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


@given(st.integers(1, 400), st.integers(1, 90), st.integers(0, 5))
def test_a_run_at_a_position_is_the_block_its_rows_come_from(n: int, size: int, seed: int) -> None:
    order = LocalPermutation(n, size, seed=seed)
    rows = order.block(0, n)
    position = 0
    while position < n:
        first, count, begins = order.run_at(position)
        assert begins == position
        assert sorted(rows[position : position + count].tolist()) == list(range(first, first + count))
        assert order.run_at(position + count - 1) == (first, count, begins)
        position += count


def test_every_window_comes_once_per_epoch_and_stretch_by_stretch(tokens: lowtide.Tokens) -> None:
    windows = (len(tokens) - LENGTH) // LENGTH
    feed = tokens.batches(10, length=LENGTH, seed=1, locality=20 * WINDOW)
    got = firsts(feed, 2 * windows)
    epochs = [got[:windows], got[windows:]]
    assert all(len(set(epoch)) == windows for epoch in epochs)
    assert sorted(epochs[0]) != epochs[0]
    phase = min(epochs[0])
    blocks = [(first - phase) // (20 * LENGTH) for first in epochs[0]]
    changes = sum(one != other for one, other in zip(blocks[1:], blocks, strict=False))
    assert changes == -(-windows // 20) - 1, "a stretch that was left is never entered again"
    assert sorted(set(blocks)) != list(dict.fromkeys(blocks)), "stretches come in random order"


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
    with pytest.raises(lowtide.StateError, match="locality=None, got 65536"):
        tokens.batches(6, length=LENGTH, seed=2).load_state_dict(state)
    with pytest.raises(lowtide.StateError, match="locality=32768, got 65536"):
        tokens.batches(6, length=LENGTH, seed=2, locality="32KiB").load_state_dict(state)


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
def test_stretches_are_dropped_behind_when_the_cache_is_to_be_dropped(disk_path: Path, cache: str) -> None:
    """``keep`` is the negative control: the same reading leaves the whole file in the page cache."""
    path = disk_path / "corpus.bin"
    np.arange(16 * MIB).astype(np.uint16).tofile(path)
    drop_page_cache(path)
    tokens = lowtide.open_tokens(path, dtype="uint16", cache=cache, budget="8MiB")
    feed = tokens.batches(64, length=1024, locality="1MiB")
    plan = feed.plan()
    most, steps = 0, 240
    for step in range(steps):
        next(feed)
        if step % 16 == 0:
            most = max(most, page_cache(path).cached)
    if cache == "drop":
        assert most <= plan.cache
        assert plan.cache < 20 * MIB
        assert "behind each stretch" in plan.rung
    else:
        assert page_cache(path).cached > 24 * MIB


def test_what_was_announced_is_what_is_read(disk_path: Path) -> None:
    """A local feed asks the disk for long runs: after the first batch its whole stretch is in the page cache."""
    path = disk_path / "corpus.bin"
    np.arange(8 * MIB).astype(np.uint16).tofile(path)
    drop_page_cache(path)
    feed = lowtide.open_tokens(path, dtype="uint16", cache="keep").batches(8, length=1024, locality="2MiB")
    for _ in range(128):  # one stretch of 1,024 windows
        next(feed)
    assert 2 * MIB <= page_cache(path).cached <= 8 * MIB
