"""Chunked, uncompressed HDF5 datasets are read where their chunks lie; an index of chunks that lies is refused."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lowtide
from lowtide.errors import FormatError
from lowtide.units import MIB

h5py = pytest.importorskip("h5py", reason="NOT TESTED: HDF5, because h5py is not installed")

Make = Any


@pytest.fixture
def table() -> NDArray[Any]:
    found: NDArray[Any] = np.random.default_rng(0).random((1003, 7)).astype("f4")
    return found


def write(path: Path, name: str, rows: NDArray[Any], chunk: tuple[int, ...], *, scattered: bool = False) -> Path:
    """A dataset that may grow, as anndata writes it; ``scattered``: its chunks in random order in the file."""
    with h5py.File(path, "w") as file:
        made = file.create_dataset(name, rows.shape, rows.dtype, chunks=chunk, maxshape=(None, *rows.shape[1:]))
        starts = np.arange(0, len(rows), chunk[0])
        for start in np.random.default_rng(1).permutation(starts) if scattered else starts:
            made[start : start + chunk[0]] = rows[start : start + chunk[0]]
            file.create_dataset(f"between/{start}", data=np.full(5, start)) if scattered else None
    return path


# In place ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("per_chunk", [1, 10, 17, 1003, 5000])
@pytest.mark.parametrize("strategy", ["read", "map", "remap", "advise"])
def test_rows_are_those_that_h5py_gives(
    tmp_path: Path, table: NDArray[Any], per_chunk: int, scattered: bool, strategy: str
) -> None:
    path = write(tmp_path / "x.h5", "/g/X", table, (per_chunk, 7), scattered=scattered)
    with lowtide.open(path, tensor="g/X", strategy=strategy) as array:
        assert array.shape == table.shape
        assert array.dtype == table.dtype
        np.testing.assert_array_equal(array[:], table)
        np.testing.assert_array_equal(array[[1002, 3, 500, 501, 9, 10]], table[[1002, 3, 500, 501, 9, 10]])
        np.testing.assert_array_equal(array[-1], table[-1])
        np.testing.assert_array_equal(np.concatenate([chunk.copy() for chunk in array.chunks(37)]), table)
        seen = np.concatenate([rows.copy() for rows in array.shuffled(64, seed=1)])
        local = np.concatenate([rows.copy() for rows in array.shuffled(64, seed=1, locality=(2800, 280))])
        for rows in (seen, local):
            np.testing.assert_array_equal(np.sort(rows[:, 0]), np.sort(table[:, 0]))


@pytest.mark.parametrize("name", ["/layers/X", "layers/X", "layers//X"])
def test_a_dataset_is_named_with_or_without_a_leading_slash(tmp_path: Path, table: NDArray[Any], name: str) -> None:
    path = write(tmp_path / "x.h5", "/layers/X", table, (100, 7))
    np.testing.assert_array_equal(lowtide.open(path, tensor=name)[:], table)


def test_chunks_that_follow_one_another_are_one_run_of_bytes(tmp_path: Path, table: NDArray[Any]) -> None:
    together = lowtide.open(write(tmp_path / "a.h5", "X", table, (100, 7)), tensor="X")
    apart = lowtide.open(write(tmp_path / "b.h5", "X", table, (100, 7), scattered=True), tensor="X")
    assert together.layout.extents[0].pieces is None
    pieces = apart.layout.extents[0].pieces
    assert pieces is not None
    assert len(pieces.offsets) >= 8
    assert f"chunks of 100 rows, read where they lie: {len(pieces.offsets)} runs of bytes" in str(apart.plan())
    assert len(apart.layout.extents) == 1, "one file, one descriptor"


@pytest.mark.parametrize("dtype", ["u1", "<u2", ">i4", "f8", "c8", "S5", "?"])
@pytest.mark.parametrize("shape", [(31,), (31, 2, 3)])
def test_any_dtype_and_any_number_of_axes(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    rows = np.random.default_rng(3).integers(0, 2, size, np.uint8).view(dtype).reshape(shape)
    path = write(tmp_path / "x.h5", "X", rows, (4, *shape[1:]), scattered=True)
    np.testing.assert_array_equal(lowtide.open(path, tensor="X")[:], rows)


def test_an_annotated_matrix_opens_dense_and_by_its_sparse_columns(tmp_path: Path) -> None:
    """As anndata lays it out: X dense, a CSR layer, all chunked by maxshape=(None, ...), nothing compressed."""
    random = np.random.default_rng(5)
    dense = random.random((3000, 50)).astype("f4")
    columns = {"data": random.random(9000).astype("f4"), "indices": random.integers(0, 50, 9000).astype("i4")}
    with h5py.File(tmp_path / "cells.h5ad", "w") as file:
        file.create_dataset("X", data=dense, chunks=(256, 50), maxshape=(None, 50))
        group = file.create_group("layers/counts")
        for name, values in columns.items():
            made = group.create_dataset(name, (0,), values.dtype, chunks=(1000,), maxshape=(None,))
            for first in range(0, 9000, 700):  # appended to, piece by piece
                made.resize((min(9000, first + 700),))
                made[first : first + 700] = values[first : first + 700]
    np.testing.assert_array_equal(lowtide.open(tmp_path / "cells.h5ad", tensor="X")[:], dense)
    for name, values in columns.items():
        np.testing.assert_array_equal(lowtide.open(tmp_path / "cells.h5ad", tensor=f"layers/counts/{name}")[:], values)


def test_a_dataset_that_was_made_shorter_has_the_rows_it_has(tmp_path: Path, table: NDArray[Any]) -> None:
    path = write(tmp_path / "x.h5", "X", table, (100, 7))
    with h5py.File(path, "r+") as file:
        file["X"].resize((250, 7))
    np.testing.assert_array_equal(lowtide.open(path, tensor="X")[:], table[:250])
    with h5py.File(path, "r+") as file:
        file["X"].resize((0, 7))
    assert lowtide.open(path, tensor="X").shape == (0, 7)


def test_tokens_in_chunks_say_where_they_lie(tmp_path: Path) -> None:
    ids = np.random.default_rng(2).integers(0, 9000, 50_000).astype("u2")
    path = write(tmp_path / "x.h5", "ids", ids, (1000,), scattered=True)
    with lowtide.open_tokens(path, tensor="ids") as tokens:
        feed = tokens.batches(8, length=64, seed=3)
        x, _ = next(feed)
        raw = path.read_bytes()
        for row, place in zip(x, feed.where(0), strict=True):
            assert np.frombuffer(raw[place.offset : place.offset + 2], "u2")[0] == row[0]
        np.testing.assert_array_equal(tokens[990:1010], ids[990:1010])


def test_a_chunked_array_crosses_pickle_and_keeps_its_fingerprint_when_copied(tmp_path: Path, table: Any) -> None:
    path = write(tmp_path / "x.h5", "X", table, (10, 7), scattered=True)
    (tmp_path / "copy.h5").write_bytes(path.read_bytes())
    array, copied = lowtide.open(path, tensor="X"), lowtide.open(tmp_path / "copy.h5", tensor="X")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(array))[5:25], table[5:25])
    assert array.fingerprint() == copied.fingerprint()


def test_where_very_many_chunks_lie_is_counted_against_the_budget(tmp_path: Path) -> None:
    rows = np.arange(40_000, dtype="u4").reshape(-1, 2)
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("X", rows.shape, rows.dtype, chunks=(1, 2))
        for row in np.random.default_rng(0).permutation(len(rows)).tolist():
            made.id.write_direct_chunk((row, 0), rows[row].tobytes())
    tracemalloc.start()
    array = lowtide.open(path, tensor="X", budget="2MiB")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 * MIB, "compact: 20,000 objects would be more"
    assert 700_000 < array.budget.held < 760_000  # 36 bytes for each
    some = np.random.default_rng(1).permutation(len(rows))[:3000]
    np.testing.assert_array_equal(array[some], rows[some])
    np.testing.assert_array_equal(array[100:7000], rows[100:7000])
    with pytest.raises(lowtide.BudgetError, match=r"expected a budget that holds where 199\d\d pieces of data lie"):
        lowtide.open(path, tensor="X", budget="100KiB")


# What cannot be read in place --------------------------------------------------------------------------------


def test_chunks_that_were_never_written_are_rows_of_the_fill_value(tmp_path: Path, table: NDArray[Any]) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = file.create_dataset("X", table.shape, "f4", chunks=(100, 7), fillvalue=7)
        made[300:500] = table[300:500]
        expected = made[:]
    array = lowtide.open(tmp_path / "x.h5", tensor="X", cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(array[:], expected)
    np.testing.assert_array_equal(array[[0, 499, 500, 301]], expected[[0, 499, 500, 301]])
    assert (array[0] == 7).all()
    assert "decoded by chunks of 100 rows" in str(array.plan())


# An index that lies ------------------------------------------------------------------------------------------


def patched(path: Path, table: NDArray[Any], change: Any) -> None:
    """Overwrite addresses in the chunks' B-tree (version 1: a key, then the child's address)."""
    raw = bytearray(path.read_bytes())
    with h5py.File(path, "r") as file:
        found: list[Any] = []
        file["X"].id.chunk_iter(found.append)
    for index, one in enumerate(sorted(found, key=lambda chunk: chunk.chunk_offset)):
        key = b"".join(part.to_bytes(8, "little") for part in (*one.chunk_offset, 0))
        at = raw.index(key + one.byte_offset.to_bytes(8, "little")) + len(key)
        raw[at : at + 8] = change(index, one.byte_offset).to_bytes(8, "little")
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index, offset: 1 << 40 if index == 4 else offset, "expected data up to byte|cannot read"),
        (lambda index, offset: (1 << 64) - 2 if index == 4 else offset, "chunks|cannot"),
        (lambda index, offset: (1 << 63) + 8 if index == 4 else offset, "chunks|cannot"),
        (lambda index, offset: offset + 40 if index == 4 else offset, "rows 400 and 500 on the same bytes"),
        (lambda _, offset: 5000 + 0 * offset, "on the same bytes"),
    ],
)
def test_addresses_that_cannot_be_are_refused(tmp_path: Path, table: NDArray[Any], change: Any, message: str) -> None:
    path = write(tmp_path / "x.h5", "X", table, (100, 7))
    patched(path, table, change)
    with pytest.raises(lowtide.FormatError, match=message):
        lowtide.open(path, tensor="X")


def test_a_file_cut_inside_a_chunk_is_refused_or_never_read_beyond_its_end(tmp_path: Path, table: Any) -> None:
    path = write(tmp_path / "x.h5", "X", table, (100, 7))
    raw = path.read_bytes()
    for size in range(0, len(raw), 997):
        path.write_bytes(raw[:size])
        with pytest.raises((lowtide.FormatError, FileNotFoundError)):
            lowtide.open(path, tensor="X")[:]


def test_an_index_damaged_at_any_place_is_a_typed_error_or_rows(tmp_path: Path, table: NDArray[Any]) -> None:
    path = write(tmp_path / "x.h5", "X", table[:200], (20, 7))
    raw = path.read_bytes()
    with h5py.File(path, "r") as file:
        data = min(file["X"].id.get_chunk_info(number).byte_offset for number in range(10))
    random = np.random.default_rng(7)
    for _ in range(150):
        spoiled = bytearray(raw)
        spoiled[int(random.integers(96, data))] = int(random.integers(0, 256))
        path.write_bytes(spoiled)
        try:
            with lowtide.open(path, tensor="X") as array:
                assert array[:].nbytes == array.nbytes
        except (lowtide.LowtideError, KeyError):  # KeyError: nothing of that name any more
            pass


def test_a_shape_without_chunks_for_it_makes_no_table(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", (1 << 50, 8), "u1", chunks=(1, 8))
    tracemalloc.start()
    with pytest.raises(lowtide.FormatError, match="chunks, got 0: what was never written"):
        lowtide.open(tmp_path / "x.h5", tensor="X")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < MIB


def typed(path: Path, kind: Any, values: NDArray[Any], chunk: int | None, *, gzip: bool) -> NDArray[Any]:
    """A dataset of an HDF5 type that numpy cannot name; what h5py reads of it."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if chunk is not None:
        plist.set_chunk((chunk,))
    if gzip:
        plist.set_deflate(4)
    with h5py.File(path, "w") as out:
        made = h5py.h5d.create(out.id, b"X", kind, h5py.h5s.create_simple(values.shape), plist)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, values)
    with h5py.File(path) as file:
        return np.asarray(file["X"][:])


