"""Ray Data over our rows, on a real local cluster: the same rows, read by the tasks themselves, in bounded blocks."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.test_examples import EXAMPLES, run

import lowtide

ray = pytest.importorskip("ray", reason="NOT TESTED: Ray is not installed")
pytest.importorskip("ray.data", reason="NOT TESTED: ray[data] is not installed")

from ray.data.block import BlockAccessor  # noqa: E402

from lowtide.ray import BLOCK_BYTES_READ, RowSource, dataset  # noqa: E402

pytestmark = [
    pytest.mark.one_process,
    # Ray's and pandas' own; a cluster's sockets live as long as the session.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", np.arange(50_000 * 6, dtype=np.float32).reshape(50_000, 6))
    np.save(tmp_path / "y.npy", np.arange(50_000) % 10)
    return tmp_path


on_the_cluster = pytest.mark.usefixtures("ray_cluster")


def columns_of(source: Any, tasks: int, **options: Any) -> list[Any]:
    """Every block of a source as columns of NumPy, read by its tasks, here."""
    made = RowSource(source, **options).get_read_tasks(tasks)
    return [BlockAccessor.for_block(block).to_numpy() for task in made for block in task()]


def in_order(ds: Any, column: str) -> np.ndarray:
    return np.concatenate([batch[column] for batch in ds.iter_batches(batch_size=4096)])


@pytest.mark.slow
@on_the_cluster
def test_every_row_comes_once_and_in_its_place(rows: Path) -> None:
    ds = dataset(lowtide.open(rows / "x.npy"), override_num_blocks=7)
    assert ds.count() == 50_000
    taken = in_order(ds, "data")
    assert taken.dtype == np.float32
    assert np.array_equal(np.sort(taken[:, 0]), np.arange(50_000) * 6)
    assert np.array_equal(taken[np.argsort(taken[:, 0])], np.load(rows / "x.npy"))


def test_aligned_arrays_are_columns_of_the_same_rows(rows: Path) -> None:
    blocks = columns_of({"x": lowtide.open(rows / "x.npy"), "y": lowtide.open(rows / "y.npy")}, 3)
    assert sum(len(block["y"]) for block in blocks) == 50_000
    for block in blocks:
        assert np.array_equal(block["x"][:, 0] // 6 % 10, block["y"])


@pytest.mark.parametrize("named", [False, True])
def test_together_is_a_column_per_array(rows: Path, named: bool) -> None:
    x, y = lowtide.open(rows / "x.npy"), np.load(rows / "y.npy")
    both = lowtide.together(x=x, y=y) if named else lowtide.together(x, y)
    blocks = columns_of(both.split(val=0.2, seed=1)[0], 3)
    assert sum(len(block["y" if named else "1"]) for block in blocks) == 40_000
    for block in blocks:
        assert np.array_equal(block["x" if named else "0"][:, 0] // 6 % 10, block["y" if named else "1"])


def test_tokens_come_as_windows_one_token_longer_than_their_stride(tmp_path: Path) -> None:
    np.arange(10_000, dtype=np.uint16).tofile(tmp_path / "t.bin")
    tokens = lowtide.open_tokens(tmp_path / "t.bin", dtype="uint16")
    windows = np.concatenate([block["tokens"] for block in columns_of(tokens, 4, length=100)])
    assert windows.shape == (99, 101)
    assert np.array_equal(windows, np.arange(99)[:, None] * 100 + np.arange(101))


@on_the_cluster
def test_rows_pass_through_map_batches_on_the_workers(rows: Path) -> None:
    ds = dataset(lowtide.open(rows / "x.npy"), override_num_blocks=4)
    sums = ds.map_batches(lambda batch: {"sum": batch["data"].sum(axis=1, dtype=np.float64)}).sum("sum")
    assert sums == np.load(rows / "x.npy").sum(dtype=np.float64)


def test_fields_and_foreign_byte_orders_become_columns_arrow_knows(tmp_path: Path) -> None:
    made = np.zeros(100, [("id", "<i8"), ("at", ">f4", (3,))])
    made["id"] = np.arange(100)
    made["at"] = np.arange(300).reshape(100, 3)
    np.save(tmp_path / "s.npy", made)
    (batch,) = columns_of(lowtide.open(tmp_path / "s.npy"), 1)
    assert sorted(batch) == ["at", "id"]
    assert batch["at"].dtype == np.dtype("float32")
    assert np.array_equal(batch["at"][:, 1], batch["id"] * 3 + 1)


def test_an_empty_array_is_an_empty_dataset(tmp_path: Path) -> None:
    np.save(tmp_path / "none.npy", np.zeros((0, 4), np.float32))
    assert RowSource(lowtide.open(tmp_path / "none.npy")).get_read_tasks(4) == []


# What a task is, without running one


def test_a_read_task_carries_the_name_of_the_file_and_not_its_rows(rows: Path) -> None:
    tasks = RowSource(lowtide.open(rows / "x.npy")).get_read_tasks(16)
    assert len(tasks) == 16
    assert sum(task.metadata.num_rows or 0 for task in tasks) == 50_000
    assert max(len(pickle.dumps(task.read_fn)) for task in tasks) < 4096


def test_a_task_reads_in_blocks_that_fit_the_budget(tmp_path: Path) -> None:
    with (tmp_path / "x.u8").open("wb") as file:
        file.truncate(64 << 20)
    for budget, most in (("auto", BLOCK_BYTES_READ), ("2MiB", 2 << 20)):
        array = lowtide.open(tmp_path / "x.u8", dtype="uint8", shape=(-1, 4096), budget=budget)
        (task,) = RowSource(array).get_read_tasks(1)
        sizes = [block.nbytes for block in task()]
        assert sum(sizes) >= 64 << 20
        assert max(sizes) <= most + 65_536  # Arrow's offsets come on top


def test_more_tasks_than_rows_are_as_many_as_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    tasks = RowSource(lowtide.open(tmp_path / "x.npy")).get_read_tasks(200)
    assert [task.metadata.num_rows for task in tasks] == [1, 1, 1]
    assert RowSource(lowtide.open(tmp_path / "x.npy")).estimate_inmemory_data_size() == 24


def test_odd_sources_are_refused_with_the_way_out(rows: Path) -> None:
    x = lowtide.open(rows / "x.npy")
    odd: list[Any] = [np.zeros(4), "x.npy", {}, {"x": np.zeros(4)}, None]
    for source in odd:
        with pytest.raises(TypeError, match=r"lowtide\.ray\.dataset: expected what lowtide\.open"):
            dataset(source)
    with pytest.raises(TypeError, match="length: expected no length for an array"):
        dataset(x, length=10)
    np.save(rows / "short.npy", np.arange(49_999))
    with pytest.raises(ValueError, match=r"equal length, got \{'x': 50000, 'y': 49999\}"):
        dataset({"x": x, "y": lowtide.open(rows / "short.npy")})
    tokens = lowtide.open_tokens(rows / "y.npy")
    with pytest.raises(TypeError, match=r"length: expected the tokens of a window.*length=1024"):
        dataset(tokens)
    for length in (0, -1):
        with pytest.raises(ValueError, match="length: expected 1 or more"):
            dataset(tokens, length=length)


@pytest.mark.slow
@on_the_cluster
def test_a_file_that_was_cut_after_opening_fails_the_task_and_gives_no_rows(rows: Path) -> None:
    array = lowtide.open(rows / "x.npy")
    ds = dataset(array, override_num_blocks=2)
    with (rows / "x.npy").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(Exception, match=r"truncated|cut short|expected 1200128 bytes"):
        ds.materialize()


@pytest.mark.slow
@on_the_cluster
def test_the_example_counts_and_averages_on_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)  # this one, not a second
    text = run(EXAMPLES / "ray_dataset.py")
    assert "agrees with numpy: True" in text
    assert "every token once: True" in text
