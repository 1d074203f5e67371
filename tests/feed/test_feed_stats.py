"""``feed.stats()``: how long steps waited, what that time went into, and what came from the disk."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from tests.faults import FAULTS, Disk, reading_from
from tests.feeds import numbered, raw_file

import lowtide

IDS = numbered(20_000)


@pytest.fixture
def tokens(tmp_path: Path) -> lowtide.Tokens:
    return lowtide.open_tokens(raw_file(tmp_path, IDS), dtype="uint16", cache="keep")


def test_a_feed_that_gave_nothing_has_no_waits(tokens: lowtide.Tokens) -> None:
    found = tokens.batches(8, length=64).stats()
    assert (found.steps, found.seconds, found.reading, found.copying, found.shipping) == (0, 0, 0, 0, 0)
    assert (found.p50, found.p95, found.p99, found.cached, found.cold) == (None,) * 5


def test_waits_are_in_order_and_their_parts_no_more_than_the_whole(tokens: lowtide.Tokens) -> None:
    feed = tokens.batches(8, length=64)
    for _ in range(200):
        next(feed)
    found = feed.stats()
    assert found.steps == 200
    assert found.p50 is not None and found.p95 is not None and found.p99 is not None
    assert 0 < found.p50 <= found.p95 <= found.p99
    assert 0 < found.reading + found.copying <= found.seconds
    assert found.copying == found.shipping == 0  # the engine widens while it reads, and nothing was shipped
    assert found.cached is not None and found.cold == pytest.approx(1 - found.cached)


@pytest.mark.parametrize("wait", [3e-6, 1e-3, 0.7, 90.0])
def test_a_wait_is_told_to_within_an_eighth(
    tokens: lowtide.Tokens, monkeypatch: pytest.MonkeyPatch, wait: float
) -> None:
    feed = tokens.batches(8, length=64)
    for step in range(100):
        passed = iter([0.0, 0.0, wait if step < 97 else 100 * wait])
        monkeypatch.setattr("lowtide.reading.cursor.perf_counter", lambda passed=passed: next(passed))
        next(feed)
    found = feed.stats()
    assert found.p50 is not None and found.p99 is not None
    assert wait <= found.p50 <= 1.13 * wait
    assert found.p95 == found.p50
    assert 100 * wait <= found.p99 <= 113 * wait
    assert found.seconds == pytest.approx(97 * wait + 300 * wait)


def test_what_numpy_widens_and_what_a_mixture_puts_together_is_copying(tokens: lowtide.Tokens, tmp_path: Path) -> None:
    feed = tokens.batches(8, length=64, dtype="uint16")
    next(feed)
    assert 0 < feed.stats().copying < feed.stats().seconds
    wide = lowtide.open_tokens(raw_file(tmp_path, IDS, dtype="uint32", name="wide.bin"), dtype="uint32")
    both = lowtide.mix({"a": (tokens, 0.5), "b": (wide, 0.5)}).batches(8, length=64)
    next(both)
    assert 0 < both.stats().copying < both.stats().seconds


def test_a_step_that_failed_is_no_wait(tokens: lowtide.Tokens) -> None:
    feed = tokens.batches(8, length=64)
    next(feed)
    with reading_from(Disk(FAULTS["EIO"], at=1, persistent=True)), pytest.raises(lowtide.ReadError):
        next(feed)
    assert feed.stats().steps == 1


def test_another_process_counts_its_own(tokens: lowtide.Tokens) -> None:
    feed = tokens.batches(8, length=64)
    next(feed)
    other = pickle.loads(pickle.dumps(feed))
    assert (other.stats().steps, other.stats().p50, other.stats().asked) == (0, None, 0)
    assert np.array_equal(next(other)[0], feed[1][0])
