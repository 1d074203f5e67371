"""Everything a caller can get wrong when writing: the right type of error, both numbers, the way out, nothing left."""

from __future__ import annotations

import os
import pickle
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide

pytestmark = pytest.mark.usefixtures("no_lost_descriptors")


def left_in(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


# Rows


def test_rows_of_another_kind_are_refused_with_both_names_and_nothing_is_appended(tmp_path: Path) -> None:
    with lowtide.create(tmp_path / "z.npy", dtype="float32", shape=(-1, 3)) as out:
        out.append(np.ones((2, 3), np.float32))
        for other in ("complex64", "S4", "U4", "M8[s]", "O"):
            rows = np.ones((2, 3), "i8").astype(other)
            told = re.escape(f"expected rows of dtype float32, got {rows.dtype}. Use np.asarray(rows).astype('<f4')")
            with pytest.raises(TypeError, match=told):
                out.append(rows)
        assert len(out) == 2
    assert np.load(tmp_path / "z.npy").shape == (2, 3)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("int32", "float64"), ("uint8", "float32"), ("bool", "uint8"), ("S3", "S4"), ("M8[D]", "M8[s]")],
)
def test_what_would_be_cut_or_rounded_to_whole_numbers_is_refused(tmp_path: Path, ours: str, theirs: str) -> None:
    rows = np.ones(4, "i8").astype(theirs)
    with lowtide.create(tmp_path / "z.npy", dtype=ours, shape=(4,)) as out:
        for wrong in (rows, rows[0:1].reshape(())):
            with pytest.raises(TypeError, match=r"z\.npy: expected rows of dtype .*, got .*astype"):
                out[0:4] = wrong
    assert np.array_equal(np.load(tmp_path / "z.npy"), np.zeros(4, ours))


@pytest.mark.parametrize(
    ("ours", "number", "range_of"),
    [
        ("int32", 2**31, "from -2147483648 to 2147483647 for int32, got 2147483648"),
        ("uint8", -1, "from 0 to 255 for uint8, got -1"),
        ("uint8", 300, "from 0 to 255 for uint8, got 300"),
        ("int64", 2**63, "from -9223372036854775808 to 9223372036854775807 for int64, got 9223372036854775808"),
        ("float32", 1e300, r"from -3\.4\S+ to 3\.4\S+ for float32, got 1e\+300"),
        ("float16", 70_000, r"from -65504\.0 to 65504\.0 for float16, got 70000"),
    ],
)
def test_a_number_outside_the_range_is_refused_before_any_row_is_written(
    tmp_path: Path, ours: str, number: float, range_of: str
) -> None:
    """The number is the last of several pieces: a budget of 1 MiB has pieces of 128 KiB."""
    rows = np.ones(500_000, np.asarray(number).dtype)
    rows[-1] = number
    told = rf"\.npy: expected numbers {range_of}\. Create it with dtype='{rows.dtype}', or clip the rows\."
    with lowtide.create(tmp_path / "z.npy", dtype=ours, shape=(500_000,), budget="1MiB") as out:
        for wrong in (rows, number):
            with pytest.raises(ValueError, match=told):
                out[:] = wrong
    assert not np.load(tmp_path / "z.npy").any()
    with lowtide.create(tmp_path / "y.npy", dtype=ours, budget="1MiB") as out:
        with pytest.raises(ValueError, match=told):
            out.append(rows)
        out.append(rows[:10])
    assert np.array_equal(np.load(tmp_path / "y.npy"), np.ones(10))


def test_rows_of_another_width_are_refused_with_both_shapes(tmp_path: Path) -> None:
    with lowtide.create(tmp_path / "z.npy", dtype="float32", shape=(-1, 3)) as out:
        for shape in ((2, 4), (6,), (2, 3, 1), (), (1, 2, 3)):
            with pytest.raises(ValueError, match=r"expected rows of shape \(n, 3\), got \("):
                out.append(np.ones(shape, np.float32))
        assert len(out) == 0
    with (
        lowtide.create(tmp_path / "y.npy", dtype="float32") as out,
        pytest.raises(ValueError, match=r"expected rows of shape \(n,\), got \(2, 2\)"),
    ):
        out.append(np.ones((2, 2), np.float32))


