"""Writing arrays: what was appended or put is what numpy reads, byte for byte; the name comes with the last byte."""

from __future__ import annotations

import os
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lowtide

pytestmark = pytest.mark.usefixtures("no_lost_descriptors")

DTYPES: list[Any] = [
    "float32",
    ">f8",
    "uint16",
    "bool",
    "complex64",
    "S5",
    "U3",
    "M8[ns]",
    [("a", "f4"), ("b", "i8", (3,))],
]


def rows_of(dtype: Any, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Noise of any dtype that equals itself: small whole numbers, as bytes of that dtype."""
    kind = np.dtype(dtype)
    numbers = np.random.default_rng(seed).integers(0, 2 if kind.kind == "b" else 100, shape)
    if kind.names:
        made = np.zeros(shape, kind)
        made["a"], made["b"] = numbers, numbers[..., None] + np.arange(3)
        return made
    return numbers.astype(kind) if kind.kind not in "M" else numbers.astype("i8").view(kind)


def left_in(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def saved(path: Path, rows: np.ndarray) -> bytes:
    np.save(path, rows)
    data = path.read_bytes()
    path.unlink()
    return data


# What is written


@pytest.mark.filterwarnings("ignore:Custom dtypes are saved:UserWarning")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rest", [(), (3,), (2, 5)], ids=str)
def test_what_was_appended_is_the_file_that_np_save_writes(tmp_path: Path, dtype: Any, rest: tuple[int, ...]) -> None:
    rows = rows_of(dtype, (100, *rest))
    with lowtide.create(tmp_path / "z.npy", dtype=dtype, shape=(-1, *rest)) as out:
        for first in range(0, 100, 7):
            out.append(rows[first : first + 7])
            assert len(out) == min(100, first + 7)
    assert (tmp_path / "z.npy").read_bytes() == saved(tmp_path / "same.npy", rows)


def test_numpy_and_lowtide_read_the_result(tmp_path: Path) -> None:
    rows = rows_of("float32", (1000, 162))
    for name in ("z.npy", "z.f32"):
        with lowtide.create(tmp_path / name, dtype="float32", shape=(-1, 162)) as out:
            out.append(rows)
    assert np.array_equal(np.load(tmp_path / "z.npy", mmap_mode="r"), rows)
    assert np.array_equal(np.memmap(tmp_path / "z.f32", "float32", "r", shape=(1000, 162)), rows)
    for source in (lowtide.open(tmp_path / "z.npy"), lowtide.open(tmp_path / "z.f32", dtype="f4", shape=(-1, 162))):
        with source as array:
            assert np.array_equal(array[:], rows)


def test_a_raw_file_holds_the_numbers_and_nothing_else(tmp_path: Path) -> None:
    rows = rows_of("uint16", (5000,))
    with lowtide.create(tmp_path / "tokens.bin", dtype="uint16") as out:
        out.append(rows[:1234])
        out.append(rows[1234:])
    assert (tmp_path / "tokens.bin").read_bytes() == rows.tobytes()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 40_000), max_size=12),
    name=st.sampled_from(["z.npy", "z.raw"]),
    cache=st.sampled_from(["keep", "drop", "auto"]),
)
def test_appends_of_any_sizes_give_the_same_file(tmp_path: Path, sizes: list[int], name: str, cache: str) -> None:
    """Rows of 12 bytes and pieces of 128 KiB: boundaries fall everywhere, also across several pieces in one append."""
    rows = rows_of("int32", (sum(sizes), 3))
    wanted = saved(tmp_path / "same.npy", rows) if name == "z.npy" else rows.tobytes()
    first = 0
    with lowtide.create(
        tmp_path / name, dtype="int32", shape=(-1, 3), budget="1MiB", cache=cache, overwrite=True
    ) as out:
        for size in sizes:
            out.append(rows[first : first + size])
            first += size
    assert (tmp_path / name).read_bytes() == wanted


def test_one_row_may_be_appended_as_it_is(tmp_path: Path) -> None:
    rows = rows_of("float64", (50, 4))
    with lowtide.create(tmp_path / "z.npy", dtype="float64", shape=(-1, 4)) as out:
        for row in rows:
            out.append(row)
    assert np.array_equal(np.load(tmp_path / "z.npy"), rows)


@pytest.mark.parametrize("turn", [np.asfortranarray, lambda a: np.repeat(a, 2, axis=0)[::2], lambda a: a[::-1]])
@pytest.mark.parametrize("stated", [False, True])
def test_rows_that_do_not_lie_in_order_in_memory_are_written_in_order(tmp_path: Path, turn: Any, stated: bool) -> None:
    rows = turn(rows_of("float32", (20_000, 40)))
    shape = rows.shape if stated else (-1, 40)
    with lowtide.create(tmp_path / "z.npy", dtype="float32", shape=shape, budget="1MiB") as out:
        if stated:
            out[:] = rows
        else:
            out.append(rows)
    assert np.array_equal(np.load(tmp_path / "z.npy"), rows)


def test_the_caller_may_change_its_rows_as_soon_as_append_returns(tmp_path: Path) -> None:
    rows = np.zeros((1000, 64), np.int64)
    with lowtide.create(tmp_path / "z.npy", dtype="int64", shape=(-1, 64), budget="1MiB") as out:
        for number in range(20):
            rows[:] = number
            out.append(rows)
    assert np.array_equal(np.load(tmp_path / "z.npy")[:, 5], np.repeat(np.arange(20), 1000))


def test_no_rows_at_all_make_an_array_of_length_0(tmp_path: Path) -> None:
    with lowtide.create(tmp_path / "z.npy", dtype="float32", shape=(-1, 162)) as out:
        assert len(out) == 0
    assert np.load(tmp_path / "z.npy").shape == (0, 162)


def test_rows_without_bytes_are_counted(tmp_path: Path) -> None:
    with lowtide.create(tmp_path / "z.npy", dtype="float32", shape=(-1, 0)) as out:
        out.append(np.zeros((7, 0), np.float32))
        out.append(np.zeros((4, 0), np.float32))
        assert len(out) == 11
    assert np.load(tmp_path / "z.npy").shape == (11, 0)


def test_a_file_beyond_4_gib_is_written_where_it_belongs(tmp_path: Path) -> None:
    """Sparse: only the last rows are written."""
    rows = (5 << 30) // 4096
    last = rows_of("uint8", (3, 4096))
    with lowtide.create(tmp_path / "z.npy", dtype="uint8", shape=(rows, 4096)) as out:
        out[rows - 3 :] = last
    mapped = np.load(tmp_path / "z.npy", mmap_mode="r")
    assert mapped.shape == (rows, 4096)
    assert np.array_equal(mapped[-3:], last)
    assert not mapped[12345].any()


# out[i:j] = rows


def test_rows_put_in_any_order_arrive_in_place_and_the_rest_are_zeros(tmp_path: Path) -> None:
    rows = rows_of("int32", (10_000, 33))
    chance = np.random.default_rng(1)
    starts = chance.permutation(np.arange(0, 9000, 100))
    with lowtide.create(tmp_path / "z.npy", dtype="int32", shape=rows.shape, budget="1MiB", cache="drop") as out:
        assert len(out) == 10_000
        for start in starts:
            out[start : start + 100] = rows[start : start + 100]
        out[9500] = rows[9500]
        out[-1] = rows[-1]
        out[-200:-100] = rows[-200:-100]
    result = np.load(tmp_path / "z.npy")
    wanted = np.zeros_like(rows)
    for part in (slice(0, 9000), 9500, -1, slice(-200, -100)):
        wanted[part] = rows[part]
    assert np.array_equal(result, wanted)


def test_with_a_stated_shape_rows_may_be_appended_too(tmp_path: Path) -> None:
    rows = rows_of("float32", (100, 8))
    with lowtide.create(tmp_path / "z.npy", dtype="float32", shape=(100, 8)) as out:
        out.append(rows[:60])
        out.append(rows[60:])
    assert np.array_equal(np.load(tmp_path / "z.npy"), rows)


@pytest.mark.parametrize("cache", ["keep", "drop"])
def test_several_threads_put_rows_at_once(tmp_path: Path, cache: str) -> None:
    """12 MiB through a budget of 1 MiB, from more threads than it has pieces, in runs that share pages."""
    rows = rows_of("uint8", (40_000, 300))
    with lowtide.create(tmp_path / "z.npy", dtype="uint8", shape=rows.shape, budget="1MiB", cache=cache) as out:

        def put(part: int) -> None:
            for first in range(part * 97, len(rows), 12 * 97):
                out[first : min(first + 97, len(rows))] = rows[first : first + 97]

        with ThreadPoolExecutor(12) as pool:
            list(pool.map(put, range(12)))
    assert np.array_equal(np.load(tmp_path / "z.npy"), rows)


def test_appends_from_several_threads_keep_their_rows_together(tmp_path: Path) -> None:
    start = threading.Barrier(4)
    with lowtide.create(tmp_path / "z.npy", dtype="int64", shape=(-1, 2), budget="1MiB") as out:

        def append(part: int) -> None:
            start.wait()
            for number in range(50):
                out.append(np.full((999, 2), part * 50 + number))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(append, range(4)))
    groups = np.load(tmp_path / "z.npy").reshape(200, 999 * 2)
    assert np.array_equal(groups.min(axis=1), groups.max(axis=1))
    assert sorted(groups[:, 0]) == list(range(200))


# Rows of other dtypes


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("float64", "float32"),
        ("float16", "float32"),
        (">f4", "float32"),
        ("int64", "float32"),
        ("int64", "int32"),
        ("int64", "uint8"),
        ("uint64", "int64"),
        ("bool", "float32"),
        ("complex128", "complex64"),
        ("float64", "complex64"),
        ("U3", "U5"),
        (">M8[s]", "<M8[s]"),
    ],
)
@pytest.mark.parametrize("turn", [np.asarray, np.asfortranarray, lambda a: a[::-1]])
def test_numbers_of_the_same_kind_become_the_dtype_of_the_file(
    tmp_path: Path, theirs: str, ours: str, turn: Any
) -> None:
    rows = turn(rows_of(theirs, (9_000, 11)))
    with lowtide.create(tmp_path / "a.npy", dtype=ours, shape=(-1, 11), budget="1MiB") as out:
        out.append(rows[:7_000])
        out.append(rows[7_000])
        out.append(rows[7_001:])
    with lowtide.create(tmp_path / "b.npy", dtype=ours, shape=rows.shape, budget="1MiB") as out:
        out[:8_999] = rows[:8_999]
        out[-1] = rows[-1]
    for name in ("a.npy", "b.npy"):
        found = np.load(tmp_path / name)
        assert found.dtype == np.dtype(ours)
        assert np.array_equal(found, rows.astype(ours))


def test_standardising_in_float64_for_a_file_of_float32_works_as_the_guide_shows(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", rows_of("float32", (1000, 162)))
    with lowtide.open(tmp_path / "x.npy") as a:
        found = a.stats()
        with lowtide.create(tmp_path / "z.npy", dtype="float32", shape=(-1, 162)) as out:
            for chunk in a.chunks():
                out.append((chunk - found.mean) / found.std)
        wanted = (a[:] - found.mean) / found.std
    assert np.array_equal(np.load(tmp_path / "z.npy"), wanted.astype("float32"))


def test_one_number_fills_the_rows_it_is_put_in(tmp_path: Path) -> None:
    wanted = np.ones((9, 3), np.float32)
    with lowtide.create(tmp_path / "z.npy", dtype="float32", shape=(9, 3)) as out:
        for to in (wanted, out):
            to[0:9] = 1
            to[0:5] = 0
            to[5] = 2.5
            to[6] = [1, 2, 3]
            to[-1] = np.int64(7)
            to[7:8] = True
            to[3:3] = 9
    assert np.array_equal(np.load(tmp_path / "z.npy"), wanted)
    with lowtide.create(tmp_path / "u.npy", dtype="uint8", shape=(9,)) as out:
        out[2:5] = 255
        out[8] = 1
    assert np.load(tmp_path / "u.npy").tolist() == [0, 0, 255, 255, 255, 0, 0, 0, 1]


@pytest.mark.parametrize("way", ["append", "put", "fill", "one row"])
def test_converting_holds_a_piece_and_not_all_the_rows(tmp_path: Path, way: str) -> None:
    """32 MiB of float64 become 16 MiB of float32, at a budget with pieces of 128 KiB."""
    rows = np.ones((1, 4 << 20) if way == "one row" else (4 << 20, 1))
    stated = way in ("put", "fill")
    shape = rows.shape if stated else (-1, *rows.shape[1:])
    with lowtide.create(tmp_path / "z.npy", dtype="float32", shape=shape, budget="1MiB") as out:
        tracemalloc.start()
        try:
            if stated:
                out[:] = 1.0 if way == "fill" else rows
            else:
                out.append(rows)
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert most < 1 << 20
    assert np.array_equal(np.load(tmp_path / "z.npy", mmap_mode="r"), rows)


# The name


def test_the_file_has_its_name_when_the_block_ends_and_not_before(tmp_path: Path) -> None:
    with lowtide.create(tmp_path / "z.npy", dtype="float32") as out:
        out.append(np.ones(10, np.float32))
        assert not (tmp_path / "z.npy").exists()
        assert not list(tmp_path.glob("*.npy"))
    assert left_in(tmp_path) == ["z.npy"]


def test_leaving_the_block_by_an_exception_removes_the_unfinished_file(tmp_path: Path) -> None:
    for problem in (ValueError, KeyboardInterrupt, SystemExit):
        with pytest.raises(problem), lowtide.create(tmp_path / "z.npy", dtype="float32") as out:
            out.append(np.ones(10_000_000, np.float32))
            raise problem
        assert left_in(tmp_path) == []
        assert out.closed


def test_an_exception_leaves_the_file_that_was_to_be_overwritten(tmp_path: Path) -> None:
    np.save(tmp_path / "z.npy", np.arange(5))
    with pytest.raises(RuntimeError), lowtide.create(tmp_path / "z.npy", dtype="float32", overwrite=True) as out:
        out.append(np.ones(10, np.float32))
        raise RuntimeError
    assert np.array_equal(np.load(tmp_path / "z.npy"), np.arange(5))
    assert left_in(tmp_path) == ["z.npy"]


def test_overwriting_replaces_the_file_whole_and_readers_keep_the_old_one(tmp_path: Path) -> None:
    np.save(tmp_path / "z.npy", np.arange(5))
    old = np.load(tmp_path / "z.npy", mmap_mode="r")
    with lowtide.create(tmp_path / "z.npy", dtype="float32", overwrite=True) as out:
        out.append(np.ones(3, np.float32))
        assert np.array_equal(np.load(tmp_path / "z.npy"), np.arange(5))
    assert np.array_equal(np.load(tmp_path / "z.npy"), np.ones(3))
    assert np.array_equal(old, np.arange(5))


def test_a_link_is_written_through_to_the_disk_it_points_at(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "z.npy").symlink_to(tmp_path / "big" / "there.npy")
    with lowtide.create(tmp_path / "z.npy", dtype="int64") as out:
        out.append(np.arange(9))
        assert left_in(tmp_path / "big") == [".there.npy.unfinished"]
    assert (tmp_path / "z.npy").is_symlink()
    assert np.array_equal(np.load(tmp_path / "big" / "there.npy"), np.arange(9))


def test_close_may_be_called_by_hand_and_twice(tmp_path: Path) -> None:
    out = lowtide.create(tmp_path / "z.npy", dtype="int64")
    out.append(np.arange(9))
    out.close()
    out.close()
    assert out.closed
    assert np.array_equal(np.load(tmp_path / "z.npy"), np.arange(9))


def test_discard_gives_up_without_an_exception(tmp_path: Path) -> None:
    with lowtide.create(tmp_path / "z.npy", dtype="int64") as out:
        out.append(np.arange(9))
        out.discard()
    assert left_in(tmp_path) == []


def test_a_writer_that_is_dropped_unclosed_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    out = lowtide.create(tmp_path / "z.npy", dtype="int64")
    with pytest.warns(ResourceWarning, match=r"z\.npy: expected close\(\) or a with block"):
        del out
    assert left_in(tmp_path) == []


def test_very_long_names_are_as_good_as_short_ones(tmp_path: Path) -> None:
    name = "z" * 251 + ".npy"
    with lowtide.create(tmp_path / name, dtype="int64") as out:
        out.append(np.arange(9))
    assert left_in(tmp_path) == [name]


def test_a_relative_name_stays_where_it_was_when_the_directory_changes(tmp_path: Path) -> None:
    before = Path.cwd()
    try:
        os.chdir(tmp_path)
        (tmp_path / "other").mkdir()
        with lowtide.create("z.npy", dtype="int64") as out:
            out.append(np.arange(9))
            os.chdir(tmp_path / "other")
    finally:
        os.chdir(before)
    assert (tmp_path / "z.npy").exists()


def test_a_writer_shows_what_it_is(tmp_path: Path) -> None:
    with lowtide.create(tmp_path / "z.npy", dtype="float32", shape=(-1, 4)) as out:
        out.append(np.ones((3, 4), np.float32))
        assert (out.shape, out.dtype, out.nbytes) == ((3, 4), np.dtype("float32"), 48)
        assert "z.npy shape=(3, 4) dtype=float32 unfinished" in repr(out)
    assert "closed" in repr(out)


def test_like_an_array_takes_its_dtype_and_rows_of_its_shape(tmp_path: Path) -> None:
    rows = np.arange(60, dtype=np.int16).reshape(5, 4, 3)
    np.save(tmp_path / "x.npy", rows)
    with lowtide.open(tmp_path / "x.npy") as like, lowtide.create(tmp_path / "z.npy", like=like) as out:
        for chunk in like.chunks(2):
            out.append(chunk * 2)
    assert np.array_equal(np.load(tmp_path / "z.npy"), rows * 2)
    with lowtide.create(tmp_path / "f.npy", like=rows, dtype="float64") as out:
        out.append(rows / 2)
    with lowtide.create(tmp_path / "s.npy", like=rows, shape=7) as out:
        out[0:7] = np.ones(7, np.int16)
    assert np.load(tmp_path / "f.npy").dtype == np.float64
    assert np.load(tmp_path / "s.npy").shape == (7,)
    with pytest.raises(TypeError, match=r"like: expected an array, got str\. Use like=lowtide\.open\(path\)\."):
        lowtide.create(tmp_path / "n.npy", like="x.npy")
    with pytest.raises(TypeError, match=r"dtype: .*got None\. Use dtype='float32', or like=a"):
        lowtide.create(tmp_path / "n.npy")


@pytest.mark.parametrize("dtype", ["uint16", "int64", "bool", "S4", "M8[s]", [("a", "i4")]])
def test_an_empty_list_is_no_rows_whatever_the_dtype(tmp_path: Path, dtype: Any) -> None:
    with lowtide.create(tmp_path / "z.npy", dtype=dtype) as out:
        out.append([])
        assert len(out) == 0
    with lowtide.create(tmp_path / "set.npy", dtype=dtype, shape=(2,)) as out:
        out[1:1] = []
    assert np.load(tmp_path / "set.npy").tolist() == np.zeros(2, dtype).tolist()
