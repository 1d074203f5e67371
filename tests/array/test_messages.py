"""Messages whose advice is followed literally: each mistake is made as new users make it, and what it says is tried."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import lowtide


@pytest.fixture
def array(tmp_path: Path) -> lowtide.Array:
    np.save(tmp_path / "rows.npy", np.arange(4000, dtype=np.float32).reshape(1000, 4))
    return lowtide.open(tmp_path / "rows.npy")


def test_one_row_cannot_be_split(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros((1, 4)))
    with pytest.raises(ValueError, match=r"split: expected 2 rows or more to split, got 1\. Use it whole"):
        lowtide.open(tmp_path / "one.npy").split(val=0.5)
    np.zeros(1, np.uint16).tofile(tmp_path / "one.bin")
    with pytest.raises(ValueError, match=r"split: expected 2 tokens or more to split, got 1\."):
        lowtide.open_tokens(tmp_path / "one.bin", dtype="uint16").split(val=0.5)


def test_a_mask_of_two_axes_says_how_to_make_it_one(array: lowtide.Array) -> None:
    mask = array[:] > 1000
    for call in (array.subset, lambda which: array.gather(which, 10)):
        with pytest.raises(ValueError, match=r"one value for each of 1000 rows, got shape \(1000, 4\)") as problem:
            call(mask)
        (way,) = re.findall(r"or (mask\.all\(axis=1\))", str(problem.value))
        call(eval(way, {"mask": mask}))
    with pytest.raises(ValueError, match=r"one axis of row numbers, got shape \(2, 2\)\. Use rows\.reshape\(-1\)"):
        array.subset([[1, 2], [3, 4]])
    with pytest.raises(ValueError, match=r"got shape \(\)\. Use subset\(\[5\]\)"):
        array.subset(5)


def test_values_that_make_no_rows_are_not_told_to_be_reshaped(tmp_path: Path) -> None:
    with lowtide.create(tmp_path / "out.npy", dtype="float32", shape=(-1, 16)) as out:
        with pytest.raises(
            ValueError, match=r"shape \(n, 16\), got \(10,\)\. Create it with shape=\(-1, 10\), or make rows"
        ):
            out.append(np.zeros(10, np.float32))
        with pytest.raises(ValueError, match=r"got \(3, 10\)\. Create it with shape=\(-1, 10\), or make rows of 16"):
            out.append(np.zeros((3, 10), np.float32))
        with pytest.raises(ValueError, match=r"got \(32,\)\. Use rows\.reshape\(\(-1, 16\)\)"):
            out.append(np.zeros(32, np.float32))
        out.append(np.zeros(32, np.float32).reshape((-1, 16)))


def test_an_endless_iterator_has_no_length_and_names_what_it_takes(array: lowtide.Array) -> None:
    with pytest.raises(TypeError, match=r"got sample\(\), which has none here\. Count batches yourself\.$"):
        len(array.sample(8))
    with pytest.raises(TypeError, match=r"got shuffled\(\).*or state epochs=1\.$"):
        len(array.shuffled(8, epochs=None))
    assert len(array.shuffled(8, epochs=1)) == 125


@pytest.mark.parametrize("kind", ["chunks", "shuffled", "together", "feed"])
def test_the_budget_that_holding_batches_asks_for_suffices_and_adds_up(tmp_path: Path, kind: str) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((4096, 256), np.float32))

    def hold(budget: int, most: int) -> int:
        opened = lowtide.open(tmp_path / "rows.npy", budget=budget)
        if kind == "together":
            batches = lowtide.together(opened, opened, budget=budget).shuffled(64)
        elif kind == "feed":
            tokens = lowtide.open_tokens(tmp_path / "rows.npy", budget=budget)
            batches = tokens.batches(8, length=512)  # type: ignore[assignment]
        else:
            batches = getattr(opened, kind)(64)
        held = []
        for batch in batches:
            held.append(batch)
            if len(held) == most:
                break
        return len(held)

    if kind == "feed":
        np.save(tmp_path / "rows.npy", np.zeros(1 << 20, np.uint16))
    budget, wanted, added = 512 << 10, 12, 0
    for _ in range(30):
        try:
            assert hold(budget, wanted) == wanted
            break
        except lowtide.BudgetError as problem:
            said = str(problem)
            numbers = re.search(r"(\d+) bytes held \(\d+ arrays still in use\) and (\d+) more", said)
            (asked,) = re.findall(r"budget=(\d+)", said)
            if numbers is not None:
                added += 1
                assert int(numbers[1]) + int(numbers[2]) == int(asked), said
            assert int(asked) > budget, said
            budget = int(asked)
    else:
        raise AssertionError("the budget asked for never sufficed")
    assert added, "the message for arrays that are held was seen"


def test_the_word_most_like_the_one_that_was_written_is_suggested(array: lowtide.Array) -> None:
    with pytest.raises(ValueError, match=r"got 'mmap'\. Use strategy='map'"):
        lowtide.open(array.where, strategy="mmap")
    with pytest.raises(ValueError, match=r"got 'ever'\. Use cache='auto'"):
        lowtide.open(array.where, cache="ever")
    with pytest.raises(TypeError, match=r"got 'uint17'\. Use dtype='uint16'"):
        lowtide.open(array.where, dtype="uint17")


def test_an_assignment_is_answered_with_what_writes(array: lowtide.Array) -> None:
    with pytest.raises(
        TypeError, match=r"expected to be read only, got an assignment\. Write a new file with lowtide\."
    ):
        array[0] = 1


def test_arguments_that_need_a_name_get_it(array: lowtide.Array, tmp_path: Path) -> None:
    np.arange(5000, dtype="u2").tofile(tmp_path / "t.bin")
    tokens = lowtide.open_tokens(tmp_path / "t.bin", dtype="uint16")
    with pytest.raises(TypeError, match=r"batches: expected 1 without a name, got 2\. Use batches\(8, length=1024\)\."):
        tokens.batches(8, 1024)  # type: ignore[call-arg]
    with pytest.raises(
        TypeError, match=r"expected length=, the tokens of a window, got none\. Use batches\(8, length="
    ):
        tokens.batches(8)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Use shuffled\(8, seed=3\)\."):
        array.shuffled(8, 3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Use open\('x.f32', dtype='float32'\)\."):
        lowtide.open("x.f32", "float32")  # type: ignore[call-arg]


def test_a_conversion_that_would_change_the_numbers_is_not_suggested(tmp_path: Path) -> None:
    with (
        pytest.raises(TypeError, match=r"got float64\. Create it with dtype='float64': uint8 does not hold"),
        lowtide.create(tmp_path / "x.npy", dtype="uint8", shape=(-1,)) as out,
    ):
        out.append(np.array([30.5]))
    with (
        pytest.raises(TypeError, match=r"got float64\. Use np.asarray\(rows\)\.astype\('\|u1'\)"),
        lowtide.create(tmp_path / "x.npy", dtype="uint8", shape=(-1,)) as out,
    ):
        out.append(np.array([30.0]))
