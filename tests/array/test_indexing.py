"""How a key is split: only the rows it needs are read, and NumPy does the rest on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide.reading.rows.indexing import inside, select

SHAPE = (50, 4, 3)
WHOLE = np.arange(600).reshape(SHAPE)


def applied(key: Any) -> Any:
    """What reading the selected rows and applying the rest gives."""
    selection = select(key, SHAPE)
    rows = WHOLE[np.asarray(selection.rows, np.int64)]
    return rows if selection.rest is None else rows[selection.rest]


@pytest.mark.parametrize(
    "key",
    [
        7,
        -1,
        slice(3, 9),
        slice(None, None, -4),
        [3, 1, 3],
        np.arange(50) % 7 == 0,
        (7, 1),
        (slice(5), slice(None), 0),
        ([1, 2], [0, 3], [2, 0]),
        (np.arange(50) % 7 == 0, slice(1, 3)),
        (np.arange(50) % 25 == 0, [1, 2]),
        (WHOLE[:, :, 0] % 5 == 0, 1),
        WHOLE % 11 == 0,
        (Ellipsis, 1, 1, 1),
        (7, Ellipsis),
        (None, 3),
        ([[1], [2]], slice(None), [0, 2]),
    ],
    ids=str,
)
def test_a_split_key_gives_what_the_whole_key_gives(key: Any) -> None:
    got, expected = applied(key), WHOLE[key]
    assert type(got) is type(expected)
    assert np.array_equal(got, expected)


@pytest.mark.parametrize(
    ("key", "count"),
    [
        (7, 1),
        (slice(3, 9), 6),
        (slice(None, None, 10), 5),
        ([3, 1, 3], 3),
        ((7, 1, 2), 1),
        ((Ellipsis, 3, 1, 1), 1),
        ((slice(0, 2), 1), 2),
        (np.arange(50) < 4, 4),
        ((np.arange(200).reshape(50, 4) < 8), 2),
        ((7, None), 1),
        ((), 50),
    ],
    ids=str,
)
def test_only_rows_that_are_needed_are_named(key: Any, count: int) -> None:
    assert len(select(key, SHAPE).rows) == count


def test_consecutive_rows_stay_a_range_however_many_they_are() -> None:
    huge = (2**50, 4)
    assert select(slice(2**49, None), huge).rows == range(2**49, 2**50)
    assert select(2**50 - 1, huge).rows == range(2**50 - 1, 2**50)
    assert select(-1, huge).rows == range(2**50 - 1, 2**50)


@pytest.mark.parametrize("kind", ["i1", "u1", "i8", "u8", ">i4"])
def test_numbers_of_any_integer_type_are_checked_as_numbers(kind: str) -> None:
    assert inside(np.array([0, 5, 9], kind), 10).tolist() == [0, 5, 9]
    with pytest.raises(IndexError, match="got 10"):
        inside(np.array([0, 10], kind), 10)
    if np.dtype(kind).kind == "i":
        assert inside(np.array([-1, -10], kind), 10).tolist() == [9, 0]
        with pytest.raises(IndexError, match="got -11"):
            inside(np.array([-11], kind), 10)


def test_numbers_beyond_64_bits_are_out_of_range_and_not_wrapped() -> None:
    with pytest.raises(IndexError, match=str(2**63)):
        inside(np.array([2**63], np.uint64), 10)
    with pytest.raises(IndexError):
        select(2**200, SHAPE)


def test_a_mask_of_another_length_names_both_lengths() -> None:
    with pytest.raises(IndexError, match=r"\(50,\), got \(49,\)"):
        select(np.zeros(49, bool), SHAPE)
    with pytest.raises(IndexError, match=r"\(50, 4\), got \(50, 3\)"):
        select(np.zeros((50, 3), bool), SHAPE)


def test_too_many_axes_are_refused_with_both_numbers() -> None:
    with pytest.raises(IndexError, match="at most 3 axes, got 4"):
        select((0, 0, 0, 0), SHAPE)


def test_numpy_takes_an_opened_object_whole_in_one_read_that_the_budget_must_allow(tmp_path: Path) -> None:
    ids = np.arange(300_000, dtype=np.uint16)
    ids.tofile(tmp_path / "ids.bin")
    for opener in (lowtide.open, lowtide.open_tokens):
        with opener(tmp_path / "ids.bin", dtype="uint16") as held:
            assert np.array_equal(np.asarray(held), ids)
            assert np.asarray(held, np.int64).dtype == np.int64
            with pytest.raises(ValueError, match="reading from disk copies"):
                held.__array__(copy=False)
        with opener(tmp_path / "ids.bin", dtype="uint16", budget="64KiB") as held, pytest.raises(lowtide.BudgetError):
            np.asarray(held)


def test_row_numbers_of_different_lengths_are_refused_by_every_call(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(20.0))
    uneven: Any = [1, [2, 3]]
    with lowtide.open(tmp_path / "x.npy") as a:
        told = "expected an array, got parts of different lengths. Use a list of row numbers"
        with pytest.raises(ValueError, match=f"index: {told}"):
            a[uneven]
        with pytest.raises(ValueError, match=f"subset: {told}"):
            a.subset(uneven)
        with pytest.raises(ValueError, match=f"gather: {told}"):
            a.gather(uneven, 2)
