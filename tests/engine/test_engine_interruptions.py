"""Signals, forks, threads, exits and 10^5 calls: nothing half-delivered, nobody writes later, nothing grows."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.asked import (
    PYTHON,
    aligned,
    blank_pair,
    expected,
    forget,
    int64,
    native,
    noise,
    opened,
    random_runs,
    require,
)

import lowtide
from lowtide.engine import DROP, KEEP, WAYS, Pair, Runs

SIZE = 8 << 20


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("native") / "noise.dat"
    noise(path, SIZE)
    return path


@pytest.fixture(scope="module")
def content(file: Path) -> bytes:
    return file.read_bytes()


@pytest.fixture(scope="module")
def fds(file: Path) -> Iterator[tuple[int, int]]:
    with opened(file) as fd, opened(file, direct=True) as direct:
        yield fd, direct


def is_queue(way: str) -> bool:
    return way in ("aio", "uring")


class Storm:
    """A signal every half millisecond; every ``raising``-th one raises in Python."""

    def __init__(self, raising: int) -> None:
        self.raising, self.seen = raising, 0

    def __enter__(self) -> Storm:
        signal.signal(signal.SIGALRM, self.handle)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def handle(self, *_: object) -> None:
        self.seen += 1
        if self.raising and self.seen % self.raising == 0:
            raise InterruptedError("storm")


@pytest.mark.parametrize("way", WAYS)
def test_a_storm_of_signals_changes_no_byte(way: str, content: bytes, fds: tuple[int, int]) -> None:
    require(way)
    queue = native().queue(way, depth=32)
    with Storm(raising=0) as storm:
        for turn in range(25):
            runs = random_runs(fds[0], SIZE, 128, 5000, seed=turn, direct=fds[1] if is_queue(way) else None)
            if not is_queue(way):
                forget(fds[0])
            into = np.zeros(128 * 5000, np.uint8)
            assert isinstance(queue.fill(runs, into, DROP), int)
            assert into.tobytes() == expected(content, runs)
    assert storm.seen > 0


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_after_an_interrupted_call_nobody_writes_into_the_buffer(
    way: str, content: bytes, fds: tuple[int, int]
) -> None:
    require(way)
    queue = native().queue(way, depth=64)
    interrupted = 0
    into = aligned(256 * 8000)
    for turn in range(20):
        runs = random_runs(fds[0], SIZE, 256, 8000, seed=turn, direct=fds[1] if is_queue(way) else None)
        forget(fds[0])
        try:
            with Storm(raising=3):
                for _ in range(20):
                    assert isinstance(queue.fill(runs, into, DROP), int)
        except InterruptedError:
            interrupted += 1
        into[:] = 0xAA
        assert isinstance(queue.fill(Runs(fds[0], int64(0), 1), bytearray(1), KEEP), int)  # the queue is whole
        assert (into == 0xAA).all()
    assert interrupted > 0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), [("python", "announce"), *(("native", way) for way in WAYS)])
def test_a_signal_handler_may_read_through_the_queue_that_it_interrupts(
    name: str, way: str, content: bytes, fds: tuple[int, int]
) -> None:
    """A handler every half millisecond, thousands of times where waits end at a signal; plain reads of the native
    engine ask for signals every 50 ms. One that waited for itself would hang here."""
    if name == "native":
        require(way)
    queue = (native() if name == "native" else PYTHON).queue(way)
    inner = Runs(fds[0], int64(5, 70_000), 202)
    narrow = np.frombuffer(expected(content, inner), np.uint16).reshape(2, 101)
    nested, wrong, inside = 0, 0, False

    def handle(*_: object) -> None:
        nonlocal nested, wrong
        pair = blank_pair(2, 100)
        found = queue.fill(inner, pair, KEEP)
        wrong += not (isinstance(found, int) and np.array_equal(pair.x, narrow[:, :-1]))
        nested += inside

    if is_queue(way) or name == "python":
        runs, rows, length = random_runs(fds[0], SIZE, 512, 4000), 512, 1999
        enough = 300 if way == "aio" else 2000  # most of its reads are over before a signal comes
    else:
        runs, rows, length, enough = random_runs(fds[0], SIZE, 200_000, 22), 200_000, 10, 8
    runs = runs._replace(direct=fds[1] if is_queue(way) else None)
    wide = np.frombuffer(expected(content, runs), np.uint16).reshape(rows, length + 1)
    before = signal.signal(signal.SIGALRM, handle)
    pair = blank_pair(rows, length)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        while nested < enough:
            forget(fds[0])
            inside = True
            assert isinstance(queue.fill(runs, pair, KEEP), int)
            inside = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert wrong == 0
    assert np.array_equal(pair.x, wide[:, :-1]) and np.array_equal(pair.y, wide[:, 1:])


def test_a_handler_that_closes_the_queue_is_obeyed_after_the_call_under_way(fds: tuple[int, int]) -> None:
    engine = native()
    runs = random_runs(fds[0], SIZE, 4096, 8000)
    into, closed = aligned(4096 * 8000), 0
    for turn in range(20):
        queue = engine.queue("announce")
        state = {"inside": False}

        def close(*_: object, queue: Any = queue, state: dict[str, bool] = state) -> None:
            nonlocal closed
            closed += state["inside"]
            queue.close()

        before = signal.signal(signal.SIGALRM, close)
        try:
            forget(fds[0])
            state["inside"] = True
            signal.setitimer(signal.ITIMER_REAL, 0.0003 + turn * 0.0002)
            try:
                assert isinstance(queue.fill(runs, into, KEEP), int)
            except ValueError:  # it came before the call began
                closed -= 1
            state["inside"] = False
            while not closed and signal.getitimer(signal.ITIMER_REAL)[0]:
                pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        queue.close()
        with pytest.raises(ValueError, match="closed"):
            queue.fill(Runs(fds[0], int64(0), 1), bytearray(1), KEEP)
    assert closed > 0


def test_a_handler_that_forks_leaves_the_child_with_an_error_and_a_queue_of_its_own(
    fds: tuple[int, int], content: bytes
) -> None:
    require("uring")
    queue = native().queue("uring")
    runs = random_runs(fds[0], SIZE, 4096, 8000, direct=fds[1])
    into, children = aligned(4096 * 8000), list[int]()
    parent = os.getpid()

    def fork(*_: object) -> None:
        child = os.fork()
        if child:
            children.append(child)
        else:
            signal.alarm(60)

    before = signal.signal(signal.SIGALRM, fork)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        while not children:
            try:
                assert isinstance(queue.fill(runs, into, DROP), int)
            except RuntimeError as problem:
                if os.getpid() == parent:
                    raise
                small = bytearray(100)
                again = queue.fill(Runs(fds[0], int64(0), 100), small, KEEP)
                right = isinstance(again, int) and small == content[:100]  # cached or not
                os._exit(0 if "forked" in str(problem) and right else 1)
            if os.getpid() != parent:
                os._exit(0)  # forked between two calls
    finally:
        signal.signal(signal.SIGALRM, before)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_lane_fills_while_its_owner_computes(way: str, content: bytes, fds: tuple[int, int]) -> None:
    require(way)
    direct = fds[1] if is_queue(way) else None
    ahead = native().lane(way, depth=16)
    for turn in range(20):
        runs = random_runs(fds[0], SIZE, 64, 2050, seed=turn, direct=direct)
        x, y = np.zeros((2, 64, 1024), np.int64)
        ahead.start(runs, Pair(x, y, 1024, "uint16", None), KEEP)
        with pytest.raises(RuntimeError, match="nothing under way"):
            ahead.start(runs, Pair(x, y, 1024, "uint16", None), KEEP)
        assert isinstance(ahead.wait(), int)
        narrow = np.frombuffer(expected(content, runs), np.uint16).reshape(64, 1025)
        assert np.array_equal(x, narrow[:, :-1]) and np.array_equal(y, narrow[:, 1:])
        with pytest.raises(RuntimeError, match="nothing to wait for"):
            ahead.wait()
    ahead.start(Runs(fds[0], int64(SIZE - 5), 10), bytearray(10), KEEP)
    assert ahead.wait() == ("read", 0, 5, 0)
    ahead.close()
    with pytest.raises(ValueError, match="closed"):
        ahead.start(Runs(fds[0], int64(0), 10), bytearray(10), KEEP)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("closed", [False, True])
def test_a_lane_let_go_leaves_the_buffer_alone_and_lets_it_go(way: str, closed: bool, fds: tuple[int, int]) -> None:
    require(way)
    for turn in range(8):
        ahead: Any = native().lane(way, depth=4)
        into = aligned(512 * 8000)
        gone = weakref.ref(into)
        forget(fds[0])
        direct = fds[1] if is_queue(way) else None
        ahead.start(random_runs(fds[0], SIZE, 512, 8000, seed=turn, direct=direct), into, DROP)
        if closed:
            ahead.close()
        else:
            del ahead
        into[:] = 0xAA
        assert (into == 0xAA).all()
        del into
        gc.collect()
        assert gone() is None


def test_a_lane_holds_its_target_until_it_is_over(fds: tuple[int, int]) -> None:
    ahead = native().lane("read")
    into = np.zeros(1000, np.uint8)
    gone = weakref.ref(into)
    ahead.start(Runs(fds[0], int64(0), 1000), into, KEEP)
    del into
    gc.collect()
    assert gone() is not None
    ahead.wait()
    assert gone() is None


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_child_forked_while_a_lane_reads_neither_waits_nor_disturbs(
    way: str, content: bytes, fds: tuple[int, int]
) -> None:
    require(way)
    direct = fds[1] if is_queue(way) else None
    queue, ahead = native().queue(way), native().lane(way)
    for turn in range(10):
        runs = random_runs(fds[0], SIZE, 256, 4000, seed=turn, direct=direct)
        into = np.zeros(256 * 4000, np.uint8)
        ahead.start(runs, into, KEEP)
        child = os.fork()
        if child == 0:
            os._exit(in_child(queue, ahead, runs, expected(content, runs)))
        assert isinstance(ahead.wait(), int)
        assert into.tobytes() == expected(content, runs)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert isinstance(queue.fill(runs, into, KEEP), int)


def in_child(queue: Any, ahead: Any, runs: Runs, wanted: bytes) -> int:
    """0 when the child may not wait for the parent's batch, and reads its own."""
    signal.alarm(60)
    try:
        ahead.wait()
        return 1
    except RuntimeError as problem:
        if "forked from" not in str(problem):
            return 2
    into = bytearray(len(wanted))
    if not isinstance(queue.fill(runs, into, KEEP), int) or into != wanted:
        return 3
    ahead.start(runs, into, KEEP)
    if not isinstance(ahead.wait(), int) or into != wanted:
        return 4
    del queue, ahead
    gc.collect()
    return 0


