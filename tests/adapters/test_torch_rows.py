"""Tensors of rows: from iterators of arrays and of together, from loaders with workers, and an MLP that learns."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults import Disk, reading_from

import lowtide

torch = pytest.importorskip("torch", reason="NOT TESTED: torch is not installed, so no tensor of rows was made")
from torch.utils.data import DataLoader  # noqa: E402

from lowtide.torch import RowDataset, tensors  # noqa: E402

# More workers than cores are slow, which is torch's to say, and right, which is ours.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

ROWS, BATCH = 1001, 16
X = np.repeat(np.arange(ROWS, dtype=np.float32)[:, None], 20, axis=1)
Y = np.arange(ROWS, dtype=np.int32) * 10
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("rows")
    np.save(directory / "X.npy", X)
    np.save(directory / "Y.npy", Y)
    return directory


@pytest.fixture
def a(directory: Path) -> Iterator[lowtide.Array]:
    with lowtide.open(directory / "X.npy") as opened:
        yield opened


@pytest.fixture
def both(directory: Path) -> Iterator[lowtide.Together]:
    with lowtide.together(directory / "X.npy", directory / "Y.npy") as opened:
        yield opened


def test_tensors_of_an_array_are_its_batches(a: lowtide.Array) -> None:
    batches = tensors(a.shuffled(BATCH, seed=3, epochs=2))
    assert len(batches) == 126
    for got, expected in zip(batches, a.shuffled(BATCH, seed=3, epochs=2), strict=True):
        assert got.dtype == torch.float32
        assert np.array_equal(got.numpy(), expected)
    assert len(batches) == 0


def test_tensors_of_together_are_tuples_or_dicts(both: lowtide.Together, directory: Path) -> None:
    for x, y in tensors(both.shuffled(BATCH)):
        assert torch.equal(x[:, 0].int() * 10, y)
    with lowtide.together(x=directory / "X.npy", y=directory / "Y.npy") as named:
        batch = next(tensors(named.chunks(BATCH)))
        assert list(batch) == ["x", "y"]
        assert torch.equal(batch["y"], torch.from_numpy(Y[:BATCH]))


def test_a_dtype_is_for_all_or_for_each(both: lowtide.Together, directory: Path) -> None:
    x, y = next(tensors(both.chunks(BATCH), dtype=torch.float64))
    assert (x.dtype, y.dtype) == (torch.float64, torch.float64)
    x, y = next(tensors(both.chunks(BATCH), dtype=(None, torch.int64)))
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    with lowtide.together(x=directory / "X.npy", y=directory / "Y.npy") as named:
        batch = next(tensors(named.chunks(BATCH), dtype={"x": torch.bfloat16, "y": None}))
        assert (batch["x"].dtype, batch["y"].dtype) == (torch.bfloat16, torch.int32)
        with pytest.raises(ValueError, match=r"dtype: expected one for each of \['x', 'y'\], got \['x'\]"):
            next(tensors(named.chunks(BATCH), dtype={"x": None}))
    with pytest.raises(ValueError, match="dtype: expected one for each of 2 arrays of a batch, got 1"):
        next(tensors(both.chunks(BATCH), dtype=[None]))


def test_a_tensor_holds_its_buffer_and_gives_it_back(a: lowtide.Array) -> None:
    iterator = a.shuffled(BATCH)
    batches = tensors(iterator)
    (pool,) = iterator.pools
    x = next(batches)
    kept = x[3:5]
    copy = kept.clone()
    del x
    gc.collect()
    assert pool.lent == 1
    list(islice(batches, 20))
    assert torch.equal(kept, copy)
    del kept
    gc.collect()
    assert pool.lent == 0


def test_a_state_counts_what_was_received_and_resumes(both: lowtide.Together) -> None:
    batches = tensors(both.shuffled(BATCH, seed=1, epochs=2))
    list(islice(batches, 70))
    state = json.loads(json.dumps(batches.state_dict()))
    assert state["position"] == batches.position == 1001 + 7 * BATCH
    resumed = tensors(both.shuffled(BATCH, seed=1, epochs=2))
    resumed.load_state_dict(state)
    for (x, y), (u, v) in zip(batches, resumed, strict=True):
        assert torch.equal(x, u)
        assert torch.equal(y, v)


def test_a_batch_that_did_not_arrive_comes_again(tmp_path: Path) -> None:
    np.save(tmp_path / "big.npy", X.astype(">f4"))
    with lowtide.open(tmp_path / "big.npy") as a:
        batches = tensors(a.chunks(BATCH))
        for _ in range(2):
            with pytest.raises(TypeError, match=r"expected numbers that torch has a dtype for, got >f4\. Convert"):
                next(batches)
            assert batches.position == batches.feed.position == 0


def test_what_is_no_iterator_of_ours_is_refused(a: lowtide.Array) -> None:
    with pytest.raises(TypeError, match=r"tensors: expected a feed or an iterator of rows, got Array\. Use tensors\("):
        tensors(a)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="RowDataset: expected an array or together"):
        RowDataset(X)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="seek: expected a feed, got an iterator of rows"):
        tensors(a.chunks(4)).seek(3)


@pytest.mark.parametrize(
    ("workers", "method"), [(0, None), (2, "fork"), pytest.param(2, "spawn", marks=pytest.mark.slow)]
)
def test_a_loader_gives_every_row_exactly_once(both: lowtide.Together, workers: int, method: str | None) -> None:
    dataset = RowDataset(both)
    assert len(dataset) == ROWS
    generator = torch.Generator().manual_seed(0)
    loader: Any = DataLoader(
        dataset,
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        generator=generator,
        multiprocessing_context=method,
    )
    seen: list[int] = []
    for x, y in loader:
        assert torch.equal(x[:, 0].int() * 10, y)
        seen += y.tolist()
    assert sorted(seen) == Y.tolist()
    assert seen != Y.tolist()


def test_a_loaders_batch_is_one_call_to_the_store(a: lowtide.Array) -> None:
    dataset = RowDataset(a)
    dataset[0]
    with reading_from(Disk()) as disk:
        rows = dataset.__getitems__([5, 900, 7, 5, -1])
    assert disk.calls <= 5
    assert [int(row[0]) for row in rows] == [5, 900, 7, 5, 1000]
    with pytest.raises(IndexError, match="expected a row from -1001 to 1000, got 1001"):
        dataset[ROWS]


def test_rows_of_named_members_and_of_parts_make_datasets(directory: Path) -> None:
    with lowtide.together(x=directory / "X.npy", y=directory / "Y.npy") as named:
        train, val = named.split(val=0.1, seed=1)
        seen: list[int] = []
        for part in (train, val):
            for batch in DataLoader(RowDataset(part), batch_size=50):
                assert torch.equal(batch["x"][:, 5].int() * 10, batch["y"])
                seen += batch["y"].tolist()
        assert sorted(seen) == Y.tolist()


def run(script: str, *more: str) -> str:
    places = os.pathsep.join([str(Path(lowtide.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *more, script] if more else [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=500,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_the_adapter_is_there_without_an_import_of_its_own() -> None:
    assert run("import lowtide; print(lowtide.torch.RowDataset.__name__)").strip() == "RowDataset"


def test_without_torch_the_adapter_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "import lowtide\n"
        "try: lowtide.torch\n"
        "except AttributeError as problem: print(problem)\n"
        "print(hasattr(lowtide, 'torch'))\n"
    )
    first, second = run(script).splitlines()
    assert first.startswith("lowtide.torch: expected torch to be installed, got")
    assert first.endswith("Run: pip install 'lowtide[torch]'.")
    assert second == "False"


RANKED = """
import sys, torch, lowtide
from lowtide.torch import tensors
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[3]), world_size=2)
a = lowtide.open(sys.argv[1])
try: tensors(a.shuffled(4))
except ValueError as problem: print(problem)
print(len(tensors(a.shuffled(4, rank=int(sys.argv[3]), world=2))), len(tensors(a.chunks(4))))
"""


@pytest.mark.slow
def test_ranks_that_would_all_train_on_equal_rows_are_refused(directory: Path, tmp_path: Path) -> None:
    places = os.pathsep.join([str(Path(lowtide.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", RANKED, directory / "X.npy", tmp_path / "meet", str(rank)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": places},
        )
        for rank in range(2)
    ]
    for rank, one in enumerate(runs):
        text, _ = one.communicate(timeout=300)
        assert "iterator: expected one with rank= and world=2, got one without" in text
        assert f"Use shuffled(..., rank={rank}, world=2)." in text
        assert text.splitlines()[-1] in ("125 251", "126 251")


@pytest.mark.slow
def test_the_mlp_example_resumes_and_learns_as_well_from_disk_as_from_memory() -> None:
    text = run(str(ROOT / "examples" / "mlp_rows.py"), "-W", "error")
    found = re.search(r"accuracy on held-out rows: ([0-9.]+) from disk, ([0-9.]+) from memory", text)
    assert found is not None
    disk, memory = float(found[1]), float(found[2])
    assert disk > 0.75  # guessing is right once in ten
    assert abs(disk - memory) < 0.03
    assert "stopped after 106 of 213 batches, resumed at row 26,960" in text
    assert "budget      4.00 MiB" in text


def test_every_block_of_the_page_about_arrays_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "arrays.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 8
    for number, block in enumerate(blocks):
        exec(compile(block, f"arrays.md, block {number}", "exec"), names)
    for name in ("X", "both", "named"):
        names[name].close()
