"""Inside ``torch.utils.data.DataLoader``: whole batches in one read, and workers that never overlap."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from tests.faults import Disk, reading_from
from tests.feeds import numbered

import lowtide

torch = pytest.importorskip("torch", reason="NOT TESTED: torch is not installed, so no DataLoader ran")
from torch.utils.data import DataLoader, DistributedSampler  # noqa: E402

from lowtide.torch import FeedDataset, WindowDataset  # noqa: E402

# More workers than cores are slow, which is torch's to say, and right, which is ours.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

COUNT, LENGTH, BATCH = 4003, 25, 8
IDS = numbered(COUNT)
WINDOWS = (COUNT - 1) // LENGTH  # 160, and 2 tokens left over


def feed_of(tokens: lowtide.Tokens, **more: Any) -> lowtide.Feed:
    return tokens.batches(BATCH, length=LENGTH, seed=4, **more)


def equal(pair: Any, batch: Any) -> bool:
    return all(np.array_equal(np.asarray(tensor), half) for tensor, half in zip(pair, batch, strict=True))


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_a_feed_in_a_loader_comes_in_order_and_no_batch_twice(tokens: lowtide.Tokens, workers: int) -> None:
    feed = feed_of(tokens, skip=[(4, 5)])
    next(feed)  # a loader begins where its feed is
    loader = DataLoader(FeedDataset(feed), batch_size=None, num_workers=workers)
    steps = [1, 2, 3, *range(6, 50)]  # two epochs
    for _ in range(2):  # and every pass over the loader begins there again
        received = [(x.clone(), y.clone()) for x, y in islice(loader, len(steps))]
        assert len(received) == len(steps)
        for step, pair in zip(steps, received, strict=True):
            assert equal(pair, feed[step])
    assert feed.step == 1


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_a_sequential_feed_in_a_loader_ends_after_predicting_every_token(tokens: lowtide.Tokens, workers: int) -> None:
    loader = DataLoader(FeedDataset(feed_of(tokens, order="sequential")), batch_size=None, num_workers=workers)
    predicted = torch.cat([y.reshape(-1) for _, y in loader])
    assert torch.equal(predicted, torch.from_numpy(IDS[1:]))


@pytest.mark.parametrize("workers", [0, 2])
def test_windows_in_a_loader_are_read_a_batch_at_a_time(tokens: lowtide.Tokens, workers: int) -> None:
    dataset = WindowDataset(tokens, LENGTH)
    assert len(dataset) == WINDOWS
    generator = torch.Generator().manual_seed(9)
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers, generator=generator)
    seen = []
    for x, y in loader:
        assert tuple(x.shape) == tuple(y.shape) == (BATCH, LENGTH)
        assert torch.equal(x[:, 1:], y[:, :-1])
        seen += x.tolist()
    windows = IDS[: WINDOWS * LENGTH].reshape(WINDOWS, LENGTH).tolist()
    assert sorted(seen) == sorted(windows)
    assert seen != windows


def test_a_batch_of_windows_is_one_call_to_the_store(tokens: lowtide.Tokens) -> None:
    dataset = WindowDataset(tokens, LENGTH)
    dataset[0]
    with reading_from(Disk()) as disk:
        pairs = dataset.__getitems__([5, 100, 7, 5, -1])
    assert disk.calls == 5
    for (x, y), window in zip(pairs, (5, 100, 7, 5, WINDOWS - 1), strict=True):
        start = window * LENGTH
        assert equal((x, y), (IDS[start : start + LENGTH], IDS[start + 1 : start + LENGTH + 1]))
    x, y = dataset[-WINDOWS]
    assert equal((x, y), (IDS[:LENGTH], IDS[1 : LENGTH + 1]))


def test_windows_of_a_split_and_ranks_by_torchs_own_sampler(tokens: lowtide.Tokens) -> None:
    _, val = tokens.split(val=1000)
    dataset = WindowDataset(val, LENGTH)
    assert len(dataset) == 39
    seen = []
    for rank in range(3):
        sampler: Any = DistributedSampler(dataset, num_replicas=3, rank=rank, shuffle=True, seed=1)
        for x, _ in DataLoader(dataset, batch_size=5, sampler=sampler):
            seen += x.tolist()
    assert sorted(seen) == sorted(IDS[-1000:-25].reshape(39, LENGTH).tolist())


def test_a_loader_batch_larger_than_64_mib_is_given_its_room(tokens: lowtide.Tokens) -> None:
    pairs = WindowDataset(tokens, 2000).__getitems__([k % 2 for k in range(2500)])  # 80 MB
    assert len(pairs) == 2500
    assert equal(pairs[-1], (IDS[2000:4000], IDS[2001:4001]))


@pytest.mark.parametrize("index", [WINDOWS, -WINDOWS - 1])
def test_a_window_outside_the_dataset_is_refused(tokens: lowtide.Tokens, index: int) -> None:
    with pytest.raises(IndexError, match=rf"expected rows from 0 to 159, got {index}\. Use"):
        WindowDataset(tokens, LENGTH)[index]


def test_a_corpus_without_a_window_makes_no_dataset(tokens: lowtide.Tokens) -> None:
    with pytest.raises(
        lowtide.FormatError, match=r"expected 4004 tokens or more for length=4003, got 4003. Use a smaller"
    ):
        WindowDataset(tokens, COUNT)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_feed_is_itself_a_map_style_dataset_of_steps(tokens: lowtide.Tokens, workers: int) -> None:
    feed = feed_of(tokens)
    steps = [*range(3, 20), 1000, 2]
    loader: Any = DataLoader(feed, batch_size=None, sampler=steps, num_workers=workers)  # type: ignore[arg-type]
    received = list(loader)
    assert len(received) == len(steps)
    for step, pair in zip(steps, received, strict=True):
        assert isinstance(pair[0], torch.Tensor)
        assert equal(pair, feed[step])
    assert feed.cursor == 0


def test_what_a_loader_gave_never_changes(tokens: lowtide.Tokens) -> None:
    loader = DataLoader(FeedDataset(feed_of(tokens)), batch_size=None, num_workers=2)
    batches = iter(loader)
    held = [next(batches) for _ in range(10)]
    copies = [(x.clone(), y.clone()) for x, y in held]
    for _ in range(60):
        next(batches)
    assert all(torch.equal(x, a) and torch.equal(y, b) for (x, y), (a, b) in zip(held, copies, strict=True))


@pytest.mark.parametrize("length", [0, -3])
def test_windows_without_a_token_are_refused(tokens: lowtide.Tokens, length: int) -> None:
    with pytest.raises(ValueError, match=f"length: expected 1 or more, got {length}"):
        WindowDataset(tokens, length)
