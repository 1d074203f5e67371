"""Every order, format and strategy gives the batches that ten lines of NumPy give of the same ids."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.feeds import FORMATS, ORDERS, STRATEGIES, Made, numbered, raw_file, rows_of, same, starts_of
from tests.formats.conftest import TokenFiles

import lowtide

COUNT, LENGTH, BATCH, SEED = 3001, 17, 10, 5
IDS = numbered(COUNT)
EPOCH = (COUNT - LENGTH) // LENGTH  # 175 windows: no multiple of the batch


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    return {name: make(TokenFiles(tmp_path_factory.mktemp("tokens")), IDS) for name, make in FORMATS.items()}


@pytest.fixture(params=[(s, f) for s in STRATEGIES for f in FORMATS], ids="-".join)
def tokens(request: pytest.FixtureRequest, made: dict[str, Made]) -> Iterator[lowtide.Tokens]:
    strategy, name = request.param
    with lowtide.open_tokens(made[name].source, strategy=strategy, budget="8MiB", **made[name].keywords) as opened:
        yield opened


@pytest.fixture
def plain(made: dict[str, Made]) -> Iterator[lowtide.Tokens]:
    with lowtide.open_tokens(made["nanogpt"].source, dtype="uint16") as opened:
        yield opened


def expected(step: int, order: str = "shuffled", *, batch: int = BATCH, ids: Any = IDS) -> Any:
    rows = range(step * batch, (step + 1) * batch)
    return rows_of(ids, starts_of(rows, len(ids), LENGTH, order, SEED), LENGTH)


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_format_and_strategy_gives_the_oracles_batches(tokens: lowtide.Tokens, order: str) -> None:
    feed = tokens.batches(BATCH, length=LENGTH, seed=SEED, order=order)
    steps = (COUNT - 1) // LENGTH // BATCH if order == "sequential" else 2 * EPOCH // BATCH + 3
    for step in range(steps):
        same(next(feed), expected(step, order))
    same(feed[3], expected(3, order))


@pytest.mark.parametrize("cache", ["keep", "drop"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_batches_of_thousands_of_neighbouring_windows_are_merged_and_right(
    made: dict[str, Made], strategy: str, cache: str
) -> None:
    for name in ("nanogpt", "npy shards"):
        source = made[name]
        with lowtide.open_tokens(source.source, strategy=strategy, cache=cache, **source.keywords) as tokens:
            feed = tokens.batches(2000, length=3, seed=SEED)
            for step in range(2):
                starts = starts_of(range(step * 2000, step * 2000 + 2000), COUNT, 3, seed=SEED)
                same(next(feed), rows_of(IDS, starts, 3))


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("name", ["nanogpt", "megatron", "llm.c 32"])
def test_batches_come_in_the_dtype_asked_for(made: dict[str, Made], name: str, dtype: str) -> None:
    with lowtide.open_tokens(made[name].source, **made[name].keywords) as tokens:
        feed = tokens.batches(BATCH, length=LENGTH, seed=SEED, dtype=dtype)
        for step in range(3):
            same(next(feed), expected(step), dtype)


@pytest.mark.parametrize(
    ("written", "asked", "bad"),
    [("<u2", "int16", 32_768), ("<u4", "uint16", 65_536), ("<u4", "int32", 2**31), ("<i4", "uint16", -1)],
)
def test_ids_that_do_not_fit_are_refused_and_never_wrapped(tmp_path: Path, written: str, asked: str, bad: int) -> None:
    ids = np.arange(100)
    ids[50] = bad
    with lowtide.open_tokens(raw_file(tmp_path, ids, dtype=written), dtype=written) as tokens:
        feed = tokens.batches(1, length=10, order="sequential", dtype=asked)
        for _ in range(4):  # the window from 40 has token 50 as its last y
            next(feed)
        with pytest.raises(lowtide.FormatError, match=rf"fit {asked}, got {bad}. Use dtype='int64'"):
            next(feed)
        assert feed.step == 4
        assert tokens.batches(1, length=10, order="sequential")[4][1][0, -1] == bad


@pytest.mark.parametrize("dtype", ["float32", "bool", "U3"])
def test_a_feed_of_anything_but_integers_is_refused(plain: lowtide.Tokens, dtype: str) -> None:
    with pytest.raises(ValueError, match=r"expected a native integer type for tokens.*Use dtype='int64'"):
        plain.batches(4, length=8, dtype=dtype)


def test_y_is_one_token_ahead_of_x_in_every_row(plain: lowtide.Tokens) -> None:
    for order in ("shuffled", "random"):
        x, y = next(plain.batches(64, length=LENGTH, order=order))
        assert np.array_equal(x[:, 1:], y[:, :-1])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_held_batches_never_change_while_others_are_read(made: dict[str, Made], strategy: str) -> None:
    with lowtide.open_tokens(made["nanogpt"].source, dtype="uint16", strategy=strategy, budget="8MiB") as tokens:
        feed = tokens.batches(BATCH, length=LENGTH, seed=SEED)
        held = [next(feed) for _ in range(40)]
        kept = {step: (held[step][0][3:5], held[step][1].T) for step in (1, 7, 30)}  # views hold their batch too
        copies = [(x.copy(), y.copy()) for x, y in held]
        for step in range(0, 40, 2):
            held[step] = held[0]
        gc.collect()
        for _ in range(100):
            next(feed)
        for step in range(1, 40, 2):
            same(held[step], copies[step])
        del held
        for _ in range(100):
            next(feed)
        for step, (x, y) in kept.items():
            assert np.array_equal(x, copies[step][0][3:5])
            assert np.array_equal(y, copies[step][1].T)


def test_writing_into_a_batch_reaches_no_file_and_no_other_batch(made: dict[str, Made]) -> None:
    for strategy in STRATEGIES:
        with lowtide.open_tokens(made["nanogpt"].source, dtype="uint16", strategy=strategy) as tokens:
            feed = tokens.batches(BATCH, length=LENGTH, seed=SEED)
            x, y = next(feed)
            x[:], y[:] = -1, -2
            same(next(feed), expected(1))
            same(feed[0], expected(0))
            assert (x == -1).all()
    assert np.array_equal(np.fromfile(made["nanogpt"].source, np.uint16), IDS)


def test_batches_are_page_aligned_and_one_buffer_serves_a_plain_loop(plain: lowtide.Tokens) -> None:
    feed = plain.batches(64, length=LENGTH)
    addresses = set()
    for _ in range(30):
        x, y = next(feed)
        assert x.ctypes.data % 4096 == 0
        assert y.ctypes.data % 4096 == 0
        addresses.add(x.ctypes.data)
    assert len(addresses) <= 2


def test_holding_more_than_the_budget_is_refused_and_dropping_goes_on(made: dict[str, Made]) -> None:
    with lowtide.open_tokens(made["nanogpt"].source, dtype="uint16", budget="256KiB") as tokens:
        feed = tokens.batches(BATCH, length=LENGTH, seed=SEED)
        held: list[Any] = []
        with pytest.raises(lowtide.BudgetError, match=r"Drop arrays.*budget="):
            while True:
                held.append(next(feed))
        assert feed.step == len(held) > 10
        assert feed.state_dict()["rows"] == len(held) * BATCH  # a state is to be had when the budget is full
        for step, batch in enumerate(held):
            same(batch, expected(step))
        step = len(held)
        held.clear()
        del batch
        same(next(feed), expected(step))
        assert tokens.store.budget.peak <= 256 * 1024


def test_a_batch_that_the_budget_cannot_hold_is_refused_before_reading(made: dict[str, Made]) -> None:
    with lowtide.open_tokens(made["nanogpt"].source, dtype="uint16", budget="64KiB") as tokens:
        with pytest.raises(
            lowtide.BudgetError, match=r"batches of 5000 x 17 per rank.*Open with budget=(\d+)"
        ) as caught:
            tokens.batches(5000, length=LENGTH)
        needed = int(str(caught.value).split("budget=")[1].split()[0])
        fits = int(str(caught.value).split("use a batch of ")[1].split()[0])
        tokens.batches(fits, length=LENGTH)
        with pytest.raises(lowtide.BudgetError):
            tokens.batches(fits + 1, length=LENGTH)
    with lowtide.open_tokens(made["nanogpt"].source, dtype="uint16", budget=needed) as tokens:
        feed = tokens.batches(5000, length=LENGTH)
        x, _ = next(feed)  # held while the next is filled
        assert next(feed)[0].shape == x.shape


def test_what_a_feed_holds_is_what_its_plan_says(plain: lowtide.Tokens) -> None:
    feed = plain.batches(64, length=LENGTH)
    for _ in range(50):
        batch = next(feed)
    del batch
    assert 0 < plain.store.budget.peak <= feed.plan().anon
    assert "widened" in str(feed.plan())


def test_a_feed_says_what_it_is(plain: lowtide.Tokens) -> None:
    feed = plain.batches(8, length=LENGTH, rank=1, world=2)
    next(feed)
    assert repr(feed).startswith("<lowtide.Feed shuffled batch=8 length=17 rank=1/2 rows=8 of ")
    assert repr(plain).startswith("<lowtide.Tokens ")


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"batch": 0}, ValueError, "batch: expected 1 or more, got 0"),
        ({"batch": 2.0}, TypeError, "batch: expected a whole number, got float"),
        ({"batch": True}, TypeError, "batch: expected a whole number, got bool"),
        ({"length": 0}, ValueError, "length: expected 1 or more"),
        ({"length": "8"}, TypeError, "length: expected a whole number"),
        ({"order": "shuffle"}, ValueError, "order: expected one of shuffled, random, sequential, got 'shuffle'"),
        ({"seed": 1.5}, TypeError, "seed: expected a whole number, got float"),
        ({"seed": None}, TypeError, "seed: expected a whole number, got NoneType"),
        ({"skip": [3]}, TypeError, "skip: expected pairs of steps, got 3"),
        ({"skip": 3}, TypeError, "skip: expected pairs of steps, got 3"),
        ({"skip": [(1, 2, 3)]}, TypeError, "skip: expected pairs"),
        ({"skip": [(5, 3)]}, ValueError, r"skip: expected 0 <= first <= last, got \(5, 3\)"),
        ({"skip": [(-1, 3)]}, ValueError, r"skip: expected 0 <= first <= last, got \(-1, 3\). Steps count from 0"),
        ({"skip": [(0, 10**30)]}, ValueError, r"skip: expected steps below \d+, got \(0, 10{30}\)"),
        ({"dtype": "int46"}, TypeError, "dtype: expected a native integer type for tokens, got 'int46'. Use dtype='in"),
        ({"rank": -1, "world": 2}, ValueError, "rank: expected 0 or more, got -1. Use rank=0"),
        ({"rank": 0, "world": 0}, ValueError, "world: expected 1 or more, got 0. Use world=1"),
        ({"order": "shuffle", "length": 10**9}, ValueError, "order: expected one of"),
    ],
)
def test_wrong_arguments_are_named_with_what_to_use(
    plain: lowtide.Tokens, arguments: dict[str, Any], kind: type[Exception], words: str
) -> None:
    given: dict[str, Any] = {"batch": 4, "length": 8, **arguments}
    with pytest.raises(kind, match=words):
        plain.batches(given.pop("batch"), **given)