def test_threads_share_a_queue(content: bytes, fds: tuple[int, int]) -> None:
    require("uring")
    for way in WAYS:
        queue = native().queue(way, depth=8)
        wrong: list[str] = []

        def work(number: int, queue: Any = queue, wrong: list[str] = wrong, way: str = way) -> None:
            for turn in range(30):
                runs = random_runs(
                    fds[0], SIZE, 20, 999, seed=100 * number + turn, direct=fds[1] if is_queue(way) else None
                )
                into = bytearray(20 * 999)
                if not isinstance(queue.fill(runs, into, KEEP), int) or into != expected(content, runs):
                    wrong.append(f"{way} {number} {turn}")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        queue.close()
        assert not wrong


EXIT = """
import os, sys, threading, numpy as np
from lowtide.engine import engine, Runs, Pair
fd = os.open({path!r}, os.O_RDONLY)
direct = os.open({path!r}, os.O_RDONLY | os.O_DIRECT)
offsets = np.random.default_rng(0).integers(0, {size} - 9000, 4096)
queue, ahead = engine("native").queue({way!r}), engine("native").lane({way!r})
into, other = np.zeros(4096 * 2000, np.uint8), np.zeros(4096 * 2000, np.uint8)
runs = Runs(fd, offsets, 2000, None, direct if {queue} else None)
def forever():
    while True:
        queue.fill(runs, into, 1)
threading.Thread(target=forever, daemon=True).start()
ahead.start(runs, other, 1)
if {leaked}:
    import ctypes
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(ahead))  # never ended: the process goes while its thread still reads
import time; time.sleep(0.02)
print("done")
"""


