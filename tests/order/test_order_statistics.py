"""Orders look random: whole-order statistics against their exact distributions, each with a shuffle that fails.

One level for the whole file: if every order were perfectly random, some test here would fail with probability
ALPHA, for a seed drawn once. Each test gets ALPHA / TESTS and divides it again by the p-values it looks at
(Bonferroni). Seeds are fixed, so a pass stays a pass until the construction changes; a change of construction
draws once more. Two-sided throughout: an order that is too even is as suspect as one that is uneven.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from lowtide.order import LocalPermutation, Order, Permutation, draws, key
from lowtide.order.feistel import Feistel
from lowtide.order.words import words

ALPHA = 1e-3
TESTS = 17  # test functions of this file that look at p-values; held by the first test

Rows = NDArray[np.int64]


def plausible(p_values: Sequence[float], *, runs: int = 1) -> bool:
    """Whether no p-value is below its share of ALPHA; ``runs`` is how many parameters the test runs with."""
    return min(p_values) > ALPHA / TESTS / len(p_values) / runs


def normal(z: float) -> float:
    """Two-sided p-value of a standard normal."""
    return math.erfc(abs(z) / math.sqrt(2))


def chi_squared(observed: Rows, expected: float | NDArray[np.float64], freedom: int) -> float:
    """Two-sided p-value by Wilson and Hilferty: the cube root of chi2 / freedom is nearly normal."""
    statistic = float(((observed - expected) ** 2 / expected).sum())
    spread = 2 / (9 * freedom)
    return normal(((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread))


def poisson(count: int, mean: float) -> float:
    """Two-sided p-value of a Poisson count, from the exact sums."""
    below = sum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1))
    here = math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
    return min(1.0, 2 * min(below, 1 - below + here))


def whole(order: Order) -> Rows:
    return order.block(0, order.n)


def affine(n: int) -> Rows:
    """(a i + b) mod n: one to one, quick, in use elsewhere - and not random. The negative control."""
    multiplier = int(n * 0.6180339887) | 1
    while math.gcd(multiplier, n) != 1:
        multiplier += 2
    return (np.arange(n) * multiplier + n // 3) % n


def test_the_correction_counts_every_test_of_this_file() -> None:
    users = [name for name, value in globals().items() if name.startswith("test_") and "plausible" in names_in(value)]
    assert len(users) == TESTS


def names_in(function: Callable[..., object]) -> tuple[str, ...]:
    return function.__code__.co_names


# Every order has the same chance -----------------------------------------------------------------------------


def order_counts(rows: Rows) -> Rows:
    """How often each order of k numbers occurs among rows of k numbers."""
    k = rows.shape[1]
    codes = rows @ k ** np.arange(k)
    _, counts = np.unique(codes, return_counts=True)
    return np.concatenate([counts, np.zeros(math.factorial(k) - counts.size, dtype=np.int64)])


@pytest.mark.slow
def test_all_120_orders_of_5_and_720_of_6_are_equally_frequent_over_seeds() -> None:
    five = np.stack([whole(Permutation(5, seed=seed)) for seed in range(36_000)])
    six = np.stack([whole(Permutation(6, seed=seed)) for seed in range(72_000)])
    assert plausible([chi_squared(order_counts(five), 300.0, 119), chi_squared(order_counts(six), 100.0, 719)])


def test_all_orders_of_5_and_6_are_equally_frequent_over_the_blocks_of_a_local_order() -> None:
    assert plausible([orders_of_blocks(5, 120_000, rounds=24), orders_of_blocks(6, 360_000, rounds=24)])


def test_eight_rounds_would_fail_the_test_of_small_blocks() -> None:
    assert orders_of_blocks(6, 36_000, rounds=8) < 1e-12


def orders_of_blocks(size: int, blocks: int, rounds: int) -> float:
    order = LocalPermutation(size * blocks, size, 1, seed=2)
    assert order._window is not None
    order._window._constants = order._window._constants[: 2 * rounds]
    rows = whole(order).reshape(blocks, size) % size
    orders = math.factorial(size)
    return chi_squared(order_counts(rows), blocks / orders, orders - 1)


def test_the_first_row_is_uniform_over_seeds() -> None:
    first = np.array([Permutation(100_003, seed=seed).block(0, 1)[0] for seed in range(8_000)])
    counts = np.bincount(first * 64 // 100_003, minlength=64)
    assert plausible([chi_squared(counts, 125.0, 63)])


# The bijection itself ----------------------------------------------------------------------------------------


def flip_rates(bits: int, rounds: int, keys: int = 16, samples: int = 8192) -> NDArray[np.float64]:
    """How often output bit j flips with input bit i, over random inputs of several keys."""
    flips = np.zeros((bits, bits))
    for which in range(keys):
        bijection = Feistel(2**bits, key(which, "avalanche"))
        bijection._constants = bijection._constants[: 2 * rounds]
        inputs = words(key(which, "inputs"), 0, samples) >> np.uint64(64 - bits)
        before = inputs.copy()
        bijection.forward(before)
        for bit in range(bits):
            after = inputs ^ np.uint64(1 << bit)
            bijection.forward(after)
            changed = before ^ after
            flips[bit] += [int(((changed >> np.uint64(out)) & np.uint64(1)).sum()) for out in range(bits)]
    return flips / (keys * samples)


def avalanche(bits: int, rounds: int) -> list[float]:
    return [normal((rate - 0.5) / (0.5 / math.sqrt(16 * 8192))) for rate in flip_rates(bits, rounds).ravel()]


@pytest.mark.parametrize("bits", [20, 41])
def test_every_input_bit_flips_every_output_bit_half_of_the_time(bits: int) -> None:
    assert np.abs(flip_rates(bits, rounds=8) - 0.5).max() < 0.01
    assert plausible(avalanche(bits, rounds=8), runs=2)


def test_three_rounds_would_fail_the_avalanche_test() -> None:
    assert min(avalanche(20, rounds=3)) < 1e-12


def pair_difference(n: int, apart: int, rounds: int) -> float:
    """The difference of two outputs, half by half, over a million keys: the sharpest test of a Feistel network.

    Pairs that agree in one half are where too few rounds show first.
    """
    bijection, keys = Feistel(n, key(1, "pairs")), 1_000_000
    bijection._constants = bijection._constants[: 2 * rounds]
    tweaks = words(key(2, "pairs"), 0, keys)
    one, other = np.zeros(keys, dtype=np.uint64), np.full(keys, apart, dtype=np.uint64)
    bijection.forward(one, tweaks)
    bijection.forward(other, tweaks)
    low_bits = (n - 1).bit_length() // 2
    side, heights = np.uint64(low_bits), -(-n // 2**low_bits)
    low = (one ^ other) & np.uint64(2**low_bits - 1)
    high = ((one >> side).astype(np.int64) - (other >> side).astype(np.int64)) % heights
    counts = np.bincount(high << low_bits | low.astype(np.int64), minlength=n)[1:]
    return chi_squared(counts, keys / (n - 1), n - 2)


def test_differences_of_two_outputs_are_uniform_over_keys() -> None:
    # 4,096 is the smallest power of two that gets eight rounds; 64 has the 24 of small blocks.
    pairs = [pair_difference(n, apart, rounds) for n, rounds in ((4096, 8), (64, 24)) for apart in (1, n // 2, 65 % n)]
    assert plausible(pairs)


def test_six_rounds_would_fail_the_test_of_differences() -> None:
    assert pair_difference(512, 16, rounds=6) < 1e-12


# Nothing of the file's order is left -------------------------------------------------------------------------


def serial(rows: Rows, lag: int) -> float:
    """Correlation of rows `lag` positions apart (cyclic): mean -1/(n-1), variance near 1/n for a random order."""
    n = rows.size
    centred = rows - (n - 1) / 2
    correlation = float(centred @ np.roll(centred, lag)) / float(centred @ centred)
    return normal((correlation + 1 / (n - 1)) * math.sqrt(n))


def test_rows_near_in_time_are_not_near_in_the_file() -> None:
    lags = [1, 2, 3, 4, 5, 7, 8, 16, 63, 64, 256, 512, 1000, 1024, 4096]
    orders = [whole(Permutation(n, seed=n)) for n in (65_536, 65_537, 262_145, 300_007)]
    assert plausible([serial(rows, lag) for rows in orders for lag in lags])
    assert not plausible([serial(affine(300_007), lag) for lag in lags])


def distinct_differences(rows: Rows) -> float:
    """Steps pi(i+1) - pi(i) mod n fall like n balls into n boxes: n (1 - 1/e) of them distinct."""
    n = rows.size
    distinct = np.unique((np.roll(rows, -1) - rows) % n).size
    mean, variance = n * (1 - math.exp(-1)), n * (math.exp(-1) - 2 * math.exp(-2))
    return normal((distinct - mean) / math.sqrt(variance))


def spread_of_differences(rows: Rows) -> float:
    n, cells = rows.size, 1024
    steps = (np.roll(rows, -1) - rows) % n
    return chi_squared(np.bincount(steps * cells // n, minlength=cells), n / cells, cells - 1)


def test_steps_from_row_to_row_are_as_many_and_as_even_as_chance_has_them() -> None:
    orders = [whole(Permutation(n, seed=n + 1)) for n in (65_536, 65_537, 262_145, 1_048_576)]
    p_values = [measure(rows) for rows in orders for measure in (distinct_differences, spread_of_differences)]
    assert plausible(p_values)
    assert not plausible([distinct_differences(affine(262_145))])
    assert not plausible([spread_of_differences(affine(262_145))])


def displacement(rows: Rows) -> float:
    """Sum of |pi(i) - i|: Spearman's footrule, with the exact mean and variance of Diaconis and Graham."""
    n = rows.size
    footrule = int(np.abs(rows - np.arange(n)).sum())
    return normal((footrule - (n * n - 1) / 3) / math.sqrt((n + 1) * (2 * n * n + 7) / 45))


