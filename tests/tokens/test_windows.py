"""Windows: tokens read once as they lie, widened into x and y of one lease."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults import Disk, reading_from
from tests.feeds import numbered, raw_file, rows_of, same

import lowtide
from lowtide.reading.window_reader import WindowReader

IDS = numbered(3000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return raw_file(tmp_path, IDS)


def test_windows_are_read_at_any_tokens_in_any_order_and_more_than_once(path: Path) -> None:
    with lowtide.open_tokens(path, dtype="uint16") as tokens:
        windows = WindowReader(tokens, 9)
        starts = np.array([7, 0, 2990, 7, 100, 101, 95])
        same(windows.start(starts).finish(), rows_of(IDS, starts.tolist(), 9))


def test_x_and_y_share_one_lease_that_ends_with_the_last_of_them(path: Path) -> None:
    with lowtide.open_tokens(path, dtype="uint16") as tokens:
        x, y = WindowReader(tokens, 9).start(np.array([3, 4])).finish()
        assert tokens.store.pool.lent == 1
        del x
        assert tokens.store.pool.lent == 1
        kept = y[1:, 2]
        del y
        assert tokens.store.pool.lent == 1
        assert kept[0] == IDS[4 + 1 + 2]
        del kept
        assert tokens.store.pool.lent == 0


def test_no_windows_are_two_empty_arrays_of_the_right_shape(path: Path) -> None:
    with lowtide.open_tokens(path, dtype="uint16") as tokens:
        x, y = WindowReader(tokens, 9).start(np.array([], np.int64)).finish()
        assert x.shape == y.shape == (0, 9)
        assert x.dtype == y.dtype == np.int64


@pytest.mark.parametrize(("dtype", "passes_through_scratch"), [("int32", False), ("uint16", True)])
def test_what_windows_say_they_need_is_what_they_take(path: Path, dtype: str, passes_through_scratch: bool) -> None:
    with lowtide.open_tokens(path, dtype="uint16") as tokens:
        windows = WindowReader(tokens, 500, dtype)
        batch, scratch = windows.nbytes(20), windows.scratch(20)
        windows.start(np.arange(20)).finish()
        pages = -(-scratch // 4096) * 4096
        assert tokens.store.budget.peak == batch + pages * passes_through_scratch
        assert batch == 2 * -(-20 * 500 * np.dtype(dtype).itemsize // 4096) * 4096  # in whole pages


def test_windows_that_follow_another_are_one_long_read(path: Path) -> None:
    with lowtide.open_tokens(path, dtype="uint16", strategy="read", engine="python") as tokens:
        windows = WindowReader(tokens, 9)
        windows.start(np.array([5])).finish()
        with reading_from(Disk()) as disk:
            got = windows.start(range(18, 18 + 9 * 30, 9)).finish()
        assert disk.calls == 1
        same(got, rows_of(IDS, list(range(18, 18 + 9 * 30, 9)), 9))


def test_each_window_is_one_read_of_the_bytes_on_disk(path: Path) -> None:
    with lowtide.open_tokens(path, dtype="uint16", strategy="read") as tokens:
        windows = WindowReader(tokens, 9)
        windows.start(np.array([5])).finish()
        with reading_from(Disk()) as disk:
            windows.start(np.arange(0, 2990, 130)).finish()
        assert disk.calls == 23


@given(
    st.lists(st.integers(0, 2959), min_size=1, max_size=60), st.integers(1, 40), st.sampled_from(["int64", "uint16"])
)
def test_any_windows_are_what_numpy_cuts(
    tmp_path_factory: pytest.TempPathFactory, starts: list[int], length: int, dtype: str
) -> None:
    path = raw_file(tmp_path_factory.mktemp("windows"), IDS)
    with lowtide.open_tokens(path, dtype="uint16") as tokens:
        got = WindowReader(tokens, length, dtype).start(np.array(starts)).finish()
        same(got, rows_of(IDS, starts, length), dtype)
