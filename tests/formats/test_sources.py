"""Ways to name files: paths, lists, globs - and everything that is no file."""

from __future__ import annotations

import os
import pickle
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import FormatError
from lowtide.formats import Layout, layout_of, token_layout
from lowtide.formats.sources import natural_key

ReadBack = Callable[[Layout], npt.NDArray[Any]]


def save(path: Path, array: npt.NDArray[Any]) -> Path:
    np.save(path, array)
    return path


def test_a_list_is_one_array_in_its_own_order(tmp_path: Path, read_back: ReadBack) -> None:
    paths = [save(tmp_path / f"{k}.npy", np.full((k, 3), k, "i4")) for k in (3, 1, 2)]
    layout = layout_of([paths[0], str(paths[1]), np.load(paths[2], mmap_mode="r")])
    assert (layout.shape, layout.rows, layout.format) == ((6, 3), (3, 1, 2), "npy + memmap")
    assert read_back(layout)[:, 0].tolist() == [3, 3, 3, 1, 2, 2]


def test_fortran_files_join_as_fortran_extents(tmp_path: Path, read_back: ReadBack) -> None:
    arrays = [np.asfortranarray(np.arange(rows * 4).reshape(rows, 4)) for rows in (2, 1, 3)]
    layout = layout_of([save(tmp_path / f"{k}.npy", array) for k, array in enumerate(arrays)])
    assert layout.fortran
    assert np.array_equal(read_back(layout), np.concatenate(arrays))


def test_a_glob_counts_as_people_do(tmp_path: Path) -> None:
    for k in (10, 2, 1, 33):
        save(tmp_path / f"shard_{k}.npy", np.zeros(k))
    assert layout_of(tmp_path / "shard_*.npy").rows == (1, 2, 10, 33)
    assert layout_of(str(tmp_path / "**" / "*.npy")).rows == (1, 2, 10, 33)


@given(st.lists(st.integers(0, 10**25), min_size=2, max_size=5))
def test_natural_order_is_the_order_of_the_numbers(numbers: list[int]) -> None:
    names = [f"shard_{number:03d}.bin" for number in numbers]
    assert sorted(names, key=natural_key) == [f"shard_{number:03d}.bin" for number in sorted(numbers)]


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path: Path) -> None:
    path = save(tmp_path / "a[1].npy", np.zeros(3))
    save(tmp_path / "a1.npy", np.zeros(7))
    assert layout_of(path).shape == (3,)


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "a.npy", np.zeros(3))
    monkeypatch.chdir(tmp_path)
    assert layout_of("a.npy").extents[0].path == str(tmp_path / "a.npy")


def test_a_layout_survives_pickling(tmp_path: Path) -> None:
    layout = layout_of(save(tmp_path / "a.npy", np.zeros(3, [("a", ">u2"), ("b", "f4")])))
    assert pickle.loads(pickle.dumps(layout)) == layout


def test_a_glob_without_files_names_the_pattern(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none_\*\.npy"):
        layout_of(tmp_path / "none_*.npy")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (np.zeros((2, 3), "f8"), "dtype float32.*float64"),
        (np.zeros((2, 4), "f4"), r"row shape \(3,\).*\(4,\)"),
        (np.zeros((2, 3, 1), "f4"), r"row shape \(3,\).*\(3, 1\)"),
        (np.asfortranarray(np.zeros((2, 3), "f4")), "C order.*Fortran order"),
    ],
)
def test_files_that_do_not_fit_together_are_both_named(tmp_path: Path, other: npt.NDArray[Any], words: str) -> None:
    paths = [save(tmp_path / "one.npy", np.zeros((2, 3), "f4")), save(tmp_path / "two.npy", other)]
    with pytest.raises(FormatError, match=words) as caught:
        layout_of(paths)
    assert "one.npy" in str(caught.value)
    assert "two.npy" in str(caught.value)


