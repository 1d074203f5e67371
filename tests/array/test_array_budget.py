"""The budget and its leases: what is handed out is never overwritten, and never more than was allowed."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults import Disk, reading_from

import lowtide
from lowtide.machine import PAGE

KIB, MIB = 1024, 1024**2
COUNT, WIDTH = 4096, 256  # rows of 1 KiB, 4 MiB in all
BOUNDED = ("read", "remap", "advise")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("budget") / "rows.npy"
    np.save(place, np.arange(COUNT * WIDTH, dtype=np.int32).reshape(COUNT, WIDTH))
    return place


@pytest.fixture(scope="module")
def rows(path: Path) -> Any:
    return np.load(path)


def test_batches_that_are_held_are_never_overwritten(path: Path, rows: Any) -> None:
    with lowtide.open(path, budget="8MiB") as array:
        held = list(array.shuffled(256, seed=1))
        order = lowtide.open(path).shuffled(256, seed=1)
        for batch, again in zip(held, order, strict=True):
            assert np.array_equal(batch, again)
        assert np.array_equal(np.sort(np.concatenate(held)[:, 0]), rows[:, 0])


@pytest.mark.parametrize("keep", ["view", "memoryview", "buffer", "reshaped", "field", "iterator", "transposed"])
def test_anything_that_still_sees_a_batch_keeps_its_buffer(path: Path, rows: Any, keep: str) -> None:
    ways: dict[str, Any] = {
        "view": lambda batch: batch[3:5],
        "memoryview": memoryview,
        "buffer": lambda batch: np.frombuffer(batch, np.uint8),
        "reshaped": lambda batch: batch.reshape(-1),
        "field": lambda batch: batch.view([("a", "i4"), ("b", "i4")])["b"],
        "iterator": lambda batch: batch.flat,
        "transposed": lambda batch: batch.T[1:],
    }
    with lowtide.open(path, budget="64KiB") as array:
        chunks = array.chunks(16)
        first = next(chunks)
        expected = first.copy()
        kept, wanted = ways[keep](first), np.array(ways[keep](expected))
        del first
        gc.collect()
        assert array._store.pool.lent == 1
        for other in chunks:
            del other
        assert np.array_equal(np.array(kept), wanted)
        del kept
        gc.collect()
        assert array._store.pool.lent == 0


@pytest.mark.parametrize("strategy", BOUNDED)
def test_holding_more_than_the_budget_raises_with_the_way_out_and_dropping_one_goes_on(
    path: Path, rows: Any, strategy: str
) -> None:
    with lowtide.open(path, budget="1MiB", strategy=strategy) as array:
        chunks = array.chunks(128)  # 128 KiB each
        held = []
        with pytest.raises(lowtide.BudgetError) as caught:
            while True:
                held.append(next(chunks))
        assert 4 <= len(held) <= 8
        text = str(caught.value)
        for word in ("1.00 MiB", str(len(held)), "Drop", "np.array(rows)", "budget="):
            assert word in text
        assert chunks.position == 128 * len(held)
        with pytest.raises(lowtide.BudgetError):
            next(chunks)
        for number, chunk in enumerate(held):
            assert np.array_equal(chunk, rows[128 * number : 128 * number + 128])
        place = chunks.position
        del held[0], chunk
        assert np.array_equal(next(chunks), rows[place : place + 128])
        assert array._store.budget.peak <= MIB


def test_a_budget_that_the_error_suggests_is_enough(path: Path) -> None:
    with lowtide.open(path, budget="1MiB") as array:
        held: list[Any] = []
        with pytest.raises(lowtide.BudgetError) as caught:
            held.extend(array.chunks(128))
        suggested = int(str(caught.value).rpartition("budget=")[2].rstrip("."))
    with lowtide.open(path, budget=suggested) as array:
        chunks = array.chunks(128)
        again = [next(chunks) for _ in range(len(held) + 1)]
        assert len(again) == len(held) + 1


def test_batches_caught_in_a_reference_cycle_are_reclaimed_when_the_budget_is_full(path: Path) -> None:
    gc.disable()
    try:
        with lowtide.open(path, budget="512KiB") as array:
            seen = 0
            for chunk in array.chunks(128):
                knot: list[Any] = [chunk]
                knot.append(knot)
                seen += len(chunk)
                del knot, chunk
            assert seen == COUNT
    finally:
        gc.enable()


@pytest.mark.parametrize("strategy", BOUNDED)
@pytest.mark.parametrize("way", ["chunks", "shuffled", "sample"])
def test_dropping_each_batch_keeps_at_most_two_buffers(path: Path, strategy: str, way: str) -> None:
    with lowtide.open(path, budget="64MiB", strategy=strategy) as array:
        batches = getattr(array, way)(64)
        for _ in range(COUNT // 64):
            batch = next(batches)
        del batch
        budget = array._store.budget
        # Two of 64 KiB, and where rows were neighbours the scratch that merged reads bring them in with.
        scratch = 512 * KIB if way == "shuffled" and strategy != "read" else 0
        assert budget.peak - budget.aside <= 2 * 64 * KIB + scratch


def test_a_buffer_just_dropped_is_the_next_one_used(path: Path) -> None:
    with lowtide.open(path, budget="4MiB") as array:
        chunks = array.chunks(64)
        addresses = set()
        for _ in range(20):
            chunk = next(chunks)
            addresses.add(chunk.ctypes.data)
            del chunk
        assert len(addresses) == 1


def test_batches_are_page_aligned(path: Path) -> None:
    with lowtide.open(path) as array:
        for batches in (array.chunks(100), array.shuffled(100), array.sample(3)):
            assert next(batches).ctypes.data % 4096 == 0
        assert array[:1000].ctypes.data % 4096 == 0  # large results of indexing too


@pytest.mark.parametrize("strategy", [*BOUNDED, "map"])
def test_what_cannot_fit_is_refused_before_a_byte_is_read(path: Path, strategy: str) -> None:
    with lowtide.open(path, budget="1MiB", strategy=strategy) as array, reading_from(Disk()) as disk:
        for call in ("chunks", "shuffled", "sample"):
            with pytest.raises(lowtide.BudgetError, match=rf"{call}.*1\.00 MiB") as caught:
                getattr(array, call)(COUNT)
            assert f"use {call}(" in str(caught.value)
            fits = int(str(caught.value).rpartition(f"use {call}(")[2].rstrip(")."))
            assert 1 <= fits < COUNT
            assert len(next(getattr(array, call)(fits))) == fits
            seen = disk.calls
            with pytest.raises(lowtide.BudgetError):
                getattr(array, call)(2 * fits)
            assert disk.calls == seen
    with lowtide.open(path, budget="1MiB", strategy=strategy) as array, reading_from(Disk()) as disk:
        with pytest.raises(lowtide.BudgetError, match=r"4096 rows"):
            array[:]
        with pytest.raises(lowtide.BudgetError):
            array[np.zeros(2000, int)]
        assert disk.calls == 0


def test_the_budget_named_by_a_refusal_is_enough(path: Path) -> None:
    with lowtide.open(path, budget="1MiB") as array, pytest.raises(lowtide.BudgetError) as caught:
        array.shuffled(COUNT)
    named = int(str(caught.value).split("budget=")[1].split()[0])
    with lowtide.open(path, budget=named) as array:
        assert len(next(array.shuffled(COUNT))) == COUNT


def test_a_budget_below_one_row_is_refused_and_says_so(path: Path) -> None:
    with lowtide.open(path, budget=100) as array, reading_from(Disk()) as disk:
        for call in ("chunks", "shuffled", "sample"):
            with pytest.raises(lowtide.BudgetError, match="100 B"):
                getattr(array, call)(1)
        with pytest.raises(lowtide.BudgetError, match="100 B"):
            array.chunks()
        with pytest.raises(lowtide.BudgetError, match="100 B"):
            array[5]
        assert disk.calls == 0


@pytest.mark.parametrize("strategy", ["remap", "advise"])
def test_a_budget_too_small_for_a_strategy_is_refused_at_opening(path: Path, strategy: str) -> None:
    with pytest.raises(lowtide.BudgetError, match=r"strategy='read'"):
        lowtide.open(path, strategy=strategy, budget="64KiB")


def test_a_refused_opening_loses_no_descriptor(path: Path, no_lost_descriptors: None) -> None:
    for strategy in ("remap", "advise"):
        with pytest.raises(lowtide.BudgetError):
            lowtide.open(path, strategy=strategy, budget="64KiB")


def test_a_batch_larger_than_the_array_needs_no_more_than_the_array(path: Path) -> None:
    with lowtide.open(path, budget="8MiB") as array:
        assert len(next(array.chunks(10**12))) == COUNT
    with lowtide.open(path, budget="8MiB") as array:
        assert len(next(array.shuffled(10**12))) == COUNT
    with lowtide.open(path, budget="8MiB") as array:
        assert len(next(array.gather([1, 2, 3], 10**12))) == 3


def test_an_unstated_budget_grows_to_three_batches_and_a_stated_one_never_does(tmp_path: Path) -> None:
    with (tmp_path / "wide.u8").open("wb") as file:
        file.truncate(400 * MIB)
    with lowtide.open(tmp_path / "wide.u8", dtype="uint8", shape=(-1, 40 * MIB)) as array:
        held = []
        for chunk in array.chunks(1):
            held.append(chunk)
            if len(held) == 3:
                break
        assert array.plan(1).budget >= 120 * MIB
    with (
        lowtide.open(tmp_path / "wide.u8", dtype="uint8", shape=(-1, 40 * MIB), budget="64MiB") as array,
        pytest.raises(lowtide.BudgetError, match=r"80\.0 MiB"),
    ):
        array.chunks(1)


@pytest.mark.slow
def test_a_fortran_array_larger_than_the_automatic_budget_can_be_read_whole(tmp_path: Path) -> None:
    rows = np.asfortranarray(np.arange(9 * MIB, dtype=np.int64).reshape(-1, 8))
    np.save(tmp_path / "f.npy", rows)
    with lowtide.open(tmp_path / "f.npy") as array:
        assert np.array_equal(array[:], rows)
        assert len(next(array.shuffled(len(rows)))) == len(rows)


def test_iterators_of_one_array_share_its_budget(path: Path) -> None:
    with lowtide.open(path, budget="1MiB") as array:
        one, two = array.chunks(256), array.shuffled(256)
        held = [next(one), next(two), next(one)]
        with pytest.raises(lowtide.BudgetError):
            held += [next(two), next(one)]
        assert array._store.budget.held <= MIB


@pytest.mark.parametrize("strategy", [*BOUNDED, "map"])
def test_measured_never_exceeds_projected(path: Path, strategy: str) -> None:
    with lowtide.open(path, budget="2MiB", strategy=strategy) as array:
        plan = array.plan(64)
        for batches in (array.chunks(64), array.shuffled(64), array.gather(np.arange(COUNT)[::-1], 64)):
            for _ in batches:
                pass
        assert array._store.budget.peak <= plan.budget
        assert plan.anon <= plan.budget
        # A mapped run may hold two page tables, also where the budget is smaller than they are.
        tables = 2 * 512 * PAGE
        assert plan.mapped <= (path.stat().st_size if strategy == "map" else max(plan.budget, tables))
        assert (plan.mapped > plan.budget) == any("page tables" in reason for reason in plan.why) or strategy == "map"


def test_buffers_go_back_to_the_kernel_when_the_array_is_closed(path: Path) -> None:
    array = lowtide.open(path, budget="8MiB")
    for _ in array.shuffled(512):
        pass
    assert array._store.budget.held > 0
    del _
    array.close()
    assert array._store.budget.held == 0


def test_a_batch_held_beyond_close_and_beyond_the_array_itself_stays_right(path: Path, rows: Any) -> None:
    array = lowtide.open(path, budget="8MiB")
    held = next(array.chunks(1000))
    array.close()
    del array
    gc.collect()
    assert np.array_equal(held, rows[:1000])


@pytest.mark.parametrize("strategy", BOUNDED)
@pytest.mark.parametrize("members", [1, 3])
def test_the_budget_that_an_error_names_is_enough(path: Path, strategy: str, members: int) -> None:
    def begun(budget: int) -> Any:
        with lowtide.open(path, strategy=strategy, budget=budget) as array:
            rows = array if members == 1 else lowtide.together(*[array] * members, budget=budget)
            return next(rows.shuffled(2048))

    with pytest.raises(lowtide.BudgetError, match=r"Open with budget=\d+ or use shuffled") as refused:
        begun(3 * MIB)
    enough = int(re.findall(r"budget=(\d+)", str(refused.value))[0])
    assert len(begun(enough) if members == 1 else begun(enough)[0]) == 2048
    with pytest.raises(lowtide.BudgetError):
        begun(enough - PAGE)
