"""Tokens and feeds cross pickle, fork, spawn and threads; positions go along and are never shared."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.array.test_array_processes import in_a_fork
from tests.feeds import ORDERS, STRATEGIES, numbered, same

import lowtide

COUNT, LENGTH, BATCH = 6000, 30, 12
IDS = numbered(COUNT)


@pytest.fixture(params=STRATEGIES)
def tokens(request: pytest.FixtureRequest, path: Path) -> Iterator[lowtide.Tokens]:
    with lowtide.open_tokens(path, dtype="uint16", strategy=request.param, budget="16MiB", vocab=50_000) as opened:
        yield opened


def feed_of(tokens: lowtide.Tokens, **more: Any) -> lowtide.Feed:
    return tokens.batches(BATCH, length=LENGTH, seed=3, **more)


def first_steps(tokens: lowtide.Tokens, steps: int, **more: Any) -> list[Any]:
    return [(x.copy(), y.copy()) for _, (x, y) in zip(range(steps), feed_of(tokens, **more), strict=False)]


@pytest.mark.parametrize("order", ORDERS)
def test_a_feed_survives_pickle_with_its_place_and_settings(tokens: lowtide.Tokens, order: str) -> None:
    whole = first_steps(tokens, 14, order=order)
    train, _ = tokens.split(val=0.1)
    feed = feed_of(tokens, order=order, skip=[(7, 8)])
    for _ in range(5):
        next(feed)
    packed = pickle.dumps((feed, train))
    assert len(packed) < 10_000  # no buffers, no starts computed ahead
    for again, part in (pickle.loads(packed), copy.deepcopy((feed, train))):
        with part:
            assert (again.cursor, again.tokens.vocab) == (5 * BATCH, 50_000)
            assert again.tokens.store is not tokens.store
            assert part.store is again.tokens.store  # one store before, one store after
            assert np.array_equal(part[:], IDS[:5400])
            for step in (5, 6, 9, 10):
                same(next(again), whole[step])
            assert again.state_dict()["data"] == feed.state_dict()["data"]
    assert feed.cursor == 5 * BATCH
    same(next(feed), whole[5])


def test_a_feed_that_has_read_far_ahead_is_pickled_as_small(path: Path) -> None:
    with lowtide.open_tokens(path, dtype="uint16") as tokens:
        feed = feed_of(tokens)
        for _ in range(500):
            next(feed)
        assert len(pickle.dumps(feed)) < 10_000


def test_a_feed_goes_on_in_a_forked_child_and_in_the_parent_alike(tokens: lowtide.Tokens) -> None:
    whole = first_steps(tokens, 6)
    feed = feed_of(tokens)
    held = next(feed)

    def work() -> None:
        same(held, whole[0])
        for step in (1, 2, 3):
            same(next(feed), whole[step])
        same(feed[5], whole[5])
        assert np.array_equal(tokens[7:99], IDS[7:99])
        assert feed.state_dict()["rows"] == 4 * BATCH

    in_a_fork(work)
    in_a_fork(work)  # the parent's place did not move
    work()


@pytest.mark.slow
def test_a_child_forked_while_a_thread_reads_the_same_feed_does_not_hang(path: Path) -> None:
    stop = threading.Event()
    with lowtide.open_tokens(path, dtype="uint16") as tokens:
        whole = first_steps(tokens, 3)
        feed = feed_of(tokens)

        def read() -> None:
            while not stop.is_set():
                next(feed)

        def work() -> None:
            next(feed)
            same(feed[2], whole[2])

        thread = threading.Thread(target=read)
        thread.start()
        try:
            for _ in range(20):
                in_a_fork(work)
        finally:
            stop.set()
            thread.join()


def _rows(feed: lowtide.Feed, steps: int) -> list[list[int]]:
    return [row for _ in range(steps) for row in next(feed)[0].tolist()]


def test_ranks_in_spawned_processes_receive_the_global_batches(path: Path) -> None:
    with lowtide.open_tokens(path, dtype="uint16") as tokens:
        whole = _rows(feed_of(tokens), 4)
        feeds = [feed_of(tokens, rank=rank, world=3) for rank in range(3)]
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            parts = pool.starmap(_rows, [(feed, 4) for feed in feeds])
    share = BATCH // 3
    merged = [row for step in range(4) for part in parts for row in part[step * share : (step + 1) * share]]
    assert merged == whole


def in_threads(work: Callable[[int], None], count: int = 6) -> None:
    problems: list[str] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException:
            problems.append(traceback.format_exc())

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems[0]


def test_threads_that_share_a_feed_receive_every_step_once(tokens: lowtide.Tokens) -> None:
    feed = feed_of(tokens)
    found: list[bytes] = []

    def work(number: int) -> None:
        for _ in range(50):
            x, y = next(feed)
            found.append(x.tobytes() + y.tobytes())

    in_threads(work)
    assert feed.step == 300
    assert sorted(found) == sorted(x.tobytes() + y.tobytes() for x, y in first_steps(tokens, 300))


def test_threads_ask_one_feed_for_any_steps_and_tokens_for_slices(tokens: lowtide.Tokens) -> None:
    whole = first_steps(tokens, 80)
    feed = feed_of(tokens)

    def work(number: int) -> None:
        chance = np.random.default_rng(number)
        for step in chance.integers(0, 80, 60).tolist():
            same(feed[step], whole[step])
            assert np.array_equal(tokens[step : step + 500], IDS[step : step + 500])

    in_threads(work)
    assert feed.cursor == 0
    assert tokens.store.pool.lent == 0
    assert tokens.store.budget.peak <= 16 << 20
