"""Fork, spawn, pickle, threads and thousands of files: an array works in all of them, and shares no position."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.storage.processes import answer_of

import lowtide

STRATEGIES = ("read", "remap", "advise", "map")
COUNT = 2000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("processes") / "rows.npy"
    np.save(place, np.arange(COUNT * 64, dtype=np.int32).reshape(COUNT, 64))
    return place


def in_a_fork(work: Callable[[], None]) -> None:
    """Runs ``work`` in a forked child; fails with the child's traceback."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os.write(send, traceback.format_exc().encode()[-60_000:])
        finally:
            os._exit(1)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        problem = pipe.read().decode()
    assert os.waitpid(child, 0)[1] == 0, problem


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_array_and_its_iterators_go_on_in_a_forked_child_and_in_the_parent(path: Path, strategy: str) -> None:
    rows = np.load(path)
    with lowtide.open(path, strategy=strategy, budget="4MiB") as array:
        chunks, shuffled = array.chunks(100), array.shuffled(100, seed=1)
        whole = [batch.copy() for batch in array.shuffled(100, seed=1)]
        held = next(chunks)
        next(shuffled)

        def work() -> None:
            assert np.array_equal(held, rows[:100])
            assert np.array_equal(next(chunks), rows[100:200])
            assert np.array_equal(next(shuffled), whole[1])
            assert np.array_equal(array[[5, 1]], rows[[5, 1]])
            assert np.array_equal(np.concatenate([c.copy() for c in array.chunks(64)]), rows)
            assert array._store.budget.held <= array._store.budget.limit
            assert array._store.pool.lent <= 2

        in_a_fork(work)
        in_a_fork(work)  # the parent's positions did not move
        work()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_forked_child_has_the_whole_budget_though_its_parent_has_used_it_up(path: Path, strategy: str) -> None:
    rows = np.load(path)
    with lowtide.open(path, strategy=strategy, budget="1MiB") as array:
        held: list[Any] = []
        with pytest.raises(lowtide.BudgetError):
            for _ in range(3):
                held.extend(array.chunks(100))

        def work() -> None:
            assert np.array_equal(array[3], rows[3])
            passes = itertools.chain(array.chunks(100), array.chunks(100), array.chunks(100))
            assert len(list(itertools.islice(passes, len(held)))) == len(held)

        in_a_fork(work)
        places = [*range(20)] * 3
        assert all(np.array_equal(chunk, rows[100 * k : 100 * k + 100]) for k, chunk in zip(places, held, strict=False))


def test_a_child_of_a_child_can_read_too(path: Path) -> None:
    rows = np.load(path)
    with lowtide.open(path, cache="drop") as array:
        array[0]

        def work() -> None:
            assert np.array_equal(array[7], rows[7])
            in_a_fork(lambda: np.testing.assert_array_equal(array[9:20], rows[9:20]))

        in_a_fork(work)


def test_a_fork_while_other_threads_read_does_not_hang_the_child(path: Path) -> None:
    rows = np.load(path)
    stop = threading.Event()
    with lowtide.open(path, strategy="advise", budget="4MiB") as array:

        def read() -> None:
            while not stop.is_set():
                for _ in array.shuffled(200):
                    pass

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(10):
                in_a_fork(lambda: np.testing.assert_array_equal(array[[3, 1900]], rows[[3, 1900]]))
        finally:
            stop.set()
            for thread in threads:
                thread.join()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_array_survives_pickle_and_copy_with_its_settings(path: Path, strategy: str) -> None:
    with lowtide.open(path, strategy=strategy, cache="drop", budget="3MiB") as array:
        for again in (pickle.loads(pickle.dumps(array)), copy.deepcopy(array)):
            with again:
                assert again.plan().strategy == array.plan().strategy
                assert (again.plan().rung, again.plan().budget) == (array.plan().rung, 3 << 20)
                assert np.array_equal(again[:], array[:])
                assert again._store.budget is not array._store.budget


def _sum_of(array: lowtide.Array, rank: int, world: int) -> int:
    return int(sum(int(batch.sum()) for batch in array.shuffled(64, seed=3, rank=rank, world=world)))


