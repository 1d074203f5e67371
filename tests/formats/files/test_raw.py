"""Headerless files: nothing is assumed, and every refusal says what would fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lowtide
from lowtide.errors import FormatError
from lowtide.formats import Layout, layout_of
from lowtide.formats.guess import guess_dtype

ReadBack = Callable[[Layout], npt.NDArray[Any]]


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    path = tmp_path / "numbers.f32"
    np.arange(60, dtype="<f4").tofile(path)
    return path


@pytest.mark.parametrize(
    ("shape", "expected"), [(None, (60,)), (-1, (60,)), ((-1, 12), (5, 12)), ((5, -1), (5, 12)), ((3, 4, 5), (3, 4, 5))]
)
def test_one_axis_may_be_left_to_the_size(
    numbers: Path, read_back: ReadBack, shape: Any, expected: tuple[int, ...]
) -> None:
    layout = layout_of(numbers, dtype="float32", shape=shape)
    assert (layout.format, layout.shape) == ("raw", expected)
    assert np.array_equal(read_back(layout).reshape(-1), np.arange(60))


def test_an_offset_skips_bytes(numbers: Path, read_back: ReadBack) -> None:
    assert read_back(layout_of(numbers, dtype="<f4", offset=40)).tolist() == list(range(10, 60))


def test_a_dtype_with_axes_gives_the_array_those_axes(numbers: Path) -> None:
    layout = layout_of(numbers, dtype=("<f4", (3, 2)))
    assert (layout.dtype, layout.shape) == (np.dtype("<f4"), (10, 3, 2))


def test_a_structured_dtype_makes_rows_of_records(numbers: Path) -> None:
    assert layout_of(numbers, dtype=[("x", "<f4"), ("y", "<f4", (4,))]).shape == (12,)


def test_a_file_beyond_4_gib_has_all_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(5 * 2**40)
    assert layout_of(path, dtype="u2", shape=(-1, 1024)).shape == (5 * 2**29, 1024)


def test_a_missing_dtype_is_refused_with_what_fits_and_a_guess(tmp_path: Path) -> None:
    path = tmp_path / "x"
    np.random.default_rng(0).normal(size=1001).astype("<f4").tofile(path)
    with pytest.raises(FormatError, match=r"guess.*dtype='float32' \(4004 bytes.*float32\)") as caught:
        layout_of(path)
    assert "float64" not in str(caught.value)  # 4,004 bytes are no whole float64 items


GUESSES: dict[str, Callable[[np.random.Generator], npt.NDArray[Any]]] = {
    "float64": lambda rng: rng.normal(size=4096),
    "float32": lambda rng: rng.normal(size=4096).astype("<f4"),
    "uint32": lambda rng: rng.integers(0, 120_000, 4096).astype("<u4"),
    "uint16": lambda rng: rng.integers(0, 50_257, 4096).astype("<u2"),
    "int64": lambda rng: rng.integers(0, 50_257, 4096).astype("<i8"),
    "uint8": lambda rng: np.frombuffer(b"To be, or not to be: that is the question.\n" * 64, "u1"),
}


# What a block cannot tell: each of these has been taken for uint16 or float64, and pasted.
UNSURE: dict[str, Callable[[np.random.Generator], npt.NDArray[Any]]] = {
    "float16": lambda rng: rng.normal(size=8192).astype("<f2"),
    "pictures": lambda rng: rng.integers(0, 256, 8192).astype("u1"),
    "dark pictures": lambda rng: (rng.gamma(2, 20, 8192) % 256).astype("u1"),
    "sound": lambda rng: (rng.normal(size=8192) * 900).astype("<i2"),
    "all of uint16": lambda rng: rng.integers(0, 65_536, 8192).astype("<u2"),
    "nothing": lambda rng: np.zeros(8192, "<u2"),
}


@pytest.mark.parametrize("name", UNSURE)
def test_what_is_not_sure_is_no_guess(name: str) -> None:
    for seed in range(20):
        assert guess_dtype(UNSURE[name](np.random.default_rng(seed)).tobytes(), list(GUESSES)) is None


@pytest.mark.parametrize("scale", [1e-3, 1, 1e3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floats_of_one_width_are_not_taken_for_the_other(dtype: str, scale: float) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        for numbers in (rng.normal(size=4096) * scale, rng.uniform(0, scale, 4096), np.arange(4096) % 100 * scale):
            assert guess_dtype(numbers.astype(dtype).tobytes(), list(GUESSES)) == dtype


def test_an_unsure_dtype_gives_no_line_to_paste(tmp_path: Path) -> None:
    UNSURE["pictures"](np.random.default_rng(0)).tofile(tmp_path / "x.raw")
    with pytest.raises(FormatError, match="State the dtype it was written with") as caught:
        layout_of(tmp_path / "x.raw")
    assert "dtype='" not in str(caught.value)


@pytest.mark.parametrize(
    ("suffix", "dtype"),
    [
        ("f16", "float16"), ("f32", "float32"), ("f64", "float64"), ("u8", "uint8"), ("u16", "uint16"), ("i8", "int8"),
        ("u32", "uint32"), ("u64", "uint64"), ("i16", "int16"), ("i32", "int32"), ("i64", "int64"), ("F32", "float32"),
        ("float32", "float32"), ("uint8", "uint8"), ("int16", "int16"),
    ],
)  # fmt: skip
def test_a_suffix_that_names_a_type_decides_whatever_the_bytes_look_like(
    tmp_path: Path, suffix: str, dtype: str
) -> None:
    path = tmp_path / f"x.{suffix}"
    rng = np.random.default_rng(0)
    for numbers in (rng.normal(size=4096), rng.integers(0, 50_000, 4096)):
        numbers.astype("<f8").tofile(path)
        with pytest.raises(FormatError, match=f"As its name says: dtype='{dtype}'"):
            layout_of(path)
    (tmp_path / "y.f32").write_bytes(bytes(4097))
    with pytest.raises(FormatError, match="State the dtype"):  # no whole float32
        layout_of(tmp_path / "y.f32")


def test_bytes_that_are_ignored_are_said_by_the_array_too(numbers: Path) -> None:
    with lowtide.open(numbers, dtype="f4", shape=(5, 10)) as a:
        assert "40 bytes after the data were left alone" in repr(a)
        assert "40 bytes after the data were left alone" in str(a.plan())
    with lowtide.open(numbers, dtype="f4", shape=(6, 10)) as a:
        assert "left alone" not in repr(a) + str(a.plan())


@pytest.mark.parametrize("name", GUESSES)
def test_a_guess_from_typical_data_is_right(name: str) -> None:
    block = GUESSES[name](np.random.default_rng(7)).tobytes()
    assert guess_dtype(block, list(GUESSES)) == name


def test_a_few_bytes_allow_no_guess() -> None:
    assert guess_dtype(bytes(range(100)), list(GUESSES)) is None


def test_bytes_after_the_data_are_left_alone_where_every_axis_is_stated(numbers: Path, read_back: ReadBack) -> None:
    layout = layout_of(numbers, dtype="f4", shape=(4, 12), offset=8)
    assert read_back(layout).reshape(-1).tolist() == list(range(2, 50))
    assert layout.notes == ("40 bytes after the data were left alone, as shape= says",)
    assert layout_of(numbers, dtype="f4", shape=(5, 12)).notes == ()
    with pytest.raises(FormatError, match="multiple of 28"):
        layout_of(numbers, dtype="f4", shape=(-1, 7))  # an axis left to the size must use all of it


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"dtype": "f4", "shape": (-1, 7)}, "expected a multiple of 28 bytes.*got 240; nearest are 224 and 252"),
        ({"dtype": "V7"}, "nearest are 238 and 245"),
        ({"dtype": "f4", "shape": (6, 12)}, r"expected 288 bytes.*got 240\. State shape=\(5, 12\)"),
        ({"dtype": "f4", "shape": (5, 12), "offset": 4}, "expected 244 bytes.*got 240"),
        ({"dtype": "f4", "shape": (2**40, 2**40)}, "fewer than"),
        ({"dtype": "f4", "offset": 240}, "after offset 240"),
        ({"dtype": "f4", "offset": 239}, "multiple of 4"),
        ({"dtype": object}, "Python objects"),
        ({"dtype": "S0"}, "at least 1 byte"),
    ],
)
def test_what_does_not_fit_the_size_is_refused_with_both_numbers(
    numbers: Path, stated: dict[str, Any], message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        layout_of(numbers, **stated)


@pytest.mark.parametrize(
    ("stated", "error"),
    [
        ({"dtype": "f4", "shape": (-1, -1)}, ValueError),
        ({"dtype": "f4", "shape": (-2,)}, ValueError),
        ({"dtype": "f4", "shape": ()}, ValueError),
        ({"dtype": "f4", "shape": (-1, 0)}, ValueError),
        ({"dtype": "f4", "shape": (True, 60)}, TypeError),
        ({"dtype": "f4", "shape": (2.5,)}, TypeError),
        ({"dtype": "f4", "shape": "60"}, TypeError),
        ({"dtype": "f4", "offset": -4}, ValueError),
        ({"dtype": "bfloat17"}, TypeError),
    ],
)
def test_a_wrong_argument_is_told_as_such(numbers: Path, stated: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        layout_of(numbers, **stated)
    assert not isinstance(caught.value, FormatError)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    for stated in ({}, {"dtype": "u2"}):
        with pytest.raises(FormatError, match="empty"):
            layout_of(tmp_path / "x", **stated)  # type: ignore[arg-type]
