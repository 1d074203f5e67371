"""A signal handler that saves the state while a batch is being read: what Slurm and Kubernetes users write. It never
waits for the batch, and what it saved goes on exactly where the caller was."""

from __future__ import annotations

import gc
import json
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.storage.processes import answer_of

import lowtide
from lowtide.storage import forks

SAVING = """
    path, kind, engine = sys.argv[1:4]
    def opened():
        if kind in ("feed", "mixture", "tensors"):
            tokens = lowtide.open_tokens(path, dtype="uint16", engine=engine, cache="drop", budget="16MiB")
            if kind == "feed":
                return tokens.batches(64, length=255, seed=3)
            if kind == "tensors":
                from lowtide.torch import tensors
                return tensors(tokens.batches(64, length=255, seed=3))
            train, val = tokens.split(val=0.4)
            return lowtide.mix({"a": (train, 0.5), "b": (val, 0.5)}).batches(64, length=255, seed=3)
        array = lowtide.open(path, dtype="uint16", shape=(-1, 256), engine=engine, cache="drop", budget="16MiB")
        if kind == "together":
            array = lowtide.together(array, array, budget="32MiB")
        return array.shuffled(64, seed=3, epochs=None)

    def first(batch):
        return batch if isinstance(batch, np.ndarray) else batch[0]

    batches, saved = opened(), []
    def save(*_):
        saved.append((batches.position, batches.state_dict()))
        repr(batches)
    signal.signal(signal.SIGALRM, save)
    seen, chance = {}, np.random.default_rng(1)
    while len(saved) < 100 or len(seen) < 100:
        at = batches.position
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 2e-3))  # once: a handler must not interrupt itself
        seen[at] = int(first(next(batches)).sum())
        drop_page_cache(path)
    signal.setitimer(signal.ITIMER_REAL, 0)
    again, wrong = opened(), 0
    for position, state in saved[::10]:
        assert position == state.get("rows", state.get("position"))
        again.load_state_dict(json.loads(json.dumps(state)))
        assert again.position == position
        if position in seen:
            wrong += int(first(next(again)).sum()) != seen[position]
    print(json.dumps([len(saved), len(seen), wrong]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["native", "python"])
@pytest.mark.parametrize("kind", ["feed", "rows", "mixture", "together", "tensors"])
def test_a_state_saved_in_a_handler_while_a_batch_is_read_is_the_callers(
    disk_path: Path, kind: str, engine: str
) -> None:
    path = disk_path / "numbers.u16"
    np.random.default_rng(5).integers(0, 50_000, 1 << 20).astype(np.uint16).tofile(path)
    if kind == "tensors":
        pytest.importorskip("torch", reason="NOT TESTED: tensors - torch is not installed")
    if engine == "native":
        pytest.importorskip("lowtide.engine._core", reason="NOT TESTED: the native engine - it was not built")
    saved, seen, wrong = json.loads(answer_of(SAVING, path, kind, engine))
    assert saved >= 100
    assert seen >= 100
    assert wrong == 0


def opened(kind: str, path: Path) -> Any:
    """Batches of one of the kinds there are, and what closes them."""
    if kind in ("feed", "mixture", "packed", "tensors"):
        tokens = lowtide.open_tokens(path, dtype="uint16", eot=0, cache="keep", budget="64MiB")
        if kind == "mixture":
            train, val = tokens.split(val=0.4)
            mixture = lowtide.mix({"a": (train, 0.5), "b": (val, 0.5)})
            return mixture.batches(8, length=63, seed=3), mixture
        if kind == "packed":
            return tokens.windows(64, cut="packed", documents=True).batches(8, seed=3), tokens
        feed = tokens.batches(8, length=63, seed=3)
        if kind == "feed":
            return feed, tokens
        torch = pytest.importorskip("lowtide.torch", reason="NOT TESTED: tensors - torch is not installed")
        return torch.tensors(feed), tokens
    array = lowtide.open(path, dtype="uint16", shape=(-1, 64), cache="keep", budget="64MiB")
    if kind == "together":
        both = lowtide.together(array, np.arange(len(array)), array, budget="64MiB")
        return both.shuffled(8, seed=3), both
    return array.chunks(8) if kind == "chunks" else array.shuffled(8, seed=3), array


KINDS = ["feed", "packed", "mixture", "shuffled", "chunks", "together", "tensors"]


def first_of(batch: Any) -> NDArray[Any]:
    first = batch if isinstance(batch, np.ndarray) else batch[0]
    return np.array(first if isinstance(first, np.ndarray) else first.numpy())


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("handlers") / "numbers.u16"
    np.random.default_rng(5).integers(0, 500, 1 << 16).astype(np.uint16).tofile(path)
    return path


@contextmanager
def every_lock_held() -> Iterator[int]:
    """Another thread holds every lock of ours, as one in the middle of a batch holds some of them."""
    turns = [turn for one in list(forks._registered) if isinstance(turn := one(), forks.Turn)]
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        for turn in turns:
            turn.lock.acquire()
        held.set()
        over.wait(60)
        for turn in turns:
            turn.lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    try:
        yield len(turns)
    finally:
        over.set()
        thread.join()


def answers(ask: Callable[[], Any], seconds: float) -> bool:
    """Whether ``ask`` comes back; it is asked in a thread of its own, which is left waiting where it does not."""
    done = threading.Event()

    def run() -> None:
        ask()
        done.set()

    threading.Thread(target=run, daemon=True).start()
    return done.wait(seconds)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_but_next_waits_for_a_lock(numbers: Path, kind: str) -> None:
    batches, _ = opened(kind, numbers)
    next(batches)
    state = batches.state_dict()
    feed = getattr(batches, "feed", batches)
    asked: dict[str, Callable[[], Any]] = {
        "position": lambda: batches.position,
        "state_dict": batches.state_dict,
        "load_state_dict": lambda: batches.load_state_dict(state),
        "repr": lambda: repr(batches),
        "fingerprint": feed.fingerprint,
    }
    if hasattr(feed, "stats"):
        asked |= {"stats": feed.stats, "seek": lambda: batches.seek(3), "where": lambda: feed.where(2)}
    if kind in ("shuffled", "chunks", "together"):
        asked["len"] = lambda: len(batches)
    with every_lock_held() as locks:
        assert locks > 0
        waited = [name for name, ask in asked.items() if not answers(ask, 60)]
        assert not answers(lambda: next(batches), 0.2), "the negative control: next() needs the lock"
    assert waited == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_may_seek_while_a_batch_is_read_also_to_where_it_is(numbers: Path, kind: str) -> None:
    batches, _ = opened(kind, numbers)
    again, _ = opened(kind, numbers)
    wanted = [first_of(next(again)) for _ in range(3)]
    states = []
    for _ in range(3):
        states.append(batches.state_dict())
        next(batches)
    for target in range(3):
        batches.load_state_dict(states[1])
        struck = False

        def handler(*_: Any) -> None:
            nonlocal struck
            if not struck:
                struck = True
                batches.load_state_dict(states[target])  # noqa: B023 - it strikes in this turn

        # The profiler is asked in the middle of `next`, as a handler is; the batch under way is the second one.
        sys.setprofile(lambda frame, event, _: handler() if frame.f_code.co_name in ("try_take", "_finish") else None)
        try:
            found = first_of(next(batches))
        finally:
            sys.setprofile(None)
        assert struck
        assert np.array_equal(found, wanted[1]), "what was under way is given first"
        assert np.array_equal(first_of(next(batches)), wanted[target])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("who", ["handler", "thread"])
def test_closing_while_a_batch_is_read_ends_at_the_next_one(numbers: Path, kind: str, who: str) -> None:
    batches, owner = opened(kind, numbers)
    wanted = first_of(next(opened(kind, numbers)[0]))
    closed = False

    def close() -> None:
        nonlocal closed
        if not closed:
            closed = True
            if who == "handler":
                owner.close()
            else:
                thread = threading.Thread(target=owner.close)
                thread.start()
                thread.join(60)

    sys.setprofile(lambda frame, event, _: close() if frame.f_code.co_name == "start" and event == "return" else None)
    try:
        found = first_of(next(batches))
        assert np.array_equal(found, wanted)
    except ValueError as problem:
        assert "expected an open store, got a closed one" in str(problem)
    finally:
        sys.setprofile(None)
    assert closed
    with pytest.raises(ValueError, match=r"expected an open store, got a closed one\. Open it again\."):
        next(batches)
    assert batches.position >= 0
    assert batches.state_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_the_fingerprint_is_read_with_the_first_batch_and_not_when_opened(numbers: Path, kind: str) -> None:
    def read_so_far() -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(lines[0].removeprefix("rchar: "))

    opened(kind, numbers)  # imports, and the index of packed rows
    empty = -(read_so_far() - read_so_far())
    before = read_so_far()
    batches, _ = opened(kind, numbers)
    # A packing is found by the fingerprint of its corpus: windows(cut="packed") reads it, before there is a feed.
    assert kind == "packed" or read_so_far() - before - empty < 16 * 4096, "less than the blocks of a fingerprint"
    next(batches)
    before = read_so_far()
    batches.state_dict()
    assert read_so_far() - before - empty < 4096, "the state reads nothing: the fingerprint came with the batch"


@pytest.mark.parametrize("kind", KINDS)
def test_finalisers_and_weak_references_may_ask_for_the_state_at_any_moment(numbers: Path, kind: str) -> None:
    batches, _ = opened(kind, numbers)
    wanted = [first_of(next(batches)) for _ in range(40)]
    batches, _ = opened(kind, numbers)
    states: list[Any] = []

    class Noticed:
        def __init__(self) -> None:
            self.me = self  # a cycle: only the garbage collector ends it, wherever that happens to run

        def __del__(self) -> None:
            states.append(batches.state_dict())

    references = []
    before = gc.get_threshold()
    gc.set_threshold(5, 2, 2)
    try:
        for step in range(40):
            one = Noticed()
            references.append(weakref.ref(one, lambda _: states.append(batches.state_dict())))
            del one
            assert np.array_equal(first_of(next(batches)), wanted[step])
    finally:
        gc.set_threshold(*before)
    assert len(states) > 10
    again, _ = opened(kind, numbers)
    for state in states[::7]:
        again.load_state_dict(json.loads(json.dumps(state)))
        batch = first_of(next(again))
        assert any(np.array_equal(batch, one) for one in wanted) or again.position > batches.position


@pytest.mark.parametrize("engine", ["native", "python"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_that_asks_for_a_batch_while_one_is_read_gets_another_one_wherever_it_strikes(
    numbers: Path, kind: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "native":
        pytest.importorskip("lowtide.engine._core", reason="NOT TESTED: the native engine - it was not built")
    monkeypatch.setenv("LOWTIDE_ENGINE", engine)
    batches, _ = opened(kind, numbers)
    wanted = [first_of(next(batches)) for _ in range(12)]
    batches, _ = opened(kind, numbers)
    start = batches.state_dict()
    strike, orders = 0, set[str]()
    while True:
        batches.load_state_dict(start)
        within: list[NDArray[Any]] = []
        left = strike

        def handler(*_: Any) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                sys.setprofile(None)  # a handler does not interrupt itself here
                within.append(first_of(next(batches)))  # noqa: B023 - it strikes in this turn

        sys.setprofile(handler)
        try:
            found = [first_of(next(batches))]
        finally:
            sys.setprofile(None)
        if not within:
            break  # there are no more places to strike at
        both = within + found
        inner_first = all(map(np.array_equal, both, wanted))
        assert inner_first or all(map(np.array_equal, reversed(both), wanted)), strike
        orders.add("inner first" if inner_first else "outer first")
        assert np.array_equal(first_of(next(batches)), wanted[2]), strike
        strike += 1
    assert strike > 20
    assert "inner first" in orders