def test_ranks_in_spawned_processes_read_everything_once(path: Path) -> None:
    with lowtide.open(path) as array, multiprocessing.get_context("spawn").Pool(2) as pool:
        parts = pool.starmap(_sum_of, [(array, rank, 3) for rank in range(3)])
    assert sum(parts) == int(np.load(path).sum())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_threads_iterate_and_index_one_array_at_once(path: Path, strategy: str) -> None:
    rows = np.load(path)
    problems: list[str] = []
    with lowtide.open(path, strategy=strategy, budget="8MiB") as array:
        expected = np.concatenate([batch.copy() for batch in array.shuffled(128, seed=5)])
        jobs: list[Callable[[], tuple[Any, Any]]] = [
            lambda: (np.concatenate([b.copy() for b in array.shuffled(128, seed=5)]), expected),
            lambda: (np.concatenate([c.copy() for c in array.chunks(150)]), rows),
            lambda: (array[::-7], rows[::-7]),
            lambda: (array[[5, 900, 900, 3]], rows[[5, 900, 900, 3]]),
        ]

        def work(job: Callable[[], tuple[Any, Any]]) -> None:
            try:
                for _ in range(5):
                    got, wanted = job()
                    np.testing.assert_array_equal(got, wanted)
            except BaseException:
                problems.append(traceback.format_exc())

        threads = [threading.Thread(target=work, args=(job,)) for job in jobs * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems, problems[0]
        assert array._store.pool.lent == 0
        assert array._store.budget.peak <= 8 << 20


@pytest.mark.slow
def test_threads_that_read_runs_of_other_lengths_from_one_kept_mapping_get_their_own(path: Path) -> None:
    rows = np.load(path)
    problems: list[str] = []

    def work(array: lowtide.Array, turn: int) -> None:
        keys: list[Any] = [[5, 1900, 7], slice(turn, turn + 3)]
        try:
            for step in range(turn, turn + 5000):
                key = keys[step % 2]
                np.testing.assert_array_equal(array[key], rows[key])
        except BaseException:
            problems.append(traceback.format_exc())

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # what is rare becomes certain
    try:
        with lowtide.open(path, strategy="map") as array:
            threads = [threading.Thread(target=work, args=(array, turn)) for turn in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not problems, problems[0]


def test_one_iterator_asked_by_many_threads_gives_every_row_once(path: Path) -> None:
    with lowtide.open(path, budget="8MiB") as array:
        for shared in (array.shuffled(16, seed=2), array.chunks(16)):
            found: list[int] = []

            def work(batches: Any, into: list[int]) -> None:
                for batch in batches:
                    into.extend((batch[:, 0] // 64).tolist())

            threads = [threading.Thread(target=work, args=(shared, found)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(found) == list(range(COUNT))


@pytest.mark.parametrize("way", ["chunks", "shuffled", "gather", "sample"])
def test_an_iterator_crosses_pickle_and_goes_on_where_it_was(path: Path, way: str) -> None:
    with lowtide.open(path) as array:
        batches: Any = array.gather(np.arange(500), 64) if way == "gather" else getattr(array, way)(64)
        next(batches)
        again = pickle.loads(pickle.dumps(batches))
        assert again.position == 64
        assert np.array_equal(next(again), next(batches))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_reading_and_closing_loses_no_descriptor(path: Path, strategy: str, no_lost_descriptors: None) -> None:
    for _ in range(5):
        with lowtide.open(path, strategy=strategy) as array:
            array[3:9]
            array[[7, 1]]
            for batch in array.shuffled(64):
                del batch


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_array_that_is_dropped_without_closing_loses_no_descriptor(
    path: Path, strategy: str, no_lost_descriptors: None
) -> None:
    array = lowtide.open(path, strategy=strategy)
    array[3:9]
    next(array.shuffled(64))
    del array


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_six_hundred_files_are_read_with_four_hundred_descriptors_allowed(tmp_path: Path, strategy: str) -> None:
    """At most ``MOST_OPEN`` are kept, also while one batch touches every file."""
    for number in range(600):
        np.save(tmp_path / f"{number:03}.npy", np.arange(number * 40, number * 40 + 40).reshape(10, 4))
    script = """
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
    rows = np.arange(24000).reshape(6000, 4)
    with lowtide.open(sys.argv[1] + "/*.npy", strategy=sys.argv[2], budget="64MiB") as array:
        assert np.array_equal(array[:], rows)
        assert np.array_equal(array[::-7], rows[::-7])
        assert np.array_equal(np.concatenate([c.copy() for c in array.chunks(999)]), rows)
        seen = np.concatenate([b.copy() for b in array.shuffled(3000)])
        assert np.array_equal(np.sort(seen[:, 0]), rows[:, 0])
        print(len(os.listdir("/proc/self/fd")))
    """
    assert int(answer_of(script, tmp_path, strategy)) < 400