def ascents(rows: Rows) -> float:
    """How often the next row lies further on: mean (n-1)/2, variance (n+1)/12."""
    n = rows.size
    return normal((int((np.diff(rows) > 0).sum()) - (n - 1) / 2) / math.sqrt((n + 1) / 12))


def test_rows_are_moved_as_far_as_chance_moves_them() -> None:
    orders = [whole(Permutation(n, seed=n + 2)) for n in (65_536, 65_537, 262_145, 1_000_003)]
    assert plausible([measure(rows) for rows in orders for measure in (displacement, ascents)])
    local = whole(LocalPermutation(262_145, 130_000, 1, seed=1))
    assert not plausible([displacement(local)])
    assert not plausible([ascents(affine(262_145))])


def test_as_many_rows_stay_in_place_as_chance_has_it() -> None:
    def staying(n: int) -> int:
        orders = (whole(Permutation(n, seed=4, epoch=epoch)) for epoch in range(64))
        return sum(int((rows == np.arange(n)).sum()) for rows in orders)

    assert plausible([poisson(staying(n), 64.0) for n in (60_000, 65_537)])


def label_purity(rows: Rows, batch: int = 256, labels: int = 10) -> float:
    """A corpus sorted by label: batches against the hypergeometric, as one table with both margins fixed."""
    n = rows.size
    batches = n // batch
    rows = rows[: batches * batch]
    cells = (np.arange(rows.size) // batch) * labels + rows * labels // n
    table = np.bincount(cells, minlength=batches * labels).reshape(batches, labels)
    expected = np.broadcast_to(table.sum(axis=0) / batches, table.shape)
    return chi_squared(table, expected, (batches - 1) * (labels - 1))


def test_batches_of_a_sorted_corpus_have_the_mix_of_labels_that_chance_gives() -> None:
    orders = [whole(Permutation(n, seed=n + 3)) for n in (65_536, 65_537, 1_048_576, 1_048_577)]
    assert plausible([label_purity(rows) for rows in orders])
    # Windows of one block: only neighbours are mixed. tests/order/test_local_order.py counts what more blocks give.
    assert not plausible([label_purity(whole(LocalPermutation(262_144, 4096, 1, seed=3)))])
    assert not plausible([label_purity(affine(262_145))])


# Seeds and epochs have nothing to do with each other ---------------------------------------------------------


def correlation(one: Rows, other: Rows) -> float:
    centre = (one.size - 1) / 2
    together = float((one - centre) @ (other - centre)) / float((one - centre) @ (one - centre))
    return normal(together * math.sqrt(one.size - 1))


@pytest.mark.parametrize("n", [60_000, 65_537])
def test_neighbouring_seeds_and_epochs_are_unrelated(n: int) -> None:
    seeds = [0, 1, 2, 3, 1337, 1338, 2**32, 2**32 + 1, 2**63, 2**63 + 1, -1, -2]
    orders = {(seed, epoch): whole(Permutation(n, seed=seed, epoch=epoch)) for seed in seeds for epoch in (0, 1)}
    pairs = [((seed, 0), (seed, 1)) for seed in seeds]
    pairs += [((a, epoch), (b, epoch)) for a, b in zip(seeds[::2], seeds[1::2], strict=True) for epoch in (0, 1)]
    pairs += [((a, 1), (b, 0)) for a, b in zip(seeds[::2], seeds[1::2], strict=True)]
    matches = sum(int((orders[a] == orders[b]).sum()) for a, b in pairs)
    p_values = [correlation(orders[a], orders[b]) for a, b in pairs] + [poisson(matches, float(len(pairs)))]
    assert plausible(p_values, runs=2)
    assert not plausible([correlation(orders[0, 0], orders[0, 0] // 2 * 2)])


def test_one_seed_orders_nearly_equal_sizes_differently() -> None:
    smaller, larger = whole(Permutation(100_000, seed=1)), whole(Permutation(100_001, seed=1))[:100_000]
    tables = whole(Permutation(60_000, seed=1)), whole(Permutation(60_001, seed=1))[:60_000]
    assert plausible([correlation(smaller, larger), correlation(*tables)])


def test_blocks_of_a_local_order_are_shuffled_independently() -> None:
    blocks, size = 512, 4096
    offsets = whole(LocalPermutation(blocks * size, size, 1, seed=9)).reshape(blocks, size) % size
    matches = int((offsets[1:] == offsets[:-1]).sum())
    assert plausible([poisson(matches, blocks - 1.0)] + [correlation(a, b) for a, b in itertools.pairwise(offsets)])


def test_blocks_of_a_local_order_come_in_random_order() -> None:
    order = LocalPermutation(65_537 * 3, 3, 1, seed=10)
    blocks = whole(order)[::3] // 3
    assert plausible(
        [serial(blocks, lag) for lag in (1, 2, 3, 64)] + [displacement(blocks), distinct_differences(blocks)]
    )


# Draws -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1000, 2**32 + 5, 3 * 2**61])
def test_draws_are_uniform_and_one_says_nothing_of_the_next(n: int) -> None:
    count = 1_000_000
    drawn = draws(n, seed=n, start=10**9, count=count)
    thousandths = (drawn.astype(np.float64) * (1000 / n)).astype(np.int64).clip(0, 999)
    single = chi_squared(np.bincount(thousandths, minlength=1000), count / 1000, 999)
    tenths = thousandths // 100
    pairs = chi_squared(np.bincount(tenths[::2] * 10 + tenths[1::2], minlength=100), count / 200, 99)
    assert plausible([single, pairs], runs=3)


def test_draws_repeat_rows_as_often_as_chance_does() -> None:
    n = 300_000
    mean, variance = n * (1 - math.exp(-1)), n * (math.exp(-1) - 2 * math.exp(-2))
    distinct = np.unique(draws(n, seed=6, start=0, count=n)).size
    assert plausible([normal((distinct - mean) / math.sqrt(variance))])


def test_draws_of_neighbouring_seeds_are_unrelated() -> None:
    n, count = 10**6, 100_000
    runs = [draws(n, seed=seed, start=0, count=count) - (n - 1) / 2 for seed in range(20)]
    unit = n * n / 12 * math.sqrt(count)
    assert plausible([normal(float(a @ b) / unit) for a, b in itertools.pairwise(runs)])
