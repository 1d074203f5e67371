"""Parts of arrays - subset and split - and statistics of columns."""

from __future__ import annotations

import multiprocessing
import pickle
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide.reading.rows.stratified import Stratified

ROWS = 5000
DATA = np.stack([np.arange(ROWS), np.arange(ROWS) % 7, np.arange(ROWS) ** 2], axis=1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("parts") / "rows.npy"
    np.save(file, DATA)
    return file


@pytest.fixture
def a(path: Path) -> Iterator[lowtide.Array]:
    with lowtide.open(path) as opened:
        yield opened


def first_column(iterator: Any) -> list[int]:
    return [row for rows in iterator for row in rows[:, 0].tolist()]


CHOICES: dict[str, Any] = {
    "numbers in any order, some twice": np.random.default_rng(0).integers(-ROWS, ROWS, 700),
    "a mask": DATA[:, 1] == 3,
    "a sparse mask": np.arange(ROWS) % 997 == 5,
    "a slice": slice(100, 4000),
    "a slice with steps": slice(4000, 100, -3),
    "a range": range(17, 900),
    "a list": [4, 4, -1],
    "nothing": [],
    "everything": np.ones(ROWS, bool),
}


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES.keys())
@pytest.mark.parametrize("strategy", ["read", "map"])
def test_a_subset_is_an_array_of_just_those_rows(path: Path, choice: Any, strategy: str) -> None:
    expected = DATA[np.arange(ROWS)[choice]]
    with lowtide.open(path, strategy=strategy) as a:
        part = a.subset(choice)
        assert part.shape == expected.shape
        assert part.nbytes == expected.nbytes
        assert part.dtype == expected.dtype
        assert np.array_equal(np.asarray(part), expected)
        assert np.array_equal(part[1:50, 2], expected[1:50, 2])
        assert np.array_equal(np.concatenate([DATA[:0], *part.chunks(64)]), expected)
        assert sorted(first_column(part.shuffled(64, seed=1))) == sorted(expected[:, 0].tolist())
        if len(expected):
            assert np.array_equal(part[-1], expected[-1])
            assert np.array_equal(next(part.gather([0, -1], 2)), expected[[0, -1]])
            with pytest.raises(IndexError, match=f"got {len(expected)}"):
                part[len(expected)]


def test_parts_of_a_file_in_fortran_order_are_right_too(tmp_path: Path) -> None:
    np.save(tmp_path / "f.npy", np.asfortranarray(DATA))
    with lowtide.open(tmp_path / "f.npy") as a:
        part = a.subset(DATA[:, 1] == 3)
        assert np.array_equal(np.concatenate(list(part.chunks(64))), DATA[DATA[:, 1] == 3])
        train, val = a.split(val=500, seed=1)
        both = first_column(train.shuffled(100)) + first_column(val.chunks())
        assert sorted(both) == list(range(ROWS))


def test_a_subset_of_a_subset_and_of_a_split_names_rows_of_its_parent(a: lowtide.Array) -> None:
    evens = a.subset(np.arange(ROWS) % 2 == 0)
    assert np.array_equal(evens.subset([3, 1])[:], DATA[[6, 2]])
    assert np.array_equal(evens.subset(slice(10, 13))[:], DATA[[20, 22, 24]])
    train, val = evens.split(val=0.1)
    assert np.array_equal(val[:], DATA[4500::2])
    picked, _ = train.split(val=0.5, seed=3)
    rows = picked[:][:, 0]
    assert set(rows) <= set(range(0, 4500, 2))
    assert np.array_equal(picked.subset([-1])[0], picked[-1])


def test_an_index_counts_against_the_budget_and_is_refused_where_it_does_not_fit(path: Path) -> None:
    with lowtide.open(path, budget="64KiB") as a:
        part = a.subset(np.arange(ROWS)[::-1])
        assert a.budget.held == 4 * ROWS
        assert part.plan(8).anon >= 4 * ROWS
        assert "index of 19.5 KiB" in str(part.plan(8))
        with pytest.raises(lowtide.BudgetError, match=r"chunks\(1000\): expected a budget of"):
            part.chunks(1000)
        assert sum(len(rows) for rows in part.chunks(64)) == ROWS
        second = part.split(val=0.1)  # shares the index
        assert a.budget.held < 64 * 1024
        del part, second
        assert a.subset([1]).shape == (1, 3)
    with (
        lowtide.open(path, budget="16KiB") as a,
        pytest.raises(
            lowtide.BudgetError, match=r"expected 19\.5 KiB of the budget free for the index of 5000 rows, got 16\.0"
        ),
    ):
        a.subset(np.arange(ROWS))


