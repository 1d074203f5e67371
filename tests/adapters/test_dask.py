"""Dask over our rows: no bytes in the graph, blocks read by the worker that needs them, also in real processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.test_examples import EXAMPLES, run

import lowtide

dask = pytest.importorskip("dask", reason="NOT TESTED: Dask is not installed")
pytest.importorskip("dask.array", reason="NOT TESTED: dask[array] is not installed")

import lowtide.dask  # noqa: E402


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dask") / "x.npy"
    np.save(path, np.random.default_rng(0).integers(0, 1000, (20_000, 64)).astype(np.float32))
    return path


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Two real worker processes, shared by the tests of this file."""
    distributed = pytest.importorskip("distributed", reason="NOT TESTED: distributed is not installed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=None
        ) as cluster,
        distributed.Client(cluster) as made,
    ):
        yield made


def test_blocks_are_whole_rows_and_give_the_same_numbers(rows: Path) -> None:
    x = lowtide.dask.array(lowtide.open(rows), chunks=3000)
    wanted = np.load(rows)
    assert x.chunks == ((3000,) * 6 + (2000,), (64,))
    assert x.dtype == np.float32
    with ThreadPoolExecutor(4) as pool, dask.config.set(scheduler="threads", pool=pool):
        assert np.array_equal(x.compute(), wanted)
        assert np.allclose(x.mean(axis=0).compute(), wanted.mean(axis=0, dtype=np.float64))
        assert np.array_equal(x[17:8000:3, 5].compute(), wanted[17:8000:3, 5])
        assert np.array_equal(x[[19_999, 3, 3]].compute(), wanted[[19_999, 3, 3]])


def test_automatic_blocks_fit_the_budget_and_dasks_own_limit(rows: Path) -> None:
    row = 64 * 4
    assert lowtide.dask.array(lowtide.open(rows, budget="1MiB")).chunks[0][0] == (1 << 20) // row
    with dask.config.set({"array.chunk-size": "256KiB"}):
        assert lowtide.dask.array(lowtide.open(rows)).chunks[0][0] == (256 << 10) // row
    assert lowtide.dask.array(lowtide.open(rows)).chunks[0] == (20_000,)


def test_the_graph_holds_no_bytes_of_the_data(rows: Path) -> None:
    """5 MB of rows; the graph names the file. A graph over the memmap itself is the negative control."""
    cloudpickle = pytest.importorskip("cloudpickle")
    x = lowtide.dask.array(lowtide.open(rows), chunks=1000)
    assert len(cloudpickle.dumps(dict(x.__dask_graph__()))) < 10_000
    loaded = dask.array.from_array(np.load(rows), chunks=1000)
    assert len(cloudpickle.dumps(dict(loaded.__dask_graph__()))) > 5_000_000


def test_nothing_is_read_before_it_is_computed_and_then_only_what_is_needed(rows: Path) -> None:
    block, wanted = 1000 * 64 * 4, np.load(rows)[5000:5010]
    with lowtide.open(rows) as array, dask.config.set(scheduler="synchronous"):
        lowtide.dask.array(array, chunks=1000)[:10].compute()  # what Dask imports on first use is read here
        before = bytes_read()
        part = lowtide.dask.array(array, chunks=1000)[5000:5010]
        built = bytes_read()
        assert np.array_equal(part.compute(), wanted)
        assert built - before < block // 4
        assert wanted.nbytes <= bytes_read() - built < block // 4  # ten rows, not a block of a thousand


