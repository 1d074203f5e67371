"""Stores: logical bytes over many files, spans that cross from one into the next, page-cache rungs, ranks."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults import Disk, reading_from

from lowtide.errors import BudgetError
from lowtide.machine import drop_page_cache, file_kind, page_cache
from lowtide.storage.budget import Budget
from lowtide.storage.buffers import Pool
from lowtide.storage.own_files import atomic_write
from lowtide.storage.store import Store
from lowtide.storage.watched_files import Extent


def flat(array: Any) -> Any:
    return array.reshape(-1)


STRATEGIES = ("read", "remap", "advise", "map")


@pytest.fixture(scope="module")
def extents(tmp_path_factory: pytest.TempPathFactory) -> tuple[Extent, ...]:
    """Five files of unequal length, one without data, data at odd offsets: 100,000 logical bytes."""
    directory = tmp_path_factory.mktemp("store")
    chance = np.random.default_rng(7)
    found = []
    for number, size in enumerate((10_001, 1, 0, 40_000, 49_998)):
        path = directory / f"{number}.bin"
        offset = 17 * number
        path.write_bytes(bytes(offset) + chance.integers(0, 256, size, np.uint8).tobytes() + b"tail")
        found.append(Extent(str(path), offset, size, offset + size + 4))
    return tuple(found)


@pytest.fixture(scope="module")
def whole(extents: tuple[Extent, ...]) -> Any:
    parts = [Path(e.path).read_bytes()[e.offset : e.offset + e.length] for e in extents]
    return np.frombuffer(b"".join(parts), np.uint8)


@pytest.mark.parametrize("engine", ["native", "python"])
@pytest.mark.parametrize("cache", ["keep", "drop"])
def test_rows_picked_densely_are_copied_out_of_whole_reads(extents: Any, whole: Any, engine: str, cache: str) -> None:
    chance = np.random.default_rng(4)
    for budget in ("8MiB", "1MiB"):  # of the second, a round holds fewer rows
        store = Store(extents, strategy="read", cache=cache, budget=budget, engine=engine)
        for size in (1, 7, 100, 3_000, 40_000):
            rows = np.flatnonzero(chance.random(len(whole) // size) < 0.5)
            expected = np.stack([whole[row * size : row * size + size] for row in rows.tolist()])
            out = np.zeros((len(rows), size), np.uint8)
            before = store.counters.asked
            store.gather(rows, size, size, flat(out))
            assert np.array_equal(out, expected)
            asked = store.counters.asked - before
            if size == 100:  # the gaps were read too
                assert len(rows) * size < asked <= (rows[-1] - rows[0] + 1) * size


@pytest.mark.parametrize("cache", ["keep", "drop"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_runs_that_cross_files_are_whole(extents: Any, whole: Any, strategy: str, cache: str) -> None:
    store = Store(extents, strategy=strategy, cache=cache, budget="4MiB")
    chance = np.random.default_rng(3)
    for length in (1, 3, 100, 9_999, 60_000):
        for stride in (1, 7):
            numbers = chance.integers(0, (len(whole) - length) // stride + 1, 40)
            expected = np.stack([whole[n * stride : n * stride + length] for n in numbers.tolist()])
            merged, out = np.zeros((2, 40, length), np.uint8)
            store.gather(numbers, stride, length, flat(merged))
            assert np.array_equal(merged, expected)
            assert store.start(numbers, stride, length, flat(out)).finish() is None
            assert np.array_equal(out, expected)
    for offset, length in ((0, 100_000), (9_990, 30), (10_001, 1), (99_999, 1), (5, 0)):
        one = np.zeros(length, np.uint8)
        store.run(offset, length, flat(one))
        assert np.array_equal(one, whole[offset : offset + length])
    store.close()


def test_extents_of_one_file_share_one_descriptor(tmp_path: Path, no_lost_descriptors: None) -> None:
    path = tmp_path / "chunks.bin"
    data = np.random.default_rng(1).integers(0, 256, 64_000).astype(np.uint8)
    path.write_bytes(data.tobytes())
    order = np.random.default_rng(2).permutation(64)
    extents = tuple(Extent(str(path), int(chunk) * 1000, 1000, 64_000) for chunk in order)
    expected = np.concatenate([data[chunk * 1000 : (chunk + 1) * 1000] for chunk in order.tolist()])
    for strategy in STRATEGIES:
        store = Store(extents, strategy=strategy, budget="4MiB")
        out = np.zeros((50, 700), np.uint8)
        numbers = np.random.default_rng(3).integers(0, 63_300, 50)
        store.start(numbers, 1, 700, flat(out)).finish()
        assert np.array_equal(out, np.stack([expected[n : n + 700] for n in numbers.tolist()]))
        assert len(store.files) == 1
        store.close()


def test_the_strategy_that_went_names_the_way_out(extents: Any) -> None:
    with pytest.raises(ValueError, match="cache='drop'"):
        Store(extents, strategy="direct")


@pytest.mark.parametrize("strategy", ["read", "remap", "advise"])
def test_drop_leaves_nothing_of_small_files_in_the_page_cache(extents: Any, strategy: str) -> None:
    if file_kind(extents[0].path).memory:
        pytest.skip("NOT TESTED: files in memory cannot be dropped")
    for extent in extents:
        drop_page_cache(extent.path)
    store = Store(extents, strategy=strategy, cache="drop", budget="4MiB")
    out = np.zeros((20, 100), np.uint8)
    store.start(np.arange(0, 90_000, 4_500), 1, 100, flat(out)).finish()
    store.run(0, 100_000, flat(np.zeros(100_000, np.uint8)))
    store.close()
    assert sum(page_cache(extent.path).cached for extent in extents) <= 64 * 1024
    kept = Store(extents, strategy="read", cache="keep")
    kept.run(0, 100_000, flat(np.zeros(100_000, np.uint8)))
    assert sum(page_cache(extent.path).cached for extent in extents) >= 100_000, "the control must leave them"


def test_files_in_memory_say_that_nothing_can_be_dropped() -> None:
    if not Path("/dev/shm").is_dir() or not os.access("/dev/shm", os.W_OK) or not file_kind("/dev/shm").memory:
        pytest.skip("NOT TESTED: no filesystem in memory here")
    path = Path(f"/dev/shm/lowtide-test-{os.getpid()}")
    try:
        path.write_bytes(bytes(range(100)))
        extent = Extent(str(path), 0, 100, 100)
        for strategy in STRATEGIES:
            store = Store((extent,), strategy=strategy, cache="drop", budget="4MiB")
            out = np.zeros(100, np.uint8)
            store.run(0, 100, flat(out))
            assert out.tolist() == list(range(100))
            store.close()
        rung = Store((extent,), strategy="read", cache="drop").strategy.rung
        assert "tmpfs" in rung
    finally:
        path.unlink()


def test_ranks_that_share_files_keep_them_unless_drop_was_asked_for(extents: Any) -> None:
    for strategy in STRATEGIES:
        asked = Store(extents, strategy=strategy, cache="drop", budget="4MiB")
        asked.keep_for_ranks(4)
        assert asked.drop
        automatic = Store(extents, strategy=strategy, cache="auto", budget="4MiB")
        automatic.drop = True  # as on a machine where the data does not fit
        before = automatic.budget.held, automatic.budget.aside
        for _ in range(5):
            automatic.keep_for_ranks(4)
        assert not automatic.drop
        assert "4 ranks" in automatic.cache_why
        assert (automatic.budget.held, automatic.budget.aside) == before
        automatic.close()
        assert automatic.budget.held == automatic.budget.aside == 0


def test_a_closed_store_gives_back_what_its_strategy_had_set_aside(extents: Any) -> None:
    budget = Budget("4MiB")
    for strategy in STRATEGIES * 3:
        store = Store(extents, strategy=strategy, budget=budget)
        store.run(0, 1000, flat(np.zeros(1000, np.uint8)))
        store.close()
    assert (budget.held, budget.aside) == (0, 0)


def test_opening_a_store_reads_no_data(extents: Any) -> None:
    with reading_from(Disk()) as disk:
        for strategy in STRATEGIES:
            Store(extents, strategy=strategy, budget="4MiB").close()
        assert disk.calls == 0


# The pool by itself


def test_a_pool_counts_before_it_allocates() -> None:
    made: list[int] = []

    def allocate(size: int) -> bytearray:
        made.append(size)
        return bytearray(size)

    pool = Pool(Budget(3 * 4096), where="here", allocate=allocate)
    held = [pool.take(1), pool.take(4096)]
    with pytest.raises(BudgetError, match=r"here: expected at most 12\.0 KiB"):
        pool.take(4097)
    assert made == [4096, 4096], "what was refused was never allocated"
    del held[1]
    larger = pool.take(8192)
    assert len(larger) == 8192, "a free buffer makes room for a larger one"
    assert pool.budget.held == 12288


def address(array: Any) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


def test_a_buffer_is_free_when_the_last_array_on_it_is_gone_and_not_before() -> None:
    pool = Pool(Budget(4096), where="here")
    scratch = pool.take(4096)
    first = address(scratch)
    assert first % 4096 == 0
    del scratch
    array: Any = np.ndarray((1024,), np.int32, pool.take(4096))
    assert address(array) == first
    with pytest.raises(BudgetError):
        pool.take(4096)
    view = array[100:200]
    del array
    assert pool.lent == 1, "a view keeps the buffer"
    del view
    assert pool.lent == 0
    assert address(pool.take(4096)) == first


def test_free_buffers_of_one_pool_make_room_in_another_that_shares_the_budget() -> None:
    budget = Budget(3 * 4096)
    one, other = Pool(budget, where="one"), Pool(budget, where="other")
    del (held := [one.take(8192)])[0]
    assert budget.held == 8192, "kept for the next"
    held.append(other.take(3 * 4096))
    assert budget.held == 3 * 4096


def test_a_refused_allocation_by_the_system_loses_nothing() -> None:
    def allocate(size: int) -> bytearray:
        raise MemoryError("the system has none")

    pool = Pool(Budget("1MiB"), where="here", allocate=allocate)
    for _ in range(3):
        with pytest.raises(MemoryError, match="the system has none"):
            pool.take(4096)
    assert pool.budget.held == 0


def test_threads_never_get_the_same_buffer_and_never_pass_the_budget() -> None:
    pool = Pool(Budget(8 * 4096), where="here")
    wrong: list[str] = []

    def work(number: int) -> None:
        for _ in range(2000):
            mine = pool.try_take(4096)
            if mine is None:
                continue
            mine[:] = number
            if not (mine == number).all():
                wrong.append("shared")
            if pool.budget.held > pool.budget.limit:
                wrong.append("too much")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert pool.lent == 0


# Writing


def test_a_file_written_atomically_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with atomic_write(path) as file:
        file.write(b"one")
        assert not path.exists()
    assert path.read_bytes() == b"one"
    with pytest.raises(RuntimeError, match="half"), atomic_write(path) as file:
        file.write(b"tw")
        raise RuntimeError("half")
    assert path.read_bytes() == b"one"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]
