"""Fail the n-th read for n = 1, 2, ... until the run succeeds: typed errors, nothing torn, nothing lost."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.conftest import open_descriptors
from tests.faults import BELOW_BOTH, FAULTS, HARMLESS, NAMED, REAL, Disk, reading_from
from tests.storage.kinds import KINDS, Made

import lowtide

ROWS = 23
# Strategies whose data comes through preadv. The mapped ones use it to look whether data is cached, and no more.
READING = ("read",)
# io_uring and AIO read by system calls of their own, which no library stands below: there `keep` alone is tried.
CACHES = ("keep",) if BELOW_BOTH else ("keep", "drop")
KINDS_TRIED = ("npy C", "list of files", "npy Fortran")
WAYS: dict[str, Callable[[lowtide.Array], Any]] = {
    "chunks": lambda array: array.chunks(8),
    "shuffled": lambda array: array.shuffled(8, seed=1),
    "gather": lambda array: array.gather(np.arange(ROWS)[::-1], 8),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    return {kind: KINDS[kind](tmp_path_factory.mktemp("faulty"), ROWS) for kind in KINDS_TRIED}


def opened(file: Made, strategy: str, cache: str) -> lowtide.Array:
    return lowtide.open(file.source, strategy=strategy, cache=cache, budget="2MiB", **file.keywords)


def collect(batches: Any, problems: list[lowtide.ReadError], retries: int) -> list[NDArray[Any]]:
    """Every batch, asking again after an error; stops after ``retries`` errors."""
    found = []
    while True:
        before = batches.position
        try:
            found.append(next(batches).copy())
        except StopIteration:
            return found
        except lowtide.ReadError as problem:
            assert batches.position == before, "a batch that failed must not count as delivered"
            problems.append(forget_frames(problem))
            if len(problems) > retries:
                return found


def forget_frames(problem: lowtide.ReadError) -> lowtide.ReadError:
    """A kept error keeps the frames it went through, and they keep descriptors."""
    problem.__cause__ = problem.__context__ = problem.__traceback__ = None
    return problem


def names_its_place(problem: lowtide.ReadError, array: lowtide.Array) -> None:
    extents = {extent.path: extent for extent in array.layout.extents}
    assert problem.path in extents
    extent = extents[problem.path]
    assert extent.offset <= problem.offset < extent.offset + extent.length
    assert problem.path in str(problem)
    assert str(problem.offset) in str(problem)


def until_it_succeeds(fault: str, *, persistent: bool) -> Iterator[Disk]:
    """A disk for n = 1, 2, ...; ends with the first run that made fewer than n reads. Most of the reads after the first
    few sample the file for its fingerprint, all in the same way: of those every third one is tried."""
    fired = 0
    for at in (*range(1, 16), *range(16, 2000, 3)):
        disk = Disk(FAULTS[fault], at=at, persistent=persistent)
        yield disk
        fired += disk.fired
        if not disk.fired:
            assert fired, "no read was ever spoiled: the test tested nothing"
            return
    raise AssertionError("the run never succeeded")


# ESTALE differs from EIO by its number alone, and what is dropped does not depend on the kind of file.
ONCE = [("keep", kind, way, fault) for kind in KINDS_TRIED for way in WAYS for fault in FAULTS if fault != "ESTALE"]
ONCE += [("keep", "npy C", "chunks", "ESTALE")]
ONCE += [("drop", "list of files", way, fault) for way in WAYS for fault in FAULTS if "drop" in CACHES]


@pytest.mark.parametrize(("cache", "kind", "way", "fault"), ONCE)
@pytest.mark.parametrize("strategy", READING)
def test_a_read_that_fails_once_is_reported_and_asking_again_goes_on_exactly(
    strategy: str, cache: str, kind: str, way: str, fault: str, made: dict[str, Made]
) -> None:
    file = made[kind]
    with opened(file, strategy, cache) as array:
        expected = [batch.copy() for batch in WAYS[way](array)]
    reported = 0
    for disk in until_it_succeeds(fault, persistent=False):
        problems: list[lowtide.ReadError] = []
        before = open_descriptors()
        with opened(file, strategy, cache) as array:
            held = array._store.budget.aside
            with reading_from(disk):
                found = collect(WAYS[way](array), problems, retries=1)
            assert b"".join(batch.tobytes() for batch in found) == b"".join(batch.tobytes() for batch in expected)
            assert len(problems) <= 1
            if fault in HARMLESS:
                assert problems == []
            for problem in problems:
                names_its_place(problem, array)
                assert problem.errno == NAMED.get(fault)
            reported += len(problems)
            nothing_lost(array, held)
        assert open_descriptors() == before
    # A read that only asks the page cache may fail unseen: the read behind it then succeeds. Others are reported.
    assert reported > 0 or fault not in NAMED


def nothing_lost(array: lowtide.Array, aside: int) -> None:
    """Every buffer is back and, once the free ones are given up, the budget holds what it did at first."""
    assert array._store.pool.lent == 0
    array._store.pool.trim()
    assert array._store.budget.held == aside


@pytest.mark.parametrize("fault", ["EIO", "nothing"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("strategy", READING)
def test_a_disk_that_stays_broken_fails_every_read_until_it_heals(
    strategy: str, cache: str, way: str, fault: str, made: dict[str, Made]
) -> None:
    file = made["list of files"]
    with opened(file, strategy, cache) as array:
        expected = b"".join(batch.tobytes() for batch in WAYS[way](array))
    for disk in until_it_succeeds(fault, persistent=True):
        problems: list[lowtide.ReadError] = []
        before = open_descriptors()
        with opened(file, strategy, cache) as array, reading_from(disk):
            held = array._store.budget.aside
            batches = WAYS[way](array)
            found = collect(batches, problems, retries=2)
            assert len(problems) == (3 if disk.fired else 0)
            for problem in problems:
                names_its_place(problem, array)
                assert problem.errno == NAMED.get(fault)
            nothing_lost(array, held)
            disk.heal()
            found += collect(batches, [], retries=0)
            assert b"".join(batch.tobytes() for batch in found) == expected
            nothing_lost(array, held)
        assert open_descriptors() == before


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cache", CACHES)
def test_a_disk_that_only_ever_gives_half_is_read_to_the_end(cache: str, way: str, made: dict[str, Made]) -> None:
    file = made["list of files"]
    with opened(file, "read", cache) as array:
        expected = b"".join(batch.tobytes() for batch in WAYS[way](array))
        with reading_from(Disk(FAULTS["short"], at=1, persistent=True)) as disk:
            found = b"".join(batch.tobytes() for batch in WAYS[way](array))
    assert disk.fired > 1
    assert found == expected


@pytest.mark.parametrize("fault", ["EIO", "nothing"])
@pytest.mark.parametrize("strategy", ["read"])
@pytest.mark.parametrize("key", [3, slice(2, 20), [9, 1, 5]], ids=str)
def test_indexing_a_broken_disk_raises_and_the_array_stays_usable(
    key: Any, strategy: str, fault: str, made: dict[str, Made]
) -> None:
    file = made["npy C"]
    with opened(file, strategy, "keep") as array:
        with reading_from(Disk(FAULTS[fault], at=1, persistent=True)), pytest.raises(lowtide.ReadError) as caught:
            array[key]
        names_its_place(caught.value, array)
        assert array[key].tobytes() == file.rows[key].tobytes()
        del caught  # its traceback keeps the buffers that were being filled
        nothing_lost(array, array._store.budget.aside)


# A system call that is interrupted for ever is no fault of a disk: C and Python go on after EINTR by themselves.
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "EINTR" or not BELOW_BOTH])
@pytest.mark.parametrize("strategy", ["remap", "advise", "map"])
def test_mapped_strategies_give_the_right_rows_whatever_their_probing_reads_do(
    strategy: str, fault: str, made: dict[str, Made]
) -> None:
    file = made["npy C"]
    with opened(file, strategy, "keep") as array:
        expected = [batch.copy() for batch in array.shuffled(8, seed=1)]
        with reading_from(Disk(FAULTS[fault], at=1, persistent=True)):
            found = [batch.copy() for batch in array.shuffled(8, seed=1)]
    assert np.array_equal(np.concatenate(found), np.concatenate(expected))


def test_an_unsupported_flag_is_a_missing_feature_and_not_an_error(made: dict[str, Made]) -> None:
    def no_flags(number: int, views: list[Any], offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return REAL(number, views, offset)

    file = made["npy C"]
    for cache in ("keep", "drop"):
        with opened(file, "read", cache) as array, reading_from(Disk(no_flags, at=1, persistent=True)) as disk:
            assert np.array_equal(np.concatenate([chunk.copy() for chunk in array.chunks(8)]), file.rows)
            assert np.array_equal(array[[5, 1]], file.rows[[5, 1]])
            assert disk.fired
            shuffled = np.concatenate([rows.copy() for rows in array.shuffled(8)])
            assert sorted(map(bytes, shuffled)) == sorted(map(bytes, file.rows))
