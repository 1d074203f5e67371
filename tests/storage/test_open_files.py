"""Descriptors: one owner from the system call on, shared by stores, opened again when others close them; regular files
only; and changes that only the time of the last change tells."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide.engine import engine as chosen
from lowtide.machine import open_regular
from lowtide.storage.watched_files import KEPT

ENGINES = ("native", "python") if chosen().name == "native" else ("python",)
NOBODY = 65534


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def rows_at(path: Path, rows: int = 4000) -> Path:
    np.save(path, np.arange(rows * 8, dtype=np.float32).reshape(rows, 8))
    return path


def shards(directory: Path, count: int, tokens: int = 20_000) -> list[Path]:
    directory.mkdir(exist_ok=True)
    for number in range(count):
        np.full(tokens, number, np.uint16).tofile(directory / f"{number:03}.bin")
    return sorted(directory.glob("*.bin"))


def open_on(directory: Path) -> list[str]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(link.readlink()))
    return sorted(name for name in found if name.startswith(str(directory)))


def in_child(work: Callable[[], object]) -> None:
    """In a forked child, which may ruin its descriptors or its rights; what it says is told."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        said = b""
        try:
            work()
        except BaseException as problem:
            said = f"{type(problem).__name__}: {problem}".encode()
        with contextlib.suppress(OSError):
            os.write(send, said)
        os._exit(1 if said else 0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        answer = pipe.read().decode()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, answer


# Regular files only


def test_a_file_that_became_a_fifo_is_a_read_error_and_no_wait(tmp_path: Path, engine: str) -> None:
    path = rows_at(tmp_path / "x.npy")
    array = lowtide.open(path, engine=engine)
    path.unlink()
    os.mkfifo(path)
    said: list[str] = []

    def read() -> None:
        try:
            next(iter(array.shuffled(64, seed=0)))
        except lowtide.ReadError as problem:
            said.append(str(problem))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(60)
    assert said == [f"{path}: expected a regular file, got a pipe. Name a file that holds the data."]


# One owner


class InterruptError(Exception):
    pass


@pytest.fixture
def interrupts() -> Iterator[Callable[[float], None]]:
    """Call it with seconds: a signal handler raises then."""

    def handler(*_: object) -> None:
        raise InterruptError

    callbacks, gc.callbacks[:] = gc.callbacks[:], []  # an exception that is raised in one of Hypothesis's goes nowhere
    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.callbacks[:] = callbacks


def test_interrupted_batches_over_many_files_leave_no_descriptor_open(
    tmp_path: Path, engine: str, interrupts: Callable[[float], None]
) -> None:
    paths, interrupted = shards(tmp_path / "many", 60, tokens=400), 0
    tokens = lowtide.open_tokens(paths, dtype="uint16", engine=engine, budget="8MiB")
    for turn in range(1200):
        feed = tokens.batches(8, length=20, seed=turn)
        try:
            interrupts(0.00005 + turn % 40 * 0.00002)
            next(feed)
            interrupts(0)
        except InterruptError:
            interrupted += 1
        if turn % 3 == 0:
            tokens.store.files.renew_after_fork()  # let go of all, so that the next batch opens again
        del feed
    interrupts(0)
    assert interrupted > 50
    tokens.close()
    del tokens
    gc.collect()
    assert open_on(tmp_path) == []


def test_an_interrupt_while_threads_start_is_itself_and_no_key_error(
    tmp_path: Path, interrupts: Callable[[float], None]
) -> None:
    array, interrupted = lowtide.open(rows_at(tmp_path / "x.npy", 40_000)), 0
    for turn in range(400):
        try:
            interrupts(0.0001 + turn % 50 * 0.00004)
            array.stats()
            interrupts(0)
        except InterruptError:
            interrupted += 1
    interrupts(0)
    assert interrupted > 20


def test_nothing_is_said_at_the_end_of_the_interpreter(tmp_path: Path) -> None:
    path = rows_at(tmp_path / "x.npy")
    script = (
        "import builtins, sys, lowtide\n"
        f"X = lowtide.open({str(path)!r}, cache='drop'); it = X.shuffled(64, seed=0); next(it)\n"
        "class Late:\n"
        "    def __init__(self, thing): self.thing = thing; self.me = self\n"
        "builtins.late = Late((X, it, X._store.files._open)); sys.modules['late'] = builtins.late\n"
    )
    found = subprocess.run([sys.executable, "-X", "dev", "-c", script], capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stderr) == (0, "")


def test_files_that_parts_of_a_mixture_share_are_opened_once(tmp_path: Path, engine: str) -> None:
    paths = shards(tmp_path / "mixed", 4)
    corpora = {path.stem: lowtide.open_tokens(path, dtype="uint16", engine=engine) for path in paths}
    mixture = lowtide.mix({name: (tokens, 1) for name, tokens in corpora.items()})
    feed, other = (mixture.batches(8, length=64, seed=seed) for seed in (1, 2))
    for one in (feed, other, *(tokens.batches(4, length=64, seed=1) for tokens in corpora.values())):
        next(one)
    feed.state_dict()
    assert open_on(tmp_path) == [str(path) for path in paths]


# Descriptors that others close, or that are not to be had


@pytest.mark.parametrize("cache", ["keep", "drop"])
def test_what_a_daemon_library_closed_is_opened_again(tmp_path: Path, engine: str, cache: str) -> None:
    path, many = rows_at(tmp_path / "x.npy"), shards(tmp_path / "many", 5)
    array = lowtide.open(path, engine=engine, cache=cache)
    tokens = lowtide.open_tokens(many, dtype="uint16", engine=engine, cache=cache)

    def closes() -> None:
        rows, feed = array.shuffled(64, seed=0, epochs=None), tokens.batches(16, length=64, seed=0)
        next(rows), next(feed)
        for reused in (False, True):
            os.closerange(3, 400)
            held = [os.open("/dev/null", os.O_RDONLY) for _ in range(60)] if reused else []
            assert np.array_equal(next(rows), np.asarray(array[:])[array_numbers(rows, array)])
            x, _ = next(feed)
            assert (x == x[:, :1]).all()
            for number in held:
                os.fstat(number)  # nobody closed what took the place of ours

    def array_numbers(rows: Any, array: Any) -> Any:
        stream = rows._stream if hasattr(rows, "_stream") else rows._batches.stream
        return stream.at(np.arange(rows.position - 64, rows.position))

    in_child(closes)


def test_without_descriptors_for_a_ring_the_next_way_is_taken(tmp_path: Path, engine: str) -> None:
    path = rows_at(tmp_path / "x.npy", 200_000)

    def reads() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        array = lowtide.open(path, engine=engine, cache="drop")
        rows = array.shuffled(64, seed=0)
        held = []
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(2):  # one for each of the two ways the file is opened
            os.close(held.pop())
        for _ in range(3):
            assert len(next(rows)) == 64

    in_child(reads)


def test_without_threads_it_reads_without_one_and_says_so(tmp_path: Path, engine: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: a system without a thread to be had - only root can become a user with a limit")
    path = rows_at(tmp_path / "x.npy", 200_000)
    for place in (path, *path.parents):
        if str(place) != "/":
            place.chmod(place.stat().st_mode | (0o044 if place == path else 0o055))
    tokens = shards(tmp_path / "many", 2, tokens=400_000)

    def reads() -> None:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        with pytest.raises(RuntimeError, match="can't start new thread"):
            threading.Thread(target=print).start()
        for cache in ("keep", "drop"):
            array = lowtide.open(path, engine=engine, cache=cache)
            array._store.temperature.cold = True  # as after reads that missed: then a thread would read ahead
            rows = array.shuffled(64, seed=0)
            for _ in range(4):
                assert len(next(rows)) == 64
                array._store.temperature.cold = True
            feed = lowtide.open_tokens(tokens, dtype="uint16", engine=engine, cache=cache).batches(8, length=64, seed=1)
            for _ in range(4):
                next(feed)
            assert array.stats().count[0] == 200_000
            if engine == "native":
                assert any("no thread" in why for why in array.plan().why), array.plan().why

    in_child(reads)


# What only the time of the last change tells


def test_a_file_rewritten_in_place_with_its_times_put_back_is_a_read_error(tmp_path: Path, engine: str) -> None:
    path = rows_at(tmp_path / "x.npy")
    array = lowtide.open(path, engine=engine)
    rows = array.shuffled(64, seed=0)
    next(rows)
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(200)
        file.write(bytes(3000))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    with pytest.raises(lowtide.ReadError, match=r"rewritten in place .its modification time was put back"):
        next(rows)


def test_rights_names_and_places_may_change_under_a_reader(tmp_path: Path, engine: str) -> None:
    path = rows_at(tmp_path / "x.npy")
    array = lowtide.open(path, engine=engine)
    rows = array.shuffled(64, seed=0)
    next(rows)
    for change in (
        lambda: path.chmod(0o640),
        lambda: os.link(path, tmp_path / "second"),
        lambda: (tmp_path / "second").unlink(),
        lambda: path.rename(tmp_path / "moved.npy"),
    ):
        change()
        assert len(next(rows)) == 64


def test_a_descriptor_that_closes_itself_is_shared_with_nobody(tmp_path: Path) -> None:
    """Its weak reference answers until it is closed, and by then its number may be that of another file."""
    path = tmp_path / "x.bin"
    path.write_bytes(b"1")
    key, closing = (str(path), False, 0), open_regular(path)
    KEPT.share(key, closing)
    assert KEPT.shared(key) is closing
    closing.close()
    assert KEPT.shared(key) is None
