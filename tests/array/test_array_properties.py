"""Random shapes, dtypes, keys, batch sizes, budgets and strategies, with NumPy on the same bytes as the oracle."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from numpy.typing import NDArray

import lowtide

STRATEGIES = ("auto", "read", "remap", "advise", "map")
DTYPES = ("<u1", "<i2", ">i4", "<f4", ">f8", "<c16", "S3", "<U2", "<M8[s]", "?", "V7", "<u2,>f4,S3")
BUDGETS = ("auto", 4096, "8KiB", "100KB", "1MiB", "2MiB")

quick = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def arrays(draw: st.DrawFn) -> NDArray[Any]:
    """Any shape with at least one axis, any bytes."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=9))
    if draw(st.booleans()):
        shape = (draw(st.integers(0, 300)), *shape[1:])
    count = int(np.prod(shape)) * dtype.itemsize
    seed = draw(st.integers(0, 2**32 - 1))
    data = np.random.default_rng(seed).integers(0, 2 if dtype.kind == "b" else 120, count, np.uint8).tobytes()
    rows = np.frombuffer(data, dtype).reshape(shape)
    return np.asfortranarray(rows) if draw(st.booleans()) else rows


@st.composite
def opened_with(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "strategy": draw(st.sampled_from(STRATEGIES)),
        "cache": draw(st.sampled_from(("auto", "keep", "drop"))),
        "budget": draw(st.sampled_from(BUDGETS)),
    }


def saved(directory: str, rows: NDArray[Any], files: int) -> Any:
    """The rows as one file or several, in their own memory order."""
    cuts = np.linspace(0, len(rows), files + 1).astype(int)
    order = np.asfortranarray if rows.flags.f_contiguous and not rows.flags.c_contiguous else np.ascontiguousarray
    paths = []
    for number in range(files):
        paths.append(Path(directory) / f"{number}.npy")
        np.save(paths[-1], order(rows[cuts[number] : cuts[number + 1]]))
    return paths


def opened(source: Any, keywords: dict[str, Any]) -> lowtide.Array:
    """The array, or a discarded example where the strategy needs more than this budget to begin with."""
    try:
        return lowtide.open(source, **keywords)
    except lowtide.BudgetError:
        assume(False)
        raise


