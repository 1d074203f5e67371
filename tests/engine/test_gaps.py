"""Rows of a mask: runs in the order of the file, read together with the small gaps between them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide.engine import KEEP_NEAR, Runs, engine

ENGINES = ("native", "python")
SIZE = 3_000_000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gaps") / "bytes.bin"
    path.write_bytes(np.random.default_rng(0).integers(0, 256, SIZE, np.uint8).tobytes())
    return path


def filled(name: str, path: Path, offsets: Any, lengths: Any) -> tuple[Any, np.ndarray[Any, Any]]:
    total = lengths * len(offsets) if isinstance(lengths, int) else int(lengths.sum())
    target = np.full(total + 16, 170, np.uint8)
    fd = os.open(path, os.O_RDONLY)
    try:
        found = engine(name).queue("announce").fill(Runs(fd, offsets, lengths), target[:total], KEEP_NEAR)
    finally:
        os.close(fd)
    assert (target[total:] == 170).all(), "nothing behind the target is written"
    return found, target[:total]


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("gap", [0, 1, 700, 8192, 8193, 20_000])
def test_runs_come_whatever_lies_between_them(name: str, gap: int, path: Path) -> None:
    data = np.fromfile(path, np.uint8)
    random = np.random.default_rng(gap)
    lengths = random.integers(0, 900, 3000).astype(np.int64)  # more than one call takes; some are empty
    gaps = np.where(random.random(3000) < 0.5, gap, 0)
    offsets = np.cumsum(lengths + gaps) - lengths
    kept = offsets + lengths <= SIZE
    offsets, lengths = offsets[kept], lengths[kept]
    found, target = filled(name, path, offsets, lengths)
    assert isinstance(found, int)
    expected = [data[first : first + length] for first, length in zip(offsets, lengths, strict=True)]
    np.testing.assert_array_equal(target, np.concatenate(expected))


@pytest.mark.parametrize("name", ENGINES)
def test_rows_that_come_twice_or_overlap_come_as_they_are(name: str, path: Path) -> None:
    data = np.fromfile(path, np.uint8)
    offsets = np.array([0, 0, 100, 650, 5000, 4000], np.int64)
    _, target = filled(name, path, offsets, 600)
    np.testing.assert_array_equal(target, np.concatenate([data[first : first + 600] for first in offsets]))


@pytest.mark.parametrize("name", ENGINES)
def test_the_first_run_behind_the_end_of_the_file_is_named(name: str, path: Path) -> None:
    offsets = np.arange(SIZE - 10_000, SIZE + 10_000, 1500)
    found, _ = filled(name, path, offsets, 600)
    run = next(run for run, first in enumerate(offsets.tolist()) if first + 600 > SIZE)
    assert tuple(found) == ("read", run, max(0, SIZE - int(offsets[run])), 0)


@pytest.mark.parametrize("width", [300, 512, 2000])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.97])
def test_a_subset_by_a_mask_is_what_numpy_gives_with_either_engine(
    width: int, share: float, path: Path, tmp_path: Path
) -> None:
    rows = np.fromfile(path, np.uint8)[: SIZE // width * width].reshape(-1, width)
    whole = tmp_path / "rows.bin"
    whole.write_bytes(rows.tobytes())
    mask = np.random.default_rng(1).random(len(rows)) < share
    for name in ENGINES:
        with lowtide.open(whole, dtype="uint8", shape=(-1, width), cache="keep", engine=name) as array:
            part = array.subset(mask)
            np.testing.assert_array_equal(np.concatenate([chunk.copy() for chunk in part.chunks(700)]), rows[mask])
            np.testing.assert_array_equal(array[mask], rows[mask])