def odd_types() -> dict[str, tuple[Any, NDArray[Any]]]:
    bits = h5py.h5t.STD_I32LE.copy()
    bits.set_precision(20)
    moved = bits.copy()
    moved.set_offset(8)
    small = h5py.h5t.IEEE_F32LE.copy()
    small.set_fields(26, 20, 6, 0, 20)
    small.set_precision(27)
    small.set_ebias(31)
    spaces = h5py.h5t.C_S1.copy()
    spaces.set_size(5)
    spaces.set_strpad(h5py.h5t.STR_SPACEPAD)
    inside = h5py.h5t.create(h5py.h5t.COMPOUND, 8)
    inside.insert(b"a", 0, h5py.h5t.IEEE_F32LE)
    inside.insert(b"b", 4, moved)
    numbers = np.arange(11, dtype="<i4") - 3
    records = np.zeros(11, [("a", "<f4"), ("b", "<i4")])
    records["b"] = numbers
    return {
        "20 bits": (bits, numbers),
        "20 bits in the middle": (moved, numbers),
        "a float of 27 bits": (small, numbers.astype("<f4")),
        "texts that end in spaces": (spaces, np.array([b"a", b"bc", b"defgh"] * 3, "S5")),
        "a field of 20 bits": (inside, records),
    }


