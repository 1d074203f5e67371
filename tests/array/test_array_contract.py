"""One contract for every strategy, cache policy and kind of file: the same rows as NumPy has of the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.storage.kinds import CACHES, KINDS, MAPPED, Made

import lowtide
from lowtide.order import Permutation, draws

COUNT = 523  # a prime: no batch size divides it


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    return {kind: make(tmp_path_factory.mktemp("files"), COUNT) for kind, make in KINDS.items()}


# What `read` does depends on the cache policy and on the kind of file. The mapped strategies meet both policies and
# every kind, but not each with each.
ASKED = [("read", cache, kind) for cache in CACHES for kind in KINDS]
ASKED += [(strategy, CACHES[(s + k) % 2], kind) for s, strategy in enumerate(MAPPED) for k, kind in enumerate(KINDS)]


@pytest.fixture(scope="module", params=ASKED, ids="-".join)
def opened(request: pytest.FixtureRequest, made: dict[str, Made]) -> Iterator[tuple[lowtide.Array, NDArray[Any]]]:
    strategy, cache, kind = request.param
    file = made[kind]
    with lowtide.open(file.source, strategy=strategy, cache=cache, budget="4MiB", **file.keywords) as array:
        yield array, file.rows


Opened = tuple[lowtide.Array, NDArray[Any]]


def same(got: Any, expected: Any) -> None:
    """Same type, dtype, shape and bytes."""
    assert type(got) is type(expected)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()


def numbers_of(rows: NDArray[Any], batches: list[NDArray[Any]]) -> list[int]:
    """Which rows these are, in order."""
    where = {row.tobytes(): number for number, row in enumerate(rows)}
    return [where[row.tobytes()] for batch in batches for row in batch]


def join(batches: Any, rows: NDArray[Any]) -> NDArray[Any]:
    """All batches as one array; each must have the rows' own dtype, byte order included."""
    parts = copies(batches)
    assert all(part.dtype == rows.dtype for part in parts)
    return np.concatenate([rows[:0], *parts], dtype=rows.dtype)


def copies(batches: Any) -> list[NDArray[Any]]:
    return [batch.copy() for batch in batches]


def test_an_array_has_the_shape_dtype_and_size_of_its_rows(opened: Opened) -> None:
    array, rows = opened
    assert (array.shape, array.dtype, array.ndim) == (rows.shape, rows.dtype, rows.ndim)
    assert (len(array), array.size, array.nbytes) == (len(rows), rows.size, rows.nbytes)


def test_integers_and_slices_give_what_numpy_gives(opened: Opened) -> None:
    array, rows = opened
    keys: list[Any] = [0, 7, -1, -COUNT, COUNT - 1, np.int32(5), np.uint8(200), np.array(9)]
    keys += [slice(None), slice(10, 20), slice(-7, None), slice(500, 10_000), slice(20, 10), slice(3, 3), slice(0, 0)]
    keys += [slice(None, None, 3), slice(5, 400, 17), slice(None, None, -1), slice(400, 5, -13), slice(-1, -9, -2)]
    keys += [slice(-10_000, 4), slice(None, None, 10_000), slice(10, None, -10_000)]
    for key in keys:
        same(array[key], rows[key])


def test_integer_arrays_give_rows_in_any_order_and_more_than_once(opened: Opened) -> None:
    array, rows = opened
    chance = np.random.default_rng(0)
    keys: list[Any] = [[7, 3, 9], [3, 3, 3], [], [0], [-1, 0, -COUNT, COUNT - 1], list(range(100, 0, -1))]
    keys += [chance.integers(-COUNT, COUNT, 300), chance.integers(0, 255, 50).astype(np.uint8), np.arange(COUNT)]
    keys += [chance.integers(0, COUNT, (4, 5)), np.zeros((2, 0), int), chance.permutation(COUNT).astype(np.uint64)]
    for key in keys:
        same(array[key], rows[key])


