"""Local shuffles of small rows: batches that are read many at a time, in one sweep over a window of blocks."""

from __future__ import annotations

import os
import pickle
import re
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.asked import native

import lowtide
from lowtide.machine import drop_page_cache, page_cache

ROWS, WIDTH = 30_011, 40  # of 160 bytes
NEAR: Any = ("256KiB", "16KiB")  # windows of about 1,600 rows
BATCH = 50


@pytest.fixture
def path(disk: Path, request: pytest.FixtureRequest) -> Any:
    native()
    found = disk / f"{request.node.name[:40]}.i32".replace("/", "-")
    (np.arange(ROWS, dtype=np.int32)[:, None] + np.zeros(WIDTH, np.int32)).tofile(found)
    with found.open("rb") as file:
        os.fsync(file.fileno())
    yield found
    found.unlink(missing_ok=True)


def opened(path: Path, **how: Any) -> lowtide.Array:
    return lowtide.open(path, dtype="int32", shape=(-1, WIDTH), **{"engine": "native", **how})


def numbers(batches: Any) -> list[list[int]]:
    found = []
    for rows in batches:
        assert (rows == rows[:, :1]).all(), "whole rows"
        found.append(rows[:, 0].tolist())
    return found


def under_way(iterator: Any) -> int:
    return len(iterator._ahead._started)


