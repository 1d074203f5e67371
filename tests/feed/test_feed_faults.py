"""A disk that fails in the middle of a step: nothing is half-delivered, and asking again gives that very batch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.faults import FAULTS, HARMLESS, NAMED, Disk, reading_from
from tests.feeds import Rows, numbered, raw_file, rows_of, same, starts_of

import lowtide

COUNT, LENGTH, BATCH, SEED = 4000, 50, 6, 2
IDS = numbered(COUNT)


@pytest.fixture(params=["one file", "three files"])
def paths(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    cuts = [0, COUNT] if request.param == "one file" else [0, 1313, 1350, COUNT]
    return [raw_file(tmp_path, IDS[cuts[k] : cuts[k + 1]], f"{k}.bin") for k in range(len(cuts) - 1)]


def expected(step: int) -> Rows:
    starts = starts_of(range(step * BATCH, step * BATCH + BATCH), COUNT, LENGTH, seed=SEED)
    return rows_of(IDS, starts, LENGTH)


@pytest.mark.parametrize("cache", ["keep", "drop"])
@pytest.mark.parametrize("fault", FAULTS)
def test_whichever_read_of_a_step_fails_the_step_is_delivered_whole_or_not_at_all(
    paths: list[Path], fault: str, cache: str
) -> None:
    # Mapped strategies are left out: their faults are the kernel's, which no test can inject.
    with lowtide.open_tokens(paths, dtype="uint16", strategy="read", cache=cache, budget="4MiB") as tokens:
        feed = tokens.batches(BATCH, length=LENGTH, seed=SEED)
        feed.state_dict()  # the fingerprint has been read
        for step in range(100):  # step k: its read number k + 1 is spoiled
            # What the page cache refuses is asked of the disk: an error that counts stays.
            with reading_from(Disk(FAULTS[fault], at=step + 1, persistent=fault in NAMED)) as disk:
                failed = _fails(feed, fault)
            assert failed <= bool(disk.fired)
            assert not (failed and fault in HARMLESS)
            # An empty answer of the page cache is no error: the disk is asked then.
            assert failed or not disk.fired or fault in (*HARMLESS, "nothing")
            assert feed.state_dict()["rows"] == (step if failed else step + 1) * BATCH
            assert tokens.store.pool.lent == 0
            if failed:
                same(next(feed), expected(step))
            if not disk.fired:
                break  # the step made fewer reads than that: each of them has failed once
        assert step >= BATCH
        same(next(feed), expected(step + 1))


def _fails(feed: lowtide.Feed, fault: str) -> bool:
    """Asks for a step: it must be right, or fail with the file's name and the disk's own error."""
    step = feed.step
    try:
        same(next(feed), expected(step))
    except lowtide.ReadError as problem:
        assert str(problem.path).endswith(".bin")
        assert problem.errno == NAMED.get(fault)
        return True
    return False


def test_a_disk_that_stays_broken_fails_every_time_and_the_feed_goes_on_when_it_heals(tmp_path: Path) -> None:
    with lowtide.open_tokens(raw_file(tmp_path, IDS), dtype="uint16") as tokens:
        feed = tokens.batches(BATCH, length=LENGTH, seed=SEED)
        same(next(feed), expected(0))
        feed.state_dict()
        with reading_from(Disk(FAULTS["EIO"], at=3, persistent=True)) as disk:
            for _ in range(50):
                with pytest.raises(lowtide.ReadError, match="EIO"):
                    next(feed)
                with pytest.raises(lowtide.ReadError):
                    feed[7]
            assert (feed.step, tokens.store.pool.lent) == (1, 0)
            disk.heal()
            same(next(feed), expected(1))


def test_a_fingerprint_that_could_not_be_read_is_read_when_asked_again(tmp_path: Path) -> None:
    path = raw_file(tmp_path, IDS)
    with lowtide.open_tokens(path, dtype="uint16") as tokens:
        feed = tokens.batches(BATCH, length=LENGTH, seed=SEED)
        with reading_from(Disk(FAULTS["EIO"], at=5)), pytest.raises(lowtide.ReadError):
            feed.state_dict()
        with lowtide.open_tokens(path, dtype="uint16") as again:
            assert feed.state_dict()["data"] == again.fingerprint()


@pytest.mark.parametrize("strategy", ["read", "remap", "advise", "map"])
@pytest.mark.parametrize("change", ["truncated", "grown", "deleted", "replaced"])
def test_a_file_that_changes_while_a_feed_reads_it_is_an_error_with_its_name(
    tmp_path: Path, strategy: str, change: str
) -> None:
    path = raw_file(tmp_path, IDS)
    with lowtide.open_tokens(path, dtype="uint16", strategy=strategy) as tokens:
        feed = tokens.batches(BATCH, length=LENGTH, seed=SEED)
        same(next(feed), expected(0))
        if change == "truncated":
            os.truncate(path, 3000)
        elif change == "grown":
            os.truncate(path, 9000)
        elif change == "deleted":
            path.unlink()
        else:
            raw_file(tmp_path, IDS, "other.bin").replace(path)
        for _ in range(2):
            with pytest.raises(lowtide.ReadError, match=rf"tokens\.bin: expected .* got it {change}"):
                next(feed)
        assert (feed.step, tokens.store.pool.lent) == (1, 0)
