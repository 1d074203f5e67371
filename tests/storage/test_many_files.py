"""Windows of many files read in two native calls: the same bytes, and every way a file can change is still seen."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.asked import native

import lowtide
from lowtide.errors import ReadError
from lowtide.storage.watched_files import KEPT

FILES, TOKENS, LENGTH = 5, 700, 16


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    native()
    random = np.random.default_rng(3)
    paths = []
    for number in range(FILES):
        paths.append(tmp_path / f"shard-{number}.bin")
        random.integers(0, 60_000, TOKENS * (number != 2), dtype=np.uint16).tofile(paths[-1])  # one has no tokens
    return [path for path in paths if path.stat().st_size]


def feed_of(paths: list[Path], **settings: Any) -> lowtide.Feed:
    return lowtide.open_tokens(paths, dtype="uint16", cache="keep", **settings).batches(24, length=LENGTH, seed=1)


def quick(feed: lowtide.Feed) -> bool:
    """Whether the short way knows its files."""
    return feed.stores[0].files._watched is not None


def test_both_engines_give_the_same_windows_of_many_files(shards: list[Path]) -> None:
    fast, plain = feed_of(shards), feed_of(shards, engine="python")
    for _ in range(40):  # windows across two files among them
        for one, other in zip(next(fast), next(plain), strict=True):
            assert np.array_equal(one, other)
    assert quick(fast)
    ours, theirs = fast.stats(), plain.stats()
    assert (ours.asked, ours.read) == (theirs.asked, theirs.read)


def truncate(path: Path) -> None:
    os.truncate(path, 100)


def rewrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"12")
    os.utime(path, ns=(1, 1))


def replace(path: Path) -> None:
    other = path.with_suffix(".other")
    other.write_bytes(path.read_bytes())
    other.rename(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (truncate, "truncated to"),
        (lambda path: os.truncate(path, 10_000), "grown to"),
        (rewrite, "rewritten in place"),
        (replace, "replaced by another file"),
        (Path.unlink, "deleted"),
    ],
)
def test_a_file_of_many_that_changes_between_two_batches_is_an_error(
    shards: list[Path], change: Callable[[Path], None], said: str
) -> None:
    feed = feed_of(shards)
    for _ in range(10):
        next(feed)
    assert quick(feed)
    change(shards[1])
    with pytest.raises(ReadError, match=said):
        for _ in range(10):
            next(feed)


def test_descriptors_that_were_let_go_are_opened_again(shards: list[Path]) -> None:
    feed, plain = feed_of(shards), feed_of(shards, engine="python")
    for _ in range(10):
        assert np.array_equal(next(feed)[0], next(plain)[0])
    KEPT.make_room()
    assert not quick(feed)
    for _ in range(10):
        assert np.array_equal(next(feed)[0], next(plain)[0])
    assert quick(feed)


def test_an_id_outside_the_vocabulary_is_named_with_its_file(shards: list[Path]) -> None:
    feed = feed_of(shards, vocab=59_000)
    with pytest.raises(lowtide.FormatError, match="shard-"):
        for _ in range(200):
            next(feed)


def test_a_closed_store_stays_closed(shards: list[Path]) -> None:
    tokens = lowtide.open_tokens(shards, dtype="uint16", cache="keep")
    feed = tokens.batches(24, length=LENGTH)
    for _ in range(10):
        next(feed)
    tokens.close()
    with pytest.raises(ValueError, match="got a closed one"):
        next(feed)
