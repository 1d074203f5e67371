"""Orders hold every row exactly once, at any size, forwards and backwards, and never change.

Whether they look random is the business of test_order_statistics.py.
"""

from __future__ import annotations

import itertools
import json
import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lowtide.order import LocalPermutation, Order, Permutation, draws, key, rank_slice
from lowtide.order.feistel import Feistel
from lowtide.order.words import words

LARGEST = 2**63 - 1
BEYOND = [2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**40, 2**53 - 1, 2**53, 2**53 + 1, 2**62 + 1, LARGEST]

# Never change this file: a saved run resumes at the same rows only as long as these numbers hold.
GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden_order.json").read_text(encoding="utf-8"))


def holds_every_row_once(order: Order) -> bool:
    seen = np.zeros(order.n, dtype=bool)
    for start in range(0, order.n, 2**16):
        rows = order.block(start, min(2**16, order.n - start))
        if rows.min() < 0 or rows.max() >= order.n:
            return False
        seen[rows] = True
    return bool(seen.all())  # n rows that cover n places: none came twice


# Exactly once ------------------------------------------------------------------------------------------------


def test_every_size_up_to_4097_is_shuffled_exactly_once() -> None:
    assert [n for n in range(1, 4098) if not holds_every_row_once(Permutation(n, seed=n))] == []


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 2**16), seed=st.integers(0, 2**32), count=st.integers(1, 16))
def test_a_first_look_at_a_few_rows_says_what_the_table_says(n: int, seed: int, count: int) -> None:
    positions = np.random.default_rng(seed).integers(0, n, count)
    first, known = Permutation(n, seed=seed), Permutation(n, seed=seed).block(0, n)
    for _ in range(2):  # selected, and then from the table
        assert np.array_equal(first.at(positions), known[positions])


def test_the_feistel_bijection_is_one_to_one_at_every_size_up_to_4097() -> None:
    broken = []
    for n in range(2, 4098):
        numbers = np.arange(n, dtype=np.uint64)
        Feistel(n, key(n)).forward(numbers)
        if numbers.max() >= n or np.bincount(numbers.astype(np.int64), minlength=n).max() != 1:
            broken.append(n)
    assert broken == []


@pytest.mark.parametrize("k", range(1, 21))
def test_powers_of_two_and_their_neighbours_are_shuffled_exactly_once(k: int) -> None:
    # 2**16 + 1, 2**18 + 1 and 2**20 + 1 lose a row in a shuffle that rounds its bit width wrongly.
    for n in (2**k - 1, 2**k, 2**k + 1):
        assert holds_every_row_once(Permutation(n, seed=k)), n


@pytest.mark.slow
@pytest.mark.parametrize("k", [21, 22])  # `make torture` goes on from here
def test_large_powers_of_two_and_their_neighbours_are_shuffled_exactly_once(k: int) -> None:
    for n in (2**k - 1, 2**k, 2**k + 1):
        assert holds_every_row_once(Permutation(n, seed=k)), n


@pytest.mark.parametrize("n", BEYOND)
def test_huge_orders_repeat_no_sampled_row_and_invert(n: int) -> None:
    order = Permutation(n, seed=3)
    edges = np.concatenate([np.arange(1000), np.arange(n - 1000, n)])
    positions = np.unique(np.concatenate([edges, draws(n, seed=4, start=0, count=20_000)]))
    rows = order.at(positions)
    assert rows.min() >= 0
    assert rows.max() < n
    assert np.unique(rows).size == positions.size
    np.testing.assert_array_equal(order.inverse(rows), positions)
    np.testing.assert_array_equal(order.at(order.inverse(positions)), positions)
    np.testing.assert_array_equal(order.block(n - 1000, 1000), order.at(np.arange(n - 1000, n)))


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("kind", ["full", "local"])
def test_nothing_and_a_single_row_are_fine(n: int, kind: str) -> None:
    order = make(kind, n)
    assert len(order) == order.n == n
    assert order.block(0, n).tolist() == list(range(n))
    assert order.at([]).dtype == np.int64
    assert order.inverse(np.arange(n)).tolist() == list(range(n))


