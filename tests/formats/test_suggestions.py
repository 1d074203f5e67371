"""Every line of code that a refusal prints is run here as it stands, in the directory somebody would run it in.

What a line makes (a .npy, an ids.bin, unpacked files, a corpus) or gives is opened and compared with what was written.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import json
import lzma
import pickle
import re
import shlex
import shutil
import struct
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.commands import called

import lowtide
from lowtide.errors import FormatError

# The lines leave a file to the garbage collector, as people do who type them.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
IDS = (np.arange(3000) * 7 % 5000).astype("<u2")
TABLE = np.arange(12, dtype="f8").reshape(4, 3)
PYTHON = re.compile(r": ((?:np|lowtide|pyarrow|s = h5py)[. ].*?)\.(?: Then: (lowtide\..*)\.)?$")
SHELL = re.compile(r": ((?:gzip|xz|bzip2|zstd|lz4|tar|unzip|lowtide prepare) .*)\.$")


def refusal(open_it: Callable[[], Any]) -> str:
    with pytest.raises((FormatError, ValueError)) as caught:
        open_it()
    return str(caught.value)


def pasted(message: str) -> Any:
    """The Python of a refusal, run as it stands with the usual names imported; what its last line gives."""
    found = PYTHON.search(message)
    assert found, message
    scope: dict[str, Any] = {"np": np, "lowtide": lowtide, "pickle": pickle, "json": json, "glob": glob}
    for name in ("pyarrow", "pyarrow.parquet", "pyarrow.dataset", "pyarrow.feather", "pyarrow.ipc", "h5py", "gguf"):
        if name in found[1] + str(found[2]):
            scope[name.partition(".")[0]] = __import__(name)
    code = found[1].strip()
    if found[2]:
        exec(code, scope)
        code = found[2]
    try:
        return eval(code, scope)
    except SyntaxError:  # statements
        exec(code, scope)
        return None


def values(opened: Any) -> Any:
    with opened:
        return opened[:]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Unpacking


def packed_with(command: str) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        if shutil.which(command) is None:
            pytest.skip(f"NOT TESTED: {command}'s way out, because it is not installed")
        path = place / f"ids.bin.{command}"
        with path.open("wb") as out:
            subprocess.run([command, "-q", "-c", "ids.bin"], cwd=place, check=True, stdout=out)
        return path.rename(place / {"zstd": "ids.bin.zst"}.get(command, path.name))

    return make


def compressed(suffix: str, how: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        path = place / f"ids.bin.{suffix}"
        path.write_bytes(how((place / "ids.bin").read_bytes()))
        return path

    return make


def tarred(place: Path) -> Path:
    with tarfile.open(place / "ids.tar", "w") as archive:
        archive.add(place / "ids.bin", "ids.bin")
    return place / "ids.tar"


def zipped(place: Path) -> Path:
    with zipfile.ZipFile(place / "ids.zip", "w") as archive:
        archive.write(place / "ids.bin", "ids.bin")
    return place / "ids.zip"


PACKED: dict[str, Callable[[Path], Path]] = {
    "gzip": compressed("gz", gzip.compress),
    "bzip2": compressed("bz2", bz2.compress),
    "xz": compressed("xz", lzma.compress),
    "zstd": packed_with("zstd"),
    "lz4": packed_with("lz4"),
    "tar": tarred,
    "zip": zipped,
}


@pytest.mark.parametrize("kind", PACKED)
def test_what_is_packed_is_unpacked_by_the_command_that_is_printed(here: Path, kind: str) -> None:
    IDS.tofile(here / "ids.bin")
    path = PACKED[kind](here)
    (here / "ids.bin").unlink(missing_ok=True)
    found = SHELL.search(refusal(lambda: lowtide.open_tokens(path, dtype="uint16")))
    assert found
    if shutil.which(shlex.split(found[1])[0]) is None:
        pytest.skip(f"NOT TESTED: {kind}'s way out, because it is not installed")
    subprocess.run(found[1], shell=True, check=True, capture_output=True)
    assert values(lowtide.open_tokens(here / "ids.bin", dtype="uint16")).tolist() == IDS.tolist()


# Text


@pytest.mark.parametrize("name", ["input.txt", "notes.md", "a.jsonl"])
def test_a_book_is_prepared_by_the_command_that_is_printed(here: Path, name: str) -> None:
    text = "It was the best of times,\nit was the worst of times.\n"
    (here / name).write_text(json.dumps({"text": text}) + "\n" if name.endswith("l") else text)
    line = f"lowtide prepare '{name}' -o corpus/"
    for refused in (lambda: lowtide.open_tokens(name), lambda: lowtide.open(name)):
        assert refusal(refused).endswith(f": {line}.")
    assert line in called("info", name).stderr
    done = called(*shlex.split(line)[1:])
    assert done.returncode == 0, done.stderr
    assert bytes(values(lowtide.open_tokens("corpus/"))[:6].astype("u1")) == b"It was"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "0,1,2\n3,4,5\n6,7,8\n9,10,11\n"),
        ("t.csv", "a,b,c\n0,1,2\n3,4,5\n6,7,8\n9,10,11\n"),
        ("t.tsv", "0\t1\t2\n3\t4\t5\n6\t7\t8\n9\t10\t11\n"),
        ("t.txt", "0 1 2\n3 4 5\n6 7 8\n9 10 11\n"),
    ],
)
def test_a_table_of_numbers_is_saved_by_the_line_that_is_printed(here: Path, name: str, text: str) -> None:
    (here / name).write_text(text)
    pasted(refusal(lambda: lowtide.open(name)))
    assert np.array_equal(values(lowtide.open("t.npy")), TABLE)


def test_a_table_of_words_is_not_promised_to_load(here: Path) -> None:
    (here / "t.csv").write_text("name,town\nAda,London\nEmmy,Erlangen\n")
    assert "np.loadtxt" not in refusal(lambda: lowtide.open("t.csv"))


# Python's own


def test_a_pickle_is_saved_by_the_line_that_is_printed(here: Path) -> None:
    (here / "t.pkl").write_bytes(pickle.dumps(TABLE))
    pasted(refusal(lambda: lowtide.open("t.pkl")))
    assert np.array_equal(values(lowtide.open("t.npy")), TABLE)


def test_what_torch_saved_is_saved_by_the_line_that_is_printed(here: Path) -> None:
    torch = pytest.importorskip("torch", reason="NOT TESTED: torch.save's way out, because torch is not installed")
    torch.save(torch.from_numpy(TABLE), here / "t.pt")
    exec(PYTHON.search(refusal(lambda: lowtide.open("t.pt")))[1], {"np": np, "torch": torch})  # type: ignore[index]
    assert np.array_equal(values(lowtide.open("t.npy")), TABLE)


def test_a_compressed_npz_is_stored_by_the_line_that_is_printed(here: Path) -> None:
    np.savez_compressed(here / "t.npz", a=TABLE)
    pasted(refusal(lambda: lowtide.open("t.npz", tensor="a")))
    assert np.array_equal(values(lowtide.open("stored.npz", tensor="a")), TABLE)


# Columns

LISTS = [[1, 2, 3], [], [4, 5]]


def columns(**given: Any) -> Any:
    return pytest.importorskip("pyarrow", reason="NOT TESTED: columns, because pyarrow is not installed").table(given)


def write_columns(path: Path, table: Any) -> None:
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.parquet

    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    elif path.suffix == ".feather":
        pyarrow.feather.write_feather(table, path)
    else:
        make = pa.ipc.new_stream if "stream" in path.name else pa.ipc.new_file
        with make(path, table.schema) as out:
            out.write_table(table)


FILES = ["t.parquet", "t.feather", "t.arrow", "stream.arrow"]


@pytest.mark.parametrize("name", FILES)
def test_a_column_of_lists_opens_by_the_line_that_is_printed(
    here: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    write_columns(here / name, columns(words=["a", "b", "c"], ids=LISTS))
    for refused in (lambda: lowtide.open_tokens(name), lambda: lowtide.open(name)):
        assert values(pasted(refusal(refused))).tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", FILES)
def test_a_column_of_numbers_is_saved_by_the_line_that_is_printed(here: Path, name: str) -> None:
    write_columns(here / name, columns(words=["a", "b", "c"], x=[1.5, 2.5, 3.5], ids=LISTS))
    pasted(refusal(lambda: lowtide.open(name)))
    assert values(lowtide.open("x.npy")).tolist() == [1.5, 2.5, 3.5]


def test_rows_of_floats_are_saved_by_the_line_that_is_printed(here: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="NOT TESTED: columns, because pyarrow is not installed")
    fixed = pa.array(TABLE.tolist(), pa.list_(pa.float64(), 3))
    write_columns(here / "t.parquet", columns(rows=fixed))
    pasted(refusal(lambda: lowtide.open("t.parquet")))
    assert np.array_equal(values(lowtide.open("rows.npy")), TABLE)
    write_columns(here / "u.parquet", columns(loose=[[1.0, 2.0], [3.0]]))
    pasted(refusal(lambda: lowtide.open("u.parquet")))
    assert values(lowtide.open("loose.npy")).tolist() == [1.0, 2.0, 3.0]


def test_a_column_of_text_is_prepared_by_the_command_that_is_printed(here: Path) -> None:
    write_columns(here / "t.parquet", columns(body=["It was", "the best"]))
    line = "lowtide prepare 't.parquet' -o corpus/ --column body"
    for refused in (lambda: lowtide.open_tokens("t.parquet"), lambda: lowtide.open("t.parquet")):
        assert refusal(refused).endswith(f": {line}.")
    done = called(*shlex.split(line)[1:])
    assert done.returncode == 0, done.stderr
    assert bytes(values(lowtide.open_tokens("corpus/"))[:6].astype("u1")) == b"It was"


@pytest.mark.parametrize("ending", ["parquet", "arrow", "feather"])
def test_a_directory_of_columns_opens_by_the_line_that_is_printed(
    here: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    (here / "many").mkdir()
    for number in range(2):
        write_columns(here / "many" / f"{number}.{ending}", columns(ids=LISTS))
        write_columns(here / f"{number}.{ending}", columns(x=[number, 2.5]))
    assert values(pasted(refusal(lambda: lowtide.open_tokens("many")))).tolist() == [1, 2, 3, 4, 5] * 2
    pasted(refusal(lambda: lowtide.open(here)))
    assert values(lowtide.open("x.npy")).tolist() == [0, 2.5, 1, 2.5]


# Directories of other loaders


@pytest.mark.parametrize(("named", "dtype"), [("tensor:18", "<i8"), ("tensor:16", "<i4"), ("numpy:5", "<u2")])
def test_ids_of_litdata_are_saved_with_the_dtype_its_index_names(here: Path, named: str, dtype: str) -> None:
    (here / "lit").mkdir()
    chunks, ids = [], IDS.astype(dtype)
    for number in range(12):  # chunk-0-10 is not the third
        items = np.array_split(ids[number * 250 : (number + 1) * 250], 5)
        head = 4 * (1 + len(items) + 1)
        offsets = head + np.cumsum([0, *(item.nbytes for item in items)])
        data = np.array([len(items), *offsets], "<u4").tobytes() + b"".join(item.tobytes() for item in items)
        (here / "lit" / f"chunk-0-{number}.bin").write_bytes(data)
        chunks.append({"filename": f"chunk-0-{number}.bin", "chunk_size": len(items), "dim": 250})
    config = {"compression": None, "data_format": [f"no_header_{named}"]}
    (here / "lit" / "index.json").write_text(json.dumps({"chunks": chunks, "config": config}))
    for source in ("lit", "lit/chunk-0-3.bin", "lit/chunk-*.bin"):
        opened = pasted(refusal(lambda: lowtide.open_tokens(source, dtype="uint16")))  # noqa: B023
        assert opened.dtype == np.dtype(dtype)
        assert values(opened).tolist() == IDS.tolist()


def test_of_litdata_s_other_formats_no_line_is_printed(here: Path) -> None:
    (here / "lit").mkdir()
    for config in (
        {"data_format": ["int", "bytes"]},
        {"data_format": ["no_header_tensor:18"], "compression": "zstd"},
        5,
    ):
        (here / "lit" / "index.json").write_text(json.dumps({"chunks": [], "config": config}))
        assert "Read its items with litdata itself" in refusal(lambda: lowtide.open_tokens("lit"))


def test_what_mmap_ninja_wrote_opens_by_the_line_that_is_printed(here: Path) -> None:
    (here / "n").mkdir()
    TABLE.tofile(here / "n" / "data.ninja")
    (here / "n" / "dtype.ninja").write_text("float64")
    (here / "n" / "shape.ninja").write_text("(4, 3)")
    assert np.array_equal(values(pasted(refusal(lambda: lowtide.open("n")))), TABLE)


def test_a_dataset_that_cannot_be_read_in_place_is_saved_by_the_line_that_is_printed(here: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="NOT TESTED: HDF5's way out, because h5py is not installed")
    with h5py.File(here / "t.h5", "w") as out:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple(TABLE.shape)
        made = h5py.h5d.create(out.id, b"X", h5py.h5t.IEEE_F64LE, space, plist)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, TABLE)
    pasted(refusal(lambda: lowtide.open("t.h5")))
    assert np.array_equal(values(lowtide.open("X.npy")), TABLE)


# Arguments


def test_the_name_of_a_member_and_a_part_can_be_stated_as_printed(here: Path) -> None:
    np.savez(here / "t.npz", a=TABLE, b=IDS)
    message = refusal(lambda: lowtide.open("t.npz"))
    stated = re.search(r"State (tensor='\w+')", message)
    assert stated
    assert np.array_equal(values(eval(f"lowtide.open('t.npz', {stated[1]})")), TABLE)
    (here / "held").mkdir()
    for part in ("val", "test"):
        IDS.tofile(here / "held" / f"{part}.bin")
    stated = re.search(r"State (part='\w+')", refusal(lambda: lowtide.open_tokens("held", dtype="uint16")))
    assert stated
    assert len(values(eval(f"lowtide.open_tokens('held', dtype='uint16', {stated[1]})"))) == len(IDS)


def test_a_guessed_dtype_and_a_computed_shape_can_be_stated_as_printed(here: Path) -> None:
    IDS.tofile(here / "ids.bin")
    stated = re.search(r"(dtype='\w+')", refusal(lambda: lowtide.open("ids.bin")))
    assert stated
    assert values(eval(f"lowtide.open('ids.bin', {stated[1]})")).tolist() == IDS.tolist()
    shape = re.search(r"State (shape=\(.*?\))", refusal(lambda: lowtide.open("ids.bin", dtype="u2", shape=(31, 100))))
    assert shape
    assert eval(f"lowtide.open('ids.bin', dtype='u2', {shape[1]})").shape == (30, 100)


# Kinds that few people have


@pytest.mark.filterwarnings("ignore:Feather V1 files are deprecated")
def test_a_feather_file_of_the_first_version_is_saved_anew_and_then_opens_as_the_next_line_says(here: Path) -> None:
    table = columns(x=[1.5, 2.5, 3.5])
    import pyarrow.feather

    pyarrow.feather.write_feather(table, here / "old.feather", version=1)
    pasted(refusal(lambda: lowtide.open("old.feather")))
    then = refusal(lambda: lowtide.open("old.feather"))
    assert "Arrow file" in then
    pasted(then)
    assert values(lowtide.open("x.npy")).tolist() == [1.5, 2.5, 3.5]


def gguf_of(rows: np.ndarray[Any, Any]) -> bytes:
    """A model of one float32 tensor."""
    about = struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + struct.pack("<Q1sI", 1, b"w", rows.ndim)
    about += struct.pack(f"<{rows.ndim}QIQ", *rows.shape[::-1], 0, 0)
    return about.ljust(-(-len(about) // 32) * 32, b"\0") + rows.astype("<f4").tobytes()


def test_a_gguf_model_gives_its_first_tensor(here: Path) -> None:
    (here / "x.gguf").write_bytes(gguf_of(TABLE))
    said = refusal(lambda: lowtide.open("x.gguf"))
    pytest.importorskip("gguf", reason="NOT TESTED: GGUF's way out, because gguf is not installed")
    pasted(said)
    assert np.array_equal(values(lowtide.open("x.npy")), TABLE)


@pytest.mark.parametrize(("name", "content"), [("dict.idx", b"TNTIDX\0\0" + bytes(40)), ("shard.00000.mds", bytes(99))])
def test_what_needs_a_foreign_library_is_said_in_words_and_not_as_a_line_to_paste(
    here: Path, name: str, content: bytes
) -> None:
    (here / name).write_bytes(content)
    said = refusal(lambda: lowtide.open(name))
    assert re.search("fairseq|streaming", said)
    assert not PYTHON.search(said) and not SHELL.search(said) and "(" not in said.rsplit(". ", 1)[-1]
