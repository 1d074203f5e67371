"""What a packed batch is read from, and its runs: the native plan is NumPy's, and damaged tables are never followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.asked import PYTHON, native
from tests.formats.conftest import TokenFiles
from tests.tokens.test_documents import corpus

import lowtide
from lowtide.engine import PackedTables
from lowtide.reading.documents import kept_arrays
from lowtide.reading.documents.packed import PackedReader, PackedReads


def reader_of(windows: Any) -> PackedReader:
    found: PackedReader = windows.batches(1)._reader
    return found


def tables_of(reader: PackedReader) -> PackedTables:
    return reader.rows.tables(np.arange(len(reader.rows)), reader.item, len(reader.tokens))[0]


def same(one: PackedReads, other: PackedReads) -> bool:
    padding = [np.zeros(len(plan.begins), np.bool_) if plan.padding is None else plan.padding for plan in (one, other)]
    return all(np.array_equal(a, b) for a, b in zip((*one[:4], padding[0]), (*other[:4], padding[1]), strict=True))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    tokens=st.integers(2, 400),
    length=st.one_of(st.integers(1, 40), st.just(70_000)),
    share=st.sampled_from([0.01, 0.1, 0.5, 1.0]),
    by=st.sampled_from(["eot", "bos"]),
    dtype=st.sampled_from(["int32", "int64", "uint16"]),
)
def test_both_engines_plan_and_give_the_same_rows(
    tmp_path: Path, seed: int, tokens: int, length: int, share: float, by: str, dtype: str
) -> None:
    native()
    path = TokenFiles(tmp_path).raw(f"{seed}.bin", corpus(np.random.default_rng(seed), tokens, share=share))
    feeds: list[Any] = []
    plans: list[PackedReads] = []
    for engine in ("native", "python"):
        opened = lowtide.open_tokens(path, dtype="uint16", engine=engine, **{by: 0})  # type: ignore[arg-type]
        windows = opened.windows(length, cut="packed", documents=True, dtype=dtype)
        reader = reader_of(windows)
        some = np.arange(len(windows)), np.random.default_rng(seed).integers(0, len(windows), 9)
        plans += [reader.reads_of(rows) for rows in some]
        feeds.append(windows.batches(3, order="random", seed=seed))
    assert same(plans[0], plans[2])
    assert same(plans[1], plans[3])
    for _ in range(3):
        (x, y, docs), (other_x, other_y, other_docs) = (next(feed) for feed in feeds)
        assert np.array_equal(x, other_x)
        assert np.array_equal(y, other_y)
        for one, other in zip(docs, other_docs, strict=True):
            assert np.array_equal(one, other)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 5),
    length=st.integers(1, 50),
    dtype=st.sampled_from(["<i4", "<i8", "u1", "<u2"]),
)
def test_both_engines_close_rows_alike(seed: int, rows: int, length: int, dtype: str) -> None:
    random = np.random.default_rng(seed)
    size = rows * length
    begins = np.flatnonzero((random.random(size) < 0.2) | (np.arange(size) % length == 0))
    padding = None if seed % 3 == 0 else random.random(len(begins)) < 0.3
    closing = np.flatnonzero(random.random(size) < 0.1)
    if padding is not None:
        kept = ~padding[np.searchsorted(begins, closing, side="right") - 1]
        closing = closing[kept]
    eot = None if seed % 2 else 3
    pairs = []
    for engine in (native(), PYTHON):
        x, y = (np.random.default_rng(seed + k).integers(2, 4, (rows, length)).astype(dtype) for k in (1, 2))
        pairs.append((engine.packed_close(x, y, begins, closing, padding, 9, eot), x, y))
    assert pairs[0][0] == pairs[1][0]
    assert np.array_equal(pairs[0][1], pairs[1][1])
    assert np.array_equal(pairs[0][2], pairs[1][2])


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damaged_tables_are_refused_and_never_followed(data: st.DataObject, packing: PackedReader) -> None:
    tables = tables_of(packing)
    name = data.draw(st.sampled_from(["rows", "starts", "sizes", "row_bounds", "piece_bounds", "first"]))
    wrong = np.array(getattr(tables, name))
    at = data.draw(st.integers(0, len(wrong) - 1))
    limits = np.iinfo(wrong.dtype)
    wrong[at] = data.draw(
        st.one_of(st.integers(int(limits.min), int(limits.max)), st.sampled_from([limits.max, limits.min]))
    )
    rows, room = np.arange(len(packing.rows)), 4096
    into = np.full((5, room), -1, np.int64)
    found = native().packed_plan(tables._replace(held=None, **{name: wrong}), rows, into)  # type: ignore[arg-type]
    if found is not None:
        reads, runs, closed, _ = found
        there = tables.there * tables.item
        assert ((into[0, :reads] >= 0) & (into[1, :reads] > 0) & (into[0, :reads] + into[1, :reads] <= there)).all()
        assert into[1, :reads].sum() == len(rows) * (tables.length + 1) * tables.item
        assert (np.diff(into[2, :runs]) > 0).all()
        assert ((into[3, :closed] >= 0) & (into[3, :closed] < len(rows) * tables.length)).all()


@pytest.fixture(scope="module")
def packing(tmp_path_factory: pytest.TempPathFactory) -> PackedReader:
    path = TokenFiles(tmp_path_factory.mktemp("packing")).raw(
        "tokens.bin", corpus(np.random.default_rng(1), 900, share=0.2)
    )
    return reader_of(lowtide.open_tokens(path, dtype="uint16", eot=0).windows(16, cut="packed"))


def test_a_plan_without_room_or_of_a_row_that_is_not_there_is_left_to_numpy(packing: PackedReader) -> None:
    tables, rows = tables_of(packing), np.arange(len(packing.rows))
    into = np.empty((5, 3), np.int64)
    assert native().packed_plan(tables, rows, into) is None
    into = np.empty((5, 999), np.int64)
    for row in (-1, len(rows)):
        assert native().packed_plan(tables, np.array([row]), into) is None
    with pytest.raises(ValueError, match="five arrays of one length"):
        native().packed_plan(tables, rows, into[0])
    with pytest.raises(ValueError, match="tables of one packing"):
        native().packed_plan(tables._replace(sizes=tables.sizes[:4], held=None), rows, into)
    assert native().hold_tables(tables) is tables.held
    with pytest.raises(ValueError, match="tables of one packing"):
        native().hold_tables(tables._replace(sizes=tables.sizes[:4], held=None))
    with pytest.raises(ValueError, match=r"packed_tables|PyCapsule"):
        native().packed_plan(tables._replace(held=rows), rows, into)
    with pytest.raises(TypeError, match="PackedTables"):
        native().packed_plan(None, rows, into)  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [4, 1 << 40], ids=["held", "read"])
@pytest.mark.parametrize("engine", ["native", "python"])
@pytest.mark.parametrize(("name", "value"), [("rows", 40_000), ("starts", 2**31), ("sizes", 40_000), ("sizes", 0)])
def test_rows_of_a_damaged_packing_are_refused_by_name(
    tmp_path: Path, engine: str, name: str, value: int, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_arrays, "LARGEST_SHARE", share)
    path = TokenFiles(tmp_path).raw("tokens.bin", corpus(np.random.default_rng(2), 900, share=0.1))
    whole = lowtide.open_tokens(path, dtype="uint16", eot=0).windows(16, cut="packed")
    file = Path(reader_of(whole).rows.kept.path)
    array = reader_of(whole).rows.kept.arrays[name].part()
    content = bytearray(file.read_bytes())
    at = content.index(array.tobytes()) + 3 * array.itemsize
    content[at : at + array.itemsize] = value.to_bytes(array.itemsize, "little")
    file.write_bytes(content)
    windows = lowtide.open_tokens(path, dtype="uint16", eot=0, engine=engine).windows(16, cut="packed")
    with pytest.raises(
        lowtide.FormatError, match=r"packed-16-.*expected tables of rows made of whole documents.*Delete it"
    ):
        for _ in range(len(windows)):
            next(windows.batches(len(windows), order="sequential"))
