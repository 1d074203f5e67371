"""``StreamDataset``: row k of a stream, whoever asks, in the shapes that trainers want."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults import Disk, reading_from
from tests.feeds import numbered, raw_file

import lowtide

torch = pytest.importorskip("torch", reason="NOT TESTED: torch is not installed, so no stream of rows was read")
from torch.utils.data import DataLoader, DistributedSampler  # noqa: E402

from lowtide.torch import FeedDataset, RowDataset, StreamDataset, WindowDataset  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

COUNT, LENGTH, BATCH = 4003, 25, 8
IDS = numbered(COUNT)
EPOCH = (COUNT - LENGTH) // LENGTH  # 159
END = 7  # the id that ends a document


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("streams")


@pytest.fixture
def tokens(place: Path) -> Iterator[lowtide.Tokens]:
    with lowtide.open_tokens(raw_file(place, IDS), dtype="uint16") as opened:
        yield opened


@pytest.fixture
def marked(place: Path) -> Iterator[lowtide.Tokens]:
    """Documents of 3 to 40 tokens, each ended by END."""
    path = place / "marked.u16"
    if not path.exists():
        rng = np.random.default_rng(3)
        parts = [np.append(rng.integers(8, 5000, rng.integers(2, 40)), END) for _ in range(200)]
        np.concatenate(parts).astype(np.uint16).tofile(path)
    with lowtide.open_tokens(path, dtype="uint16", eot=END) as opened:
        yield opened


def feed_of(tokens: lowtide.Tokens, batch: int = BATCH, **more: Any) -> lowtide.Feed:
    return tokens.batches(batch, length=LENGTH, seed=4, **more)


def rows_of(feed: lowtide.Feed, steps: int) -> tuple[Any, Any]:
    batches = [feed[step] for step in range(steps)]
    return np.concatenate([x for x, *_ in batches]), np.concatenate([y for _, y, *_ in batches])


@pytest.mark.parametrize("order", ["shuffled", "random", "sequential"])
def test_row_k_is_the_feeds_row_k_whatever_its_batch_ranks_and_position(tokens: lowtide.Tokens, order: str) -> None:
    x, y = rows_of(feed_of(tokens, order=order), 12)
    for feed in (
        feed_of(tokens, order=order),
        feed_of(tokens, batch=3, order=order),
        feed_of(tokens, order=order, rank=1, world=4, skip=[(1, 3)]),
    ):
        next(feed)
        dataset = StreamDataset(feed, rows=100)
        for k in (0, 41, 5, 95):
            row = dataset[k]
            assert np.array_equal(row[0], x[k])
            assert np.array_equal(row[1], y[k])


def test_a_batch_is_one_read_in_the_order_asked_for(tokens: lowtide.Tokens) -> None:
    dataset = StreamDataset(feed_of(tokens))
    dataset[0]
    with reading_from(Disk()) as disk:
        rows = dataset.__getitems__([5, 100, 7, 5, -1])
    assert disk.calls == 5
    for row, k in zip(rows, (5, 100, 7, 5, EPOCH - 1), strict=True):
        assert np.array_equal(row[0], dataset[k][0])


def test_the_length_is_one_epoch_a_finite_feed_or_what_was_stated(tokens: lowtide.Tokens) -> None:
    assert len(StreamDataset(feed_of(tokens))) == EPOCH
    assert len(StreamDataset(feed_of(tokens, order="sequential"))) == 160
    assert len(StreamDataset(feed_of(tokens), rows=1000)) == 1000
    with pytest.raises(ValueError, match=r"StreamDataset: expected rows= for a feed without epochs, got .*random.*Use"):
        StreamDataset(feed_of(tokens, order="random"))
    with pytest.raises(ValueError, match="rows: expected 1 or more, got 0"):
        StreamDataset(feed_of(tokens), rows=0)
    with pytest.raises(IndexError, match=r"dataset: expected rows from 0 to 158, got 159\. Use range"):
        StreamDataset(feed_of(tokens))[EPOCH]
    with pytest.raises(ValueError, match="style: expected one of xy, hf, got 'dict'"):
        StreamDataset(feed_of(tokens), style="dict")
    with pytest.raises(TypeError, match=r"StreamDataset: expected a feed, got Tokens\. Use"):
        StreamDataset(tokens)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_that_begin_at_0_go_on_where_the_last_one_ended(tokens: lowtide.Tokens, workers: int) -> None:
    dataset = StreamDataset(feed_of(tokens))
    loader: Any = DataLoader(dataset, batch_size=20, num_workers=workers, persistent_workers=workers > 0)
    seen = []
    for epoch in range(3):
        dataset.set_epoch(epoch)  # workers that are kept see it too
        seen += [x.clone() for x, _ in loader]
    plain = [next(feed)[0] for feed in [feed_of(tokens, batch=1)] for _ in range(3 * EPOCH)]
    assert np.array_equal(torch.cat(seen), np.concatenate(plain))


def test_an_epoch_that_no_position_reaches_is_refused(tokens: lowtide.Tokens) -> None:
    dataset = StreamDataset(feed_of(tokens))
    most = 2**62 // EPOCH - 1
    dataset.set_epoch(most)
    assert len(dataset[EPOCH - 1]) == 2
    for epoch in (most + 1, 2**62, 2**70):
        with pytest.raises(ValueError, match=f"epoch: expected 0 to {most} epochs of {EPOCH} rows, got {epoch}"):
            dataset.set_epoch(epoch)


def test_a_finite_order_begins_again_with_every_epoch(tokens: lowtide.Tokens) -> None:
    dataset = StreamDataset(feed_of(tokens, order="sequential"))
    first = dataset[3][0].clone()
    dataset.set_epoch(5)
    assert torch.equal(dataset[3][0], first)
    with pytest.raises(ValueError, match="epoch: expected 0 or more, got -1"):
        dataset.set_epoch(-1)


def test_ranks_of_torchs_own_sampler_share_the_stream(tokens: lowtide.Tokens) -> None:
    dataset = StreamDataset(feed_of(tokens), rows=48)
    x, _ = rows_of(feed_of(tokens), 6)
    parts: list[Any] = []
    for rank in range(3):
        sampler: Any = DistributedSampler(dataset, num_replicas=3, rank=rank, shuffle=False)
        parts.append(torch.cat([batch[0] for batch in DataLoader(dataset, batch_size=4, sampler=sampler)]))
    assert np.array_equal(torch.stack(parts, 1).reshape(48, LENGTH), x)


# For transformers


def test_labels_for_transformers_are_not_shifted(tokens: lowtide.Tokens) -> None:
    row = StreamDataset(feed_of(tokens), style="hf")[11]
    assert list(row) == ["input_ids", "labels"]
    assert torch.equal(row["input_ids"], row["labels"])  # the model compares what it says at j with labels[j + 1]
    assert row["labels"].data_ptr() != row["input_ids"].data_ptr()
    _, y = rows_of(feed_of(tokens), 2)
    assert np.array_equal(row["labels"][1:], y[11][:-1])


@pytest.mark.parametrize("cut", ["stride", "packed"])
def test_labels_of_other_documents_are_left_out(marked: lowtide.Tokens, cut: str) -> None:
    feed = marked.windows(LENGTH, cut=cut, documents=True).batches(BATCH, seed=1)
    x, _, docs = feed[0]
    for k in range(BATCH):
        row = StreamDataset(feed, style="hf")[k]
        assert list(row) == ["input_ids", "labels", "position_ids"]
        for j in range(LENGTH - 1):
            assert int(row["labels"][j + 1]) == (x[k, j + 1] if docs.loss_mask[k, j] else -100)
        assert np.array_equal(row["position_ids"], docs.positions[k])
        assert row["position_ids"].dtype == torch.int64


@pytest.mark.parametrize("cut", ["stride", "packed"])
def test_a_row_with_documents_does_not_depend_on_the_batch_it_was_read_with(marked: lowtide.Tokens, cut: str) -> None:
    windows = marked.windows(LENGTH, cut=cut, documents=True)
    dataset = StreamDataset(windows.batches(BATCH, seed=1))
    loader: Any = DataLoader(dataset, batch_size=16)
    x, _, docs = next(iter(loader))
    assert docs._fields == ("positions", "ids", "loss_mask")
    assert tuple(docs.ids.shape) == tuple(x.shape) == (16, LENGTH)
    for k in range(16):
        alone = windows.batches(1, seed=1)
        mine = dataset[k]
        one = alone[k]
        assert np.array_equal(mine[0], one[0][0])
        for name in docs._fields:
            assert np.array_equal(getattr(mine[2], name), getattr(one[2], name)[0])
            assert torch.equal(getattr(mine[2], name), getattr(docs, name)[k])


def test_rows_of_a_mixture(tokens: lowtide.Tokens, place: Path) -> None:
    other = lowtide.open_tokens(raw_file(place, numbered(3000)[::-1].copy(), name="other.bin"), dtype="uint16")
    mixture = lowtide.mix({"a": (tokens, 0.7), "b": (other, 0.3)}, then={30: {"a": 0.1, "b": 0.9}})
    feed = mixture.batches(BATCH, length=LENGTH, seed=2)
    dataset = StreamDataset(feed, rows=64)
    x, y = rows_of(feed, 8)
    rows = dataset.__getitems__([40, 3, 29, 30, 63])
    for row, k in zip(rows, (40, 3, 29, 30, 63), strict=True):
        assert np.array_equal(row[0], x[k])
        assert np.array_equal(row[1], y[k])
    ends = lowtide.mix({"a": (tokens, 0.5), "b": (other, 0.5)}, exhausted="stop").batches(4, length=LENGTH)
    assert len(StreamDataset(ends)) == ends.last_position


# Workers


def test_workers_and_pickles_give_the_same_rows(tokens: lowtide.Tokens) -> None:
    dataset = StreamDataset(feed_of(tokens), rows=64)
    dataset.set_epoch(2)
    dataset[1]  # used before it is sent to workers
    loader: Any = DataLoader(dataset, batch_size=16, num_workers=2)
    x = torch.cat([batch[0] for batch in loader])
    assert np.array_equal(x, torch.stack([row[0] for row in dataset.__getitems__(range(64))]))
    again = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(again[5][0], dataset[5][0])


# Windows as they lie


def test_windows_that_were_cut_are_a_dataset_too(marked: lowtide.Tokens) -> None:
    for cut, documents in (("stride", False), ("stride", True), ("packed", True)):
        windows = marked.windows(LENGTH, cut=cut, documents=documents)
        dataset = WindowDataset(windows)
        sequential = windows.batches(1, order="sequential")
        for k in (0, 3, len(dataset) - 1):
            assert np.array_equal(dataset[k][0], sequential[k][0][0])
            assert len(dataset[k]) == 2 + documents
    with pytest.raises(ValueError, match=r"length: expected the windows' own 25, got 9\. Leave length= out"):
        WindowDataset(marked.windows(LENGTH), 9)
    with pytest.raises(TypeError, match=r"length: expected the tokens of a window, got none\. Use WindowDataset\("):
        WindowDataset(marked)
    with pytest.raises(TypeError, match=r"WindowDataset: expected tokens or windows, got Feed\. Use"):
        WindowDataset(feed_of(marked))  # type: ignore[arg-type]


# Where ranks would be dealt twice


def test_a_sampler_for_ranks_over_a_feed_that_has_ranks_is_refused(tokens: lowtide.Tokens) -> None:
    dataset = FeedDataset(feed_of(tokens, order="sequential", rank=0, world=2))
    sampler: Any = DistributedSampler(dataset, num_replicas=2, rank=0)
    with pytest.raises(ValueError, match="IterableDataset: expected unspecified sampler option"):
        DataLoader(dataset, batch_size=None, sampler=sampler)
    with pytest.raises(TypeError, match=r"feed: expected a sequential order to have a length, got 'shuffled'"):
        DistributedSampler(FeedDataset(feed_of(tokens, rank=0, world=2)), num_replicas=2, rank=0)


@pytest.mark.parametrize("index", [1.5, "a", slice(0, 3), [1, 2], None, True])
def test_what_is_no_row_number_is_refused_by_every_dataset(tokens: lowtide.Tokens, place: Path, index: Any) -> None:
    """1.5 was row 1."""
    np.save(place / "rows.npy", np.zeros((9, 2), "f4"))
    sets: list[Any] = [StreamDataset(tokens.batches(4, length=LENGTH)), RowDataset(lowtide.open(place / "rows.npy"))]
    for dataset in sets:
        with pytest.raises(TypeError, match="dataset: expected whole numbers of rows, got"):
            dataset[index]
        dataset[torch.tensor(1)], dataset[np.uint8(1)]