@pytest.mark.parametrize("leaked", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_process_ends_cleanly_while_threads_still_read(way: str, leaked: bool, file: Path) -> None:
    require(way)
    script = EXIT.format(path=str(file), size=SIZE, way=way, queue=is_queue(way), leaked=leaked)
    environment = {**os.environ, "PYTHONPATH": str(Path(lowtide.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.slow
def test_a_hundred_thousand_calls_grow_nothing(fds: tuple[int, int]) -> None:
    """Memory and descriptors. The negative control is a list that keeps 1 KiB per call."""
    engine = native()
    offsets = np.arange(4, dtype=np.int64) * 5000
    runs = Runs(fds[0], offsets, 202)
    pair = blank_pair(4, 100)
    bad = Runs(fds[0], offsets + SIZE, 202)
    numbers, constants = np.arange(64, dtype=np.uint64), np.arange(16, dtype=np.uint64)
    queue, ahead = engine.queue("announce"), engine.lane("read")

    def calls(count: int, kept: list[mmap.mmap] | None = None) -> None:
        for turn in range(count):
            queue.fill(runs, pair, KEEP)
            queue.fill(bad, bytearray(808), KEEP)
            if turn % 4 == 0:
                ahead.start(runs, pair, KEEP)
                ahead.wait()
                engine.permute(numbers, 1000, constants, None, False)
                with contextlib.suppress(ValueError):
                    queue.fill(runs._replace(lengths=-1), pair, KEEP)
            if turn % 500 == 0:
                engine.queue("uring" if not engine.unavailable()["uring"] else "aio", depth=4).fill(
                    runs, bytearray(808), KEEP
                )
            if kept is not None and turn % 1000 == 0:
                # Pages of their own, written: heap that an earlier test freed would swallow small objects.
                kept.append(mmap.mmap(-1, 1 << 20))
                kept[-1].write(b"x" * (1 << 20))

    def growth(kept: list[mmap.mmap] | None) -> int:
        gc.collect()
        before = resident()
        calls(30_000, kept)
        gc.collect()
        return resident() - before

    calls(5_000)
    open_before = open_descriptors()
    assert growth(None) + growth(None) < 4 << 20
    assert open_descriptors() == open_before
    kept: list[mmap.mmap] = []
    assert growth(kept) > 20 << 20
