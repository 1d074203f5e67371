"""A file that changes while it is open: a typed error with path and offset, in every strategy, and never SIGBUS."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.storage.processes import run_python

import lowtide

STRATEGIES = ("read", "remap", "advise", "map")
ROWS, WIDTH = 4096, 256


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """4 MiB: larger than what a fault maps around itself, so a mapping of it would really be hit by a truncation."""
    np.save(tmp_path / "big.npy", np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH))
    return tmp_path / "big.npy"


def truncate(path: Path) -> None:
    os.truncate(path, 4096)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(4096))


def replace(path: Path) -> None:
    other = path.with_name("other.npy")
    np.save(other, np.zeros((ROWS, WIDTH), np.float32))
    other.replace(path)


def delete(path: Path) -> None:
    path.unlink()


EVENTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (truncate, "truncated"),
    "emptied": (empty, "truncated"),
    "grown": (grow, "grown"),
    "replaced": (replace, "replaced"),
    "deleted": (delete, "deleted|No such file"),
}

READS: dict[str, Callable[[lowtide.Array], Any]] = {
    "an index": lambda array: array[ROWS - 1],
    "a gather": lambda array: array[[ROWS - 1, 5, 900]],
    "chunks": lambda array: list(array.chunks(512)),
    "shuffled": lambda array: list(array.shuffled(64)),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("cache", ["keep", "drop"])
@pytest.mark.parametrize("used", ["before the first read", "after the first read"])
def test_a_file_that_changes_while_open_is_a_read_error(
    big: Path, cache: str, event: str, read: str, used: str, no_lost_descriptors: None
) -> None:
    happen, words = EVENTS[event]
    with lowtide.open(big, cache=cache) as array:
        if used == "after the first read":
            READS[read](array)
        happen(big)
        with pytest.raises(lowtide.ReadError, match=words) as caught:
            READS[read](array)
        assert caught.value.path == str(big)
        assert 0 <= caught.value.offset < array.nbytes + 128
        assert str(big) in str(caught.value)
        assert array._store.pool.lent == 0
    del caught


@pytest.mark.parametrize("strategy", ["remap", "advise", "map"])
def test_a_mapped_file_that_changes_while_open_is_a_read_error_and_kills_nobody(big: Path, strategy: str) -> None:
    """All events and reads in one process, since a start costs more than they do; a SIGBUS would end it with -7."""
    script = """
    import shutil
    from pathlib import Path
    path, strategy = Path(sys.argv[1]), sys.argv[2]
    kept = path.with_name("kept.npy")
    shutil.copy(path, kept)
    rows = 4096
    def replace(path):
        other = path.with_name("other.npy")
        np.save(other, np.zeros((rows, 256), np.float32))
        other.replace(path)
    events = {
        "truncated": lambda path: os.truncate(path, 4096),
        "emptied": lambda path: os.truncate(path, 0),
        "grown": lambda path: os.truncate(path, path.stat().st_size + 4096),
        "replaced": replace,
        "deleted": lambda path: path.unlink(),
    }
    reads = {
        "index": lambda array: array[rows - 1],
        "gather": lambda array: array[[rows - 1, 5, 900]],
        "chunks": lambda array: list(array.chunks(512)),
        "shuffled": lambda array: list(array.shuffled(64)),
    }
    wrong = []
    for event, happen in events.items():
        for name, read in reads.items():
            for used in (False, True):
                path.unlink(missing_ok=True)
                shutil.copy(kept, path)
                with lowtide.open(path, strategy=strategy) as array:
                    if used:
                        read(array)
                    happen(path)
                    try:
                        read(array)
                        wrong.append((event, name, used, "nothing raised"))
                    except lowtide.ReadError as problem:
                        if problem.path != str(path):
                            wrong.append((event, name, used, problem))
    print(wrong)
    """
    done = run_python(script, big, strategy)
    assert done.returncode != -7, "killed by SIGBUS"
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "[]"


def test_a_plain_memmap_is_killed_by_the_same_truncation(big: Path) -> None:
    """The negative control: without the check, this is what a truncated file does."""
    script = """
    mapped = np.load(sys.argv[1], mmap_mode="r")
    os.truncate(sys.argv[1], 4096)
    print(mapped[-1].sum())
    """
    assert run_python(script, big).returncode == -7


def test_chunks_already_delivered_stay_right_when_the_file_is_truncated(big: Path) -> None:
    expected = np.load(big)
    with lowtide.open(big) as array:
        chunks = array.chunks(512)
        first = next(chunks)
        os.truncate(big, 1_000_000)
        with pytest.raises(lowtide.ReadError):
            next(chunks)
        assert chunks.position == 512
        assert np.array_equal(first, expected[:512])


def test_one_changed_file_of_many_is_named(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.npy" for number in range(5)]
    for path in paths:
        np.save(path, np.zeros((100, 10)))
    with lowtide.open(paths) as array:
        array[:]
        os.truncate(paths[3], 200)
        assert array[:300].shape == (300, 10)
        with pytest.raises(lowtide.ReadError) as caught:
            array[299:350]
        assert caught.value.path == str(paths[3])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_file_without_a_name_that_was_opened_so_can_still_be_read(tmp_path: Path, strategy: str) -> None:
    """/proc/self/fd/N of a deleted file: it has no links from the beginning, and that is no change."""
    path = tmp_path / "gone.npy"
    np.save(path, np.arange(1000))
    number = os.open(path, os.O_RDONLY)
    try:
        path.unlink()
        with lowtide.open(f"/proc/self/fd/{number}", strategy=strategy) as array:
            assert np.array_equal(array[:], np.arange(1000))
    finally:
        os.close(number)