def test_append_and_put_after_close_are_refused(tmp_path: Path) -> None:
    with lowtide.create(tmp_path / "z.npy", dtype="int64", shape=(4,)) as out:
        out[:] = np.arange(4)
    with pytest.raises(ValueError, match=r"z\.npy: expected an open file, got a closed one\. Create it again"):
        out[0:2] = np.arange(2)
    with lowtide.create(tmp_path / "y.npy", dtype="int64") as out:
        out.append(np.arange(4))
    with pytest.raises(ValueError, match="expected an open file, got a closed one"):
        out.append(np.arange(4))
    with pytest.raises(ValueError, match="expected an open file, got a closed one"), out:
        pass
    assert np.array_equal(np.load(tmp_path / "y.npy"), np.arange(4))


@pytest.mark.parametrize("key", [slice(95, 105), slice(-101, 0), 100, -101, slice(60, 50), slice(100, 101)])
def test_rows_outside_the_shape_are_refused_with_both_numbers(tmp_path: Path, key: Any) -> None:
    with lowtide.create(tmp_path / "z.npy", dtype="float32", shape=(100, 2)) as out:
        with pytest.raises(IndexError, match=r"z\.npy: expected rows between 0 and 100, got -?[0-9]+ to -?[0-9]+"):
            out[key] = np.ones((10, 2), np.float32)
        out[90:100] = np.ones((10, 2), np.float32)
    assert np.load(tmp_path / "z.npy").sum() == 20


def test_more_or_fewer_rows_than_the_place_holds_are_refused(tmp_path: Path) -> None:
    with lowtide.create(tmp_path / "z.npy", dtype="float32", shape=(100, 2)) as out:
        for count in (9, 11, 1, 0):
            with pytest.raises(ValueError, match=rf"expected 10 rows for out\[20:30\], got {count}\."):
                out[20:30] = np.ones((count, 2), np.float32)


@pytest.mark.parametrize("key", ["a", 1.0, (0, 1), [1, 2], slice(0, 10, 2), True, None, slice(0.0, 4), ...])
def test_keys_that_are_not_whole_rows_in_order_are_type_errors(tmp_path: Path, key: Any) -> None:
    with lowtide.create(tmp_path / "z.npy", dtype="float32", shape=(100, 2)) as out, pytest.raises(TypeError):
        out[key] = np.ones((4, 2), np.float32)


def test_putting_rows_needs_a_stated_length(tmp_path: Path) -> None:
    with (
        lowtide.create(tmp_path / "z.npy", dtype="float32", shape=(-1, 2)) as out,
        pytest.raises(ValueError, match=r"expected a stated number of rows.*got shape=\(-1, 2\)"),
    ):
        out[0:4] = np.ones((4, 2), np.float32)


def test_more_rows_than_stated_are_refused_and_fewer_leave_no_file(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match=r"expected 10 rows, got 8; nothing was left behind"),
        lowtide.create(tmp_path / "z.npy", dtype="int64", shape=(10,)) as out,
    ):
        out.append(np.arange(8))
        with pytest.raises(ValueError, match=r"expected at most 10 rows, got 11\..*at most 2 more"):
            out.append(np.arange(3))
    assert left_in(tmp_path) == []


def test_appending_and_putting_in_one_file_is_refused(tmp_path: Path) -> None:
    with lowtide.create(tmp_path / "z.npy", dtype="int64", shape=(10,)) as out:
        out[0:5] = np.arange(5)
        with pytest.raises(ValueError, match=r"expected out\[i:j\] = as before, got append"):
            out.append(np.arange(5))


def test_a_writer_does_not_travel_to_another_process(tmp_path: Path) -> None:
    with (
        lowtide.create(tmp_path / "z.npy", dtype="int64") as out,
        pytest.raises(TypeError, match="one file per process"),
    ):
        pickle.dumps(out)


# Arguments


@pytest.mark.parametrize("dtype", [object, "S", [("a", object)], "V0"])
def test_dtypes_without_plain_bytes_are_refused(tmp_path: Path, dtype: Any) -> None:
    with pytest.raises(ValueError, match="dtype: expected items of plain bytes of one size"):
        lowtide.create(tmp_path / "z.npy", dtype=dtype)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("dtype", [None, "float33", 5, "f4,,"])
def test_what_is_no_dtype_is_a_type_error(tmp_path: Path, dtype: Any) -> None:
    with pytest.raises(TypeError, match="dtype: expected"):
        lowtide.create(tmp_path / "z.npy", dtype=dtype)