def alike(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert got.tobytes() == expected.tobytes()


def one_part(dimension: int, draw: st.DrawFn) -> Any:
    """A key for one axis that is valid there."""
    choices: list[st.SearchStrategy[Any]] = [st.slices(dimension)]
    if dimension:
        number = st.integers(-dimension, dimension - 1)
        choices += [number, st.lists(number, max_size=12).map(lambda found: np.array(found, np.int64))]
        choices += [hnp.arrays(bool, dimension)]
    return draw(st.one_of(choices))


@quick
@given(data=st.data(), rows=arrays(), keywords=opened_with(), files=st.integers(1, 4))
def test_any_key_gives_what_numpy_gives(data: Any, rows: NDArray[Any], keywords: dict[str, Any], files: int) -> None:
    basic = hnp.basic_indices(rows.shape, allow_ellipsis=True, allow_newaxis=True)
    mixed = st.composite(lambda draw: tuple(one_part(side, draw) for side in rows.shape[: draw(st.integers(1, 4))]))()
    key = data.draw(st.one_of(basic, mixed, st.composite(lambda draw: one_part(len(rows), draw))()))
    try:
        expected = rows[key]
    except IndexError:  # lists of unequal length do not broadcast: then we must refuse as well
        expected = None
    with tempfile.TemporaryDirectory() as directory, opened(saved(directory, rows, files), keywords) as array:
        try:
            got = array[key]
        except lowtide.BudgetError:
            assert keywords["budget"] != "auto"
            return
        except IndexError:
            assert expected is None
            return
        assert expected is not None
        alike(got, expected)


@quick
@given(
    rows=arrays(),
    keywords=opened_with(),
    batch=st.integers(1, 1000),
    seed=st.integers(0, 2**64),
    world=st.integers(1, 4),
    files=st.integers(1, 3),
    locality=st.one_of(st.none(), st.integers(0, 5000)),
)
def test_any_iterator_gives_the_rows_it_should(
    rows: NDArray[Any],
    keywords: dict[str, Any],
    batch: int,
    seed: int,
    world: int,
    files: int,
    locality: int | None,
) -> None:
    with tempfile.TemporaryDirectory() as directory, opened(saved(directory, rows, files), keywords) as array:
        try:
            chunks = [chunk.copy() for chunk in array.chunks(batch)]
            ranks = [
                [b.copy() for b in array.shuffled(batch, seed=seed, rank=rank, world=world, locality=locality)]
                for rank in range(world)
            ]
        except lowtide.BudgetError:
            assert keywords["budget"] != "auto"
            return
        assert b"".join(chunk.tobytes() for chunk in chunks) == rows.tobytes()
        assert array._store.budget.peak <= array._store.budget.limit
        found = [row.tobytes() for batches in ranks for one in batches for row in one]
        assert sorted(found) == sorted(row.tobytes() for row in rows)
        if len(rows):
            start = seed % len(rows)
            rest = array.shuffled(min(batch, 7), seed=seed, start=start, locality=locality)
            assert [row.tobytes() for one in rest for row in one] == found[start:]


@pytest.mark.parametrize("engine", ["auto", "python"])
def test_a_local_shuffle_and_other_iterators_share_the_buffers_of_a_tight_budget(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(8, dtype=np.uint8))
    with lowtide.open(path, cache="drop", budget="8KiB", engine=engine) as array:
        assert sorted(int(row) for rows in array.shuffled(7, locality=2) for row in rows) == list(range(8))
        assert [int(row) for rows in array.chunks(3) for row in rows] == list(range(8))
        assert sorted(int(row) for rows in array.shuffled(7, locality=2) for row in rows) == list(range(8))


class Life(RuleBasedStateMachine):
    """Open, read, hold, drop, pickle, close in any order, beside the same rows in memory."""

    arrays = Bundle("arrays")
    iterators = Bundle("iterators")
    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.rows = np.arange(300 * 5, dtype=">i4").reshape(300, 5)
        self.path = Path(self.directory.name) / "rows.npy"
        self.everything: list[tuple[NDArray[Any], NDArray[Any]]] = []
        self.opened: list[lowtide.Array] = []

    @initialize(fortran=st.booleans())
    def write(self, fortran: bool) -> None:
        np.save(self.path, np.asfortranarray(self.rows) if fortran else self.rows)

    @rule(target=arrays, strategy=st.sampled_from(STRATEGIES), cache=st.sampled_from(("keep", "drop")))
    def open(self, strategy: str, cache: str) -> lowtide.Array:
        self.opened.append(lowtide.open(self.path, strategy=strategy, cache=cache, budget="1MiB"))
        return self.opened[-1]

    @rule(target=arrays, array=arrays)
    def pickle(self, array: lowtide.Array) -> lowtide.Array:
        self.opened.append(pickle.loads(pickle.dumps(array)))
        return self.opened[-1]

    @rule(array=arrays)
    def close(self, array: lowtide.Array) -> None:
        array.close()

    @rule(array=arrays, key=hnp.basic_indices((300, 5)))
    def index(self, array: lowtide.Array, key: Any) -> None:
        if self.refused(array):
            return
        alike(array[key], self.rows[key])

    @rule(target=iterators, array=arrays, size=st.integers(1, 400), start=st.integers(0, 300), seed=st.integers(0, 9))
    def iterate(self, array: lowtide.Array, size: int, start: int, seed: int) -> Any:
        if self.refused(array):
            return multiple()
        order = next(lowtide.open(self.path).shuffled(300, seed=seed)).copy()
        kind = seed % 3
        if kind == 0:
            return (array, array.chunks(size, start=start), self.rows[start:])
        if kind == 1:
            return (array, array.shuffled(size, seed=seed, start=start), order[start:])
        wanted = np.arange(299, -1, -1 - seed)
        return (array, array.gather(wanted, size), self.rows[wanted])

    @rule(target=held, one=iterators)
    def take(self, one: Any) -> Any:
        array, batches, expected = one
        if array._store.closed:
            return multiple()
        before = batches.position
        first = getattr(batches, "_first_seen", before)
        batches._first_seen = first
        try:
            batch = next(batches)
        except StopIteration:
            assert before - first == len(expected)
            return multiple()
        except lowtide.BudgetError:
            assert batches.position == before
            return multiple()
        wanted = expected[before - first : batches.position - first]
        alike(np.ascontiguousarray(batch), np.ascontiguousarray(wanted))
        pair = (batch[::2], wanted[::2].copy())
        self.everything.append(pair)
        return multiple(pair)

    @rule(pair=consumes(held))
    def drop(self, pair: Any) -> None:
        self.everything = [one for one in self.everything if one is not pair]

    @invariant()
    def what_is_held_never_changes(self) -> None:
        for got, expected in self.everything:
            assert np.array_equal(got, expected)

    @invariant()
    def nobody_holds_more_than_the_budget(self) -> None:
        for array in self.opened:
            assert 0 <= array._store.budget.held <= array._store.budget.limit

    def refused(self, array: lowtide.Array) -> bool:
        if not array._store.closed:
            return False
        for attempt in (lambda: array[0], lambda: array.chunks(5)):
            try:
                attempt()
            except ValueError as problem:
                assert "closed" in str(problem)
            else:
                raise AssertionError("a closed array was read")
        return True

    def teardown(self) -> None:
        for array in self.opened:
            array.close()
        self.directory.cleanup()


@pytest.mark.slow
def test_any_life_of_an_array_agrees_with_the_rows_in_memory() -> None:
    steps = settings(max_examples=40, stateful_step_count=30, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Life, settings=steps)
