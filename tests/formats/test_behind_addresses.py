"""HDF5, Zarr and columns behind an address are those of the same bytes here, and as firmly refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.blocks.conftest import S3
from tests.blocks.conftest import endpoint as endpoint
from tests.blocks.conftest import s3 as s3
from tests.blocks.server import FaultyServer

import lowtide
from lowtide.blocks.asking import MAKER

pytest.importorskip("obstore", reason="NOT TESTED: files behind addresses, because obstore is not installed")
h5py = pytest.importorskip("h5py", reason="NOT TESTED: HDF5, because h5py is not installed")
pa = pytest.importorskip("pyarrow", reason="NOT TESTED: columns, because pyarrow is not installed")
ipc, pq = (pytest.importorskip(f"pyarrow.{name}") for name in ("ipc", "parquet"))

pytestmark = pytest.mark.slow  # servers and makers

ROWS = np.random.default_rng(5).integers(0, 99, (20_000, 64)).astype("i4")
KINDS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunked": {"chunks": (1_000, 64)},
    "gzip": {"chunks": (1_000, 64), "compression": "gzip", "shuffle": True},
    "lzf": {"chunks": (1_000, 64), "compression": "lzf"},
    "tiles": {"chunks": (900, 24), "compression": "gzip", "shuffle": True},
}


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    place = tmp_path_factory.mktemp("objects")
    with h5py.File(place / "x.h5", "w") as file:
        for name, how in KINDS.items():
            file.create_dataset(f"group/{name}", data=ROWS, **how)
        file["elsewhere"] = h5py.ExternalLink("y.h5", "/X")
    columns = pa.table({"input_ids": pa.array(ROWS.tolist(), pa.list_(pa.int32()))})
    pq.write_table(columns, place / "t.parquet", row_group_size=3_000)
    for name, make in (("t.arrow", ipc.new_file), ("t.stream.arrow", ipc.new_stream)):
        with make(str(place / name), columns.schema) as sink:
            sink.write_table(columns, max_chunksize=2_000)
    return {path.name: path.read_bytes() for path in place.iterdir()}


@pytest.fixture
def server(objects: dict[str, bytes]) -> Iterator[FaultyServer]:
    with FaultyServer(dict(objects)) as found:
        yield found
        MAKER.close()


@pytest.mark.parametrize("name", KINDS)
def test_a_dataset_behind_an_address_has_the_rows_it_has_here(server: FaultyServer, tmp_path: Path, name: str) -> None:
    server.faults.cut_every = 5
    for tensor in (f"group/{name}", f"/group/{name}"):
        with lowtide.open(server.url("x.h5"), tensor=tensor, cache_dir=tmp_path) as array:
            np.testing.assert_array_equal(array[[19_999, 0, 1_000, 999]], ROWS[[19_999, 0, 1_000, 999]])
            np.testing.assert_array_equal(np.concatenate(list(array.chunks(3_333))), ROWS)
            shuffled = np.concatenate(list(array.shuffled(500, locality="1MiB")))
            assert sorted(shuffled[:, 0].tolist()) == sorted(ROWS[:, 0].tolist())


def test_chunks_that_lie_in_the_object_as_they_are_come_without_being_decoded(
    server: FaultyServer, tmp_path: Path
) -> None:
    for name in ("contiguous", "chunked"):
        lowtide.open(server.url("x.h5"), tensor=f"group/{name}", cache_dir=tmp_path)[:]
    (about,) = tmp_path.rglob("about.json")  # one file of blocks for both: the object's own
    assert json.loads(about.read_text())["bytes"] == len(server.objects["x.h5"])


def test_one_row_of_a_compressed_dataset_fetches_one_unit(server: FaultyServer, tmp_path: Path) -> None:
    array = lowtide.open(server.url("x.h5"), tensor="group/gzip", cache_dir=tmp_path)
    before = sum(length for *_, length in server.seen.gets)
    np.testing.assert_array_equal(array[10_000], ROWS[10_000])
    assert sum(length for *_, length in server.seen.gets) - before < len(server.objects["x.h5"]) / 10


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow", "t.stream.arrow"])
def test_a_column_behind_an_address_is_decoded_once(server: FaultyServer, tmp_path: Path, name: str) -> None:
    server.faults.busy_every = 4
    for _ in range(2):
        with lowtide.open_tokens(server.url(name), column="input_ids", cache_dir=tmp_path) as tokens:
            np.testing.assert_array_equal(tokens[:], ROWS.reshape(-1))
            assert np.concatenate(list(tokens.documents() or ())).tolist() == list(range(64, 64 * 20_001, 64))
        fetched = [length for path, _, length in server.seen.gets if path == name]
        assert sum(fetched) < 3 * len(server.objects[name])
    assert len(list(tmp_path.rglob("survey.json"))) == 1


def test_a_changed_object_is_told(server: FaultyServer, tmp_path: Path) -> None:
    array = lowtide.open(server.url("x.h5"), tensor="group/gzip", cache_dir=tmp_path)
    array[0]
    server.objects["x.h5"] = server.objects["x.h5"][:-1] + b"!"
    with pytest.raises(lowtide.ReadError, match="expected the object that was opened"):
        array[19_999]


def test_what_is_not_there_and_links_out_of_an_object_are_refused(server: FaultyServer, tmp_path: Path) -> None:
    with pytest.raises(lowtide.FormatError, match=r"expected a dataset 'Z', got 5 datasets: '/group/chunked'"):
        lowtide.open(server.url("x.h5"), tensor="Z", cache_dir=tmp_path)
    with pytest.raises(lowtide.FormatError, match=r"got a link to 'y.h5'. Open the address of that file"):
        lowtide.open(server.url("x.h5"), tensor="elsewhere", cache_dir=tmp_path)
    with pytest.raises(lowtide.FormatError, match=r"lowtide.open_tokens\('http://.*t.parquet', column='input_ids'\)"):
        lowtide.open(server.url("t.parquet"), cache_dir=tmp_path)
    with pytest.raises(FileNotFoundError):
        lowtide.open(server.url("gone.h5"), tensor="X", cache_dir=tmp_path)


def test_a_server_that_fails_below_h5py_is_told_as_it_is(server: FaultyServer, tmp_path: Path) -> None:
    server.objects["y.h5"] = server.objects["x.h5"]
    lowtide.open(server.url("x.h5"), tensor="group/gzip", cache_dir=tmp_path)
    server.faults.token = "secret"
    with pytest.raises(lowtide.ReadError, match=r"expected permission to read it, got refused \(403\)"):
        lowtide.open(server.url("y.h5"), tensor="group/gzip", cache_dir=tmp_path)
    assert (
        lowtide.open(f"{server.url('y.h5')}?token=secret", tensor="group/lzf", cache_dir=tmp_path).shape == ROWS.shape
    )


def a_zarr_group(place: Path, version: int) -> dict[str, bytes]:
    """The objects of a group ``z.zarr`` with the rows in ``X``."""
    code = (  # in a process of its own: zarr leaves threads behind
        "import sys, numpy as np, zarr\n"
        "rows = np.random.default_rng(5).integers(0, 99, (20_000, 64)).astype('i4')\n"
        f"group = zarr.open_group(sys.argv[1], mode='w', zarr_format={version})\n"
        "group.create_array('X', data=rows, chunks=(1_000, 64))"
    )
    subprocess.run([sys.executable, "-c", code, str(place / "z.zarr")], check=True)
    files = (path for path in (place / "z.zarr").rglob("*") if path.is_file())
    return {str(path.relative_to(place)): path.read_bytes() for path in files}


@pytest.mark.parametrize("version", [2, 3])
def test_a_zarr_array_behind_an_address_has_the_rows_it_has_here(
    server: FaultyServer, tmp_path: Path, version: int
) -> None:
    pytest.importorskip("zarr", reason="NOT TESTED: Zarr behind addresses, because it is not installed")
    server.objects.update(a_zarr_group(tmp_path, version))
    for address, tensor in (("z.zarr", "/X"), ("z.zarr", "X"), ("z.zarr/X", None)):
        with lowtide.open(server.url(address), tensor=tensor, cache_dir=tmp_path / "cache") as array:
            np.testing.assert_array_equal(array[:], ROWS)
    with pytest.raises(lowtide.FormatError, match="expected a Zarr array, got one that zarr cannot open"):
        lowtide.open(server.url("gone.zarr"), cache_dir=tmp_path / "cache")


def test_datasets_in_a_bucket_have_the_rows_they_have_here(s3: S3, objects: dict[str, bytes]) -> None:
    address = s3.put("x.h5", objects["x.h5"])
    for name in KINDS:
        with lowtide.open(address, tensor=f"group/{name}", **s3.options) as array:
            shuffled = np.concatenate(list(array.shuffled(500, locality="1MiB")))
            np.testing.assert_array_equal(array[:], ROWS)
            assert sorted(shuffled[:, 0].tolist()) == sorted(ROWS[:, 0].tolist())
    MAKER.close()


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow", "t.stream.arrow"])
def test_a_column_in_a_bucket_has_the_ids_it_has_here(s3: S3, objects: dict[str, bytes], name: str) -> None:
    with lowtide.open_tokens(s3.put(name, objects[name]), column="input_ids", **s3.options) as tokens:
        np.testing.assert_array_equal(tokens[:], ROWS.reshape(-1))
    MAKER.close()


@pytest.mark.parametrize("version", [2, 3])
def test_a_zarr_array_in_a_bucket_has_the_rows_it_has_here(s3: S3, tmp_path: Path, version: int) -> None:
    pytest.importorskip("zarr", reason="NOT TESTED: Zarr behind addresses, because it is not installed")
    for key, data in a_zarr_group(tmp_path, version).items():
        s3.put(f"{version}/{key}", data)
    for address, tensor in (("z.zarr", "/X"), ("z.zarr/X", None)):
        with lowtide.open(f"s3://corpora/{version}/{address}", tensor=tensor, **s3.options) as array:
            np.testing.assert_array_equal(array[:], ROWS)
    MAKER.close()
