"""Stores: logical bytes over many files, runs that cross from one into the next, page-cache rungs, ranks."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults import Disk, reading_from

from lowtide.atomic import atomic_write
from lowtide.errors import BudgetError
from lowtide.machine import drop_page_cache, file_kind, page_cache
from lowtide.storage import Budget, Extent, Pool, Store
from lowtide.storage.buffers import wrap

STRATEGIES = ("read", "direct", "remap", "advise", "map")


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


@pytest.mark.parametrize("cache", ["keep", "drop"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_runs_that_cross_files_are_whole(extents: Any, whole: Any, strategy: str, cache: str) -> None:
    store = Store(extents, strategy=strategy, cache=cache, budget="4MiB")
    chance = np.random.default_rng(3)
    for length in (1, 3, 100, 9_999, 60_000):
        for stride in (1, 7):
            numbers = chance.integers(0, (len(whole) - length) // stride + 1, 40)
            for sparse in (True, False):
                out = np.zeros((40, length), np.uint8)
                store.gather(numbers, stride, length, wrap(out), sparse=sparse)
                expected = np.stack([whole[n * stride : n * stride + length] for n in numbers.tolist()])
                assert np.array_equal(out, expected)
    for offset, length in ((0, 100_000), (9_990, 30), (10_001, 1), (99_999, 1), (5, 0)):
        one = np.zeros(length, np.uint8)
        store.run(offset, length, wrap(one))
        assert np.array_equal(one, whole[offset : offset + length])
    store.close()


def test_what_will_come_next_is_announced_only_while_reads_miss(extents: Any, whole: Any) -> None:
    asked: list[int] = []

    def ahead() -> Any:
        asked.append(1)
        return np.array([5])

    numbers, out = np.arange(0, 50_000, 5_000), np.zeros((10, 10), np.uint8)
    for _ in range(50):  # a busy machine may evict a page, or refuse one that it has, once in a while
        store = Store(extents, strategy="read", cache="keep", budget="4MiB")
        asked.clear()
        for extent in extents:
            Path(extent.path).read_bytes()
        store.gather(numbers, 1, 10, wrap(out), ahead=ahead, sparse=True)
        if not asked:
            break
    assert asked == [], "cached data needs no announcement"
    for extent in extents:
        drop_page_cache(extent.path)
    if any(page_cache(extent.path).cached for extent in extents):
        pytest.skip("NOT TESTED: this filesystem does not let its page cache be dropped")
    for _ in range(500):  # a refused read starts the disk, which on a busy machine may be done before it is refused
        store.gather(numbers, 1, 10, wrap(out), ahead=ahead, sparse=True)
        for extent in extents:
            drop_page_cache(extent.path)
        if asked:
            break
    assert asked, "cold data must be announced ahead"
    assert np.array_equal(out, np.stack([whole[n : n + 10] for n in numbers]))


@pytest.mark.parametrize("strategy", ["read", "direct", "remap", "advise"])
def test_drop_leaves_nothing_of_small_files_in_the_page_cache(extents: Any, strategy: str) -> None:
    if file_kind(extents[0].path).memory:
        pytest.skip("NOT TESTED: files in memory cannot be dropped")
    for extent in extents:
        drop_page_cache(extent.path)
    store = Store(extents, strategy=strategy, cache="drop", budget="4MiB")
    out = np.zeros((20, 100), np.uint8)
    store.gather(np.arange(0, 90_000, 4_500), 1, 100, wrap(out), sparse=True)
    store.run(0, 100_000, wrap(np.zeros(100_000, np.uint8)))
    store.close()
    assert sum(page_cache(extent.path).cached for extent in extents) <= 64 * 1024
    kept = Store(extents, strategy="read", cache="keep")
    kept.run(0, 100_000, wrap(np.zeros(100_000, np.uint8)))
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
            store.run(0, 100, wrap(out))
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
        store.run(0, 1000, wrap(np.zeros(1000, np.uint8)))
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
    held = [pool.filling(1), pool.filling(4096)]
    with pytest.raises(BudgetError, match=r"here: expected at most 12\.0 KiB"):
        pool.filling(4097)
    assert made == [4096, 4096], "what was refused was never allocated"
    del held[1]
    larger = pool.filling(8192)
    assert larger.buffer.capacity == 8192, "a free buffer makes room for a larger one"
    assert pool.budget.held == 12288


def test_a_buffer_left_without_lending_is_free_at_once_and_one_lent_is_not() -> None:
    pool = Pool(Budget(4096), where="here")
    with pool.filling(4096) as scratch:
        first = scratch.buffer
    with pool.filling(4096) as out:
        assert out.buffer is first
        array = out.lend((4096,), np.dtype(np.uint8))
    del out, scratch
    with pytest.raises(BudgetError):
        pool.filling(4096)
    view = array[100:200]
    del array
    assert pool.lent == 1, "a view keeps the buffer"
    del view
    assert pool.lent == 0
    assert pool.filling(4096).buffer is first


def test_a_buffer_whose_filling_failed_is_free_even_while_the_error_is_being_handled() -> None:
    pool = Pool(Budget(4096), where="here")
    try:
        with pool.filling(4096) as out:
            out.lend((4096,), np.dtype(np.uint8))
            raise RuntimeError("after lending, before delivery")
    except RuntimeError:
        with pool.filling(4096) as again:
            assert again.buffer is out.buffer
    assert pool.lent == 0
    del out, again
    assert len(pool._free) == 1, "given back once, not once more when the error's traceback went"


def test_a_far_too_large_free_buffer_is_not_handed_out() -> None:
    pool = Pool(Budget("1MiB"), where="here")
    with pool.filling(256 * 1024) as out:
        large = out.buffer
    small = pool.filling(4096)
    assert small.buffer is not large
    assert pool.filling(200 * 1024).buffer is large


def test_a_refused_allocation_by_the_system_loses_nothing() -> None:
    def allocate(size: int) -> bytearray:
        raise MemoryError("the system has none")

    pool = Pool(Budget("1MiB"), where="here", allocate=allocate)
    for _ in range(3):
        with pytest.raises(MemoryError, match="the system has none"):
            pool.filling(4096)
    assert pool.budget.held == 0


def test_threads_never_get_the_same_buffer_and_never_pass_the_budget() -> None:
    pool = Pool(Budget(8 * 4096), where="here")
    wrong: list[str] = []

    def work(number: int) -> None:
        for _ in range(2000):
            filling = pool.try_filling(4096)
            if filling is None:
                continue
            mine = filling.lend((4096,), np.dtype(np.uint8))
            del filling
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