@pytest.mark.parametrize("shape", [(), (-2,), (4, -1), (-1, -1), (2**40, 2**40)])
def test_shapes_that_cannot_be_are_refused(tmp_path: Path, shape: Any) -> None:
    with pytest.raises(ValueError, match="shape: expected"):
        lowtide.create(tmp_path / "z.npy", dtype="float32", shape=shape)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("shape", [1.5, "10", (True,), (3, 2.0)])
def test_shapes_that_are_not_whole_numbers_are_type_errors(tmp_path: Path, shape: Any) -> None:
    with pytest.raises(TypeError, match="shape: expected a whole number"):
        lowtide.create(tmp_path / "z.npy", dtype="float32", shape=shape)


def test_a_budget_too_small_to_write_in_is_refused_with_the_number_to_use(tmp_path: Path) -> None:
    with pytest.raises(
        lowtide.BudgetError, match=r"expected a budget of 1\.00 MiB or more.*got 512 KiB\. Use budget=1048576"
    ):
        lowtide.create(tmp_path / "z.npy", dtype="float32", budget="512KiB")
    with pytest.raises(ValueError, match="budget"):
        lowtide.create(tmp_path / "z.npy", dtype="float32", budget="plenty")
    with pytest.raises(ValueError, match="cache: expected one of auto, keep, drop, got 'none'"):
        lowtide.create(tmp_path / "z.npy", dtype="float32", cache="none")
    with pytest.raises(TypeError, match="overwrite: expected True or False"):
        lowtide.create(tmp_path / "z.npy", dtype="float32", overwrite="no")  # type: ignore[arg-type]
    assert left_in(tmp_path) == []


# Names


@pytest.mark.parametrize("name", ["z.npz", "z.h5", "z.safetensors", "z.parquet", "z.NPY", "z.csv"])
def test_names_of_other_formats_are_refused_with_the_name_to_use(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"expected \.npy, or another name for bare numbers, got .*z\.npy"):
        lowtide.create(tmp_path / name, dtype="float32")


@pytest.mark.parametrize("path", [None, 3, b"z.npy", "", ["z.npy"]])
def test_what_is_no_name_is_a_type_error(path: Any) -> None:
    with pytest.raises(TypeError, match="path: expected the name of a file"):
        lowtide.create(path, dtype="float32")


def test_an_existing_file_is_refused_unless_overwrite_is_said(tmp_path: Path) -> None:
    (tmp_path / "z.npy").write_bytes(b"precious")
    with pytest.raises(
        FileExistsError, match=r"z\.npy: expected a name that is free, got an existing file.*overwrite=True"
    ):
        lowtide.create(tmp_path / "z.npy", dtype="float32")
    assert (tmp_path / "z.npy").read_bytes() == b"precious"
    assert left_in(tmp_path) == ["z.npy"]


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    with (
        pytest.raises(FileExistsError, match="expected a name that is free, got an existing file"),
        lowtide.create(tmp_path / "z.npy", dtype="float32") as out,
    ):
        out.append(np.ones(10, np.float32))
        (tmp_path / "z.npy").write_bytes(b"precious")
    assert (tmp_path / "z.npy").read_bytes() == b"precious"
    assert left_in(tmp_path) == ["z.npy"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_directory_as_target_is_refused(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "z.npy").mkdir()
    with pytest.raises(IsADirectoryError, match=r"z\.npy: expected the name of a file, got a directory"):
        lowtide.create(tmp_path / "z.npy", dtype="float32", overwrite=overwrite)
    assert left_in(tmp_path) == ["z.npy"]


@pytest.mark.timeout(20)
def test_pipes_sockets_and_devices_are_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(tmp_path / "socket"))  # names of sockets are short
    for name in (tmp_path / "pipe", tmp_path / "socket", Path("/dev/null")):
        with pytest.raises(ValueError, match="expected the name of a file, got a device, pipe or socket"):
            lowtide.create(name, dtype="float32", overwrite=True)
    assert Path("/dev/null").is_char_device()


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"expected the directory .*/nowhere, got nothing of that name\. Make it"
    ):
        lowtide.create(tmp_path / "nowhere" / "z.npy", dtype="float32")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="expected the directory"):
        lowtide.create(tmp_path / "file" / "z.npy", dtype="float32")


AS_NOBODY = """
import os, sys
import lowtide
lowtide.create  # modules come on first use, and may lie where that user cannot read
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    lowtide.create(sys.argv[1] + "/z.npy", dtype="float32")
except PermissionError as problem:
    assert problem.errno == 13, problem.errno
    print(problem)
    sys.exit(42)
"""