def test_masks_give_the_rows_they_name(opened: Opened) -> None:
    array, rows = opened
    chance = np.random.default_rng(1)
    for mask in (
        chance.random(COUNT) < 0.3,
        np.zeros(COUNT, bool),
        np.ones(COUNT, bool),
        [True, *[False] * (COUNT - 1)],
    ):
        same(array[mask], rows[mask])
    whole = chance.random(rows.shape) < 0.01
    same(array[whole], rows[whole])
    if rows.ndim == 3:
        flat = chance.random(rows.shape[:2]) < 0.1
        same(array[flat], rows[flat])
        same(array[flat, 1], rows[flat, 1])


def test_tuples_ellipsis_and_new_axes_give_what_numpy_gives(opened: Opened) -> None:
    array, rows = opened
    mask = np.arange(COUNT) % 5 == 0
    keys: list[Any] = [(), (3,), Ellipsis, None, (Ellipsis, None), (None, slice(4, 9)), (5, Ellipsis), ([4, 2], None)]
    keys += [(slice(2, 8), Ellipsis), (mask, Ellipsis), (Ellipsis, [1, 1]) if rows.ndim == 1 else (Ellipsis, 1)]
    if rows.ndim > 1:
        keys += [(3, 1), (slice(None), 2), (slice(4, 90, 7), slice(None, None, -1)), ([5, 1, 5], [0, 1, 2]), (mask, 0)]
        keys += [(slice(9), [2, 0]), ([[1], [2]], [0, 1]), (7, [1, 0]), (mask, slice(1, 3)), (None, 3, 1)]
        keys += [(slice(3, 5), None, 0), ([1, 2], slice(None), None), (-1, -1)]
    if rows.ndim > 2:
        keys += [
            (3, 1, 0),
            ([1, 2], slice(None), [0, 1]),
            (slice(5), [0, 1], [1, 0]),
            (Ellipsis, [1, 0]),
            (4, Ellipsis, 1),
        ]
    for key in keys:
        same(array[key], rows[key])


def test_indexing_gives_arrays_that_own_themselves_and_can_be_written(opened: Opened) -> None:
    array, rows = opened
    mine = array[10:20]
    mine[:] = mine[::-1].copy()
    same(array[10:20], rows[10:20])


def test_chunks_give_every_row_once_in_order(opened: Opened) -> None:
    array, rows = opened
    for size in (1, 7, 64, COUNT, COUNT + 1000, None):
        if size == 1:
            same(join(array.chunks(1, start=COUNT - 50), rows), rows[-50:])
            continue
        chunks = copies(array.chunks(size))
        same(join(chunks, rows), np.ascontiguousarray(rows))
        assert all(len(chunk) == (size or len(chunk)) for chunk in chunks[:-1])


def test_iterating_gives_row_after_row(opened: Opened) -> None:
    array, rows = opened
    for got, expected in zip(array, rows, strict=True):
        assert got.dtype == expected.dtype
        assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("locality", [None, 400, "2KiB"])