def make(kind: str, n: int, rows_per_block: int = 7) -> Order:
    if kind == "local":
        return LocalPermutation(n, rows_per_block, 5, seed=1)
    return Permutation(n, seed=1)


@settings(deadline=None)  # a busy machine is no failure
@given(st.integers(1, LARGEST), st.integers(), st.integers(0, 100), st.data())
@example(65_537, -(2**200), 0, None)
def test_inverse_undoes_at(n: int, seed: int, epoch: int, data: st.DataObject | None) -> None:
    order = Permutation(n, seed=seed, epoch=epoch)
    some = [n - 1, 0] if data is None else data.draw(st.lists(st.integers(0, n - 1), max_size=20))
    positions = np.array(some, dtype=np.int64)
    np.testing.assert_array_equal(order.inverse(order.at(positions)), positions)
    np.testing.assert_array_equal(order.at(order.inverse(positions)), positions)


@settings(deadline=None)
@given(st.sampled_from(["full", "local"]), st.integers(1, 200_000), st.data())
def test_a_block_is_the_rows_at_its_positions(kind: str, n: int, data: st.DataObject) -> None:
    order = make(kind, n, rows_per_block=1000)
    start = data.draw(st.integers(0, n))
    count = data.draw(st.integers(0, min(n - start, 20_000)))
    rows = order.block(start, count)
    assert rows.dtype == np.int64
    np.testing.assert_array_equal(rows, order.at(np.arange(start, start + count)))


def test_the_vectorised_bijection_equals_a_plain_one_that_takes_a_number_at_a_time() -> None:
    for n in (2, 3, 6, 1000, 65_537, 5_000_000, 2**32 + 1, LARGEST):
        numbers = np.array(sorted({0, 1, n // 3, n // 2, n - 2, n - 1}), dtype=np.uint64)
        expected = [plain_feistel(int(number), n, key(9), rounds=24 if n <= 2**11 else 8) for number in numbers]
        Feistel(n, key(9)).forward(numbers)
        assert numbers.tolist() == expected


def plain_feistel(number: int, n: int, stream: int, rounds: int) -> int:
    """The construction of docs/order.md in Python integers, written for reading."""
    word, low_bits = 2**64, (n - 1).bit_length() // 2
    heights = (n + 2**low_bits - 1) // 2**low_bits
    room = 64 - (heights - 1).bit_length()
    constants = words(stream, 0, 2 * rounds).tolist()
    while True:
        high, low = divmod(number, 2**low_bits)
        for index in range(rounds):
            hashed = ((high if index % 2 else low) * (constants[2 * index] | 1) + constants[2 * index + 1]) % word
            hashed = (hashed ^ hashed >> 32) * 0xC4CEB9FE1A85EC53 % word
            if index % 2:
                low ^= hashed >> (64 - low_bits)
            else:
                high = (high + ((hashed >> (64 - room)) * heights >> room)) % heights
        number = high * 2**low_bits + low
        if number < n:
            return number


# One order, always the same ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GOLDEN["Permutation"], ids=str)
def test_shuffled_orders_never_change(case: dict[str, Any]) -> None:
    order = Permutation(int(case["n"]), seed=int(case["seed"]), epoch=case["epoch"], purpose=case["purpose"])
    assert order.block(0, len(case["first"])).tolist() == case["first"]
    assert order.inverse(case["first"]).tolist() == list(range(len(case["first"])))


@pytest.mark.parametrize("case", GOLDEN["draws"], ids=str)
def test_draws_never_change(case: dict[str, Any]) -> None:
    drawn = draws(case["n"], seed=case["seed"], start=case["start"], count=len(case["first"]))
    assert drawn.tolist() == case["first"]


@pytest.mark.parametrize("case", GOLDEN["key"], ids=str)
def test_keys_never_change(case: dict[str, Any]) -> None:
    assert key(int(case["seed"]), *case["parts"]) == int(case["key"])


def test_keys_tell_apart_what_looks_alike() -> None:
    alike: list[tuple[int | str, ...]] = [(1, 23), (12, 3), (123,), (1, 2, 3), (1, "23"), (1, "2", "3"), (-1, 23)]
    alike += [(256,), (0,), (2**64,), (-(2**64),), (0, ""), (0, 0), (0, "\0"), (128,), (-128,)]
    assert len({key(*parts) for parts in alike}) == len(alike)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [1000, 100_000])
def test_seed_epoch_purpose_and_size_each_give_another_order(n: int) -> None:
    orders = [
        Permutation(n, seed=1),
        Permutation(n, seed=2),
        Permutation(n, seed=1, epoch=1),
        Permutation(n, seed=2, epoch=-1),
        Permutation(n, seed=1, purpose="phase"),
        Permutation(n + 1, seed=1),
    ]
    assert len({order.block(0, 500).tobytes() for order in orders}) == len(orders)


@pytest.mark.parametrize("n", [60_000, 2**40])
def test_an_order_survives_pickling(n: int) -> None:
    for order in (Permutation(n, seed=1, epoch=2), LocalPermutation(n, 7, 5, seed=1, epoch=2)):
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(order)).block(0, 100), order.block(0, 100))


