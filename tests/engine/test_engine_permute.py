"""permute, native and in NumPy, is the bijection of the golden vectors, forwards and backwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.asked import PYTHON, native

from lowtide.order.feistel import SMALL_BITS, SMALL_ROUNDS, Feistel
from lowtide.order.orders import TABLE_ROWS
from lowtide.order.words import key, words

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "order" / "golden_order.json").read_text(encoding="utf-8")
)
LARGE = [case for case in GOLDEN["Permutation"] if int(case["n"]) > TABLE_ROWS]


def constants_of(n: int, stream: int) -> Any:
    return words(stream, 0, 2 * (SMALL_ROUNDS if (n - 1).bit_length() <= SMALL_BITS else 8))


@pytest.mark.parametrize("case", LARGE, ids=lambda case: f"{case['n']}-{case['purpose']}-{case['epoch']}")
def test_the_golden_vectors_hold(case: dict[str, Any]) -> None:
    n = int(case["n"])
    stream = key(int(case["seed"]), case["epoch"], case["purpose"], n)
    positions = np.arange(len(case["first"]), dtype=np.uint64)
    for engine in (native(), PYTHON):
        numbers = positions.copy()
        engine.permute(numbers, n, constants_of(n, stream), None, False)
        assert numbers.tolist() == case["first"]
        engine.permute(numbers, n, constants_of(n, stream), None, True)
        assert np.array_equal(numbers, positions)


@settings(max_examples=200, deadline=None)
@given(
    n=st.one_of(st.integers(2, 3000), st.integers(2, 2**63 - 1)),
    stream=st.integers(0, 2**64 - 1),
    tweaked=st.booleans(),
    count=st.integers(0, 400),
)
def test_both_engines_are_feistel(n: int, stream: int, tweaked: bool, count: int) -> None:
    start = np.random.default_rng(stream % 1000).integers(0, n, count, dtype=np.uint64)
    tweaks = words(stream ^ 5, 0, count) if tweaked else None
    feistel = Feistel(n, stream)
    forward, backward = start.copy(), start.copy()
    feistel.forward(forward, tweaks)
    feistel.backward(backward, tweaks)
    for engine in (native(), PYTHON):
        there, back = start.copy(), start.copy()
        engine.permute(there, n, constants_of(n, stream), tweaks, False)
        engine.permute(back, n, constants_of(n, stream), tweaks, True)
        assert np.array_equal(there, forward) and np.array_equal(back, backward)


@pytest.mark.parametrize("n", [2, 3, 5, 63, 64, 65, 1023, 1025, 65_535, 65_537, 70_000])
def test_every_number_comes_once(n: int) -> None:
    numbers = np.arange(n, dtype=np.uint64)
    native().permute(numbers, n, constants_of(n, 3), None, False)
    assert np.array_equal(np.sort(numbers), np.arange(n, dtype=np.uint64))


def test_a_number_outside_is_refused_and_nothing_is_changed() -> None:
    numbers = np.array([1, 100, 2], np.uint64)
    with pytest.raises(ValueError, match="expected numbers below 100, got 100"):
        native().permute(numbers, 100, constants_of(100, 3), None, False)
    assert numbers.tolist() == [1, 100, 2]