def test_a_directory_one_may_not_write_to_is_a_permission_error(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        tmp_path.chmod(0o555)
        with pytest.raises(PermissionError, match=r"z\.npy: expected to begin a file there, got Permission denied"):
            lowtide.create(tmp_path / "z.npy", dtype="float32")
        return
    source = str(Path(lowtide.__file__).parent.parent)
    with tempfile.TemporaryDirectory() as directory:  # pytest's own directories are closed to everybody else
        Path(directory).chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, directory],
            env={**os.environ, "PYTHONPATH": source},
            capture_output=True,
            text=True,
            check=False,
        )
        assert left_in(Path(directory)) == []
    assert done.returncode == 42, done.stderr
    assert "z.npy: expected to begin a file there, got Permission denied. Choose a directory you may" in done.stdout


# Two writers of one name


def test_the_second_writer_of_a_name_is_refused_when_it_starts(tmp_path: Path) -> None:
    for overwrite in (False, True):
        with lowtide.create(tmp_path / "z.npy", dtype="int64", overwrite=overwrite) as first:
            first.append(np.arange(5))
            with pytest.raises(
                FileExistsError, match=r"z\.npy: expected to be its only writer, got another one at work"
            ):
                lowtide.create(tmp_path / "z.npy", dtype="int64", overwrite=overwrite)
            first.append(np.arange(5))
        assert len(np.load(tmp_path / "z.npy")) == 10
    assert left_in(tmp_path) == ["z.npy"]


def test_the_second_writer_may_be_another_process(tmp_path: Path) -> None:
    script = """
import sys, lowtide
try:
    lowtide.create(sys.argv[1], dtype="int64")
except FileExistsError as problem:
    print(problem)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(lowtide.__file__).parent.parent)}
    with lowtide.create(tmp_path / "z.npy", dtype="int64") as first:
        command = [sys.executable, "-c", script, str(tmp_path / "z.npy")]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert "expected to be its only writer, got another one at work" in said
        first.append(np.arange(5))
    assert np.array_equal(np.load(tmp_path / "z.npy"), np.arange(5))


def test_the_name_is_free_again_after_a_writer_gave_up(tmp_path: Path) -> None:
    lowtide.create(tmp_path / "z.npy", dtype="int64").discard()
    with lowtide.create(tmp_path / "z.npy", dtype="int64") as out:
        out.append(np.arange(5))
    assert left_in(tmp_path) == ["z.npy"]


def test_an_address_is_refused_without_its_secrets(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^https://host/z\.npy: expected a path on this machine, got an address"):
        lowtide.create("https://me:s3cr3t@host/z.npy?token=s3cr3t", dtype="f4")
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("ours", ["uint32", "int64"])
def test_half_floats_for_integers_are_refused_without_a_warning(tmp_path: Path, ours: str) -> None:
    with (
        lowtide.create(tmp_path / "z.npy", dtype=ours) as out,
        pytest.raises(TypeError, match=rf"z\.npy: expected rows of dtype {ours}, got float16\. Use .*astype"),
    ):
        out.append(np.ones(4, np.float16))


def test_rows_of_different_lengths_are_refused_by_name(tmp_path: Path) -> None:
    with (
        lowtide.create(tmp_path / "z.npy", dtype="float32", shape=(-1, 2)) as out,
        pytest.raises(ValueError, match=r"z\.npy: expected an array, got parts of different lengths\. Give all rows"),
    ):
        out.append([[1, 2], [3]])


def test_a_name_with_a_zero_byte_is_refused_like_any_wrong_name() -> None:
    with pytest.raises(ValueError, match=r"path: expected the name of a file, got 'a\\x00b\.npy' with a zero byte"):
        lowtide.create("a\0b.npy", dtype="float32")


def test_rows_with_a_mask_are_refused_because_the_mask_would_be_lost(tmp_path: Path) -> None:
    rows = np.ma.masked_array(np.arange(6.0).reshape(3, 2), mask=[[False, True], [False, False], [True, False]])
    with lowtide.create(tmp_path / "x.npy", dtype="float64", shape=(-1, 2)) as out:
        with pytest.raises(TypeError, match=r"expected an array without a mask, got a masked one\. Use value\.filled"):
            out.append(rows)
        out.append(rows.filled(7.0))
    with lowtide.open(tmp_path / "x.npy") as written:
        assert np.array_equal(written[:], rows.filled(7.0))
        with pytest.raises(TypeError, match=r"together: expected an array without a mask"):
            lowtide.together(written, rows)
