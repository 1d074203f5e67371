"""Two engines, the same bytes; which one is in use, and why; and batches that native threads prepare in advance."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.feeds import FORMATS, ORDERS, numbered, raw_file, rows_of, same, starts_of
from tests.formats.conftest import TokenFiles
from tests.storage.kinds import KINDS
from tests.storage.processes import answer_of

import lowtide
from lowtide.engine import engine as chosen
from lowtide.machine import drop_page_cache, page_cache
from lowtide.reading.ahead import Later

BUILT = chosen().name == "native"
needs_native = pytest.mark.skipif(
    not BUILT, reason="NOT TESTED: the native engine, the extension is not built here (tests/engine says why)"
)
STRATEGIES = ("read", "map")


# The same bytes


@needs_native
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_both_engines_give_the_same_batches_of_every_token_format(tmp_path: Path, name: str, strategy: str) -> None:
    made = FORMATS[name](TokenFiles(tmp_path), numbered(6_000))
    feeds = []
    for engine in ("native", "python"):
        tokens = lowtide.open_tokens(made.source, **made.keywords, strategy=strategy, engine=engine, budget="4MiB")
        assert tokens.plan().engine == engine
        feeds.append([tokens.batches(7, length=33, seed=5, order=order, dtype="int32") for order in ORDERS])
    for native, python in zip(*feeds, strict=True):
        for _ in range(12):
            same(next(native), next(python), "int32")


@needs_native
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_both_engines_give_the_same_rows_of_every_array_format(tmp_path: Path, name: str, strategy: str) -> None:
    made = KINDS[name](tmp_path, 41)
    for cache in ("keep", "drop"):
        native, python = (
            lowtide.open(made.source, **made.keywords, strategy=strategy, cache=cache, engine=engine, budget="8MiB")
            for engine in ("native", "python")
        )
        for one, other in (
            (native.chunks(7), python.chunks(7)),
            (native.shuffled(5, seed=3), python.shuffled(5, seed=3)),
            (native.gather([40, 0, 7, 7, -1], 2), python.gather([40, 0, 7, 7, -1], 2)),
        ):
            for mine, theirs in zip(one, other, strict=True):
                assert mine.tobytes() == theirs.tobytes()
        assert native[3:9].tobytes() == made.rows[3:9].tobytes() == python[3:9].tobytes()
        native.close()
        python.close()


@needs_native
@settings(max_examples=60)
@given(
    source=st.sampled_from(["uint8", "uint16", "uint32", "int32", "int64", ">u2", ">i4"]),
    target=st.sampled_from(["int32", "int64", "uint16"]),
    length=st.integers(1, 70),
    batch=st.integers(1, 40),
    seed=st.integers(0, 2**31),
    shards=st.integers(1, 4),
)
def test_every_width_length_and_cut_into_files_gives_numpys_windows(
    tmp_path_factory: pytest.TempPathFactory,
    source: str,
    target: str,
    length: int,
    batch: int,
    seed: int,
    shards: int,
) -> None:
    directory = tmp_path_factory.mktemp("widths")
    ids = np.random.default_rng(seed).integers(0, 120, 3 * length + 500)
    edges = np.linspace(0, len(ids), shards + 1).astype(int)
    paths = []
    for number in range(shards):
        paths.append(directory / f"{number}.ids")
        ids[edges[number] : edges[number + 1]].astype(source).tofile(paths[-1])
    with lowtide.open_tokens(paths, dtype=source, vocab=120, engine="native") as tokens:
        x, y = tokens.batches(batch, length=length, seed=seed, dtype=target)[2]
    starts = starts_of(range(2 * batch, 3 * batch), len(ids), length, seed=seed)
    expected = rows_of(ids, starts, length)
    assert np.array_equal(x, expected[0])
    assert np.array_equal(y, expected[1])


@needs_native
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_id_outside_the_vocabulary_is_the_same_error_from_both(tmp_path: Path, strategy: str) -> None:
    ids = numbered(5_000, most=1000)
    ids[3_333] = 1000
    path = raw_file(tmp_path, ids)
    said = set()
    for engine in ("native", "python"):
        tokens = lowtide.open_tokens(path, dtype="uint16", vocab=1000, strategy=strategy, engine=engine)
        with pytest.raises(lowtide.FormatError, match="expected ids from 0 to 999") as caught:
            for _ in range(200):
                next(tokens.batches(50, length=100, seed=1))
                tokens.batches(50, length=100, seed=1)[0]
        said.add(str(caught.value))
    assert len(said) == 1
    assert f"got 1000 at byte {2 * 3_333}" in said.pop()


@needs_native
def test_a_file_truncated_under_the_native_engine_is_a_read_error_with_its_place(tmp_path: Path) -> None:
    path = raw_file(tmp_path, numbered(50_000))
    with lowtide.open_tokens(path, dtype="uint16", engine="native") as tokens:
        feed = tokens.batches(8, length=16, seed=0)
        next(feed)
        os.truncate(path, 1000)
        with pytest.raises(lowtide.ReadError, match="truncated to 1000 B") as caught:
            next(feed)
        assert caught.value.path == str(path)
        assert feed.step == 1


# Which engine


def test_the_engine_is_named_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = raw_file(tmp_path, numbered(1000))
    with lowtide.open_tokens(path, dtype="uint16", engine="python") as tokens:
        plan = tokens.plan()
        assert plan.engine == "python"
        assert "engine python: engine='python' was asked for" in plan.why
    monkeypatch.setenv("LOWTIDE_ENGINE", "python")
    with lowtide.open(path, dtype="uint16") as array:
        assert "engine python: LOWTIDE_ENGINE=python" in array.plan().why
        assert pickle.loads(pickle.dumps(array)).plan().engine == "python"
    with pytest.raises(ValueError, match="engine: expected one of auto, native, python, got 'fast'"):
        lowtide.open(path, dtype="uint16", engine="fast")
    monkeypatch.setenv("LOWTIDE_ENGINE", "fast")
    with pytest.raises(ValueError, match="LOWTIDE_ENGINE: expected one of auto, native, python, got 'fast'"):
        lowtide.open(path, dtype="uint16")


def test_a_native_engine_that_is_not_there_is_refused_with_the_reason(tmp_path: Path) -> None:
    """In a process that cannot load the extension."""
    script = """
    import sys
    path = sys.argv[1]
    try:
        lowtide.open(path, dtype="uint16", engine="native")
    except ValueError as problem:
        print(problem)
    print(lowtide.open(path, dtype="uint16").plan().engine)
    """
    path = raw_file(tmp_path, numbered(1000))
    said = answer_of(script, path, first="import sys; sys.modules['lowtide.engine._core'] = None")
    assert "expected the native engine (engine='native' was asked for), got none" in said
    assert said.endswith("python")


# Batches prepared in advance


@pytest.fixture
def cold(disk_path: Path) -> Path:
    """8 MiB of tokens on a disk, out of the page cache."""
    path = raw_file(disk_path, numbered(4 << 20))
    with path.open("rb") as file:
        os.fsync(file.fileno())
    drop_page_cache(path)
    if page_cache(path).cached:
        pytest.skip("NOT TESTED: batches prepared in advance, the page cache of this filesystem cannot be dropped")
    return path


def expected_of(step: int, length: int = 64) -> Any:
    ids = numbered(4 << 20)
    return rows_of(ids, starts_of(range(step * 16, step * 16 + 16), len(ids), length, seed=9), length)


@needs_native
@pytest.mark.parametrize("cache", ["keep", "drop"])
def test_prepared_batches_are_the_right_ones_also_after_seeking(cold: Path, cache: str) -> None:
    with lowtide.open_tokens(cold, dtype="uint16", cache=cache, engine="native") as tokens:
        drop_page_cache(cold)  # opening looked at the first bytes
        feed = tokens.batches(16, length=64, seed=9)
        for step in range(6):
            same(next(feed), expected_of(step))
        assert feed._ahead._started, "reads missed, so the next batches are under way"
        for step in (100, 101, 3, 4, 50):
            feed.seek(step)
            same(next(feed), expected_of(step))
        same(feed[77], expected_of(77))
        same(next(feed), expected_of(51))
        if cache == "drop":
            tokens.close()
            assert page_cache(cold).cached == 0


@needs_native
@pytest.mark.parametrize("cache", ["keep", "drop"])
@pytest.mark.parametrize("cut", ["stride", "packed"])
@pytest.mark.parametrize("documents", [False, True])
def test_packed_rows_and_documents_are_prepared_in_advance_like_plain_windows(
    cold: Path, cache: str, cut: str, documents: bool
) -> None:
    def windows(engine: str) -> Any:
        tokens = lowtide.open_tokens(cold, dtype="uint16", eot=700, cache=cache, engine=engine)
        return tokens.windows(64, cut=cut, documents=documents)

    expected = list(itertools.islice(windows("python").batches(16, seed=9), 6))
    feed = windows("native").batches(16, seed=9)
    drop_page_cache(cold)  # the index was built from all of it
    for batch in expected:
        for one, other in zip(next(feed), batch, strict=True):
            for a, b in zip(one, other, strict=True) if isinstance(one, tuple) else ((one, other),):
                np.testing.assert_array_equal(a, b)
    started = list(feed._ahead._started.values())
    assert started, "reads missed, so the next batches are under way"
    assert not any(isinstance(one, Later) for one in started), "threads fill them, the kernel was not only told"


@needs_native
@pytest.mark.parametrize("cache", ["keep", "drop"])
@pytest.mark.parametrize("dtype", ["uint16", "datetime64[s]"])
def test_prepared_rows_are_the_right_ones_over_epochs_and_after_moving(cold: Path, cache: str, dtype: str) -> None:
    with lowtide.open(cold, dtype=dtype, shape=(-1, 64), cache=cache, engine="native") as array:
        table = np.fromfile(cold, dtype).reshape(-1, 64)
        drop_page_cache(cold)  # opening looked at the first bytes
        order = [int(row) for epoch in range(2) for row in order_of(array, epoch)]
        batch, total = 16, len(table)
        rows = array.shuffled(batch, seed=5, epochs=2)
        for step in range(6):
            np.testing.assert_array_equal(next(rows), table[order[step * batch : (step + 1) * batch]])
        assert rows._ahead._started, "reads missed, so the next batches are under way"
        for position in (100 * batch, 101 * batch, 3 * batch, total - batch, total, total + batch):
            rows.position = position
            np.testing.assert_array_equal(next(rows), table[order[position : position + batch]])
        rows.position = 2 * total - batch - 3
        assert [len(one) for one in rows] == [batch, 3]
        if cache == "drop":
            array.close()
            assert page_cache(cold).cached == 0


@needs_native
def test_prepared_rows_of_a_part_and_of_arrays_read_together_are_the_right_ones(cold: Path) -> None:
    with lowtide.open(cold, dtype="uint16", shape=(-1, 64), cache="drop", engine="native") as array:
        part, _ = array.split(val=0.25, seed=3)
        rows = part.shuffled(16, seed=5)
        wanted = next(iter(part.shuffled(len(part), seed=5)))
        drop_page_cache(cold)
        for step in range(8):
            np.testing.assert_array_equal(next(rows), wanted[step * 16 : (step + 1) * 16])
        assert rows._ahead._started
        table, order = np.fromfile(cold, "uint16").reshape(-1, 64), order_of(array, 0)
        drop_page_cache(cold)
        both = lowtide.together(array, array.subset(slice(None))).shuffled(16, seed=5)
        for step in range(8):
            for member in next(both):
                np.testing.assert_array_equal(member, table[order[step * 16 : (step + 1) * 16]])


@pytest.mark.parametrize("engine", ["native", "python"])
@pytest.mark.parametrize("batch", [16, 5000])  # a part of a window, and more than two of them
def test_a_local_shuffle_of_rows_is_announced_in_whole_blocks_and_dropped_behind(
    cold: Path, engine: str, batch: int
) -> None:
    if engine == "native" and chosen().name != "native":
        pytest.skip("NOT TESTED: the native engine - it was not built")
    window, block = 1 << 18, 1 << 14
    budget = "16MiB"  # too little for sweeps past the page cache
    with lowtide.open(cold, dtype="uint16", shape=(-1, 64), cache="drop", engine=engine, budget=budget) as array:
        drop_page_cache(cold)
        next(array.shuffled(16, seed=2))  # the control: a full shuffle brings in what it reads
        assert page_cache(cold).cached < window
        drop_page_cache(cold)
        rows = array.shuffled(batch, seed=2, locality=(window, block))
        first = next(rows).copy()
        assert page_cache(cold).cached >= window
        seen = np.concatenate([first, *(one.copy() for one in rows)])
        assert page_cache(cold).cached == 0
    table = np.fromfile(cold, "uint16").reshape(-1, 64)
    assert sorted(map(bytes, seen)) == sorted(map(bytes, table))


def test_arrays_together_are_announced_in_whole_blocks_and_dropped_behind(cold: Path) -> None:
    table = np.fromfile(cold, "uint16").reshape(-1, 64)  # before the cache is dropped: this fills it
    with lowtide.open(cold, dtype="uint16", shape=(-1, 64), cache="drop") as array:
        both = lowtide.together(array, np.arange(len(array)), budget="512KiB")  # too little to keep the first
        drop_page_cache(cold)
        rows = both.shuffled(16, seed=2, locality=(1 << 18, 1 << 14))
        first, number = next(rows)
        np.testing.assert_array_equal(first, table[number])
        assert page_cache(cold).cached >= 200 << 10
        assert "behind each window" in rows.plan().rung
        assert "local shuffle: a window mixes" in str(rows.plan())
        seen = [number.copy(), *(numbers.copy() for _, numbers in rows)]
        assert sorted(np.concatenate(seen).tolist()) == list(range(len(array)))
        assert page_cache(cold).cached == 0


def order_of(array: lowtide.Array, epoch: int) -> Any:
    numbers = np.arange(len(array))
    return next(iter(lowtide.together(numbers).shuffled(len(array), seed=5, epoch=epoch)))[0]


@needs_native
def test_what_is_dropped_under_way_gives_its_buffer_back_only_when_nobody_writes_into_it(cold: Path) -> None:
    with lowtide.open_tokens(cold, dtype="uint16", cache="drop", engine="native") as tokens:
        feed = tokens.batches(16, length=64, seed=9)
        for _ in range(3):
            next(feed)
        out = tokens.store.pool.lent
        assert feed._ahead._started
        assert out == len(feed._ahead._started)
        feed._ahead.shrink()
        assert tokens.store.pool.lent == 0
        for step in range(3, 9):
            same(next(feed), expected_of(step))


@needs_native
def test_a_budget_of_two_batches_is_enough_and_what_was_prepared_gives_way(cold: Path) -> None:
    batch = 2 * 16 * 64 * 8
    scratch = -(-16 * 65 * 2 // 4096) * 4096
    for budget in (2 * batch + scratch, 3 * batch + scratch, 5 * batch + scratch):
        drop_page_cache(cold)
        with lowtide.open_tokens(cold, dtype="uint16", cache="drop", engine="native", budget=budget) as tokens:
            feed = tokens.batches(16, length=64, seed=9)
            held: Any = None
            for step in range(12):
                held = next(feed)
                same(held, expected_of(step))
                assert tokens.store.budget.held <= budget
            if budget > 5 * batch:
                other = tokens.batches(16, length=64, seed=9)
                more = [next(other), next(other), next(other)]  # the room of what feed had prepared
                same(more[2], expected_of(2))
            same(held, expected_of(11))


@needs_native
def test_prepared_batches_survive_fork_pickle_and_threads(cold: Path) -> None:
    with lowtide.open_tokens(cold, dtype="uint16", cache="drop", engine="native") as tokens:
        feed = tokens.batches(16, length=64, seed=9)
        for _ in range(3):
            next(feed)
        again = pickle.loads(pickle.dumps(feed))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                same(next(feed), expected_of(3))
                same(next(feed), expected_of(4))
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        same(next(feed), expected_of(3))
        same(next(again), expected_of(3))
        found: dict[int, Any] = {}

        def work() -> None:
            for _ in range(10):
                x, y = next(feed)
                found[int(x[0, 0]) << 20 | int(y[-1, -1])] = (x.copy(), y.copy())

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for step in range(4, 44):
            x, y = expected_of(step)
            same(found[int(x[0, 0]) << 20 | int(y[-1, -1])], (x, y))


@needs_native
def test_a_file_truncated_while_a_batch_is_prepared_is_an_error_at_that_batch(cold: Path) -> None:
    with lowtide.open_tokens(cold, dtype="uint16", cache="drop", engine="native") as tokens:
        feed = tokens.batches(16, length=64, seed=9)
        for _ in range(4):
            next(feed)
        os.truncate(cold, 4096)
        with pytest.raises(lowtide.ReadError, match="truncated"):
            for _ in range(4):  # those that were ready when it happened are whole
                next(feed)


@needs_native
def test_a_process_ends_well_with_batches_under_way_also_in_a_daemon_thread(cold: Path) -> None:
    script = """
    import threading
    tokens = lowtide.open_tokens(sys.argv[1], dtype="uint16", cache="drop", engine="native")
    def read():
        feed = tokens.batches(16, length=64, seed=1)
        while True:
            next(feed)
    threading.Thread(target=read, daemon=True).start()
    feed = tokens.batches(16, length=64, seed=2)
    for _ in range(20):
        next(feed)
    print(json.dumps(len(feed._ahead._started) >= 0))
    """
    assert json.loads(answer_of(script, cold)) is True