def test_shuffled_gives_every_row_exactly_once(opened: Opened, locality: Any) -> None:
    array, rows = opened
    batches = copies(array.shuffled(64, seed=3, locality=locality))
    found = numbers_of(rows, batches)
    assert sorted(found) == list(range(COUNT))
    assert found != list(range(COUNT))
    assert [len(batch) for batch in batches] == [64] * (COUNT // 64) + [COUNT % 64]
    assert all(batch.dtype == rows.dtype and batch.shape[1:] == rows.shape[1:] for batch in batches)


def test_the_shuffle_is_fixed_by_seed_and_epoch_and_never_by_batch_size_or_strategy(opened: Opened) -> None:
    array, rows = opened
    expected = Permutation(COUNT, seed=5, epoch=2).block(0, COUNT).tolist()
    assert numbers_of(rows, copies(array.shuffled(50, seed=5, epoch=2))) == expected
    assert numbers_of(rows, copies(array.shuffled(COUNT * 2, seed=5, epoch=2))) == expected
    assert numbers_of(rows, copies(array.shuffled(50, seed=5, epoch=3))) != expected
    assert numbers_of(rows, copies(array.shuffled(50, seed=6, epoch=2))) != expected


def test_gather_gives_your_rows_in_your_order(opened: Opened) -> None:
    array, rows = opened
    chance = np.random.default_rng(4)
    wanted = chance.integers(-COUNT, COUNT, 200)
    same(join(array.gather(wanted, 33), rows), rows[wanted])
    same(join(array.gather([5, 5, -1, 5], 3), rows), rows[[5, 5, -1, 5]])
    mask = chance.random(COUNT) < 0.5
    same(join(array.gather(mask, 40), rows), rows[mask])
    same(join(array.gather(np.arange(COUNT), 100), rows), np.ascontiguousarray(rows))
    assert list(array.gather([], 10)) == []


def test_sample_draws_with_replacement_without_end(opened: Opened) -> None:
    array, rows = opened
    drawn = array.sample(97, seed=8)
    found = numbers_of(rows, [next(drawn).copy() for _ in range(15)])
    assert found == draws(COUNT, seed=8, start=0, count=15 * 97).tolist()
    assert len(set(found)) < len(found)


def test_ranks_are_disjoint_and_cover_everything(opened: Opened) -> None:
    array, rows = opened
    whole = numbers_of(rows, copies(array.shuffled(64, seed=1)))
    for world in (2, 5):
        parts = [numbers_of(rows, copies(array.shuffled(64, seed=1, rank=r, world=world))) for r in range(world)]
        assert [number for part in parts for number in part] == whole


def test_start_resumes_where_the_first_reader_stopped(opened: Opened) -> None:
    array, rows = opened
    chunks, order = rows, array.shuffled(COUNT, seed=2)
    shuffled = next(order).copy()
    wanted = np.arange(COUNT)[::-3]
    for start in (0, 1, 63, 64, 65, 300, COUNT - 1, COUNT):
        same(join(array.chunks(100, start=start), rows), np.ascontiguousarray(chunks[start:]))
        same(join(array.shuffled(100, seed=2, start=start), rows), shuffled[start:])
        first = min(start, len(wanted))
        same(join(array.gather(wanted, 100, start=first), rows), rows[wanted[first:]])
    same(next(array.sample(10, seed=2, start=25)), next(array.sample(35, seed=2))[25:])
    same(
        next(array.shuffled(9, seed=2, rank=1, world=3, start=4)), next(array.shuffled(13, seed=2, rank=1, world=3))[4:]
    )


def test_position_says_what_to_pass_as_start(opened: Opened) -> None:
    array, _ = opened
    for iterator in (array.chunks(50), array.shuffled(50), array.gather(np.arange(99), 50), array.sample(50)):
        assert iterator.position == 0
        next(iterator)
        assert iterator.position == 50
    ranked = array.shuffled(50, rank=1, world=2)
    next(ranked)
    assert ranked.position == 50


def test_plan_names_the_strategy_in_use_and_a_reason_for_every_choice(opened: Opened, request: Any) -> None:
    array, _ = opened
    plan = array.plan()
    asked = request.node.callspec.params["opened"][0]
    assert plan.strategy == ("read" if asked == "auto" else asked)
    assert plan.budget == 4 << 20
    assert plan.anon + plan.mapped <= plan.budget or plan.strategy == "map"
    assert any("Fortran" in reason for reason in plan.why) == bool(array.layout.fortran)
    assert str(plan).count("because") == len(plan.why) >= 2
    assert plan.to_dict()["strategy"] == plan.strategy


def test_start_resumes_at_every_position(tmp_path: Path) -> None:
    file = KINDS["npy C"](tmp_path, 60)
    with lowtide.open(file.source) as array:
        shuffled = next(array.shuffled(60, seed=1)).copy()
        for start in range(61):
            for size in (1, 7, 60):
                same(join(array.chunks(size, start=start), file.rows), file.rows[start:])
                same(join(array.shuffled(size, seed=1, start=start), file.rows), shuffled[start:])