@pytest.mark.parametrize("n", [60_000, 1_000_003])
def test_threads_that_share_an_order_get_the_same_rows(n: int) -> None:
    expected = Permutation(n, seed=8).block(0, 60_000)
    for order in (Permutation(n, seed=8) for _ in range(5)):
        with ThreadPoolExecutor(4) as pool:
            parts = list(pool.map(lambda start, order=order: order.block(start, 2000), range(0, 60_000, 2000)))
        np.testing.assert_array_equal(np.concatenate(parts), expected)


def test_a_shuffle_of_any_size_works_in_under_a_mebibyte() -> None:
    def peak(n: int, *, listed: bool) -> int:
        tracemalloc.start()
        rows: NDArray[np.int64] = (
            np.random.default_rng(0).permutation(n) if listed else Permutation(n, seed=0).block(0, 8192)
        )
        assert rows.size
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(LARGEST, listed=False) < 2**20
    assert peak(10**6, listed=True) > 2**20  # a listed order of even a million rows is more


# Sampling and ranks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 1000, 2**32 - 1, 2**32, 2**32 + 1, 2**53 + 1, LARGEST])
def test_any_draw_is_computed_without_the_ones_before_it(n: int) -> None:
    all_of_them = draws(n, seed=11, start=0, count=5000)
    assert all_of_them.dtype == np.int64
    assert all_of_them.min() >= 0
    assert all_of_them.max() < n
    for start in (0, 1, 1234, 4999):
        np.testing.assert_array_equal(draws(n, seed=11, start=start, count=5000 - start), all_of_them[start:])


@pytest.mark.parametrize("n", [3, 1000, 2**32 - 1, 2**32 + 1, 2**53 + 1, 10**18 + 7, LARGEST])
def test_a_draw_is_the_exact_upper_word_of_the_product(n: int) -> None:
    word = words(key(6, "draws", "sample"), 100, 1000).tolist()
    assert draws(n, seed=6, start=100, count=1000).tolist() == [w * n >> 64 for w in word]


def test_draws_far_out_and_for_other_seeds_and_purposes_differ() -> None:
    runs = [
        draws(10**9, seed=1, start=0, count=50),
        draws(10**9, seed=2, start=0, count=50),
        draws(10**9, seed=1, start=0, count=50, purpose="other"),
        draws(10**9, seed=1, start=LARGEST - 50, count=50),
    ]
    assert len({run.tobytes() for run in runs}) == 4


@settings(deadline=None)
@given(st.integers(0, LARGEST), st.integers(1, 200))
def test_rank_slices_cover_all_positions_with_sizes_at_most_one_apart(n: int, world: int) -> None:
    slices = [rank_slice(n, rank, world) for rank in range(world)]
    assert slices[0][0] == 0
    assert slices[-1][1] == n
    assert all(before[1] == after[0] for before, after in itertools.pairwise(slices))
    sizes = [last - first for first, last in slices]
    assert max(sizes) - min(sizes) <= 1


# Refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "local"])
@pytest.mark.parametrize("n", [100, 100_000])
def test_positions_and_rows_outside_are_refused_with_both_numbers(kind: str, n: int) -> None:
    order = make(kind, n)
    for wrong in (-1, n, LARGEST, -(2**63)):
        for call in (order.at, order.inverse):
            with pytest.raises(IndexError, match=rf"expected numbers .* below {n}, got {wrong}\."):
                call(np.array([0, wrong, 1]))
    for start, count in ((-1, 2), (n - 1, 2), (0, n + 1), (n + 1, 0), (5, -1)):
        with pytest.raises(IndexError, match=rf"within 0 to {n}, got start {start} and count {count}\."):
            order.block(start, count)


@pytest.mark.parametrize("kind", ["full", "local"])
def test_positions_must_be_whole_numbers_in_one_dimension(kind: str) -> None:
    order = make(kind, 100)
    with pytest.raises(TypeError, match="expected integers, got float64"):
        order.at([1.0, 2.0])
    with pytest.raises(TypeError, match="expected integers, got bool"):
        order.at([True, False])
    with pytest.raises(ValueError, match=r"expected 1 dimension, got shape \(2, 2\)"):
        order.at([[1, 2], [3, 4]])
    with pytest.raises(TypeError, match=r"expected an integer start, got 1\.5"):
        order.block(1.5, 1)  # type: ignore[arg-type]


def test_positions_are_not_written_to() -> None:
    for order in (Permutation(70_000, seed=1), LocalPermutation(70_000, 9, 5, seed=1)):
        positions = np.arange(1000)
        order.at(positions)[:] = -1
        order.inverse(positions)[:] = -1
        np.testing.assert_array_equal(positions, np.arange(1000))


def test_positions_of_any_integer_type_are_taken() -> None:
    order = Permutation(70_000, seed=1)
    expected = order.block(0, 100).tolist()
    for dtype in ("int8", "uint8", "int32", "uint32", "uint64", ">i8"):
        assert order.at(np.arange(100).astype(dtype)).tolist() == expected


@pytest.mark.parametrize("n", [-1, 2**63])
def test_a_size_that_int64_cannot_count_is_refused(n: int) -> None:
    for make_one in (
        lambda: Permutation(n, seed=1),
        lambda: LocalPermutation(n, 5, 2, seed=1),
        lambda: draws(n, seed=1, start=0, count=1),
        lambda: rank_slice(n, 0, 1),
    ):
        with pytest.raises(ValueError, match=rf"expected n from 0 to 2\*\*63 - 1, got {n}\."):
            make_one()


def test_seeds_sizes_and_epochs_that_are_not_integers_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"expected an integer seed, got 0.5 \(float\)"):
        Permutation(10, seed=0.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected an integer epoch, got None"):
        Permutation(10, seed=1, epoch=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected an integer n, got '10'"):
        Permutation("10", seed=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected rows_per_block of at least 1, got 0"):
        LocalPermutation(10, 0, 1, seed=1)
    with pytest.raises(ValueError, match="expected blocks_per_window of at least 1, got -2"):
        LocalPermutation(10, 1, -2, seed=1)


def test_impossible_draws_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 row to draw 5 from, got 0"):
        draws(0, seed=1, start=0, count=5)
    with pytest.raises(ValueError, match="got start -1 and count 5"):
        draws(10, seed=1, start=-1, count=5)
    with pytest.raises(ValueError, match="got start 0 and count -5"):
        draws(10, seed=1, start=0, count=-5)


@pytest.mark.parametrize(
    ("rank", "world", "message"),
    [
        (0, 0, "world: expected 1 or more, got 0"),
        (2, 2, "rank: expected 0 to 1 for world=2, got 2"),
        (-1, 4, "rank: expected 0 to 3 for world=4, got -1"),
    ],
)
def test_a_rank_outside_its_world_is_refused(rank: int, world: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rank_slice(100, rank, world)
