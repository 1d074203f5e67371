"""When writing goes wrong half-way: crashes, kills, full and failing disks, interrupts, forks. Never half a file."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.storage.processes import answer_of, run_python

import lowtide
from lowtide.create import ArrayWriter

pytestmark = pytest.mark.usefixtures("no_lost_descriptors")

MIB = 1 << 20
REAL = os.pwritev


def left_in(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


@contextlib.contextmanager
def writing_through(fault: Callable[..., int], *, at: int) -> Iterator[None]:
    """Call ``at`` of ``os.pwritev``, counted from 1, is ``fault``'s; nothing of ours is replaced."""
    calls = 0

    def pwritev(number: int, parts: list[Any], offset: int) -> int:
        nonlocal calls
        calls += 1
        return fault(number, parts, offset) if calls == at else REAL(number, parts, offset)

    os.pwritev = pwritev  # type: ignore[assignment]
    try:
        yield
    finally:
        os.pwritev = REAL


def fails_with(code: int) -> Callable[..., int]:
    def fail(number: int, parts: list[Any], offset: int) -> int:
        raise OSError(code, os.strerror(code))

    return fail


def comes_short(number: int, parts: list[Any], offset: int) -> int:
    """Some of the first part only, at least one byte."""
    return REAL(number, [parts[0][: max(1, len(parts[0]) // 3)]], offset)


def interrupted_after(number: int, parts: list[Any], offset: int) -> int:
    """The bytes arrive, and then somebody presses Ctrl-C."""
    REAL(number, parts, offset)
    raise KeyboardInterrupt


def rows_of_77(place: Path) -> ArrayWriter:
    return lowtide.create(place / "z.npy", dtype="float64", shape=(-1, 77), budget="1MiB")


# The disk


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("at", [1, 5])
def test_a_write_the_disk_refuses_is_an_error_with_its_number_and_leaves_nothing(
    tmp_path: Path, code: int, at: int
) -> None:
    rows = np.ones((1000, 256), np.float32)
    with (
        writing_through(fails_with(code), at=at),
        pytest.raises(OSError, match=r"z\.npy: expected to write .*nothing was left behind\.$") as caught,
        lowtide.create(tmp_path / "z.npy", dtype="float32", shape=(-1, 256), budget="1MiB") as out,
    ):
        for _ in range(20):
            out.append(rows)
    assert caught.value.errno == code
    assert os.strerror(code) in str(caught.value)
    assert left_in(tmp_path) == []


def test_after_a_failed_write_the_writer_is_closed(tmp_path: Path) -> None:
    rows = np.ones((1000, 256), np.float32)
    out = lowtide.create(tmp_path / "z.npy", dtype="float32", shape=(-1, 256), budget="1MiB")
    with writing_through(fails_with(errno.EIO), at=1), pytest.raises(OSError, match="Input/output error"):
        out.append(rows)
    assert out.closed
    with pytest.raises(ValueError, match="got a closed one"):
        out.append(rows)
    out.close()
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("at", range(1, 9))
def test_short_writes_are_continued(tmp_path: Path, at: int) -> None:
    rows = np.random.default_rng(0).random((3000, 77))
    with writing_through(comes_short, at=at), rows_of_77(tmp_path) as out:
        for first in range(0, 3000, 250):
            out.append(rows[first : first + 250])
    assert np.array_equal(np.load(tmp_path / "z.npy"), rows)


def test_an_error_in_one_thread_ends_the_others_with_an_error_and_nothing_is_left(tmp_path: Path) -> None:
    outcomes: list[str] = []
    with (
        writing_through(fails_with(errno.ENOSPC), at=20),
        contextlib.suppress(ValueError),  # close() of what is closed
        lowtide.create(tmp_path / "z.npy", dtype="uint8", shape=(800, MIB // 16), budget="1MiB") as out,
    ):

        def put(part: int) -> None:
            try:
                for row in range(part * 100, part * 100 + 100):
                    out[row] = np.full(MIB // 16, part, np.uint8)
                outcomes.append("well")
            except (OSError, ValueError) as problem:
                outcomes.append(type(problem).__name__)

        threads = [threading.Thread(target=put, args=(part,)) for part in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert outcomes.count("WriteError") == 1
    assert len(outcomes) == 8
    assert left_in(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 8 MiB; skips, loudly, where none can be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "lowtide", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("NOT TESTED: a disk that is really full (mounting a small one needs root)")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("rows", [1, 100, 5000])
def test_a_disk_that_is_really_full_says_so_and_keeps_what_it_had(small_disk: Path, rows: int) -> None:
    (small_disk / "old").write_bytes(bytes(MIB))
    with (
        pytest.raises(OSError, match=r"z\.npy: expected to write .*got No space left on device \(.* free on") as caught,
        lowtide.create(small_disk / "z.npy", dtype="float32", shape=(-1, 1024), budget="1MiB") as out,
    ):
        for _ in range(0, 10_000, rows):
            out.append(np.ones((rows, 1024), np.float32))
    assert caught.value.errno == errno.ENOSPC
    assert left_in(small_disk) == ["old"]
    (small_disk / "again").write_bytes(bytes(6 * MIB))  # and the room is free again


def test_a_full_disk_is_found_out_by_out_of_order_rows_too(small_disk: Path) -> None:
    with (
        pytest.raises(OSError, match="No space left on device"),
        lowtide.create(small_disk / "z.npy", dtype="uint8", shape=(64, MIB)) as out,
    ):
        for row in range(63, -1, -1):
            out[row] = np.ones(MIB, np.uint8)
    assert left_in(small_disk) == []


def test_a_file_size_limit_is_an_error_like_a_full_disk(tmp_path: Path) -> None:
    script = """
    import errno, resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * MIB, 3 * MIB))
    try:
        with lowtide.create(sys.argv[1] + "/z.npy", dtype="uint8", shape=(-1, 4096), budget="1MiB") as out:
            for _ in range(2000):
                out.append(np.zeros((1, 4096), np.uint8))
    except OSError as problem:
        assert problem.errno == errno.EFBIG, problem.errno
        print(problem)
    """
    assert "got File too large. Check the disk and write it again; nothing was left behind." in answer_of(
        script, tmp_path
    )
    assert left_in(tmp_path) == []


def test_a_disk_that_cannot_be_written_to_is_refused_at_once(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,ro", "lowtide", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("NOT TESTED: a read-only disk (mounting one needs root)")
    try:
        with pytest.raises(OSError, match="expected to begin a file there, got Read-only file system") as caught:
            lowtide.create(place / "z.npy", dtype="float32")
        assert caught.value.errno == errno.EROFS
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_kernel_without_sync_file_range_writes_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands in for macOS and old sandboxes: there ``fdatasync`` waits for the disk."""
    monkeypatch.setattr(sys, "platform", "other")
    rows = np.random.default_rng(0).random((5000, 77))
    for cache in ("keep", "drop"):
        with lowtide.create(
            tmp_path / "z.npy", dtype="float64", shape=(-1, 77), budget="1MiB", cache=cache, overwrite=True
        ) as out:
            for first in range(0, 5000, 250):
                out.append(rows[first : first + 250])
        assert np.array_equal(np.load(tmp_path / "z.npy"), rows)


# Interrupts


@pytest.mark.parametrize("at", range(1, 12))
def test_an_append_that_was_interrupted_can_be_repeated(tmp_path: Path, at: int) -> None:
    """At any write, also after part of the rows has reached the file: none of them counts, and none comes twice."""
    rows = np.random.default_rng(0).random((3000, 77))
    with writing_through(interrupted_after, at=at), rows_of_77(tmp_path) as out:
        for first in range(0, 3000, 500):
            try:
                out.append(rows[first : first + 500])
            except KeyboardInterrupt:
                assert len(out) == first
                out.append(rows[first : first + 500])
    assert np.array_equal(np.load(tmp_path / "z.npy"), rows)


def test_an_interrupted_append_that_is_not_repeated_leaves_no_trace(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((3000, 77))
    with writing_through(interrupted_after, at=3), rows_of_77(tmp_path) as out:
        out.append(rows[:100])
        with pytest.raises(KeyboardInterrupt):
            out.append(rows[100:])
    assert np.array_equal(np.load(tmp_path / "z.npy"), rows[:100])


def test_ctrl_c_at_any_moment_leaves_the_whole_file_or_none(tmp_path: Path) -> None:
    """Real signals at moments of their own, 150 of them, also while the file is opened, closed or given up."""
    script = """
    def stop(*_):
        raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, stop)
    rows, name = np.ones((500, 1024), np.uint8), sys.argv[1] + "/z.npy"
    lowtide.create  # its modules are loaded before a signal can come
    stopped = 0
    for turn in range(150):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.00005 * 1.05**turn)
            with lowtide.create(name, dtype="uint8", shape=(-1, 1024), budget="1MiB") as out:
                for _ in range(4):
                    out.append(rows)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            stopped += 1
        out = None
        if os.path.exists(name):
            assert np.load(name, mmap_mode="r").shape == (2000, 1024)
            os.unlink(name)
        assert set(os.listdir(sys.argv[1])) <= {".z.npy.unfinished"}
    with lowtide.create(name, dtype="uint8") as out:  # what the last one left is no obstacle
        assert os.listdir(sys.argv[1]) == [".z.npy.unfinished"]
    print(stopped, len(os.listdir("/proc/self/fd")))
    """
    stopped, descriptors = map(int, answer_of(script, tmp_path).split())
    assert stopped > 10, "hardly a run was stopped in the middle, so little was tested"
    assert descriptors <= 5


# Crashes


CRASH = """
    out = lowtide.create(sys.argv[1] + "/z.npy", dtype="uint8", shape=(-1, 4096), budget="1MiB", overwrite=True)
    out.append(np.ones((2000, 4096), np.uint8))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_nothing_under_the_name_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    assert run_python(CRASH, tmp_path).returncode == -signal.SIGKILL
    assert left_in(tmp_path) == [".z.npy.unfinished"]
    with lowtide.create(tmp_path / "z.npy", dtype="int64") as out:
        out.append(np.arange(5))
    assert left_in(tmp_path) == ["z.npy"]
    assert run_python(CRASH, tmp_path).returncode == -signal.SIGKILL
    assert np.array_equal(np.load(tmp_path / "z.npy"), np.arange(5))


def test_what_a_crash_between_link_and_unlink_left_is_never_written_over(tmp_path: Path) -> None:
    """Then both names are one finished file: the next writer must not truncate it."""
    np.save(tmp_path / "z.npy", np.arange(5))
    os.link(tmp_path / "z.npy", tmp_path / ".z.npy.unfinished")
    with lowtide.create(tmp_path / "z.npy", dtype="int64", overwrite=True) as out:
        assert np.array_equal(np.load(tmp_path / "z.npy"), np.arange(5))
        out.append(np.arange(3))
    assert np.array_equal(np.load(tmp_path / "z.npy"), np.arange(3))


def test_an_unfinished_file_that_somebody_removed_is_an_error_at_the_end(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError, match=r"expected the unfinished file \.z\.npy\.unfinished"),
        lowtide.create(tmp_path / "z.npy", dtype="int64") as out,
    ):
        out.append(np.arange(5))
        (tmp_path / ".z.npy.unfinished").unlink()
    assert left_in(tmp_path) == []


# Processes


def test_a_forked_child_may_not_write_and_takes_nothing_away(tmp_path: Path) -> None:
    script = """
    with lowtide.create(sys.argv[1] + "/z.npy", dtype="int64") as out:
        out.append(np.arange(5))
        child = os.fork()
        if child == 0:
            try:
                out.append(np.arange(5))
            except ValueError as problem:
                assert "expected to be written by the process that created it" in str(problem)
                del out
                gc.collect()
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        out.append(np.arange(5))
    print(np.load(sys.argv[1] + "/z.npy").tolist())
    """
    assert answer_of(script, tmp_path) == "[0, 1, 2, 3, 4, 0, 1, 2, 3, 4]"
    assert left_in(tmp_path) == ["z.npy"]


def test_a_child_that_leaves_the_block_does_not_finish_the_parents_file(tmp_path: Path) -> None:
    script = """
    child = -1
    try:
        with lowtide.create(sys.argv[1] + "/z.npy", dtype="int64") as out:
            out.append(np.arange(5))
            child = os.fork()
            if child == 0:
                sys.exit(3)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    finally:
        if child == 0:
            os._exit(3)
    print(np.load(sys.argv[1] + "/z.npy").tolist())
    """
    assert answer_of(script, tmp_path) == "[0, 1, 2, 3, 4]"
    assert left_in(tmp_path) == ["z.npy"]
