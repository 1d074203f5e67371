"""XGBoost and LightGBM from rows on disk: the model that rows in memory give, without the rows in memory."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults import Disk, reading_from
from tests.storage.processes import run_python

import lowtide

xgboost = pytest.importorskip("xgboost", reason="NOT TESTED: xgboost is not installed, so no DataIter was read")
lightgbm = pytest.importorskip("lightgbm", reason="NOT TESTED: lightgbm is not installed, so no Sequence was read")
from lowtide.lightgbm import sequence  # noqa: E402
from lowtide.xgboost import data_iter  # noqa: E402

ROWS, FEATURES = 3000, 6
CHANCE = np.random.default_rng(0)
X = CHANCE.standard_normal((ROWS, FEATURES)).astype(np.float32)
X[::7, 3] = np.nan
Y = (X[:, 0] + X[:, 1] ** 2 > 0.5).astype(np.float32)
WEIGHT = CHANCE.random(ROWS).astype(np.float32)
BOOST = {"objective": "binary:logistic", "tree_method": "hist", "max_bin": 32, "nthread": 1}
LIGHT = {"objective": "binary", "verbose": -1, "num_leaves": 7, "deterministic": True, "num_threads": 1}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("trees")
    np.save(place / "x.npy", X)
    np.save(place / "y.npy", Y)
    return place


@pytest.fixture
def rows(directory: Path) -> Iterator[lowtide.Array]:
    with lowtide.open(directory / "x.npy") as opened:
        yield opened


@pytest.fixture
def labels(directory: Path) -> Iterator[lowtide.Array]:
    with lowtide.open(directory / "y.npy") as opened:
        yield opened


def boosted(data: Any) -> bytes:
    return bytes(xgboost.train(BOOST, data, num_boost_round=4).save_raw("json"))


def test_xgboost_learns_the_same_trees_from_chunks_as_from_memory(rows: lowtide.Array, labels: lowtide.Array) -> None:
    data = data_iter(rows, labels, rows=701, weight=WEIGHT)
    assert isinstance(data, xgboost.DataIter)
    found = xgboost.QuantileDMatrix(data, max_bin=32)
    assert found.num_row() == ROWS
    assert np.array_equal(found.get_weight(), WEIGHT)
    assert boosted(found) == boosted(xgboost.QuantileDMatrix(X, Y, weight=WEIGHT, max_bin=32))


def test_xgboosts_own_pages_on_disk_are_made_from_chunks(
    rows: lowtide.Array, labels: lowtide.Array, tmp_path: Path
) -> None:
    outside = xgboost.ExtMemQuantileDMatrix(
        data_iter(rows, labels, rows=1000, cache_prefix=str(tmp_path / "pages")), max_bin=32
    )
    inside = xgboost.QuantileDMatrix(X, Y, max_bin=32)
    trees = xgboost.train(BOOST, outside, num_boost_round=4), xgboost.train(BOOST, inside, num_boost_round=4)
    assert np.allclose(trees[0].predict(inside), trees[1].predict(inside), atol=1e-6)


def test_lightgbm_learns_the_same_trees_from_a_sequence_as_from_memory(rows: lowtide.Array) -> None:
    found = sequence(rows)
    assert isinstance(found, lightgbm.Sequence)
    for data in (found, [sequence(rows.subset(slice(1000))), sequence(rows.subset(slice(1000, None)))]):
        ours = lightgbm.train(LIGHT, lightgbm.Dataset(data, label=Y), 4).model_to_string()
        theirs = lightgbm.train(LIGHT, lightgbm.Dataset(X.astype(np.float64), label=Y), 4).model_to_string()
        assert ours == theirs


def test_a_sequence_gives_float64_rows_by_number_slice_and_list(rows: lowtide.Array) -> None:
    found = sequence(rows)
    assert len(found) == ROWS
    for index in (0, np.int64(5), 6, 2999, 7, -1, 1500, 1501):
        row = found[index]
        assert row.dtype == np.float64
        assert row.flags.owndata
        assert np.array_equal(row, X[index].astype(np.float64), equal_nan=True)
    for some in (slice(3, 900), [4, 1, 2999], slice(0, 0)):
        assert np.array_equal(found[some], X[some].astype(np.float64), equal_nan=True)
    again = pickle.loads(pickle.dumps(found))
    assert np.array_equal(again[5], found[5], equal_nan=True)
    with pytest.raises(IndexError):
        found[ROWS]
    with pytest.raises(TypeError):
        found["a"]


def test_single_rows_that_are_near_are_answered_from_one_read(rows: lowtide.Array) -> None:
    found = sequence(rows)
    found[0]
    with reading_from(Disk()) as disk:
        for number in range(1, ROWS, 2):
            assert np.array_equal(found[number], X[number].astype(np.float64), equal_nan=True)
    assert disk.calls <= 2


def test_rows_counted_from_the_end_are_found_in_any_order_and_rows_behind_it_are_refused(tmp_path: Path) -> None:
    many = np.arange(20_000 * 64, dtype=np.float32).reshape(20_000, 64)  # more than one block of neighbours
    np.save(tmp_path / "many.npy", many)
    with lowtide.open(tmp_path / "many.npy") as rows:
        found = sequence(rows)
        for number in (-2, -2, -1, -1, 0, -3):
            assert np.array_equal(found[number], many[number])
        for number in (20_000, 20_001, -20_001):
            with pytest.raises(IndexError, match=f"expected a row from -20000 to 19999, got {number}"):
                found[number]


def test_single_rows_that_are_far_apart_are_read_alone(tmp_path: Path) -> None:
    wide = np.arange(200 * 5000, dtype=np.float32).reshape(200, 5000)  # 20,000 bytes each
    np.save(tmp_path / "wide.npy", wide)
    with lowtide.open(tmp_path / "wide.npy") as rows:
        found = sequence(rows)
        with reading_from(Disk()) as disk:
            for number in (10, 90, 170, 20):
                assert np.array_equal(found[number], wide[number])
        assert disk.calls == 4


def test_an_error_while_reading_comes_out_of_the_call_that_wanted_the_data(directory: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.npy"
    cut.write_bytes((directory / "x.npy").read_bytes())
    with lowtide.open(cut, budget="1MiB", cache="keep") as rows:
        data = data_iter(rows, Y, rows=500)
        cut.write_bytes(cut.read_bytes()[:9000])
        with pytest.raises(lowtide.ReadError, match=r"cut\.npy"):
            xgboost.QuantileDMatrix(data, max_bin=32)


def test_what_has_no_features_is_refused(rows: lowtide.Array, labels: lowtide.Array, tmp_path: Path) -> None:
    makers: list[tuple[Any, str]] = [(data_iter, "lowtide.xgboost.data_iter"), (sequence, "lowtide.lightgbm.sequence")]
    for make, named in makers:
        with pytest.raises(TypeError, match=rf"{named}: expected what lowtide.open gives, got ndarray\. Use"):
            make(X)
        with pytest.raises(
            ValueError, match=r"y.npy: expected rows of features, an array of 2 axes, got shape \(3000,"
        ):
            make(labels)
    with pytest.raises(ValueError, match="together: expected as many rows in label as in data, 3000, got 2999"):
        data_iter(rows, Y[1:])
    np.save(tmp_path / "c.npy", np.zeros((4, 2), np.complex64))
    with lowtide.open(tmp_path / "c.npy") as odd, pytest.raises(TypeError, match="float64 can hold, got complex64"):
        sequence(odd)


# Memory

BUILD = """
import lightgbm, xgboost, lowtide.lightgbm, lowtide.xgboost
from pathlib import Path
path, few = sys.argv[1], {"bin_construct_sample_cnt": 2000, "max_bin": 15, "verbose": -1, "num_threads": 1}

