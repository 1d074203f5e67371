"""Iterators of arrays: epochs, positions, lengths, ranks and states."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from itertools import islice, pairwise
from operator import length_hint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide

ROWS, BATCH = 103, 10


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("iterators") / "rows.npy"
    np.save(file, np.repeat(np.arange(ROWS, dtype=np.int64)[:, None], 3, axis=1))
    return file


@pytest.fixture
def a(path: Path) -> Iterator[lowtide.Array]:
    with lowtide.open(path) as opened:
        yield opened


def numbers(iterator: Any) -> list[list[int]]:
    return [rows[:, 0].tolist() for rows in iterator]


def check_epochs(batches: list[list[int]], rows: int, batch: int, *, epochs: int) -> None:
    """Each epoch has every row once, ends with its own short batch, and has an order of its own."""
    per_epoch = -(-rows // batch)
    assert len(batches) == per_epoch * epochs
    orders = []
    for epoch in range(epochs):
        part = batches[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert [len(one) for one in part] == [batch] * (rows // batch) + ([rows % batch] if rows % batch else [])
        orders.append([row for one in part for row in one])
        assert sorted(orders[-1]) == list(range(rows))
    assert all(one != other for one, other in pairwise(orders))


@pytest.mark.parametrize("batch", [1, 7, 10, 103, 500])
@pytest.mark.parametrize("locality", [None, 24 * 20])
def test_each_epoch_has_every_row_once_in_an_order_of_its_own(a: lowtide.Array, batch: int, locality: Any) -> None:
    got = numbers(a.shuffled(batch, seed=3, epochs=3, locality=locality))
    check_epochs(got, ROWS, min(batch, ROWS), epochs=3)


def test_further_epochs_are_those_that_epoch_would_have_given(a: lowtide.Array) -> None:
    one_by_one = [rows for epoch in range(2, 5) for rows in numbers(a.shuffled(BATCH, seed=3, epoch=epoch))]
    assert numbers(a.shuffled(BATCH, seed=3, epoch=2, epochs=3)) == one_by_one
    assert numbers(islice(a.shuffled(BATCH, seed=3, epoch=2, epochs=None), 33)) == one_by_one


def test_chunks_and_gather_repeat_their_order_in_every_epoch(a: lowtide.Array) -> None:
    once = numbers(a.chunks(BATCH))
    assert numbers(a.chunks(BATCH, epochs=2)) == once * 2
    mine = [5, -1, 5, 60]
    assert numbers(a.gather(mine, 3, epochs=2)) == [[5, 102, 5], [60]] * 2


@pytest.mark.parametrize("start", [0, 1, 99, 100, 103, 150, 206, 309])
def test_start_counts_rows_over_all_epochs(a: lowtide.Array, start: int) -> None:
    everything = [row for one in numbers(a.shuffled(BATCH, seed=3, epochs=3)) for row in one]
    iterator = a.shuffled(BATCH, seed=3, epochs=3, start=start)
    assert iterator.position == start
    assert iterator.epoch == start // ROWS
    got = numbers(iterator)
    assert [row for one in got for row in one] == everything[start:]
    assert iterator.position == 309


def test_len_counts_the_batches_left_as_progress_bars_want_it(a: lowtide.Array) -> None:
    for iterator in (
        a.shuffled(BATCH, epochs=3),
        a.shuffled(BATCH, epochs=2, start=107),
        a.chunks(BATCH, start=99),
        a.gather(range(25), BATCH, epochs=2),
    ):
        left = len(iterator)
        assert length_hint(iterator) == left
        for done, _ in enumerate(iterator, 1):
            assert len(iterator) == left - done
        assert len(iterator) == 0


def test_an_endless_iterator_says_that_it_has_no_length(a: lowtide.Array) -> None:
    for iterator in (a.sample(BATCH), a.shuffled(BATCH, epochs=None)):
        with pytest.raises(
            TypeError, match=r"len: expected an iterator with an end, got .*, which has none here\. Count"
        ):
            len(iterator)
        assert length_hint(iterator) == 0
        assert "endless" in repr(iterator)


def test_no_rows_make_no_batches_even_without_end(tmp_path: Path) -> None:
    np.save(tmp_path / "none.npy", np.zeros((0, 4)))
    with lowtide.open(tmp_path / "none.npy") as empty:
        for iterator in (empty.shuffled(4, epochs=None), empty.chunks(4, epochs=3), empty.gather([], 4)):
            assert len(iterator) == 0
            assert list(iterator) == []


@pytest.mark.parametrize("world", [2, 3, 7])
def test_ranks_share_out_every_epoch_and_differ_by_at_most_one_row(a: lowtide.Array, world: int) -> None:
    for make in (a.shuffled, a.chunks):
        for epoch in range(2):
            shares = []
            for rank in range(world):
                iterator = make(BATCH, rank=rank, world=world, epochs=2)
                rows = [row for one in numbers(iterator) for row in one]
                size = len(rows) // 2
                shares.append(rows[epoch * size : (epoch + 1) * size])
            assert sorted(row for share in shares for row in share) == list(range(ROWS))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_chunks_of_a_rank_are_one_stretch_of_the_file(a: lowtide.Array) -> None:
    second = [row for one in numbers(a.chunks(BATCH, rank=1, world=4)) for row in one]
    assert second == list(range(25, 51))


def test_a_state_goes_on_exactly_where_it_was(a: lowtide.Array, path: Path) -> None:
    makers: dict[str, Any] = {
        "shuffled": lambda x: x.shuffled(BATCH, seed=5, epochs=3, rank=1, world=2),
        "local": lambda x: x.shuffled(BATCH, seed=5, epochs=3, locality=240),
        "chunks": lambda x: x.chunks(BATCH, epochs=2),
        "gather": lambda x: x.gather([3, 1, 4, 1, 5, 9, 2, 6], 3, epochs=2),
        "sample": lambda x: x.sample(BATCH, seed=5),
    }
    for make in makers.values():
        iterator = make(a)
        for _ in range(3):
            next(iterator)
        for _ in range(2):  # two resumes in a row
            state = json.loads(json.dumps(iterator.state_dict()))
            expected = numbers(islice(iterator, 2))
            with lowtide.open(path) as again:
                iterator = make(again)
                iterator.load_state_dict(state)
                assert iterator.position == state["position"]
                assert numbers(islice(iterator, 2)) == expected
            iterator = make(a)
            iterator.load_state_dict(state)


def test_a_state_resumes_with_another_batch_and_with_more_epochs(a: lowtide.Array) -> None:
    first = a.shuffled(BATCH, seed=5)
    list(islice(first, 4))
    longer = a.shuffled(7, seed=5, epochs=2)
    longer.load_state_dict(first.state_dict())
    got = [row for one in numbers(longer) for row in one]
    everything = [row for one in numbers(a.shuffled(BATCH, seed=5, epochs=2)) for row in one]
    assert got == everything[40:]


@pytest.mark.parametrize(
    ("made", "loaded", "problem"),
    [
        ({"seed": 1}, {"seed": 2}, r"expected seed=2, got 1\. Make the iterator with seed=1"),
        ({"epoch": 4}, {}, r"expected epoch=0, got 4"),
        ({"rank": 1, "world": 2}, {"rank": 0, "world": 2}, r"expected rank=0, got 1"),
        ({"rank": 1, "world": 2}, {"rank": 1, "world": 3}, r"expected world=3, got 2"),
        ({"locality": 240}, {}, r"expected locality=None, got \[240, 240\]"),
        ({"epochs": 2, "start": 150}, {}, r"expected position of at most 103, got 150"),
    ],
)
def test_a_state_of_another_order_or_rank_is_refused(a: lowtide.Array, made: Any, loaded: Any, problem: str) -> None:
    state = a.shuffled(BATCH, **made).state_dict()
    iterator = a.shuffled(BATCH, **loaded, start=20)
    with pytest.raises(lowtide.StateError, match=problem):
        iterator.load_state_dict(state)
    assert iterator.position == 20


def test_states_of_other_data_other_indices_and_other_makers_are_refused(a: lowtide.Array, tmp_path: Path) -> None:
    np.save(tmp_path / "other.npy", np.zeros((ROWS, 3), np.int64))
    with lowtide.open(tmp_path / "other.npy") as other, pytest.raises(lowtide.StateError, match="sampled blocks"):
        other.shuffled(BATCH).load_state_dict(a.shuffled(BATCH).state_dict())
    with pytest.raises(lowtide.StateError, match=r"expected indices='"):
        a.gather([1, 2, 3], 2).load_state_dict(a.gather([1, 2, 4], 2).state_dict())
    with pytest.raises(lowtide.StateError, match=r"expected indices=None, got '"):
        a.sample(2).load_state_dict(a.gather([1, 2, 4], 2).state_dict())
    with pytest.raises(lowtide.StateError, match=r"expected an iterator's state_dict"):
        a.sample(2).load_state_dict({"lowtide": 1, "rows": 4})


def test_an_iterator_crosses_pickle_with_its_position(a: lowtide.Array) -> None:
    iterator = a.shuffled(BATCH, seed=2, epochs=2)
    next(iterator)
    copy = pickle.loads(pickle.dumps(iterator))
    assert copy.position == BATCH
    assert numbers(copy) == numbers(iterator)


@pytest.mark.parametrize("epochs", [0, -1])
def test_no_epochs_are_refused(a: lowtide.Array, epochs: int) -> None:
    with pytest.raises(ValueError, match=rf"epochs: expected 1 or more, got {epochs}\. Use epochs=1"):
        a.shuffled(BATCH, epochs=epochs)
    with pytest.raises(TypeError, match=r"epochs: expected a whole number, got float"):
        a.chunks(BATCH, epochs=1.5)  # type: ignore[arg-type]


def test_a_start_behind_the_last_epoch_is_refused_with_both_numbers(a: lowtide.Array) -> None:
    with pytest.raises(ValueError, match=r"start: expected 0 to 206 \(rows already received\), got 207"):
        a.shuffled(BATCH, epochs=2, start=207)


def test_notebooks_show_an_array_its_plan_and_an_iterator(path: Path, tmp_path: Path) -> None:
    strange = tmp_path / "<b>&.npy"
    strange.write_bytes(path.read_bytes())
    with lowtide.open(strange) as a:
        shown = a._repr_html_()
        assert "&lt;b&gt;&amp;.npy" in shown
        assert "<b>" not in shown
        assert "(103, 3)" in shown
        assert "up to" in a.plan()._repr_html_()
        iterator = a.shuffled(BATCH, rank=1, world=2)
        next(iterator)
        assert "10 of 52 rows" in iterator._repr_html_()
        assert "1 of 2" in iterator._repr_html_()