def test_an_unstated_budget_grows_by_the_index(a: lowtide.Array) -> None:
    before = a.budget.limit
    part = a.subset(np.arange(ROWS))
    assert a.budget.limit == before + 4 * ROWS
    assert len(part) == ROWS


@pytest.mark.parametrize(
    ("which", "kind", "problem"),
    [
        (np.ones(ROWS - 1, bool), IndexError, r"subset: expected a mask of 5000 rows, got 4999\. Make it"),
        ([0, ROWS], IndexError, r"expected a row from -5000 to 4999, got 5000"),
        ([0.5], IndexError, r"expected integers or a mask of rows, got float64"),
        ([[1, 2]], ValueError, r"subset: expected one axis of row numbers, got shape \(1, 2\)"),
    ],
)
def test_rows_that_are_not_there_are_refused(a: lowtide.Array, which: Any, kind: type[Exception], problem: str) -> None:
    with pytest.raises(kind, match=problem):
        a.subset(which)


def test_a_split_without_a_seed_takes_the_tail(a: lowtide.Array) -> None:
    train, val = a.split(val=0.1)
    assert np.array_equal(train[:], DATA[:4500])
    assert np.array_equal(val[:], DATA[4500:])
    assert [len(part) for part in a.split(val=3)] == [4997, 3]


@given(
    total=st.integers(2, 5000),
    share=st.floats(0, 1, exclude_min=True, exclude_max=True),
    seed=st.integers(-5, 2**40),
)
def test_a_split_by_a_seed_gives_every_row_to_one_part_in_file_order(total: int, share: float, seed: int) -> None:
    val = min(total - 1, max(1, round(total * share)))
    parts = [Stratified(total, val, seed, picked) for picked in (False, True)]
    rows = [part.rows(np.arange(part.count)) for part in parts]
    assert [len(one) for one in rows] == [total - val, val]
    assert np.array_equal(np.sort(np.concatenate(rows)), np.arange(total))
    assert all((np.diff(one) > 0).all() for one in rows)
    some = np.random.default_rng(0).integers(0, parts[0].count, 20)
    assert np.array_equal(parts[0].rows(some), rows[0][some])