@pytest.mark.parametrize("name", odd_types())
def test_items_with_other_bits_than_numpys_are_turned_by_h5py_or_refused(tmp_path: Path, name: str) -> None:
    kind, values = odd_types()[name]
    for gzip in (False, True):
        expected = typed(tmp_path / f"{gzip}.h5", kind, values, 4, gzip=gzip)
        found = lowtide.open(tmp_path / f"{gzip}.h5", tensor="X", cache_dir=tmp_path / "cache")
        np.testing.assert_array_equal(found[:], expected)
    typed(tmp_path / "plain.h5", kind, values, None, gzip=False)
    with pytest.raises(FormatError, match=r"got items that only h5py turns into numpy's .* np.save\('X.npy'"):
        lowtide.open(tmp_path / "plain.h5", tensor="X")


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"chunks": (2,)},
        {"chunks": (2,), "compression": "gzip"},
        {"chunks": (3,), "compression": "gzip", "shuffle": True},
        {"chunks": (2,), "compression": "lzf"},
        {"chunks": (3,), "compression": "lzf", "shuffle": True},
    ],
)
def test_items_that_are_arrays_are_more_axes(tmp_path: Path, how: dict[str, Any]) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as out:
        out.create_dataset("X", shape=(5,), dtype="(3,2)<f4", **how)[...] = np.arange(30).reshape(5, 3, 2)
    found = lowtide.open(tmp_path / "x.h5", tensor="X", cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(found[:], np.arange(30, dtype="f4").reshape(5, 3, 2))


def test_notes_of_h5py_on_a_dtype_are_no_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as out:
        colours = h5py.enum_dtype({"red": 0, "green": 1}, basetype="i1")
        out.create_dataset("X", data=[0, 1, 1], dtype=colours, chunks=(2,), compression="gzip")
    assert lowtide.open(tmp_path / "x.h5", tensor="X", cache_dir=tmp_path / "cache")[:].tolist() == [0, 1, 1]
    assert capfd.readouterr().err == ""
