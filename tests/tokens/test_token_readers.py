"""Readers of tokens: a batch that is started early is the one that is read at once; one that is dropped is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.conftest import TokenFiles
from tests.tokens.test_documents import corpus

import lowtide
from lowtide.reading.ahead import Later
from lowtide.storage.watched_files import KEPT

LENGTH = 32
Made = Callable[[str], lowtide.Feed]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    files = TokenFiles(tmp_path_factory.mktemp("readers"))
    random = np.random.default_rng(3)
    first, second = corpus(random, 9_000, share=0.03), corpus(random, 5_000, share=0.03)
    return files.raw("a.bin", first), files.raw("b.bin", second, "<u4")


KINDS: dict[str, Callable[..., lowtide.Feed]] = {
    "windows": lambda a, b: a.batches(12, length=LENGTH),
    "windows of a split": lambda a, b: a.split(0.4)[1].batches(12, length=LENGTH),
    "windows of uint16": lambda a, b: a.batches(12, length=LENGTH, dtype="uint16"),
    "windows in order": lambda a, b: a.batches(12, length=LENGTH, order="sequential"),
    "documents": lambda a, b: a.windows(LENGTH, documents=True).batches(12),
    "packed": lambda a, b: a.windows(LENGTH, cut="packed", documents=True).batches(12),
    "packed of uint16": lambda a, b: a.windows(LENGTH, cut="packed", dtype="uint16").batches(12),
    "mixture": lambda a, b: lowtide.mix({"a": (a, 1), "b": (b, 2)}).batches(12, length=LENGTH),
    "mixture of one type": lambda a, b: lowtide.mix({"a": (a.split(0.5)[0], 1), "b": (a.split(0.5)[1], 2)}).batches(
        12, length=LENGTH
    ),
    "mixture of packed rows": lambda a, b: lowtide.mix(
        {name: (one.windows(LENGTH, cut="packed", documents=True), 1) for name, one in (("a", a), ("b", b))}
    ).batches(12),
}


@contextmanager
def feeds_of(paths: tuple[Path, Path], engine: str, kind: str) -> Iterator[tuple[lowtide.Feed, lowtide.Feed]]:
    """Two of the same, each over corpora of its own."""
    opened = [
        lowtide.open_tokens(path, dtype=dtype, eot=0, engine=engine)
        for _ in range(2)
        for path, dtype in zip(paths, ("uint16", "uint32"), strict=True)
    ]
    yield KINDS[kind](*opened[:2]), KINDS[kind](*opened[2:])
    for tokens in opened:
        tokens.close()


def alike(one: Any, other: Any) -> bool:
    return all(alike(a, b) if isinstance(a, tuple) else np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("engine", ["native", "python"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_started_early_is_the_batch_read_at_once(paths: tuple[Path, Path], engine: str, kind: str) -> None:
    with feeds_of(paths, engine, kind) as (feed, other):
        for at in (0, 12, 60):
            batches = feed._batches.start(at, True), feed._batches.start(at + 12, True)
            assert alike(batches[1].finish(), other.at(at + 12))
            assert alike(batches[0].finish(), other.at(at))


@pytest.mark.parametrize("kind", KINDS)
def test_an_early_batch_that_is_dropped_gives_everything_back(paths: tuple[Path, Path], kind: str) -> None:
    with feeds_of(paths, "native", kind) as (feed, _):
        next(feed)
        for at in (12, 24, 36, 48):
            batch = feed._batches.start(at, True)
            del batch
        assert sum(pool.lent for pool in feed.pools) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_cold_data_are_those_of_cached_data(paths: tuple[Path, Path], kind: str) -> None:
    with feeds_of(paths, "native", kind) as (feed, other):
        for _ in range(9):
            for temperature in feed._reader.temperatures:
                temperature.cold = True
            assert alike(next(feed), next(other))


def test_an_early_batch_without_room_is_only_announced(paths: tuple[Path, Path]) -> None:
    with lowtide.open_tokens(paths[0], dtype="uint16", engine="native", budget="72KiB") as tokens:
        feed = tokens.batches(64, length=LENGTH)
        held = next(feed)
        early = [feed._batches.start(at, True) for at in (64, 128)]
        assert isinstance(early[1], Later)
        assert held is not None
        del held, early[0]
        assert alike(early[0].finish(), feed.at(128))


def test_an_id_outside_its_own_corpus_is_refused_where_vocabularies_differ(tmp_path: Path) -> None:
    files = TokenFiles(tmp_path)
    small, large = files.raw("small.bin", [*range(90)] * 4), files.raw("large.bin", [*range(900)] * 4)
    with (
        lowtide.open_tokens(small, dtype="uint16", vocab=90) as low,
        lowtide.open_tokens(large, dtype="uint16", vocab=900) as high,
    ):
        feed = lowtide.mix({"low": (low, 1), "high": (high, 1)}).batches(8, length=16)
        for _ in range(20):
            next(feed)
    with (
        lowtide.open_tokens(small, dtype="uint16", vocab=89) as low,
        lowtide.open_tokens(large, dtype="uint16", vocab=900) as high,
    ):
        feed = lowtide.mix({"low": (low, 1), "high": (high, 1)}).batches(64, length=16)
        with pytest.raises(lowtide.FormatError, match=r"small.bin: expected ids from 0 to 88 .*got 89 at byte"):
            for _ in range(20):
                next(feed)


@pytest.mark.parametrize("engine", ["native", "python"])
@pytest.mark.parametrize("cut", ["stride", "packed"])
def test_documents_of_more_files_than_may_be_open_at_once_are_those_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, cut: str
) -> None:
    monkeypatch.setattr(type(KEPT), "together", property(lambda _: 4))
    files, ids = TokenFiles(tmp_path), corpus(np.random.default_rng(5), 4_000, share=0.03)
    shards = [files.raw(f"{number:02}.bin", some) for number, some in enumerate(np.split(ids, 40))]
    with (
        lowtide.open_tokens(shards, dtype="uint16", eot=0, engine=engine) as many,
        lowtide.open_tokens(files.raw("all.bin", ids), dtype="uint16", eot=0, engine=engine) as one,
    ):
        feeds = [tokens.windows(24, cut=cut, documents=True).batches(64) for tokens in (many, one)]
        for _ in range(3):
            assert alike(*map(next, feeds))
