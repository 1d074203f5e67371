"""Everything a caller or a disk can get wrong: the right type of error, both numbers, and what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults import Disk, reading_from

import lowtide

DIFFICULT = ("read", "remap", "advise", "map")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """100 rows of 8 float32: 3,200 bytes behind a header of 128."""
    np.save(tmp_path / "rows.npy", np.arange(800, dtype=np.float32).reshape(100, 8))
    return tmp_path / "rows.npy"


def header_of(path: Path, text: str, data: bytes = b"") -> Path:
    body = text.encode().ljust(118) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body + data)
    return path


def npy(shape: str, descr: str = "'<f4'", fortran: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"


# Files


def test_a_missing_file_is_a_file_not_found_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.npy: expected a file, got nothing of that name\. Check"):
        lowtide.open(tmp_path / "nowhere.npy")
    with pytest.raises(FileNotFoundError, match=r"shard\*"):
        lowtide.open(str(tmp_path / "shard*.npy"))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    for name in ("empty.npy", "empty.bin"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(lowtide.FormatError, match=name):
            lowtide.open(tmp_path / name, dtype="float32")


@pytest.mark.parametrize("change", [-1, -4, 1, 4, 4096])
def test_a_file_shorter_or_longer_than_its_header_says_is_refused_with_both_sizes(rows: Path, change: int) -> None:
    size = rows.stat().st_size
    with rows.open("r+b") as file:
        file.truncate(size + change)
    with pytest.raises(lowtide.FormatError) as caught:
        lowtide.open(rows)
    assert str(size) in str(caught.value)
    assert str(size + change) in str(caught.value)


def test_raw_bytes_that_are_not_a_whole_number_of_rows_are_refused_with_the_nearest_sizes(tmp_path: Path) -> None:
    (tmp_path / "x.f32").write_bytes(bytes(1003))
    with pytest.raises(lowtide.FormatError, match=r"1000 and 1004"):
        lowtide.open(tmp_path / "x.f32", dtype="float32")
    with pytest.raises(lowtide.FormatError, match=r"1000 and 1040"):
        lowtide.open(tmp_path / "x.f32", dtype="float32", shape=(-1, 10))


@pytest.mark.parametrize(
    "shape", ["(-1, 4)", "(4, -4)", f"({2**62}, 4)", f"({2**40}, {2**40})", f"({2**70},)", "(4.0,)"]
)
def test_negative_overflowing_and_odd_shapes_in_a_header_are_refused(tmp_path: Path, shape: str) -> None:
    path = header_of(tmp_path / "shape.npy", npy(shape), bytes(64))
    with pytest.raises(lowtide.FormatError, match=r"shape\.npy"):
        lowtide.open(path)


@pytest.mark.parametrize("shape", [(-2,), (-1, -1), (3, -5), "10", (1.5,), (True,)])
def test_negative_and_odd_shapes_as_arguments_are_refused(rows: Path, shape: Any) -> None:
    raw = rows.with_name("raw.f32")
    raw.write_bytes(bytes(64))
    with pytest.raises((ValueError, TypeError), match=r"shape|integer|index"):
        lowtide.open(raw, dtype="float32", shape=shape)


def test_object_dtypes_are_refused_and_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([Explosive()], dtype=object), allow_pickle=True)
    with pytest.raises(lowtide.FormatError, match="object"):
        lowtide.open(tmp_path / "objects.npy")
    (tmp_path / "raw").write_bytes(bytes(64))
    with pytest.raises(lowtide.FormatError, match="object"):
        lowtide.open(tmp_path / "raw", dtype=object)


class Explosive:
    """Its pickle would end the process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (77,)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises((IsADirectoryError, lowtide.FormatError), match="directory"):
        lowtide.open(tmp_path)


