"""Batches reach a device that copies late, out of order, slowly or not at all; the device is simulated."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.feeds import numbered, raw_file

import lowtide

torch = pytest.importorskip("torch", reason="NOT TESTED: torch is not installed, so nothing was shipped")
from tests.adapters.simulated_device import DeviceFaultError, SimulatedDevice  # noqa: E402

from lowtide.torch.shipping import Copies, Shipping, TensorFeed  # noqa: E402

COUNT, LENGTH, BATCH = 40_001, 64, 8
IDS = numbered(COUNT)
PAGE = 4096
HALF = BATCH * LENGTH * 8
TWO_BATCHES = 2 * (2 * HALF + PAGE) + BATCH * (LENGTH + 1) * 2 + 2 * PAGE


@pytest.fixture
def tokens(path: Path) -> Iterator[lowtide.Tokens]:
    with lowtide.open_tokens(path, dtype="uint16", budget=TWO_BATCHES, cache="keep") as opened:
        yield opened


def feed_of(tokens: lowtide.Tokens, **more: Any) -> lowtide.Feed:
    return tokens.batches(BATCH, length=LENGTH, seed=4, **more)


def shipped(feed: Any, device: SimulatedDevice, dtype: Any = None) -> TensorFeed:
    return TensorFeed(feed, Shipping(torch.device("cpu"), dtype, feed.pools, device))


def campaign(tokens: lowtide.Tokens, batches: int, seed: int) -> SimulatedDevice:
    """Every batch arrives as the feed gives it, in a budget of two, whatever the device does on the way."""
    device = SimulatedDevice(seed, faults=0.01, interrupts=0.01)
    feed = feed_of(tokens)
    budget = tokens.store.budget
    stream, arriving = shipped(feed, device), deque[Any]()
    expected = feed_of(tokens)
    # What is expected is read through a store of its own: it must take no room of the two batches.
    received = 0
    with lowtide.open_tokens(tokens.layout.extents[0].path, dtype="uint16") as other:
        expected = feed_of(other)
        while received < batches:
            try:
                x, y = next(stream)
            except (DeviceFaultError, KeyboardInterrupt):
                assert stream.position == received * BATCH  # what did not arrive comes again
                continue
            assert stream.position == (received + 1) * BATCH
            arriving.append((x, y, received))
            received += 1
            if len(arriving) > 4:  # by now somebody needed its buffer, so it must have arrived
                compare(arriving.popleft(), expected)
            assert budget.held <= budget.limit
    device.finish()
    assert budget.peak <= TWO_BATCHES
    return device


def compare(batch: Any, expected: lowtide.Feed) -> None:
    x, y, step = batch
    a, b = expected[step]
    assert torch.equal(x, torch.from_numpy(a)), f"step {step}"
    assert torch.equal(y, torch.from_numpy(b)), f"step {step}"


def test_nothing_is_lost_or_overwritten_on_a_device_that_is_late_and_fails(tokens: lowtide.Tokens) -> None:
    device = campaign(tokens, 1_500, seed=1)
    assert min(device.counts.values()) > 0, device.counts
    assert device.counts["staged"] <= 4  # the same buffers again and again


@pytest.mark.trainers
def test_a_hundred_thousand_batches_arrive(tokens: lowtide.Tokens) -> None:
    device = campaign(tokens, 100_000, seed=2)
    print(f"\n100,000 batches through the simulated device: {device.counts}")


def test_a_keeper_that_forgets_is_caught(tokens: lowtide.Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the pattern that 94 public repositories copied lets the batch go at once."""

    def forgets(self: Copies, most: int) -> None:
        self._under_way.clear()

    monkeypatch.setattr(Copies, "_let_go", forgets)
    with pytest.raises(AssertionError, match="step"):
        campaign(tokens, 500, seed=1)


def test_the_budget_holds_also_when_copies_failed_half_way(tokens: lowtide.Tokens) -> None:
    feed = feed_of(tokens)
    device = SimulatedDevice(3, slow=1.0)
    stream = shipped(feed, device)
    kept = next(stream)
    original, asked = device.copy, []

    def fails_at_y(tensor: Any) -> Any:
        asked.append(tensor.data_ptr())
        if len(asked) % 2 == 0:
            raise DeviceFaultError("y")
        return original(tensor)

    device.copy = fails_at_y  # type: ignore[method-assign]
    for _ in range(5):
        with pytest.raises(DeviceFaultError):
            next(stream)
        assert stream.position == BATCH
    device.copy = original  # type: ignore[method-assign]
    second = next(stream)
    device.finish()
    for step, (x, _) in enumerate((kept, second)):
        assert np.array_equal(x, feed[step][0])


def test_copies_of_an_iterator_that_is_gone_stay_held_until_they_are_made(tokens: lowtide.Tokens) -> None:
    device = SimulatedDevice(5, slow=1.0)
    feed = feed_of(tokens)
    stream = shipped(feed, device)
    x, y = next(stream)
    del stream
    gc.collect()
    assert tokens.store.pool.lent == 1
    again = shipped(feed, SimulatedDevice(6, slow=1.0))  # waits for what the other one asked for
    next(again)
    device.finish()
    assert np.array_equal(x, feed_of(tokens)[0][0])
    assert np.array_equal(y, feed_of(tokens)[0][1])


def test_a_dtype_is_made_on_the_device_and_documents_keep_their_form(tmp_path: Path) -> None:
    ids = np.where(np.arange(4000) % 13 == 12, 7, numbered(4000))
    with lowtide.open_tokens(raw_file(tmp_path, ids), dtype="uint16", eot=7) as marked:
        feed = marked.windows(LENGTH, documents=True).batches(BATCH, seed=2)
        device = SimulatedDevice(7, slow=0.0)
        stream = shipped(feed, device)
        x, _, docs = next(stream)
        device.finish()
        assert np.array_equal(x, feed[0][0])
        assert np.array_equal(docs.cu_seqlens, feed[0][2].cu_seqlens)
        assert docs.max_seqlen == feed[0][2].max_seqlen


def test_shipping_is_counted_apart_from_reading(tokens: lowtide.Tokens) -> None:
    stream = shipped(feed_of(tokens), SimulatedDevice(8))
    for _ in range(3):
        next(stream)
    found = stream.stats()
    assert found.steps == 3
    assert found.shipping > 0
    assert found == stream.feed.stats()  # type: ignore[union-attr]


# DLPack


def test_batches_are_handed_over_by_dlpack_without_a_copy_and_hold_their_buffer(tokens: lowtide.Tokens) -> None:
    feed = feed_of(tokens)
    x, y = next(feed)
    there = torch.from_dlpack(x)
    back = np.from_dlpack(there)
    assert there.data_ptr() == x.ctypes.data == back.ctypes.data
    expected = x.copy()
    del x, y, there
    gc.collect()
    assert tokens.store.pool.lent == 1
    next(feed)
    assert np.array_equal(back, expected)
    del back
    gc.collect()
    assert tokens.store.pool.lent == 0


def test_tensors_serve_as_row_numbers_and_as_rows_to_write(tmp_path: Path) -> None:
    rows = torch.arange(60, dtype=torch.float32).reshape(20, 3)
    with lowtide.create(tmp_path / "x.npy", dtype="float32", shape=(-1, 3)) as out:
        out.append(rows)
    with lowtide.open(tmp_path / "x.npy") as array:
        wanted = torch.tensor([7, 3, -1])
        assert np.array_equal(array[wanted], rows[wanted])
        assert np.array_equal(next(array.gather(wanted, 3)), rows[wanted])
