"""A memmap and its views lead to the bytes they show."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import FormatError
from lowtide.formats import Layout, layout_of, token_layout

ReadBack = Callable[[Layout], npt.NDArray[Any]]


@pytest.fixture(scope="module")
def file_of_bytes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memmap") / "bytes"
    np.random.default_rng(3).integers(0, 256, 5 * 4096, dtype="u1").tofile(path)
    return path


@settings(max_examples=100, deadline=None)
@given(
    offset=st.integers(0, 3 * 4096),
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    cut=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    turned=st.booleans(),
)
def test_a_slice_of_a_memmap_is_found_at_its_true_offset(
    file_of_bytes: Path,
    read_back: ReadBack,
    offset: int,
    rows: int,
    columns: int,
    cut: tuple[int, int],
    turned: bool,
) -> None:
    whole = np.memmap(file_of_bytes, ">u2", "r", offset, (rows, columns))
    view = whole[cut[0] : cut[1]]
    view = view.T if turned else view
    layout = layout_of(view)
    assert (layout.format, layout.dtype, layout.shape) == ("memmap", view.dtype, view.shape)
    assert np.array_equal(read_back(layout), view)
    assert layout.extents[0].path == str(file_of_bytes)


def test_other_views_of_consecutive_bytes_open(file_of_bytes: Path, read_back: ReadBack) -> None:
    whole = np.memmap(file_of_bytes, "<u4", "r", offset=4100, shape=(100, 10))
    for view in (
        whole.view("<u2"),
        whole[3],
        whole.reshape(20, 50)[7:9],
        whole[5:6, 2:4],
        whole[4:4],
        np.asarray(whole)[9:],
    ):
        assert np.array_equal(read_back(layout_of(view)), view)


def test_a_memmap_that_np_load_made_opens_behind_the_header(tmp_path: Path, read_back: ReadBack) -> None:
    array = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    np.save(tmp_path / "a.npy", array)
    layout = layout_of(np.load(tmp_path / "a.npy", mmap_mode="r"))
    assert (layout.fortran, layout.extents[0].offset) == (True, 128)
    assert np.array_equal(read_back(layout), array)


def test_a_strided_view_is_refused_with_what_to_do(file_of_bytes: Path) -> None:
    whole = np.memmap(file_of_bytes, "<u2", "r", shape=(100, 10))
    for view in (whole[::2], whole[:, 3:5], whole[::-1]):
        with pytest.raises(FormatError, match=r"strided view.*index what lowtide\.open returns"):
            layout_of(view)


@pytest.mark.parametrize(("mode", "word"), [("r+", "flush"), ("r", None)])
def test_a_memmap_with_changes_in_memory_gets_a_note(tmp_path: Path, mode: Any, word: str | None) -> None:
    (tmp_path / "x").write_bytes(bytes(100))
    notes = layout_of(np.memmap(tmp_path / "x", "u1", mode)).notes
    assert notes == () if word is None else word in notes[0]


def test_a_copy_on_write_memmap_is_refused_as_release_refuses_it(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(100))
    mapped = np.memmap(tmp_path / "x", "u1", "c")
    mapped[3] = 7
    for source in (mapped, mapped[2:], np.asarray(mapped)):
        with pytest.raises(ValueError, match=r"mode 'c' \(copy on write\).*mode='r'"):
            layout_of(source)
    with pytest.raises(ValueError, match="mode 'c'"):
        token_layout(mapped)


def test_a_memmap_whose_file_is_gone_is_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(100))
    mapped = np.memmap(tmp_path / "x", "u1", "r")
    (tmp_path / "x").unlink()
    with pytest.raises(FileNotFoundError):
        layout_of(mapped)


def test_a_memmap_whose_file_was_replaced_is_refused_with_both_sizes(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(100))
    mapped = np.memmap(tmp_path / "x", "u1", "r")
    (tmp_path / "y").write_bytes(bytes(200))
    (tmp_path / "y").rename(tmp_path / "x")
    with pytest.raises(FormatError, match=r"expected the 100 bytes.*got a file of 200"):
        layout_of(mapped)


def test_a_memmap_whose_file_was_cut_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(100))
    mapped = np.memmap(tmp_path / "x", "u1", "r")
    with (tmp_path / "x").open("r+b") as file:
        file.truncate(50)
    with pytest.raises(FormatError, match="cut"):
        layout_of(mapped)


def test_a_memmap_without_a_file_name_is_refused(file_of_bytes: Path) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(bytes(100))
        file.flush()
        with pytest.raises(FormatError, match="Pass the path"):
            layout_of(np.memmap(file, "u1", "r"))
    with pytest.raises(FormatError, match="Pass the path"):
        layout_of(np.memmap(file_of_bytes, "u1", "r").copy())


def test_a_single_value_of_a_memmap_is_refused(file_of_bytes: Path) -> None:
    with pytest.raises(FormatError, match=r"shape \(\)"):
        layout_of(np.memmap(file_of_bytes, "u1", "r", shape=(1,)).reshape(()))


def test_stating_something_else_than_the_memmap_is_refused(file_of_bytes: Path) -> None:
    mapped = np.memmap(file_of_bytes, "u1", "r")
    with pytest.raises(FormatError, match="dtype=int8"):
        layout_of(mapped, dtype="i1")
    with pytest.raises(ValueError, match="tensor"):
        layout_of(mapped, tensor="w")