def test_an_unreadable_file_is_a_permission_error(rows: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("NOT TESTED: permissions do not hold for root, so an unreadable file cannot be made here")
    rows.chmod(0)
    with pytest.raises(PermissionError):
        lowtide.open(rows)


def test_an_unreadable_file_is_a_permission_error_also_when_root_runs_the_tests(rows: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: only root can become somebody else")
    rows.chmod(0)
    script = """
import os, sys
import lowtide
lowtide.open  # modules come on first use, and may lie where that user cannot read
os.setuid(65534)
try:
    lowtide.open(sys.argv[1])
except PermissionError:
    sys.exit(42)
"""
    source = str(Path(lowtide.__file__).parent.parent)
    with tempfile.TemporaryDirectory() as directory:  # pytest's own directories are closed to everybody else
        Path(directory).chmod(0o755)
        place = rows.rename(Path(directory) / "rows.npy")
        done = subprocess.run(
            [sys.executable, "-c", script, place], env={**os.environ, "PYTHONPATH": source}, check=False
        )
    assert done.returncode == 42


def test_a_fifo_is_refused_at_once_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(lowtide.FormatError, match="FIFO"):
        lowtide.open(tmp_path / "pipe", dtype="uint8")


def test_raw_bytes_without_a_dtype_are_refused_with_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(np.arange(1000, dtype=np.uint16).tobytes())
    with pytest.raises(lowtide.FormatError, match=r"dtype=.*uint16"):
        lowtide.open(tmp_path / "x.bin")


def test_a_header_wins_over_arguments_that_contradict_it(rows: Path) -> None:
    with pytest.raises(lowtide.FormatError, match=r"float32.*float64"):
        lowtide.open(rows, dtype="float64")
    with pytest.raises(lowtide.FormatError, match=r"\(100, 8\)"):
        lowtide.open(rows, shape=(8, 100))
    assert lowtide.open(rows, dtype="float32", shape=(-1, 8)).shape == (100, 8)


def test_arrays_in_memory_and_odd_sources_are_type_errors(rows: Path) -> None:
    odd: list[Any] = [np.zeros(4), 3, None, b"x.npy", [rows, 5]]
    for source in odd:
        with pytest.raises(TypeError):
            lowtide.open(source)
    with pytest.raises(ValueError, match="empty"):
        lowtide.open([])


def test_files_that_do_not_fit_together_are_refused_by_name(rows: Path) -> None:
    np.save(rows.with_name("other.npy"), np.zeros((3, 9), np.float32))
    np.save(rows.with_name("wide.npy"), np.zeros((3, 8)))
    with pytest.raises(lowtide.FormatError, match=r"other\.npy.*rows\.npy"):
        lowtide.open([rows, rows.with_name("other.npy")])
    with pytest.raises(lowtide.FormatError, match=r"float32.*float64"):
        lowtide.open([rows, rows.with_name("wide.npy")])


# Arguments


@pytest.mark.parametrize("key", [100, -101, 10**30, [0, 100], [-101], np.array([2**63], np.uint64), (100, 0), (0, 8)])
def test_an_index_out_of_range_is_an_index_error_with_the_number(rows: Path, key: Any) -> None:
    with lowtide.open(rows) as array, pytest.raises(IndexError):
        array[key]


def test_an_index_out_of_range_names_both_numbers_before_anything_is_read(rows: Path) -> None:
    with lowtide.open(rows) as array, reading_from(Disk()) as disk:
        for key in (100, [5, 100]):
            with pytest.raises(IndexError, match=r"99, got 100"):
                array[key]
        with pytest.raises(IndexError, match=r"99, got 100"):
            array.gather([5, 100], 2)
        assert disk.calls == 0


@pytest.mark.parametrize("key", [1.0, "x", [1.5], True, np.True_, np.zeros(99, bool), (0, 0, 0), object(), [[True]]])
def test_what_is_not_an_index_is_an_index_error(rows: Path, key: Any) -> None:
    with lowtide.open(rows) as array, pytest.raises((IndexError, TypeError)):
        array[key]


ITERATORS: dict[str, Callable[..., Any]] = {
    "chunks": lambda array, size, **more: array.chunks(size, **more),
    "shuffled": lambda array, size, **more: array.shuffled(size, **more),
    "gather": lambda array, size, **more: array.gather([1, 2, 3], size, **more),
    "sample": lambda array, size, **more: array.sample(size, **more),
}


@pytest.mark.parametrize("call", ITERATORS)
def test_a_batch_that_is_not_a_whole_positive_number_is_refused_when_asked_for(rows: Path, call: str) -> None:
    odd: list[Any] = [2.0, "8", True, [3], np.float32(4)]
    with lowtide.open(rows) as array:
        for size in odd:
            with pytest.raises(TypeError, match=call):
                ITERATORS[call](array, size)
        for size in (0, -1):
            with pytest.raises(ValueError, match=rf"{call}: .*got {size}"):
                ITERATORS[call](array, size)


@pytest.mark.parametrize("call", ITERATORS)
def test_a_batch_may_be_any_kind_of_integer(rows: Path, call: str) -> None:
    with lowtide.open(rows) as array:
        kinds: list[Any] = [np.uint8(200), np.int8(100), np.int16(30_000), np.int64(7), np.uint64(7)]
        for size in kinds:
            got = next(ITERATORS[call](array, size))
            assert np.array_equal(got, next(ITERATORS[call](array, int(size))))


@pytest.mark.parametrize("call", ITERATORS)
def test_a_start_that_is_not_a_row_number_is_refused_when_asked_for(rows: Path, call: str) -> None:
    odd: list[Any] = [1.5, "3", None, True, [1]]
    with lowtide.open(rows) as array:
        for start in odd:
            with pytest.raises(TypeError, match="start"):
                ITERATORS[call](array, 4, start=start)
        with pytest.raises(ValueError, match=r"start: .*got -1"):
            ITERATORS[call](array, 4, start=-1)
        if call != "sample":
            with pytest.raises(ValueError, match=r"start: .*got 101"):
                ITERATORS[call](array, 4, start=101)
        next(ITERATORS[call](array, 2, start=np.int64(1)))


@pytest.mark.parametrize("call", ITERATORS)
@pytest.mark.parametrize("start", [2**62 + 1, 2**63, 2**70, np.uint64(2**63)])
def test_a_start_that_nobody_can_reach_is_refused_when_asked_for(rows: Path, call: str, start: Any) -> None:
    endless: dict[str, Any] = {} if call == "sample" else {"epochs": None}
    with lowtide.open(rows) as array:
        with pytest.raises(ValueError, match=rf"start: expected 0 to [0-9]+ \(rows already received\), got {start}\."):
            ITERATORS[call](array, 4, start=start, **endless)
        assert len(next(ITERATORS[call](array, 3, start=2**62 // 300 * 300 - 3, **endless))) == 3


@pytest.mark.parametrize("world", [1, 3])
def test_the_last_start_of_every_rank_names_a_row(rows: Path, world: int) -> None:
    with lowtide.open(rows) as array:
        for rank in range(world):
            ranks: dict[str, Any] = {"epochs": None, "rank": rank, "world": world}
            with pytest.raises(ValueError, match=r"start: expected 0 to") as told:
                array.shuffled(4, start=2**63, **ranks)
            (most,) = re.findall(r"expected 0 to ([0-9]+) ", str(told.value))
            assert len(next(array.shuffled(4, start=int(most), **ranks))) == 4


@pytest.mark.parametrize("call", ["chunks", "shuffled", "gather"])
@pytest.mark.parametrize("epochs", [2**62, 2**64])
def test_more_epochs_than_positions_can_count_are_refused_when_asked_for(rows: Path, call: str, epochs: int) -> None:
    told = rf"epochs: expected 1 to ([0-9]+) passes over [0-9]+ rows, got {epochs}\. Use epochs=1, or None for no end"
    with lowtide.open(rows) as array:
        with pytest.raises(ValueError, match=told) as refused:
            ITERATORS[call](array, 4, epochs=epochs)
        (most,) = re.findall(told, str(refused.value))
        assert len(ITERATORS[call](array, 4, epochs=int(most))) > 0


@pytest.mark.parametrize("batch", [2**48, 2**63, 2**70])
def test_a_batch_beyond_the_memory_there_is_is_refused_when_asked_for(rows: Path, batch: int) -> None:
    told = rf"sample\({batch}\): expected a batch of at most .*, the memory .* allows, got one of .*\. Use sample"
    with lowtide.open(rows) as array, pytest.raises(lowtide.BudgetError, match=told):
        array.sample(batch)


@pytest.mark.parametrize("call", ["shuffled", "sample"])
def test_a_seed_that_is_not_an_integer_is_refused_when_asked_for(rows: Path, call: str) -> None:
    odd: list[Any] = [1.5, "3", None, [1]]
    with lowtide.open(rows) as array:
        for seed in odd:
            with pytest.raises(TypeError, match="seed"):
                ITERATORS[call](array, 4, seed=seed)
        for good in (-1, 2**70, np.int32(3)):
            next(ITERATORS[call](array, 4, seed=good))


def test_rank_world_and_epoch_are_checked_when_asked_for(rows: Path) -> None:
    with lowtide.open(rows) as array:
        wrong: list[dict[str, Any]] = [{"rank": 2, "world": 2}, {"rank": -1}, {"rank": 1}, {"world": 0}, {"world": -3}]
        for keywords in wrong:
            with pytest.raises(ValueError, match=r"rank|world"):
                array.shuffled(4, **keywords)
        odd: list[dict[str, Any]] = [{"rank": 0.5}, {"world": "2"}, {"world": None}, {"epoch": 1.5}, {"epoch": "x"}]
        for keywords in odd:
            name, value = next(iter(keywords.items()))
            told = rf"^{name}: expected a whole number, got {type(value).__name__}\. Use {name}="
            with pytest.raises(TypeError, match=told):
                array.shuffled(4, **keywords)


@pytest.mark.parametrize("locality", ["many", -5, 1.5, "10 rows"])
def test_a_locality_that_is_not_a_size_is_refused(rows: Path, locality: Any) -> None:
    with lowtide.open(rows) as array, pytest.raises((ValueError, TypeError), match="locality"):
        array.shuffled(4, locality=locality)


def test_unknown_strategies_caches_and_budgets_are_refused_with_what_there_is(rows: Path) -> None:
    with pytest.raises(ValueError, match=r"strategy: .*read.*got 'mmap'"):
        lowtide.open(rows, strategy="mmap")
    with pytest.raises(ValueError, match=r"cache: .*keep.*got 'yes'"):
        lowtide.open(rows, cache="yes")
    odd: list[Any] = ["64 apples", -1, "-3MiB"]
    for budget in odd:
        with pytest.raises(ValueError, match="budget"):
            lowtide.open(rows, budget=budget)
    kinds: list[Any] = [1.5, None, True]
    for budget in kinds:
        with pytest.raises(TypeError, match="budget"):
            lowtide.open(rows, budget=budget)


def test_a_plan_for_batches_that_cannot_be_is_refused(rows: Path) -> None:
    array = lowtide.open(rows)
    for batch in (0, -1):
        with pytest.raises(ValueError, match="plan: expected 1 or more, got"):
            array.plan(batch)
    odd: list[Any] = [1.5, "x", True]
    for batch in odd:
        with pytest.raises(TypeError, match="plan: expected a whole number, got"):
            array.plan(batch)


@pytest.mark.parametrize("strategy", DIFFICULT)
def test_a_closed_array_refuses_everything_and_closing_twice_is_fine(rows: Path, strategy: str) -> None:
    array = lowtide.open(rows, strategy=strategy)
    held = array[3:5]
    going: list[Any] = [array.chunks(10), array.shuffled(10), array.gather([1, 2], 1), array.sample(3)]
    lent = [next(iterator) for iterator in going]
    copies = [rows.copy() for rows in lent]
    array.close()
    array.close()
    attempts: list[Callable[[], Any]] = [
        lambda: array[0],
        lambda: array[[1, 2]],
        lambda: array.chunks(10),
        lambda: array.shuffled(10),
        lambda: array.gather([1], 1),
        lambda: array.sample(1),
        *(partial(next, iterator) for iterator in going),
    ]
    for attempt in attempts:
        with pytest.raises(ValueError, match=r"closed.*Open it again"):
            attempt()
    assert held.shape == (2, 8)
    for mine, copy in zip(lent, copies, strict=True):
        assert np.array_equal(mine, copy)


def test_an_array_without_rows_or_columns_is_an_ordinary_array(tmp_path: Path) -> None:
    for shape in ((0,), (0, 4), (5, 0), (5, 0, 3)):
        np.save(tmp_path / "empty.npy", np.zeros(shape, np.int16))
        for strategy in DIFFICULT:
            with lowtide.open(tmp_path / "empty.npy", strategy=strategy) as array:
                assert array[:].shape == shape
                assert sum(len(chunk) for chunk in array.chunks(2)) == shape[0]
                assert sum(len(batch) for batch in array.shuffled(2)) == shape[0]
                if shape[0] == 0:
                    with pytest.raises(ValueError, match="empty"):
                        array.sample(3)
                    with pytest.raises(IndexError):
                        array[0]