def bytes_read() -> int:
    """What this process has asked the kernel to read so far, from the page cache too."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_block_beyond_a_stated_budget_is_refused_with_the_number_to_change(rows: Path) -> None:
    x = lowtide.dask.array(lowtide.open(rows, budget="1MiB"), chunks=10_000)
    with (
        pytest.raises(lowtide.BudgetError, match=r"expected at most 1\.00 MiB"),
        dask.config.set(scheduler="synchronous"),
    ):
        x.sum().compute()


def test_tokens_are_an_array_of_one_axis(tmp_path: Path) -> None:
    np.arange(10_000, dtype=np.uint16).tofile(tmp_path / "t.bin")
    x = lowtide.dask.array(lowtide.open_tokens(tmp_path / "t.bin", dtype="uint16"), chunks=3000)
    assert x.shape == (10_000,)
    with dask.config.set(scheduler="synchronous"):
        assert int(x.max().compute()) == 9999
        assert np.array_equal(x[2990:3010].compute(), np.arange(2990, 3010))


def test_arrays_of_no_rows_one_axis_and_three_axes_work(tmp_path: Path) -> None:
    for shape in ((0, 4), (7,), (10, 3, 5)):
        made = np.arange(np.prod(shape)).reshape(shape)
        np.save(tmp_path / "x.npy", made)
        x = lowtide.dask.array(lowtide.open(tmp_path / "x.npy"), chunks=4)
        with dask.config.set(scheduler="synchronous"):
            assert np.array_equal(x.compute(), made)


def test_odd_sources_and_chunks_are_refused(rows: Path) -> None:
    odd: list[Any] = [np.zeros(4), "x.npy", None]
    for source in odd:
        with pytest.raises(
            TypeError, match=r"lowtide\.dask\.array: expected what lowtide\.open or together gives, got"
        ):
            lowtide.dask.array(source)
    with pytest.raises(ValueError, match="chunks: expected 1 or more, got 0"):
        lowtide.dask.array(lowtide.open(rows), chunks=0)
    with pytest.raises(TypeError, match="chunks: expected a whole number"):
        lowtide.dask.array(lowtide.open(rows), chunks=2.5)  # type: ignore[arg-type]


# Real worker processes


def where_read(block: np.ndarray) -> np.ndarray:
    """The process that holds the block, whether anything of the file is mapped there, and whether ours is loaded."""
    mapped = "x.npy" in Path("/proc/self/maps").read_text()
    return np.array([[os.getpid(), mapped]])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # distributed's own
def test_worker_processes_read_their_own_blocks_and_map_nothing(rows: Path, client: Any) -> None:
    wanted = np.load(rows)
    x = lowtide.dask.array(lowtide.open(rows), chunks=500)
    assert np.allclose(x.mean(axis=0).compute(scheduler=client), wanted.mean(axis=0, dtype=np.float64))
    seen = x.map_blocks(where_read, dtype=np.int64, chunks=(1, 2)).compute(scheduler=client)
    assert len(seen) == 40
    assert os.getpid() not in seen[:, 0]
    assert not seen[:, 1].any()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_workers_compute_is_written_by_create_block_by_block(rows: Path, client: Any, tmp_path: Path) -> None:
    x = lowtide.dask.array(lowtide.open(rows), chunks=2000)
    scaled = (x - x.mean(axis=0)) / x.std(axis=0)
    with lowtide.create(tmp_path / "z.npy", dtype="float32", shape=(-1, 64)) as out:
        for block in scaled.blocks:
            out.append(block.compute(scheduler=client).astype(np.float32))
    result = np.load(tmp_path / "z.npy")
    assert result.shape == (20_000, 64)
    assert np.allclose(result.mean(axis=0), 0, atol=1e-4)
    assert np.allclose(result.std(axis=0), 1, atol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_file_that_was_cut_after_opening_fails_the_computation(client: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1000, 64)))
    x = lowtide.dask.array(lowtide.open(tmp_path / "x.npy"), chunks=100)
    with (tmp_path / "x.npy").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(lowtide.ReadError, match="truncated"):
        x.sum().compute(scheduler=client)


@pytest.mark.slow
def test_the_example_normalises_a_file_and_agrees_with_numpy() -> None:
    text = run(EXAMPLES / "dask_mean.py")
    assert "agrees with numpy: True" in text
    assert "2 worker processes" in text


@pytest.mark.parametrize("named", [False, True])
def test_together_is_cut_alike_and_read_member_by_member(rows: Path, named: bool) -> None:
    x, y = lowtide.open(rows), np.arange(20_000)
    both = lowtide.together(x=x, y=y) if named else lowtide.together(x, y)
    found = lowtide.dask.array(both, chunks=3000)
    left, right = (found["x"], found["y"]) if named else found
    assert left.chunks[0] == right.chunks[0] == (3000,) * 6 + (2000,)
    with dask.config.set(scheduler="synchronous"):
        assert np.array_equal(left.compute(), np.load(rows))
        assert np.array_equal(right[5:4000].compute(), y[5:4000])
        assert np.array_equal(left[right % 7 == 0].compute(), np.load(rows)[y % 7 == 0])
    assert lowtide.dask.array(both)["x" if named else 0].chunks[0] == (20_000,)
