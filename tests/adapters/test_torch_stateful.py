"""``FeedDataset`` inside torchdata's ``StatefulDataLoader``: saved in the middle, loaded into a fresh feed at 0."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.feeds import numbered, raw_file

import lowtide

torch = pytest.importorskip("torch", reason="NOT TESTED: torch is not installed, so no state was saved")
pytest.importorskip("torchdata", reason="NOT TESTED: torchdata is not installed, so no StatefulDataLoader ran")
from torch.utils.data import DataLoader  # noqa: E402
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402

from lowtide.torch import FeedDataset  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata's call of torch
]

COUNT, LENGTH, BATCH = 4003, 25, 8
IDS = numbered(COUNT)
WORKERS = [0, 2, pytest.param(4, marks=pytest.mark.slow)]


def feed_of(tokens: lowtide.Tokens, batch: int = BATCH, **more: Any) -> lowtide.Feed:
    return tokens.batches(batch, length=LENGTH, seed=4, **more)


def loader_of(feed: Any, workers: int, **more: Any) -> Any:
    return StatefulDataLoader(FeedDataset(feed), batch_size=None, num_workers=workers, **more)


def taken(loader: Any, count: int) -> list[Any]:
    return [x.clone() for x, *_ in islice(loader, count)]


@pytest.fixture
def ended_workers() -> Iterator[None]:
    """Ends the workers of loaders that refused their state: they never began, and torchdata would wait 5 s for each
    of them whenever the loader is collected."""
    yield
    for worker in multiprocessing.active_children():
        worker.terminate()
        worker.join()


def stopped_twice(make: Any, stops: tuple[int, int, int]) -> list[Any]:
    """What three runs received, each from a fresh loader that has nothing but the state of the one before it."""
    received, state = [], None
    for count in stops:
        loader = make()
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        received += taken(loader, count)
        state = loader.state_dict()
    return received


@pytest.mark.parametrize("workers", WORKERS)
def test_a_loader_stopped_twice_gives_what_an_uninterrupted_one_gives(tokens: lowtide.Tokens, workers: int) -> None:
    received = stopped_twice(lambda: loader_of(feed_of(tokens, skip=[(6, 7)]), workers), (3, 11, 30))
    feed = feed_of(tokens, skip=[(6, 7)])  # two epochs
    assert len(received) == 44
    assert all(np.array_equal(x, next(feed)[0]) for x in received)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_finite_feed_ends_where_it_would_have_and_the_next_pass_is_whole(
    tokens: lowtide.Tokens, workers: int
) -> None:
    def make() -> Any:
        return loader_of(feed_of(tokens, order="sequential"), workers)

    loader = make()
    first = taken(loader, 13)
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    first += [x for x, _ in resumed]
    assert np.array_equal(torch.cat([x.reshape(-1) for x in first]), IDS[:-1])
    ended = make()
    ended.load_state_dict(resumed.state_dict())
    for one in (resumed, ended):
        assert np.array_equal(torch.cat([x.reshape(-1) for x, _ in one]), IDS[:-1])


@pytest.mark.parametrize("workers", [0, 2])
def test_snapshots_taken_rarely_resume_exactly_too(tokens: lowtide.Tokens, workers: int) -> None:
    make = lambda: loader_of(feed_of(tokens), workers, snapshot_every_n_steps=4)  # noqa: E731
    feed = feed_of(tokens)
    assert all(np.array_equal(x, next(feed)[0]) for x in stopped_twice(make, (6, 3, 10)))


@pytest.mark.slow
def test_persistent_workers_begin_every_pass_where_the_feed_is(tokens: lowtide.Tokens) -> None:
    feed = feed_of(tokens, order="sequential")
    loader = loader_of(feed, 2, persistent_workers=True)
    for _ in range(2):
        assert np.array_equal(torch.cat([x.reshape(-1) for x, _ in loader]), IDS[:-1])
    loader = loader_of(feed_of(tokens, order="sequential"), 2, persistent_workers=True)
    first = taken(loader, 5)
    resumed = loader_of(feed_of(tokens, order="sequential"), 2, persistent_workers=True)
    resumed.load_state_dict(loader.state_dict())
    first += [x.clone() for x, _ in resumed]
    assert np.array_equal(torch.cat([x.reshape(-1) for x in first]), IDS[:-1])
    assert np.array_equal(torch.cat([x.reshape(-1) for x, _ in resumed]), IDS[:-1])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_fresh_feed_anywhere_goes_where_the_state_says(tokens: lowtide.Tokens, workers: int) -> None:
    loader = loader_of(feed_of(tokens), workers)
    taken(loader, 9)
    feed = feed_of(tokens)
    feed.seek(77)
    resumed = loader_of(feed, workers)
    resumed.load_state_dict(loader.state_dict())
    assert np.array_equal(taken(resumed, 1)[0], feed[9][0])


def test_ranks_may_change_with_one_process_and_batches_too(tokens: lowtide.Tokens) -> None:
    loader = loader_of(feed_of(tokens), 0)
    taken(loader, 3)
    state = loader.state_dict()
    parts = []
    for rank in range(2):
        resumed = loader_of(feed_of(tokens, batch=12, rank=rank, world=2), 0)
        resumed.load_state_dict(state)
        parts += taken(resumed, 1)
    feed = feed_of(tokens, batch=12)
    feed.cursor = 3 * BATCH
    assert np.array_equal(torch.cat(parts), next(feed)[0])


@pytest.mark.usefixtures("ended_workers")
@pytest.mark.parametrize(("saved", "loaded"), [(2, 3), (3, 2)])
def test_another_number_of_workers_is_refused_by_name(tokens: lowtide.Tokens, saved: int, loaded: int) -> None:
    loader = loader_of(feed_of(tokens), saved)
    taken(loader, 5)
    resumed = loader_of(feed_of(tokens), loaded)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(
        lowtide.StateError,
        match=rf"state: expected workers={loaded}, got {saved}: each worker has a position of its own",
    ):
        taken(resumed, 1)


@pytest.mark.usefixtures("ended_workers")
def test_another_batch_size_is_refused_where_workers_had_places_of_their_own(tokens: lowtide.Tokens) -> None:
    loader = loader_of(feed_of(tokens), 2)
    taken(loader, 5)
    resumed = loader_of(feed_of(tokens, batch=4), 2)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(
        lowtide.StateError, match=r"state: expected batch=4, got 8.*Continue with batch=8, or use feed\."
    ):
        taken(resumed, 1)


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_the_state_of_the_feed_itself_serves_any_number_of_workers(tokens: lowtide.Tokens, workers: int) -> None:
    feed = feed_of(tokens)
    for _ in range(7):
        next(feed)
    dataset = FeedDataset(feed_of(tokens))
    dataset.load_state_dict(feed.state_dict())
    assert dataset.state_dict() == feed.state_dict()
    loader: Any = DataLoader(dataset, batch_size=None, num_workers=workers)
    for x in taken(loader, 10):
        assert np.array_equal(x, next(feed)[0])


@pytest.mark.parametrize(
    "state",
    [{}, {"lowtide": 2, "rows": 3}, {"_snapshot": {}, "_num_yielded": 3}, 17, {"epoch": 1, "sample_in_epoch": 4}],
    ids=str,
)
def test_a_state_of_another_framework_or_version_is_refused(tokens: lowtide.Tokens, state: Any) -> None:
    with pytest.raises(lowtide.StateError, match=r"state: expected a feed's state_dict\(\) of version 1, got"):
        FeedDataset(feed_of(tokens)).load_state_dict(state)
    good = loader_of(feed_of(tokens), 0)
    taken(good, 1)
    inner = good.state_dict()["dataset_state"]
    with pytest.raises(lowtide.StateError, match="expected how batches were dealt to workers, got 'x'"):
        FeedDataset(feed_of(tokens)).load_state_dict({**inner, "dealt": "x"})
    with pytest.raises(lowtide.StateError, match="state: expected seed=4, got 5"):
        FeedDataset(feed_of(tokens)).load_state_dict({**inner, "seed": 5})


def test_two_passes_at_once_do_not_disturb_each_other(tokens: lowtide.Tokens) -> None:
    dataset = FeedDataset(feed_of(tokens))
    one, two = iter(dataset), iter(dataset)
    feed = feed_of(tokens)
    for step in range(5):
        assert np.array_equal(next(one)[0], feed[step][0])
        assert np.array_equal(next(two)[0], feed[step][0])


def test_a_feed_with_documents_and_an_iterator_of_rows_are_dealt_too(tokens: lowtide.Tokens, tmp_path: Path) -> None:
    ids = np.where(np.arange(COUNT) % 13 == 12, 7, IDS)
    with lowtide.open_tokens(raw_file(tmp_path, ids), dtype="uint16", eot=7) as marked:
        feed = marked.windows(LENGTH, documents=True).batches(BATCH, seed=2)
        for workers in (0, 2):
            for step, (x, _, docs) in enumerate(islice(loader_of(feed, workers), 4)):
                expected = feed[step]
                assert np.array_equal(x, expected[0])
                assert np.array_equal(docs.cu_seqlens, expected[2].cu_seqlens)
                assert docs.max_seqlen == expected[2].max_seqlen
    np.save(tmp_path / "rows.npy", np.arange(303, dtype=np.float32).reshape(101, 3))
    with lowtide.open(tmp_path / "rows.npy") as array:
        for workers in (0, 2):
            loader = loader_of(array.shuffled(10, seed=1, epochs=2), workers)
            received = [rows.clone() for rows in islice(loader, 7)]
            resumed = loader_of(array.shuffled(10, seed=1, epochs=2), workers)
            resumed.load_state_dict(loader.state_dict())
            received += [rows.clone() for rows in resumed]
            assert np.array_equal(torch.cat(received), np.concatenate(list(array.shuffled(10, seed=1, epochs=2))))
    with pytest.raises(TypeError, match=r"FeedDataset: expected a feed or an iterator of rows, got Tokens\. Use"):
        FeedDataset(tokens)  # type: ignore[arg-type]


def test_a_feed_without_end_has_no_length(tokens: lowtide.Tokens) -> None:
    assert len(loader_of(feed_of(tokens, order="sequential"), 0)) == 21
    with pytest.raises(TypeError, match=r"feed: expected a sequential order to have a length, got 'shuffled'"):
        len(loader_of(feed_of(tokens), 0))


@pytest.mark.trainers
def test_a_loader_whose_worker_was_killed_is_made_again_from_its_state(tokens: lowtide.Tokens) -> None:
    loader = loader_of(feed_of(tokens), 2)
    batches = iter(loader)
    received = [next(batches)[0].clone() for _ in range(5)]
    state = loader.state_dict()
    os.kill(batches._workers[1].pid, signal.SIGKILL)
    with pytest.raises((RuntimeError, EOFError, OSError)):  # torch notices, or the batch it was handing over is gone
        for _ in range(100):
            next(batches)
    with suppress(RuntimeError):  # torch's handler raises when the child's signal comes, which may be only now
        batches._workers[1].join()
    batches._workers[1].join()  # once it is reaped, the handler is silent
    batches._shutdown_workers()
    resumed = loader_of(feed_of(tokens), 2)
    resumed.load_state_dict(state)
    received += taken(resumed, 5)
    feed = feed_of(tokens)
    assert all(np.array_equal(x, next(feed)[0]) for x in received)


def test_a_dataset_in_use_is_pickled_without_its_place(tokens: lowtide.Tokens) -> None:
    dataset = FeedDataset(feed_of(tokens))
    here = iter(dataset)
    for _ in range(3):
        next(here)
    sent = pickle.loads(pickle.dumps(dataset))
    feed = feed_of(tokens)
    assert all(np.array_equal(x, next(feed)[0]) for x in taken(sent, 5))
    assert np.array_equal(next(here)[0], feed[3][0])