def light(rows):
    lightgbm.Dataset(rows, params=few).construct()

def boost(rows):
    xgboost.QuantileDMatrix(rows, max_bin=15, nthread=1)

def highest():
    (line,) = [one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM")]
    return int(line.split()[1]) // 1024

rows = lowtide.open(path, budget="8MiB", cache="drop")
ways = {
    "lightgbm": lambda: light(lowtide.lightgbm.sequence(rows)),
    "lightgbm in memory": lambda: light(np.load(path).astype(np.float64)),
    "xgboost": lambda: boost(lowtide.xgboost.data_iter(rows)),
    "xgboost in memory": lambda: boost(np.load(path)),
}
light(np.random.rand(500, 4)), boost(np.random.rand(500, 4))
grown = {}
for name, build in ways.items():
    gc.collect()
    lowtide.release()
    Path("/proc/self/clear_refs").write_text("5")  # the highest so far is what is held now
    before = highest()
    build()
    grown[name] = highest() - before
print(json.dumps(grown))
"""


@pytest.mark.slow
def test_memory_holds_the_bins_and_the_budget_and_loading_the_rows_breaks_it(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    with lowtide.create(path, dtype="float32", shape=(-1, 64), cache="drop") as out:  # 48 MiB; bins of a byte: 12
        for part in range(6):
            out.append(np.random.default_rng(part).standard_normal((32768, 64), np.float32))
    done = run_python(BUILD, path)
    assert done.returncode == 0, done.stderr[-2000:]
    grown = json.loads(done.stdout.splitlines()[-1])
    most = 12 + 12 + 8 + 8  # MiB: the bins, twice while they are made, the budget, and what allocators round up
    for library in ("lightgbm", "xgboost"):
        assert grown[library] <= most < grown[f"{library} in memory"], grown