def test_a_shape_for_several_files_describes_the_whole(tmp_path: Path) -> None:
    for k in (1, 2):
        np.zeros(k * 6, "f4").tofile(tmp_path / f"{k}.f32")
    pattern = tmp_path / "*.f32"
    for shape in ((-1, 3), (6, 3)):
        assert layout_of(pattern, dtype="f4", shape=shape).rows == (2, 4)
    with pytest.raises(FormatError, match=r"expected 5 rows.*got 6"):
        layout_of(pattern, dtype="f4", shape=(5, 3))
    with pytest.raises(ValueError, match="-1 for the first axis alone"):
        layout_of(pattern, dtype="f4", shape=(6, -1))


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ([], ValueError),
        ("", ValueError),
        ([""], ValueError),
        (None, TypeError),
        (7, TypeError),
        ([7], TypeError),
        (b"bytes", TypeError),
        (np.zeros(3), TypeError),
        ([np.zeros(3)], TypeError),
        ((name for name in ["a"]), TypeError),
        ("a\0b", ValueError),
        ("no/such/file.npy", FileNotFoundError),
        (["no/such/file.npy"], FileNotFoundError),
    ],
)
@pytest.mark.parametrize("opener", [layout_of, token_layout])
def test_what_is_no_source_is_told_as_such(opener: Callable[..., Layout], source: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        opener(source)


def test_a_directory_is_no_array(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=r"got a directory\. Name a file"):
        layout_of(tmp_path)


@pytest.mark.parametrize("opener", [layout_of, token_layout])
def test_a_fifo_a_socket_and_a_device_are_refused_without_waiting(
    tmp_path: Path, opener: Callable[..., Layout]
) -> None:
    os.mkfifo(tmp_path / "fifo")
    # A socket's name must fit in 108 bytes, so it gets a short directory of its own.
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{short}/s")
        for path, kind in ((tmp_path / "fifo", "FIFO"), (f"{short}/s", "socket"), ("/dev/zero", "character device")):
            with pytest.raises(FormatError, match=kind):
                opener(path, dtype="u1")


def test_an_unreadable_file_is_a_permission_error() -> None:
    """Root reads everything, so a child gives up its rights first."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        path = Path(directory) / "x.npy"
        np.save(path, np.zeros(3))
        path.chmod(0)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                if os.geteuid() == 0:
                    os.setuid(65534)
                layout_of(path)
            except PermissionError as error:
                code = 0 if str(path) in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_refusals_leave_no_descriptor_open(tmp_path: Path) -> None:
    bad = []
    for k, content in enumerate((b"", b"\x93NUMPY", b"LITPKDS", b"MMIDIDX\0\0", bytes(7), b"\x93NUMPY\1\0\2\0{}")):
        (tmp_path / f"{k}.bin").write_bytes(content)
        bad.append(tmp_path / f"{k}.bin")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        for path in bad:
            for opener in (layout_of, token_layout):
                with pytest.raises(FormatError):
                    opener(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("opener", [layout_of, token_layout])
@pytest.mark.parametrize("address", ["hf://d/x", "ftp://host/x.npy"])
def test_an_address_of_a_scheme_that_is_not_read_is_told_those_that_are(
    opener: Callable[..., Layout], address: str
) -> None:
    for source in (address, [address]):
        with pytest.raises(
            ValueError, match="or an address of s3://, gs://, az://, https://, http://, got one of"
        ) as caught:
            opener(source)
        assert str(caught.value).startswith(f"{address}: expected a path")


def test_a_file_address_is_told_to_leave_the_scheme_out() -> None:
    with pytest.raises(ValueError, match="Leave out 'file://'"):
        layout_of("file:///tmp/x.npy")


def test_a_local_path_with_a_colon_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:").mkdir()
    save(tmp_path / "s3:" / "x.npy", np.zeros(3))
    assert layout_of("s3:/x.npy").shape == (3,)


@pytest.mark.parametrize("opener", [layout_of, token_layout])
@pytest.mark.parametrize("address", ["s3://", "gs:///key", "az://", "S3:///", "http://", "https:///x.npy"])
def test_an_address_of_nothing_is_told_what_is_missing(opener: Callable[..., Layout], address: str) -> None:
    """`s3://` was asked of the network, and `s3:///x` was told to be one of s3:// instead."""
    with pytest.raises(ValueError, match=r"expected a (host|bucket) after \w+://, got none. Use \w+://NAME/x.npy"):
        opener(address)


@pytest.mark.parametrize("stated", [{"shape": (2.0, 3)}, {"shape": (None,)}, {"shape": 6.0}, {"offset": 1.0}])
def test_a_shape_or_offset_that_is_not_whole_is_refused_by_name(tmp_path: Path, stated: dict[str, Any]) -> None:
    np.zeros(6, "f4").tofile(tmp_path / "x.f4")
    with pytest.raises(TypeError, match=f"{next(iter(stated))}: expected "):
        layout_of(tmp_path / "x.f4", dtype="f4", **stated)
