"""Real faults - closed descriptors, directories, truncated and huge files - are reported alike by both engines."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.asked import PYTHON, int64, native, noise, opened, random_runs, require

from lowtide.engine import KEEP, WAYS, Engine, Pair, Runs

NATIVE_WAYS = list(WAYS)


def every(way: str) -> list[Engine]:
    require(way)
    return [native()] + ([PYTHON] if way in ("read", "announce") else [])


def closed_number(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY)
    os.close(fd)
    return fd


@pytest.mark.parametrize("way", NATIVE_WAYS)
def test_a_closed_descriptor_is_named_by_its_run(way: str, tmp_path: Path) -> None:
    noise(tmp_path / "a", 10_000)
    engines = every(way)
    with opened(tmp_path / "a") as fd:
        gone = 1000  # no process here has so many open
        fds = np.array([fd, fd, gone, fd, gone], np.int32)
        for engine in engines:
            runs = Runs(fds, int64(0, 1, 2, 3, 4), 100)
            assert engine.queue(way).fill(runs, bytearray(500), KEEP) == ("read", 2, 0, errno.EBADF)


@pytest.mark.parametrize("way", NATIVE_WAYS)
def test_a_directory_is_not_read(way: str, tmp_path: Path) -> None:
    for engine in every(way):
        with opened(tmp_path) as fd:
            assert engine.queue(way).fill(Runs(fd, int64(0), 10), bytearray(10), KEEP) == ("read", 0, 0, errno.EISDIR)


@pytest.mark.parametrize("way", NATIVE_WAYS)
def test_a_pipe_is_refused_and_not_waited_for(way: str, tmp_path: Path) -> None:
    content = noise(tmp_path / "a", 1000)
    near, far = os.pipe()
    try:
        with opened(tmp_path / "a") as fd:
            for engine in every(way):
                into = bytearray(30)
                runs = Runs(np.array([fd, near, fd], np.int32), int64(0, 0, 0), 10)
                assert engine.queue(way).fill(runs, into, KEEP) == ("read", 1, 0, errno.ESPIPE)
                assert into[:10] == content[:10]
    finally:
        os.close(near)
        os.close(far)


@pytest.mark.parametrize("way", NATIVE_WAYS)
def test_a_file_truncated_while_open_is_a_short_read(way: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    noise(path, 1 << 18)
    for engine in every(way):
        noise(path, 1 << 18)
        with opened(path) as fd, opened(path, direct=True) as direct:
            queue = engine.queue(way)
            runs = random_runs(fd, 1 << 18, 20, 1000)
            assert isinstance(queue.fill(runs, bytearray(20_000), KEEP), int)
            os.truncate(path, 5000)
            late = Runs(fd, int64(0, 4500, 100_000), 1000, None, direct if way in ("aio", "uring") else None)
            assert queue.fill(late, bytearray(3000), KEEP) == ("read", 1, 500, 0)


@pytest.mark.parametrize("way", NATIVE_WAYS)
def test_offsets_beyond_4_gib_and_beyond_8_exbi_are_64_bit(way: str, tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    far = 5 * 2**30 + 3
    with path.open("wb") as file:
        file.seek(far)
        file.write(b"lowtide!")
        file.flush()
        os.fsync(file.fileno())
    with opened(path) as fd, opened(path, direct=True) as direct:
        for engine in every(way):
            given = direct if way in ("aio", "uring") else None
            for _ in range(2):
                into = bytearray(16)
                runs = Runs(fd, int64(far, 2**32 - 4), 8, None, given)
                assert isinstance(engine.queue(way).fill(runs, into, KEEP), int)
                assert into == b"lowtide!" + bytes(8)
            beyond = Runs(fd, int64(2**62), 8, None, given)
            kind, run, at, number = engine.queue(way).fill(beyond, into, KEEP)  # type: ignore[misc]
            assert (kind, run, at) == ("read", 0, 0) and number in (0, errno.EINVAL, errno.EFBIG)
        with pytest.raises(ValueError, match="offset inside a file"):
            native().queue(way).fill(Runs(fd, int64(2**63 - 1), 8), into, KEEP)


@pytest.mark.parametrize("way", NATIVE_WAYS)
def test_the_earliest_problem_wins_whatever_finishes_first(way: str, tmp_path: Path) -> None:
    tokens = np.arange(20_000, dtype=np.uint16)
    (tmp_path / "a").write_bytes(tokens.tobytes())
    with opened(tmp_path / "a") as fd:
        offsets = np.arange(0, 39_000, 200)  # windows of 100 tokens; ids from 15,000 on are refused
        offsets[90] = 2 * 14_950
        runs = Runs(fd, np.append(offsets, 39_950), 202)
        for engine in every(way):
            rows = len(runs.offsets)
            x, y = np.zeros((2, rows, 100), np.int64)
            found = engine.queue(way, depth=16).fill(runs, Pair(x, y, 100, "uint16", 15_000), KEEP)
            assert found == ("token", 90, 100, 15_000)


def test_direct_reads_that_the_file_system_refuses_are_an_error_and_not_silence(tmp_path: Path) -> None:
    """A descriptor that only pretends to be direct still gives the right bytes."""
    content = noise(tmp_path / "a", 50_000)
    with opened(tmp_path / "a") as fd:
        for way in ("aio", "uring"):
            require(way)
            into = bytearray(10_000)
            assert isinstance(native().queue(way).fill(Runs(fd, int64(333), 10_000, None, fd), into, KEEP), int)
            assert into == content[333:10_333]


def test_without_descriptors_a_ring_is_refused_and_reading_goes_on(tmp_path: Path) -> None:
    """RLIMIT_NOFILE in a process of its own."""
    require("uring")
    script = """
