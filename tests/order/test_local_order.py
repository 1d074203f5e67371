"""Local orders: every row once at any size, by windows of whole blocks from all over, forwards, backwards, for ever."""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lowtide.order import LocalPermutation, Permutation
from lowtide.order.locality import Locality, locality_of, locality_text
from lowtide.order.streams import Shuffled
from lowtide.units import KIB, MIB

LARGEST = 2**63 - 1
# Never change this file: a saved run resumes at the same rows only as long as these numbers hold.
GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden_order.json").read_text(encoding="utf-8"))


def whole(order: LocalPermutation) -> NDArray[np.int64]:
    return order.block(0, order.n)


# Exactly once, in windows of blocks --------------------------------------------------------------------------


def test_every_small_size_has_every_row_once_in_windows_of_whole_blocks() -> None:
    for n, size, most in itertools.product(range(1, 60), (1, 2, 3, 7, 16, 59, 60), (1, 2, 3, 5, 8, 100)):
        order = LocalPermutation(n, size, most, seed=n)
        rows = whole(order)
        assert sorted(rows.tolist()) == list(range(n)), (n, size, most)
        np.testing.assert_array_equal(order.inverse(rows), np.arange(n))
        position = 0
        for number in range(order.windows):
            window = order.window_at(position)
            assert (window.number, window.position) == (number, position)
            assert order.window_at(position + window.rows - 1) == window == order.window(number)
            blocks = order.blocks_of(number)
            of_blocks = [row for block in blocks.tolist() for row in range(n) if row // order.rows_per_block == block]
            assert sorted(rows[position : position + window.rows].tolist()) == of_blocks
            assert window.blocks == len(blocks)
            assert order.windows_of(blocks).tolist() == [number] * len(blocks)
            position += window.rows
        assert position == n


@settings(deadline=None, max_examples=60)
@given(st.integers(1, LARGEST), st.integers(1, LARGEST), st.integers(1, LARGEST), st.integers(), st.data())
def test_inverse_undoes_at_at_any_size(n: int, size: int, most: int, seed: int, data: st.DataObject) -> None:
    order = LocalPermutation(n, size, most, seed=seed)
    some = data.draw(st.lists(st.integers(0, n - 1), max_size=20))
    positions = np.array([*some, 0, n - 1], np.int64)
    rows = order.at(positions)
    assert all(0 <= row < n for row in rows.tolist())
    np.testing.assert_array_equal(order.inverse(rows), positions)
    for position, row in zip(positions.tolist(), rows.tolist(), strict=True):
        window = order.window_at(position)
        assert window.position <= position < window.position + window.rows
        assert order.windows_of([row // order.rows_per_block]).tolist() == [window.number]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 60_000), st.integers(1, 700), st.integers(1, 90), st.data())
def test_many_positions_of_one_window_are_what_each_of_them_is_alone(
    n: int, size: int, most: int, data: st.DataObject
) -> None:
    order = LocalPermutation(n, size, most, seed=1)
    start = data.draw(st.integers(0, n - 1))
    rows = order.block(start, min(9000, n - start))
    picked = np.linspace(0, len(rows) - 1, 7).astype(np.int64)
    assert [int(order.at([start + k])[0]) for k in picked.tolist()] == rows[picked].tolist()


@pytest.mark.parametrize(("n", "size", "most"), [(1_000_001, 1000, 64), (262_144, 64, 33), (99_999, 4096, 3)])
def test_windows_differ_by_at_most_one_block_and_none_is_larger_than_asked_for(n: int, size: int, most: int) -> None:
    order = LocalPermutation(n, size, most, seed=5)
    windows = [order.window(number) for number in range(order.windows)]
    assert {window.blocks for window in windows} <= {order.blocks_per_window, order.blocks_per_window - 1}
    assert order.blocks_per_window <= most
    assert sum(window.blocks for window in windows) == order.blocks == -(-n // size)
    assert order.windows == -(-order.blocks // most)


def test_blocks_of_a_window_lie_all_over_the_rows() -> None:
    order = LocalPermutation(1_000_001, 1000, 50, seed=2)
    for number in range(order.windows):
        blocks = order.blocks_of(number)
        assert (np.diff(blocks) > 0).all(), "in the order of the rows"
        assert np.diff(blocks).max() < 3 * order.blocks / order.blocks_per_window, "from every part of them"
        np.testing.assert_array_equal(order.blocks_of(number, 3, 7), blocks[3:10])


def test_the_last_block_and_the_part_that_is_short_come_at_any_time() -> None:
    last = [int(LocalPermutation(95, 10, 3, seed=seed).windows_of([9])[0]) for seed in range(200)]
    assert set(last) == {0, 1, 2, 3}
    late = [set(LocalPermutation(1000, 10, 8, seed=seed).blocks_of(12).tolist()) for seed in range(400)]
    assert set().union(*late) == set(range(100)), "no block comes in early windows only"


def test_windows_and_epochs_are_shuffled_differently() -> None:
    order = LocalPermutation(64 * 1000, 100, 10, seed=0)
    places = [np.searchsorted(np.sort(rows), rows).tobytes() for rows in whole(order).reshape(64, 1000)]
    assert len(set(places)) == 64
    teams = [LocalPermutation(64 * 1000, 100, 10, seed=0, epoch=epoch).blocks_of(0).tobytes() for epoch in range(50)]
    assert len(set(teams)) == 50


def test_one_window_of_all_blocks_mixes_all_rows() -> None:
    rows = whole(LocalPermutation(100_000, 1000, 100, seed=4))
    steps = np.abs(np.diff(rows)).mean() / 100_000
    assert 0.32 < steps < 0.345  # a third is what a full shuffle has


# How well it mixes -------------------------------------------------------------------------------------------


def largest_share(rows: NDArray[np.int64], classes: int = 10, batch: int = 256) -> NDArray[np.float64]:
    """Rows sorted by class: the share of the most frequent class in each batch."""
    labels = rows[: len(rows) // batch * batch] * classes // len(rows)
    counts = [(labels.reshape(-1, batch) == number).sum(axis=1) for number in range(classes)]
    found: NDArray[np.float64] = np.max(counts, axis=0) / batch
    return found


@pytest.mark.parametrize(("n", "size"), [(1618 * 1024, 1618), (512 * 1000 + 5, 512)])
def test_windows_of_64_blocks_mix_sorted_classes_nearly_as_a_full_shuffle_does(n: int, size: int) -> None:
    local = largest_share(whole(LocalPermutation(n, size, 64, seed=0)))
    full = largest_share(Permutation(n, seed=0).block(0, n))
    assert local.mean() <= full.mean() + 0.01
    assert local.mean() <= 0.2
    assert np.quantile(local, 0.999) <= 0.2, "and hardly a single batch has more"
    # The control, and what locality once meant: windows of neighbours.
    assert largest_share(whole(LocalPermutation(n, size * 64, 1, seed=0))).mean() > 0.5


@pytest.mark.parametrize("most", [16, 64])
def test_a_batch_spreads_over_at_least_half_of_the_rows(most: int) -> None:
    rows = whole(LocalPermutation(512 * 1000 + 5, 512, most, seed=3))
    batches = rows[: len(rows) // 64 * 64].reshape(-1, 64)
    assert (batches.max(axis=1) - batches.min(axis=1)).min() > 0.5 * len(rows)


# For ever ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GOLDEN["LocalPermutation"], ids=lambda case: f"{case['n']}-{case['start']}")
def test_local_orders_never_change(case: dict[str, Any]) -> None:
    shape = case["rows_per_block"], case["blocks_per_window"]
    order = LocalPermutation(int(case["n"]), *shape, seed=int(case["seed"]), epoch=case["epoch"])
    start = int(case["start"])
    assert order.block(start, len(case["rows"])).tolist() == case["rows"]
    assert order.inverse(case["rows"]).tolist() == list(range(start, start + len(case["rows"])))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(order)).block(start, 8), case["rows"][:8])


# Streams: epoch after epoch ----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 3000), st.integers(1, 60), st.integers(1, 20), st.integers(0, 3), st.data())
def test_a_stream_says_when_each_item_comes_next(
    n: int, block: int, most: int, epoch: int, data: st.DataObject
) -> None:
    stream = Shuffled(n, 7, locality=Locality(block * most, block, 1))
    position = epoch * n + data.draw(st.integers(0, n - 1))
    items = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=10)), np.int64)
    window = stream.window(position)
    # From the window of this position on, until every item has come once: the rest of this epoch and all of the next.
    coming = stream.at(np.arange(window.position, (epoch + 2) * n))
    for item, begins in zip(items.tolist(), stream.comes_next(items, position).tolist(), strict=True):
        first = window.position + int(np.flatnonzero(coming == item)[0])
        found = stream.window(first)
        assert found.position == begins
        inside = stream.at(np.arange(begins, begins + found.positions))
        assert item in inside
        firsts = stream.first_items(found, 0, found.blocks)
        items_per_block = min(block, n)
        assert sorted(inside.tolist()) == [k for f in firsts.tolist() for k in range(f, min(n, f + items_per_block))]


# What is stated ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "item", "expected"),
    [
        ("64MiB", 2048, (64 * MIB, MIB, 512, 64)),
        (("64MiB", "256KiB"), 2048, (64 * MIB, 256 * KIB, 128, 256)),
        ([1 << 26, 1 << 20], 648, (64 * MIB, MIB, 1618, 64)),
        ("100KiB", 1024, (100 * KIB, 100 * KIB, 100, 1)),  # less than a block: one smaller block
        ("64MiB", 3 * MIB, (64 * MIB, MIB, 1, 21)),  # rows larger than a block are blocks
        (5, 0, (5, 5, 5, 1)),  # rows of nothing
        (0, 8, (0, 0, 1, 1)),
    ],
)
def test_a_locality_is_windows_of_blocks_of_whole_items(stated: Any, item: int, expected: tuple[int, ...]) -> None:
    found = locality_of(stated, item)
    assert found is not None
    assert (found.window, found.block, found.items_per_block, found.blocks_per_window) == expected


@pytest.mark.parametrize(
    ("stated", "error", "message"),
    [
        (("1MiB", "2MiB"), ValueError, "blocks of at most the 1048576 bytes they make up, got 2097152"),
        (("1MiB", "1MiB", 3), ValueError, "expected a size, or two"),
        ((), ValueError, "expected a size, or two"),
        (("1MiB", "some"), ValueError, "locality's block: expected a size such as '64MiB'"),
        (("1MiB", None), TypeError, "locality's block: expected an int of bytes"),
        (1.5, TypeError, "locality: expected an int of bytes"),
    ],
)
def test_what_is_no_locality_is_refused(stated: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        locality_of(stated, 8)


def test_commands_spell_a_locality_with_a_comma() -> None:
    assert locality_text("64MiB") == ("64MiB",)
    assert locality_text("64MiB, 256KiB") == ("64MiB", "256KiB")
    with pytest.raises(ValueError, match="--locality: expected a size such as '64MiB'"):
        locality_text("64MiB,")


@pytest.mark.parametrize(
    ("window", "n", "says"),
    [
        (64 * MIB, 64 * 2048 * 10, "a window mixes 64 blocks of 1.00 MiB, one from each of as many equal parts"),
        (4 * MIB, 10**7 // 8192 * 8192, "4 mix little, and sorted data would show it: 32.0 MiB would hold 32 blocks"),
        (MIB, 10**7, "a window is 1 block of 1.00 MiB, so only neighbours are mixed; 1 mixes little"),
        (64 * MIB, 10**5, "one window holds all 49 blocks of 1.00 MiB, so all is mixed as in a full shuffle"),
        (64 * MIB, 0, "one window holds all 0 blocks"),
    ],
)
def test_a_plan_says_how_well_it_mixes(window: int, n: int, says: str) -> None:
    assert says in Locality(window, MIB, 512).mixes(n)
