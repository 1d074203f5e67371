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
from lowtide.reading.window_filler import WindowFiller

IDS = numbered(3000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return raw_file(tmp_path, IDS)


def test_windows_are_read_at_any_tokens_in_any_order_and_more_than_once(path: Path) -> None:
    with lowtide.open_tokens(path, dtype="uint16") as tokens:
        windows = WindowFiller(tokens, 9)
        starts = np.array([7, 0, 2990, 7, 100, 101, 95])
        same(windows.read(starts), rows_of(IDS, starts.tolist(), 9))


def test_x_and_y_share_one_lease_that_ends_with_the_last_of_them(path: Path) -> None:
    with lowtide.open_tokens(path, dtype="uint16") as tokens:
        x, y = WindowFiller(tokens, 9).read(np.array([3, 4]))
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
        x, y = WindowFiller(tokens, 9).read(np.array([], np.int64), rows=4)
        assert x.shape == y.shape == (0, 9)
        assert x.dtype == y.dtype == np.int64


def test_what_windows_say_they_need_is_what_they_take(path: Path) -> None:
    with lowtide.open_tokens(path, dtype="uint16") as tokens:
        windows = WindowFiller(tokens, 500, "int32")
        batch, scratch = windows.nbytes(20)
        windows.read(np.arange(20))
        pages = -(-scratch // 4096) * 4096
        assert tokens.store.budget.peak == batch + pages
        assert batch == 2 * 40_960  # 20 x 500 x 4 bytes, in whole pages


def test_each_window_is_one_read_of_the_bytes_on_disk(path: Path) -> None:
    with lowtide.open_tokens(path, dtype="uint16", strategy="read") as tokens:
        windows = WindowFiller(tokens, 9)
        windows.read(np.array([5]))
        with reading_from(Disk()) as disk:
            windows.read(np.arange(0, 2990, 130))
        assert disk.calls == 23


@given(
    st.lists(st.integers(0, 2959), min_size=1, max_size=60), st.integers(1, 40), st.sampled_from(["int64", "uint16"])
)
def test_any_windows_are_what_numpy_cuts(
    tmp_path_factory: pytest.TempPathFactory, starts: list[int], length: int, dtype: str
) -> None:
    path = raw_file(tmp_path_factory.mktemp("windows"), IDS)
    with lowtide.open_tokens(path, dtype="uint16") as tokens:
        got = WindowFiller(tokens, length, dtype).read(np.array(starts))
        same(got, rows_of(IDS, starts, length), dtype)