import os, resource, numpy as np
from lowtide.engine import engine, Runs
open("a", "wb").write(bytes(range(100)))
fd = os.open("a", os.O_RDONLY)
native = engine("native")
resource.setrlimit(resource.RLIMIT_NOFILE, (fd + 1, fd + 1))
try:
    native.queue("uring")
except OSError as problem:
    print("refused:", problem.errno, problem)
into = bytearray(3)
assert isinstance(native.queue("announce").fill(Runs(fd, np.array([7]), 3), into, 0), int)
print(bytes(into))
"""
    out = fresh(script, tmp_path)
    assert (
        "refused: 24 [Errno 24] way: expected one that this machine allows, got uring" in out
        and r"b'\x07\x08\t'" in out
    )


def test_without_room_for_a_thread_a_lane_refuses_and_has_nothing_under_way(tmp_path: Path) -> None:
    """The limit on address space leaves none for a stack: pthread_create fails, in a process of its own."""
    native()
    script = """
import os, resource, numpy as np
from lowtide.engine import engine, Runs
open("a", "wb").write(bytes(range(100)))
fd = os.open("a", os.O_RDONLY)
lane, runs, into = engine("native").lane("announce"), Runs(fd, np.array([7]), 3), bytearray(3)
before = resource.getrlimit(resource.RLIMIT_AS)
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), before[1]))
try:
    lane.start(runs, into, 0)
except OSError as problem:
    print("refused:", problem.errno, problem)
resource.setrlimit(resource.RLIMIT_AS, before)
try:
    lane.wait()
except RuntimeError as problem:
    print(problem)
lane.start(runs, into, 0)
print(type(lane.wait()), bytes(into))
"""
    out = fresh(script, tmp_path)
    assert "refused: 11 " in out and "lane: expected room for a thread" in out
    assert "nothing to wait for" in out and r"<class 'int'> b'\x07\x08\t'" in out


def fresh(script: str, where: Path) -> str:
    import subprocess
    import sys

    import lowtide

    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(Path(lowtide.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=where, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
