"""Files and directories of other kinds are named, with one line that leads out, whatever dtype was stated."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import FormatError
from lowtide.formats import layout_of, token_layout

IDS = np.arange(3000, dtype="<u2")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ways out name files as one would type them here."""
    monkeypatch.chdir(tmp_path)


def tar(data: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        entry = tarfile.TarInfo("ids.bin")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def zipped(data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("ids.bin", data)
    return out.getvalue()


def columns(write: str) -> Callable[[bytes], bytes]:
    def make(data: bytes) -> bytes:
        pyarrow = pytest.importorskip("pyarrow", reason="NOT TESTED: pyarrow's own files, because it is not installed")
        feather, parquet = pytest.importorskip("pyarrow.feather"), pytest.importorskip("pyarrow.parquet")
        table = pyarrow.table({"input_ids": [np.frombuffer(data, "<u2")]})
        out = pyarrow.BufferOutputStream()
        if write == "parquet":
            parquet.write_table(table, out)
        elif write == "feather":
            feather.write_feather(table, out)
        else:
            with getattr(pyarrow.ipc, write)(out, table.schema) as sink:
                sink.write_table(table)
        return bytes(out.getvalue().to_pybytes())

    return make


# name, how it is written, what the refusal calls it, a piece of its way out
KINDS: dict[str, tuple[Callable[[bytes], bytes], str, str]] = {
    "t.bin.gz": (gzip.compress, "gzip", "gzip -dk 't.bin.gz'"),
    "t.xz": (lzma.compress, "xz", "xz -dk"),
    "t.bz2": (bz2.compress, "bzip2", "bzip2 -dk"),
    "t.tar": (tar, "tar archive", "tar -xf"),
    "t.zip": (zipped, "zip archive", "unzip"),
    "t.pkl": (pickle.dumps, "pickle", "np.save"),
    "framed": (lambda data: pickle.dumps([data] * 3), "pickle", "pickle.load"),
    "old.pkl": (lambda data: pickle.dumps(data, 2), "pickle", "pickle.load"),
    "t.parquet": (columns("parquet"), "Parquet", "column='input_ids'"),
    "t.arrow": (columns("new_file"), "Arrow file", "column='input_ids'"),
    "stream.arrow": (columns("new_stream"), "Arrow stream", "column='input_ids'"),
    "t.feather": (columns("feather"), "Feather", "column='input_ids'"),
    "t.csv": (lambda _: b"1,2,3\n" * 400, "CSV", "np.loadtxt('t.csv', delimiter=',')"),
    "t.jsonl": (lambda _: b'{"text": "a"}\n' * 400, "JSON", "lowtide prepare"),
    "t.txt": (lambda _: b"some words\n" * 400, "text", "lowtide prepare"),
}


@pytest.mark.parametrize("stated", [None, "uint16", "int32"])
@pytest.mark.parametrize("name", KINDS)
def test_another_format_is_never_read_as_tokens(tmp_path: Path, name: str, stated: str | None) -> None:
    write, called, way_out = KINDS[name]
    path = tmp_path / name
    data = write(IDS.tobytes())
    path.write_bytes(
        data + b"\0" * (-len(data) % 4 if name not in ("t.parquet", "t.zip", "t.arrow", "t.feather") else 0)
    )
    with pytest.raises(FormatError, match=called) as caught:
        token_layout(path, dtype=stated)
    assert way_out in str(caught.value)
    with pytest.raises(FormatError, match=called):
        layout_of(path, dtype=stated)


def test_single_bytes_of_another_format_are_bytes_for_open(tmp_path: Path) -> None:
    for name in ("t.bin.gz", "t.tar", "t.csv"):
        data = KINDS[name][0](IDS.tobytes())
        (tmp_path / name).write_bytes(data)
        assert layout_of(tmp_path / name, dtype="u1").shape == (len(data),)
        assert layout_of(tmp_path / name, dtype="u1", offset=1).shape == (len(data) - 1,)


def test_text_stated_as_bytes_is_a_run_of_tokens(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("First Citizen:\n")
    assert token_layout(tmp_path / "input.txt", dtype="uint8").shape == (15,)


@pytest.mark.parametrize("first", [640, 0x0380, 0x8B1F, 0xFFFF])
def test_ids_that_start_like_a_short_magic_are_ids(tmp_path: Path, first: int) -> None:
    ids = IDS.copy()
    ids[0] = first
    if first == 0xFFFF:
        ids[1] = first
    ids.tofile(tmp_path / "train.bin")
    assert token_layout(tmp_path / "train.bin", dtype="uint16").shape == (3000,)
    with pytest.raises(FormatError, match=r"expected dtype=.*guess.*also fit"):
        token_layout(tmp_path / "train.bin")


LITDATA = '{"chunks": [{"filename": "chunk-0-0.bin", "chunk_size": 2}], "config": {}}'
MDS = '{"version": 2, "shards": [{"raw_data": {"basename": "shard.00000.bin"}}]}'


@pytest.mark.parametrize(
    ("index", "name", "writer"),
    [(LITDATA, "chunk-0-0.bin", "litData"), (MDS, "shard.00000.bin", "MosaicML")],
)
def test_a_chunk_beside_its_loader_s_index_is_named(tmp_path: Path, index: str, name: str, writer: str) -> None:
    (tmp_path / "index.json").write_text(index)
    IDS.tofile(tmp_path / name)
    IDS.tofile(tmp_path / "ours.bin")
    for source in (tmp_path / name, str(tmp_path / f"{name[:5]}*.bin")):
        with pytest.raises(FormatError, match=writer) as caught:
            token_layout(source, dtype="uint16")
        assert "itself." in str(caught.value)  # these indexes name no dtype
    assert token_layout(tmp_path / "ours.bin", dtype="uint16").shape == (3000,)
    assert layout_of(tmp_path / name, dtype="u2").shape == (3000,)  # an array is what its user says


@pytest.mark.parametrize("name", ["0.ds.index", "0.ds.metadata", "0.ds.loss", "0.csv.gz"])
def test_a_sidecar_named_alone_leads_to_its_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(bytes(64))
    with pytest.raises(FormatError, match=r"Name the file of ids: lowtide\.open_tokens\('.*/0\.(ds|npy)'\)"):
        token_layout(tmp_path / name, dtype="uint16")


@pytest.mark.parametrize(
    ("entries", "name", "way_out"),
    [
        (["data-00000-of-00001.arrow", "state.json"], "directory of Arrow", "Leave column= out"),
        (["0.parquet"], "directory of Parquet", "Leave column= out"),
        (["data.ninja"], "mmap_ninja", "Read it with mmap_ninja itself"),
    ],
)
def test_a_directory_of_another_kind_is_named(tmp_path: Path, entries: list[str], name: str, way_out: str) -> None:
    for entry in entries:
        (tmp_path / entry).write_bytes(b"x")
    with pytest.raises(FormatError, match=f"{name}.*{way_out}"):
        token_layout(tmp_path)
    with pytest.raises(FormatError, match=name):
        layout_of(tmp_path)


def test_what_torch_save_wrote_is_named(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="NOT TESTED: torch.save's own file, because torch is not installed")
    torch.save(torch.arange(10), tmp_path / "x.pt")
    for stated in (None, "uint16"):
        with pytest.raises(FormatError, match=r"torch\.save wrote.*np\.save\('x\.npy', torch\.load\('x\.pt'"):
            token_layout(tmp_path / "x.pt", dtype=stated)