def test_every_run_of_1024_rows_gives_its_share_and_every_place_in_it_alike() -> None:
    part = Stratified(1024 * 4000, 1024 * 400, 7, True)
    rows = part.rows(np.arange(part.count))
    per_run = np.bincount(rows // 1024)
    assert set(per_run.tolist()) <= {102, 103}
    by_place = np.bincount(rows % 1024, minlength=1024)
    # 4,000 runs, a chance of 1 in 10 for each place: 400 on average, 19 of standard deviation.
    assert by_place.min() > 300
    assert by_place.max() < 500
    neighbours = np.count_nonzero(np.diff(rows) == 1) / len(rows)
    assert 0.09 < neighbours < 0.11


def test_a_split_of_more_rows_than_products_of_64_bits_allow_is_exact() -> None:
    total, val = 3 * 10**12 + 17, 10**11 + 3
    for picked in (False, True):
        part = Stratified(total, val, 5, picked)
        ends = np.array([0, 1, part.count // 2, part.count // 2 + 1, part.count - 2, part.count - 1])
        rows = part.rows(ends)
        assert (np.diff(rows) > 0).all()
        assert rows[0] < 2048
        assert total - 2048 < rows[-1] < total


GOLDEN = [32, 36, 154, 449, 1024, 1134, 1995, 2001, 2138, 2333, 2639, 2742]


def test_the_rows_a_seed_picks_never_change() -> None:
    assert Stratified(3000, 12, 1, True).rows(np.arange(12)).tolist() == GOLDEN


def test_equal_seeds_pick_equal_rows_and_other_seeds_others(a: lowtide.Array, tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.arange(ROWS))
    with lowtide.open(tmp_path / "y.npy") as y:
        assert np.array_equal(a.split(val=0.1, seed=1)[1][:][:, 0], y.split(val=0.1, seed=1)[1][:])
        assert not np.array_equal(y.split(val=0.1, seed=2)[1][:], y.split(val=0.1, seed=1)[1][:])


def test_a_split_holds_no_index(a: lowtide.Array) -> None:
    before = a.budget.held
    train, val = a.split(val=0.3, seed=9)
    assert a.budget.held == before
    assert len(pickle.dumps(train)) < 4000
    assert len(train) + len(val) == ROWS


@pytest.mark.parametrize("val", [0, 5000, 1.0, 0.0, -1, 0.00001])
def test_a_split_that_leaves_nothing_on_one_side_is_refused(a: lowtide.Array, val: float) -> None:
    with pytest.raises(ValueError, match=r"split: expected 1 to 4999 rows for val, got"):
        a.split(val=val)


def test_a_split_by_something_else_than_a_number_is_refused(a: lowtide.Array) -> None:
    with pytest.raises(TypeError, match="split: expected a number for val, got str"):
        a.split(val="0.1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="seed: expected a whole number, got float"):
        a.split(seed=0.5)  # type: ignore[arg-type]


def test_a_state_says_which_part_it_is_of(a: lowtide.Array) -> None:
    train, val = a.split(val=0.5, seed=1)
    state = train.shuffled(10, start=30).state_dict()
    again, _ = a.split(val=0.5, seed=1)
    resumed = again.shuffled(10)
    resumed.load_state_dict(state)
    assert resumed.position == 30
    others = [a, val, a.split(val=0.5)[0], a.split(val=0.5, seed=2)[0], a.subset(np.arange(2500))]
    for other in others:
        with pytest.raises(lowtide.StateError, match="the part of the array was"):
            other.shuffled(10).load_state_dict(state)
    one, two = a.subset([1, 2, 3]), a.subset([1, 2, 4])
    with pytest.raises(lowtide.StateError, match="the part of the array was"):
        two.chunks(1).load_state_dict(one.chunks(1).state_dict())
    with pytest.raises(lowtide.StateError, match="the part of the array was"):
        a.chunks(1).load_state_dict(one.chunks(1).state_dict())


def total_of(part: lowtide.Array) -> int:
    return int(sum(int(rows[:, 0].sum()) for rows in part.shuffled(100)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_parts_cross_fork_spawn_and_pickle(a: lowtide.Array, method: str) -> None:
    parts = [a.subset(DATA[:, 1] == 2), a.split(val=0.2, seed=4)[1], a.subset([5, 6]).split(val=1)[0]]
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.map(total_of, parts) == [total_of(part) for part in parts]
    copy = pickle.loads(pickle.dumps(parts[0]))
    assert copy.budget.held == copy.subset([0]).budget.held - 4
    assert np.array_equal(copy[:], parts[0][:])


def test_folds_for_cross_validation_are_subsets(a: lowtide.Array) -> None:
    fold = np.random.default_rng(0).permutation(ROWS) % 5
    seen = [row for k in range(5) for row in first_column(a.subset(fold == k).chunks())]
    assert sorted(seen) == list(range(ROWS))


# Statistics


def saved(directory: Path, rows: Any) -> Path:
    np.save(directory / "stats.npy", rows)
    return directory / "stats.npy"


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int16", "uint8", "int64", "bool", ">f4"])
@pytest.mark.parametrize("shape", [(5000, 162), (5000,), (3001, 3), (700, 2, 5), (1, 4), (9, 3000)])
def test_statistics_are_those_of_numpy_in_float64(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    rows = (np.random.default_rng(0).normal(size=shape) * 30 + 60).astype(dtype)
    wide = rows.astype(np.float64)
    with lowtide.open(saved(tmp_path, rows), budget="256KiB") as a:
        found = a.stats()
    assert found.mean.shape == shape[1:]
    assert np.allclose(found.mean, wide.mean(axis=0), rtol=1e-12, atol=0)
    assert np.allclose(found.std, wide.std(axis=0), rtol=1e-9, atol=1e-9)
    assert np.array_equal(found.min, wide.min(axis=0))
    assert np.array_equal(found.max, wide.max(axis=0))
    assert not found.nan.any()
    assert (found.count == shape[0]).all()


def test_nan_are_counted_and_left_out(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(4000, 5)).astype(np.float32)
    rows[::3, 1] = np.nan
    rows[:, 2] = np.nan
    with lowtide.open(saved(tmp_path, rows)) as a:
        found = a.stats()
    assert found.nan.tolist() == [0, 1334, 4000, 0, 0]
    assert found.count.tolist() == [4000, 2666, 0, 4000, 4000]
    kept = rows[~np.isnan(rows[:, 1]), 1].astype(np.float64)
    assert np.isclose(found.mean[1], kept.mean(), rtol=1e-12)
    assert np.isclose(found.std[1], kept.std(), rtol=1e-12)
    assert (found.min[1], found.max[1]) == (kept.min(), kept.max())
    assert np.isnan([found.mean[2], found.std[2], found.min[2], found.max[2]]).all()


def test_a_mean_far_from_zero_costs_no_digits(tmp_path: Path) -> None:
    apart = np.random.default_rng(0).normal(size=(20_000, 2))
    rows = apart + np.array([1e9, 0.0])
    with lowtide.open(saved(tmp_path, rows)) as a:
        found = a.stats()
    assert np.allclose(found.std, apart.std(axis=0), rtol=1e-6)


def test_statistics_of_nothing_of_parts_and_twice(tmp_path: Path, a: lowtide.Array) -> None:
    with lowtide.open(saved(tmp_path, np.zeros((0, 3)))) as empty:
        assert empty.stats().count.tolist() == [0, 0, 0]
        assert np.isnan(empty.stats().mean).all()
    train, _ = a.split(val=0.5, seed=3)
    assert np.allclose(train.stats().mean, train[:].mean(axis=0), rtol=1e-12)
    with lowtide.open(a.layout.extents[0].path, budget="64KiB") as small:
        assert small.stats().mean.tobytes() == small.stats().mean.tobytes()


def test_statistics_of_text_are_refused_and_a_problem_of_any_thread_is_raised(tmp_path: Path) -> None:
    with (
        lowtide.open(saved(tmp_path, np.array(["a", "b"]))) as words,
        pytest.raises(TypeError, match=r"expected columns of real numbers for stats\(\), got <U1\. Convert"),
    ):
        words.stats()
    file = saved(tmp_path, np.ones((200_000, 4)))
    with lowtide.open(file, budget="512KiB") as a:
        with file.open("r+b") as opened:
            opened.truncate(3_000_000)
        with pytest.raises(lowtide.ReadError):
            a.stats()


@pytest.mark.parametrize("total", [2, 3, 5])
def test_the_way_out_of_a_share_that_leaves_a_part_empty_is_one(tmp_path: Path, total: int) -> None:
    np.save(tmp_path / "few.npy", np.arange(total))
    with lowtide.open(tmp_path / "few.npy") as few:
        with pytest.raises(ValueError, match=rf"got val=0\.1 of {total} rows\. Use val=1\."):
            few.split(0.1)
        assert len(few.split(val=1)[1]) == 1


@pytest.mark.parametrize("which", [slice(None, None, -1), slice(3, None, 7), range(-5, 0), range(4000, 10, -3)])
def test_rows_of_a_range_are_those_of_its_numbers(a: lowtide.Array, which: slice | range) -> None:
    numbers = np.arange(ROWS)[which] if isinstance(which, slice) else np.arange(which.start, which.stop, which.step)
    np.testing.assert_array_equal(a.subset(which)[:], DATA[numbers])
    if isinstance(which, range):
        assert first_column(a.gather(which, 64)) == DATA[numbers, 0].tolist()
        state = a.gather(which, 64).state_dict()
        assert state == a.gather(numbers, 64).state_dict()


@pytest.mark.parametrize("call", ["subset", "gather"])
def test_a_range_outside_the_rows_is_refused_by_its_ends_however_long_it_is(a: lowtide.Array, call: str) -> None:
    long = {10**15 - 2: range(0, 10**15, 2), 2**80 - 1: range(2**80), -5001: range(10, -ROWS - 2, -1)}
    for wrong, which in long.items():
        with pytest.raises(IndexError, match=f"expected a row from -5000 to 4999, got {wrong}"):
            a.subset(which) if call == "subset" else a.gather(which, 64)


def test_an_index_that_does_not_fit_is_refused_before_its_rows_are_counted_out(tmp_path: Path) -> None:
    rows = 2**40
    with (tmp_path / "sparse.u1").open("wb") as file:
        file.truncate(rows)
    with lowtide.open(tmp_path / "sparse.u1", dtype="uint8", budget="16MiB") as long:
        with pytest.raises(lowtide.BudgetError, match="index of 549755813888 rows"):
            long.subset(slice(None, None, 2))
        assert next(long.gather(range(rows - 1, -1, -1), 4)).tolist() == [0, 0, 0, 0]


def test_statistics_of_very_wide_rows_hold_one_set_of_sums_beside_the_chunks(tmp_path: Path) -> None:
    columns = 300_000  # sums of 13.7 MiB
    rows = np.random.default_rng(3).normal(size=(40, columns)).astype("float32")
    np.save(tmp_path / "wide.npy", rows)
    with lowtide.open(tmp_path / "wide.npy") as array:
        tracemalloc.start()
        try:
            found = array.stats()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 32 * 8 * columns  # 45 numbers per column with two sets of sums for each of two threads
    np.testing.assert_allclose(found.mean, rows.mean(axis=0, dtype=np.float64), atol=1e-6)
    np.testing.assert_allclose(found.max, rows.max(axis=0))