@pytest.mark.parametrize(("cache", "budget"), [("keep", "auto"), ("drop", "auto"), ("drop", "16MiB")])
@pytest.mark.parametrize("how", [{}, {"rank": 1, "world": 3}, {"start": 7_777}])
def test_sweeps_give_the_rows_that_single_reads_give(path: Path, cache: str, budget: str, how: dict[str, Any]) -> None:
    with opened(path, cache=cache, budget=budget) as array, opened(path, engine="python") as plain:
        swept = array.shuffled(BATCH, seed=3, epochs=2, locality=NEAR, **how)
        alone = plain.shuffled(BATCH, seed=3, epochs=2, locality=NEAR, **how)
        first = [next(swept)[:, 0].tolist()]
        assert under_way(swept) > 2
        assert "in one sweep over a window" in str(swept.plan())
        assert first + numbers(swept) == numbers(alone)
        assert "sweep" not in str(alone.plan())


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 7, 50, 1_700, 30_000])  # of a window of about 1,600 rows: parts, or several
@pytest.mark.parametrize("near", [NEAR, ("16KiB", "16KiB"), ("2MiB", "64KiB")])
def test_windows_that_fit_a_sweep_are_read_past_the_page_cache(path: Path, near: Any, batch: int) -> None:
    rows = 3_000 if batch == 1 else ROWS
    drop_page_cache(path)
    with opened(path, cache="drop") as array, opened(path, engine="python") as plain:
        if not array._store.sweeps_direct:
            pytest.skip("NOT TESTED: sweeps past the page cache - this file system has no direct reads")
        batches = array.shuffled(batch, seed=3, epochs=2, locality=near)
        swept = batch <= 8192 and (batch > 1 or near[0] != "2MiB")  # small batches have a page each: fewer rows fit
        assert ("read whole, by O_DIRECT" in str(batches.plan())) is swept
        got, most = [], 0
        for some in islice(batches, -(-rows // batch) * 2):
            got.append(some[:, 0].tolist())
            if len(got) % 50 < 5:
                most = max(most, page_cache(path).cached)
        if swept:
            assert most <= 16 * 4096  # the fingerprint's blocks
        if swept and batch > 1:
            assert array._store.counters.asked == 2 * ROWS * 4 * WIDTH, "also what lies in two windows is read once"
        expected = plain.shuffled(batch, seed=3, epochs=2, locality=near)
        assert got == numbers(islice(expected, -(-rows // batch) * 2))


def test_what_was_read_is_dropped_behind_the_windows(path: Path) -> None:
    drop_page_cache(path)
    with opened(path, cache="drop", budget="16MiB") as array:
        batches = array.shuffled(BATCH, seed=1, locality=NEAR)
        most = 0
        for _ in batches:
            most = max(most, page_cache(path).cached)
        assert page_cache(path).cached <= 1 << 20
        assert 0 < most <= batches.plan().cache


@pytest.mark.parametrize("cache", ["keep", "drop"])
def test_seeks_and_states_go_on_between_sweeps(path: Path, cache: str) -> None:
    with opened(path, cache=cache) as array:
        everything = numbers(array.shuffled(BATCH, seed=2, locality=NEAR))
        batches = array.shuffled(BATCH, seed=2, locality=NEAR)
        for step in (0, 3, 40, 41, 4, 300, 31, 33, 599, 0):
            batches.go_to(step * BATCH)
            assert numbers(islice(batches, 3)) == everything[step : step + 3]
        copied = pickle.loads(pickle.dumps(batches))
        assert numbers(islice(copied, 40)) == everything[3:43]


def test_a_plan_says_from_which_budget_on_windows_are_read_past_the_page_cache(path: Path) -> None:
    def planned(budget: int) -> str:
        with opened(path, cache="drop", budget=budget) as array:
            if not array._store.sweeps_direct:
                pytest.skip("NOT TESTED: sweeps past the page cache - this file system has no direct reads")
            return str(array.shuffled(4, seed=2, locality=("3MiB", "16KiB")).plan())

    found = re.search(r"from budget=(\d+) on, windows are read whole", planned(32 << 20))
    assert found
    least = int(found[1])
    assert least > 32 << 20
    assert "read whole, by O_DIRECT" in planned(least)
    assert f"from budget={least} on" in planned(least - 1)


def test_an_unstated_budget_grows_to_a_window_that_is_read_past_the_page_cache(path: Path) -> None:
    os.truncate(path, 320 * 640 * 1024)

    def planned(rows: int, **how: Any) -> tuple[int, bool]:
        with lowtide.open(path, dtype="int32", shape=(-1, 160), **how) as array:
            if not array._store.sweeps_direct and how["cache"] == "drop":
                pytest.skip("NOT TESTED: sweeps past the page cache - this file system has no direct reads")
            batches = array.shuffled(rows, seed=2, locality="48MiB")
            assert len(next(batches)) == rows
            assert array.budget.peak <= array.budget.limit
            return array.budget.limit >> 20, "read whole, by O_DIRECT" in str(batches.plan())

    grown, whole = planned(2_048, cache="drop")
    assert 64 < grown <= 4 * 48
    assert whole
    assert planned(2_048, cache="drop", budget="64MiB") == (64, False)
    assert planned(2_048, cache="keep") == (64, False), "through the page cache nothing is gained"
    assert planned(2, cache="drop") == (64, False), "a page per batch would take more than four windows"


def test_sweeps_past_the_page_cache_give_way_to_what_is_held(path: Path) -> None:
    with opened(path, cache="drop", budget="32MiB") as array:
        batches = array.shuffled(4_000, seed=2, locality=("2MiB", "64KiB"))
        assert "read whole, by O_DIRECT" in str(batches.plan())
        held = [next(batches)]
        assert under_way(batches) > 2
        other = array.budget.reserve(array.budget.limit - array.budget.held)  # now nothing else has room
        assert other is not None
        held.append(next(batches))
        del other
        held += batches
        assert array.budget.peak <= array.budget.limit
        assert sorted(row for rows in held for row in rows[:, 0].tolist()) == list(range(ROWS))


def test_sweeps_stay_inside_the_budget_and_give_way_to_what_is_held(path: Path) -> None:
    size = 2 * 4096  # a batch of 50 rows in whole pages
    with opened(path, budget=40 * size) as array:
        batches = array.shuffled(BATCH, seed=2, locality=NEAR)
        next(batches)
        assert under_way(batches) > 2
        held = list(islice(batches, 37))
        assert array.budget.peak <= array.budget.limit
        assert sorted(row for rows in held for row in rows[:, 0].tolist()) == sorted(
            {row for rows in held for row in rows[:, 0].tolist()}
        ), "nothing was overwritten, nothing came twice"
        with pytest.raises(lowtide.BudgetError):  # the control: what is held is counted
            held.extend(batches)


def test_a_budget_without_room_for_a_sweep_reads_batches_one_by_one(path: Path) -> None:
    with opened(path, budget="32KiB") as array:
        batches = array.shuffled(BATCH, seed=2, locality=NEAR)
        got = numbers(islice(batches, 40))
        assert under_way(batches) <= 3
        assert array.budget.peak <= array.budget.limit
    with opened(path) as array:
        assert numbers(islice(array.shuffled(BATCH, seed=2, locality=NEAR), 40)) == got


@pytest.mark.parametrize("cache", ["keep", "drop"])
def test_a_file_cut_short_fails_the_batch_that_needs_it_and_no_other(path: Path, cache: str) -> None:
    """The file is checked when a sweep starts, so it is cut under one that has started. Two of those may hold more than
    two epochs of this one."""
    with opened(path) as array:
        expected = numbers(array.shuffled(BATCH, seed=4, epochs=5, locality=NEAR))
    array = opened(path, cache=cache, budget="32MiB")
    batches = array.shuffled(BATCH, seed=4, epochs=5, locality=NEAR)
    got = numbers(islice(batches, 2))
    os.truncate(path, (ROWS - ROWS // 3) * 4 * WIDTH)
    with pytest.raises(lowtide.ReadError):
        for rows in batches:
            got.append(rows[:, 0].tolist())
    assert got == expected[: len(got)]
    assert batches.position == sum(map(len, got))
    array.close()


@pytest.mark.parametrize("cache", ["keep", "drop"])
def test_a_forked_child_reads_on_by_itself(path: Path, cache: str) -> None:
    with opened(path, cache=cache) as array:
        expected = numbers(array.shuffled(BATCH, seed=5, locality=NEAR))
        batches = array.shuffled(BATCH, seed=5, locality=NEAR)
        got = numbers(islice(batches, 3))
        child = os.fork()
        if child == 0:
            fine = numbers(batches) == expected[3:]
            os._exit(0 if fine else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert got + numbers(batches) == expected
