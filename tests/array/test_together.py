"""Arrays read together: row for row the same rows, one budget, small members kept."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults import Disk, reading_from

import lowtide

ROWS = 2500
X = np.repeat(np.arange(ROWS, dtype=np.float32)[:, None], 64, axis=1)
Y = np.arange(ROWS, dtype=np.int64) * 10
Z = np.asfortranarray(np.stack([np.arange(ROWS), -np.arange(ROWS)], axis=1).astype(np.int16))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("together")
    members: dict[str, Any] = {"X": X, "Y": Y, "Z": Z}
    for name, rows in members.items():
        np.save(directory / f"{name}.npy", rows)
    return directory


@pytest.fixture
def both(directory: Path) -> Iterator[lowtide.Together]:
    with lowtide.together(directory / "X.npy", directory / "Y.npy") as opened:
        yield opened


# Half of a small budget holds labels and not features; half of a large one holds both; half of a tiny one nothing.
BUDGETS = ["auto", "256KiB", "40KiB"]


def ways(both: lowtide.Together) -> dict[str, Any]:
    return {
        "chunks": both.chunks(8),
        "chunks of a rank": both.chunks(8, rank=1, world=3),
        "shuffled": both.shuffled(8, seed=3, epochs=2),
        "local": both.shuffled(8, seed=3, locality=1 << 14),
        "a rank": both.shuffled(7, seed=3, rank=1, world=2, start=5),
        "gather": both.gather([5, -1, 5, 700], 3),
        "sample": islice(both.sample(8, seed=1), 50),
    }


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("order", ["x, y", "y, x, z"])
def test_every_way_of_iterating_gives_rows_that_belong_together(directory: Path, budget: str, order: str) -> None:
    paths = [directory / f"{name.upper()}.npy" for name in order.split(", ")]
    with lowtide.together(*paths, budget=budget) as all_of_them:
        for name, iterator in ways(all_of_them).items():
            count = 0
            for batch in iterator:
                rows = dict(zip(order.split(", "), batch, strict=True))
                assert np.array_equal(rows["x"][:, 0] * 10, rows["y"]), name
                if "z" in rows:
                    assert np.array_equal(rows["z"][:, 1] * -10, rows["y"]), name
                count += len(rows["y"])
            assert count > 0


def test_the_order_is_that_of_each_array_alone(both: lowtide.Together, directory: Path) -> None:
    with lowtide.open(directory / "X.npy") as alone:
        for (x, _), expected in zip(both.shuffled(64, seed=9), alone.shuffled(64, seed=9), strict=True):
            assert np.array_equal(x, expected)


def test_named_members_come_as_dicts(directory: Path) -> None:
    with lowtide.together(features=directory / "X.npy", labels=directory / "Y.npy") as both:
        assert both.names == ("features", "labels")
        batch = next(both.shuffled(16))
        assert list(batch) == ["features", "labels"]
        assert np.array_equal(batch["features"][:, 3] * 10, batch["labels"])
        assert both[5]["labels"] == 50
        assert "features" in both._repr_html_()


@pytest.mark.parametrize("key", [5, -1, slice(10, 20), slice(None, None, -7), [3, 1], Y % 30 == 0])
def test_indexing_gives_what_numpy_gives_for_every_member(directory: Path, key: Any) -> None:
    for budget in ("auto", "2MiB"):
        with lowtide.together(directory / "X.npy", Y, budget=budget) as both:
            x, y = both[key]
            assert np.array_equal(x, X[key])
            assert np.array_equal(y, Y[key])
            assert np.shape(y) == np.shape(Y[key])


def test_members_may_be_arrays_parts_memmaps_and_arrays_in_memory(directory: Path) -> None:
    with lowtide.open(directory / "X.npy") as a:
        part = a.subset(slice(100, 200))
        mapped = np.load(directory / "Y.npy", mmap_mode="r")
        labels = Y[100:200].copy()
        with lowtide.together(part, lowtide.open(mapped).subset(np.arange(100, 200)), labels) as three:
            for x, y, z in three.shuffled(9):
                assert np.array_equal(x[:, 0] * 10, y)
                assert np.array_equal(y, z)
            x, y, z = three[:]
            assert np.array_equal(z, labels)
            z[:] = 0
        assert labels[1] == 1010
        assert a[0, 0] == 0  # together has closed its own files, not the caller's


def test_a_batch_of_rows_in_memory_is_a_copy(directory: Path) -> None:
    labels = Y.copy()
    with lowtide.together(directory / "X.npy", labels, directory / "Y.npy") as both:
        _, mine, kept = next(both.chunks(10))
        mine[:] = kept[:] = -1
        assert labels[3] == 30
        assert next(both.chunks(10))[2][3] == 30


def test_a_member_that_fits_in_half_of_the_budget_is_read_once(directory: Path) -> None:
    with lowtide.together(directory / "X.npy", directory / "Y.npy", budget="256KiB") as both:
        iterator = both.shuffled(16)
        next(iterator)
        assert both.budget.held >= Y.nbytes
        with reading_from(Disk()) as disk:
            next(iterator)
        assert disk.calls == 16  # rows of X alone
        assert any("Y.npy: small, so read once and kept" in why for why in both.plan().why)
        assert not any("X.npy: small" in why for why in both.plan().why)
    with lowtide.together(directory / "X.npy", directory / "Y.npy", budget="32KiB") as both:
        iterator = both.shuffled(16)
        next(iterator)
        with reading_from(Disk()) as disk:
            next(iterator)
        assert disk.calls == 32


def test_the_budget_is_for_all_members_and_is_kept(directory: Path) -> None:
    limit = 200 * 1024
    with lowtide.together(directory / "X.npy", directory / "Y.npy", directory / "Z.npy", budget=limit) as both:
        for iterator in ways(both).values():
            for _ in iterator:
                assert both.budget.held <= limit
        assert both.budget.peak <= limit
        assert both.plan().budget == limit
        assert both.plan(16).anon <= limit


def test_an_unstated_budget_is_the_sum_of_the_members(directory: Path) -> None:
    with lowtide.open(directory / "X.npy", budget="1MiB") as x, lowtide.open(directory / "Y.npy", budget="3MiB") as y:
        assert lowtide.together(x, y).budget.limit == 4 * 1024**2
        assert lowtide.together(x, y).budget.stated
        assert lowtide.together(x, y, budget="2MiB").budget.limit == 2 * 1024**2


def test_batches_that_do_not_fit_are_refused_with_the_number_that_does(directory: Path) -> None:
    with lowtide.together(directory / "X.npy", directory / "Y.npy", budget="256KiB") as both:
        with pytest.raises(
            lowtide.BudgetError, match=r"shuffled\(2500\): expected a budget of .* use shuffled\(\d+\)"
        ) as e:
            both.shuffled(5000)
        fits = int(str(e.value).split("use shuffled(")[1].split(")")[0])
        assert next(len(y) for _, y in both.shuffled(fits)) == fits


def test_holding_batches_beyond_the_budget_says_what_to_do(directory: Path) -> None:
    with (
        lowtide.together(directory / "X.npy", directory / "Y.npy", budget="256KiB") as both,
        pytest.raises(lowtide.BudgetError, match="Drop arrays"),
    ):
        list(both.shuffled(64))


def test_arrays_of_unequal_length_are_refused_with_both_numbers(directory: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"expected as many rows in array 1 in memory as in .*X\.npy, 2500, got 2499\. "
        r"Check which rows belong together; .*X\.npy's first are subset\(slice\(2499\)\)\.",
    ):
        lowtide.together(directory / "X.npy", Y[:-1])
    with pytest.raises(ValueError, match=r"expected as many rows in labels as in features, 2500, got 3"):
        lowtide.together(features=directory / "X.npy", labels=np.arange(3))


def test_nothing_a_mixture_of_names_and_things_that_are_no_arrays_are_refused(directory: Path) -> None:
    with pytest.raises(ValueError, match=r"together: expected one array or more, got none\. Use together\(X, y\)\."):
        lowtide.together()
    with pytest.raises(TypeError, match="got 1 in order and 1 by name"):
        lowtide.together(directory / "X.npy", labels=directory / "Y.npy")
    with pytest.raises(TypeError, match="expected arrays, or paths of them"):
        lowtide.together(directory / "X.npy", 5)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        lowtide.together(directory / "X.npy", directory / "none.npy")
    with pytest.raises(ValueError, match="got a single number"):
        lowtide.together(np.array(5))
    closed = lowtide.open(directory / "X.npy")
    closed.close()
    with pytest.raises(ValueError, match="expected an open store"):
        lowtide.together(closed, Y)


def test_several_axes_at_once_are_refused_and_a_closed_one_says_so(both: lowtide.Together) -> None:
    with pytest.raises(IndexError, match="together: expected a row number, a slice"):
        both[3, 4]
    both.close()
    for use in (lambda: both.chunks(3), lambda: both[3]):
        with pytest.raises(ValueError, match="expected an open store, got a closed one"):
            use()


def test_members_without_rows_make_no_batches(tmp_path: Path) -> None:
    np.save(tmp_path / "none.npy", np.zeros((0, 4)))
    with lowtide.together(tmp_path / "none.npy", np.zeros(0)) as none:
        assert list(none.shuffled(4)) == []
        assert list(none) == []


def test_a_state_goes_on_where_it_was_and_names_the_member_that_differs(directory: Path) -> None:
    def make(**more: Any) -> lowtide.Together:
        return lowtide.together(x=directory / "X.npy", y=Y, **more)

    iterator = make().shuffled(64, seed=4, epochs=2)
    list(islice(iterator, 45))
    state = json.loads(json.dumps(iterator.state_dict()))
    again = make(budget="256KiB").shuffled(64, seed=4, epochs=2)
    again.load_state_dict(state)
    for one, other in zip(iterator, again, strict=True):
        assert np.array_equal(one["x"], other["x"])
        assert np.array_equal(one["y"], other["y"])
    for other, problem in [
        (lowtide.together(x=directory / "X.npy", y=Y[::-1]), r"y\.blocks was"),
        (lowtide.together(x=directory / "X.npy"), "the arrays read together was"),
        (make().subset(slice(None)), r"x\.part was None"),
    ]:
        with pytest.raises(lowtide.StateError, match=problem):
            other.shuffled(64, seed=4, epochs=2).load_state_dict(state)


@pytest.mark.parametrize("budget", BUDGETS)
def test_parts_of_arrays_together_stay_together(directory: Path, budget: str) -> None:
    with lowtide.together(directory / "X.npy", directory / "Y.npy", directory / "Z.npy", budget=budget) as both:
        train, val = both.split(val=0.2, seed=3)
        odd = train.subset(train[:][1] % 20 == 10) if budget == "auto" else train.subset(slice(0, 900))
        seen: list[int] = []
        for part in (train, val, odd):
            rows = [
                y.copy()
                for x, y, z in part.shuffled(8)
                if np.array_equal(x[:, 0] * 10, y) and (z[:, 0] * 10 == y).all()
            ]
            got = np.sort(np.concatenate(rows))
            assert len(got) == len(part)
            seen += got.tolist() if part is not odd else []
            in_order = np.concatenate([y.copy() for _, y, _ in part.chunks(8)])
            assert np.array_equal(in_order, got)
        assert sorted(seen) == Y.tolist()
        assert both.budget.peak <= both.budget.limit


def sums(both: lowtide.Together) -> tuple[int, float]:
    rows = [(int(y.sum()), float(x[:, 0].sum())) for x, y in both.shuffled(50)]
    return sum(y for y, _ in rows), sum(x for _, x in rows)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_together_crosses_fork_spawn_and_pickle(both: lowtide.Together, method: str) -> None:
    next(both.shuffled(4))  # what is kept is in memory already
    parts = [both, both.split(val=0.5, seed=2)[0], both.subset([5, 9])]
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.map(sums, parts) == [sums(part) for part in parts]
    copy = pickle.loads(pickle.dumps(both))
    assert copy.budget.limit == both.budget.limit
    assert len(pickle.dumps(both)) < 5000


def test_threads_may_share_one(both: lowtide.Together) -> None:
    results: list[tuple[int, float]] = []
    threads = [threading.Thread(target=lambda: results.append(sums(both))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [sums(both)] * 4


def test_rows_come_one_by_one_too(both: lowtide.Together) -> None:
    rows = list(both)
    assert len(rows) == ROWS
    assert rows[7][0].shape == (64,)
    assert rows[7][1] == 70
    assert "2,500 rows" in repr(both)


@pytest.mark.parametrize("budget", ["auto", "128KiB"])
def test_an_iterator_that_gave_batches_crosses_pickle(tmp_path: Path, budget: str) -> None:
    """It took the pool with the leases of its batches along, which cannot be pickled."""
    np.save(tmp_path / "x.npy", np.arange(60_000, dtype="f4").reshape(20_000, 3))
    both = lowtide.together(x=lowtide.open(tmp_path / "x.npy"), y=np.arange(20_000), budget=budget)
    for iterator in (
        both.shuffled(64, seed=1, epochs=2),
        both.chunks(50),
        both.sample(7),
        both.gather([5, 3, 9, 1], 2),
    ):
        held = next(iterator)
        copy = pickle.loads(pickle.dumps(iterator))
        assert copy.state_dict() == iterator.state_dict()
        here, there = next(iterator), next(copy)
        np.testing.assert_array_equal(here["x"], there["x"])
        np.testing.assert_array_equal(here["y"], there["y"])
        assert len(held) == 2


def test_a_pickled_array_in_memory_keeps_its_byte_order_and_its_state(directory: Path) -> None:
    ours = np.arange(ROWS, dtype=">u2")
    with lowtide.together(directory / "X.npy", ours) as both:
        state = both.shuffled(64, seed=3, start=128).state_dict()
        with pickle.loads(pickle.dumps(both, protocol=4)) as again:
            batches = again.shuffled(64, seed=3)
            batches.load_state_dict(state)
            found = next(batches)[1]
            assert found.dtype == ours.dtype
            np.testing.assert_array_equal(found, next(both.shuffled(64, seed=3, start=128))[1])


@pytest.mark.parametrize("dtype", ["O", [("number", "i8"), ("text", "O")]])
def test_arrays_of_python_objects_are_refused(directory: Path, dtype: Any) -> None:
    with pytest.raises(TypeError, match=r"together: expected items of plain bytes, got array 1 in memory of dtype"):
        lowtide.together(directory / "X.npy", np.zeros(ROWS, dtype))
