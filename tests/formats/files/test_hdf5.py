"""Contiguous HDF5 datasets that h5py wrote are read at the offset h5py tells."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lowtide
from lowtide.blocks.asking import MAKER
from lowtide.errors import FormatError
from lowtide.formats import Layout, layout_of, members_of, token_layout

h5py = pytest.importorskip("h5py", reason="NOT TESTED: HDF5, because h5py is not installed (pip install lowtide[hdf5])")

ReadBack = Callable[[Layout], npt.NDArray[Any]]
X = np.random.default_rng(8).normal(size=(300, 7)).astype("f4")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "x.h5", "w") as out:
        out["X"] = X
        out["group/ids"] = np.arange(500, dtype="<u2")
        out["big"] = np.arange(6, dtype=">i4").reshape(3, 2)
        out["flags"] = np.array([True, False, True])
        out["records"] = np.zeros(4, [("a", "<f4"), ("b", "<i8", (2,))])
        out["scalar"] = 3.5
        out["text"] = ["one", "two"]
        out.create_dataset("chunked", data=X, chunks=(10, 7))
        out.create_dataset("packed", data=X, compression="gzip")
        out.create_dataset("unwritten", shape=(5, 5), dtype="f4")
        out.create_dataset("empty", shape=(0, 3), dtype="f4")
        out.create_dataset("empty chunks", shape=(0, 3), dtype="f4", maxshape=(None, 3), compression="gzip")
        out.create_dataset("rows of nothing", shape=(5, 0), dtype="f4", maxshape=(None, None), compression="gzip")
    return tmp_path / "x.h5"


CONTIGUOUS = ["X", "/X", "group/ids", "/group/ids", "big", "flags", "records", "empty"]


@pytest.mark.parametrize("name", [*CONTIGUOUS, "empty chunks", "rows of nothing"])
def test_a_contiguous_dataset_opens_with_the_same_values(file: Path, read_back: ReadBack, name: str) -> None:
    layout = layout_of(file, tensor=name)
    with h5py.File(file) as source:
        wanted = source[name][:]
    assert (layout.format, layout.dtype, layout.shape) == ("hdf5", wanted.dtype, wanted.shape)
    assert np.array_equal(read_back(layout), wanted)


@pytest.mark.parametrize("strategy", ["read", "remap", "advise", "map"])
def test_every_strategy_reads_a_dataset(file: Path, strategy: str) -> None:
    with lowtide.open(file, tensor="/X", strategy=strategy) as array:
        assert np.array_equal(array[:], X)
        assert np.array_equal(array[[299, 0, 7]], X[[299, 0, 7]])


@pytest.mark.parametrize("size", [512, 4096])
def test_a_user_block_before_the_data_is_counted(tmp_path: Path, read_back: ReadBack, size: int) -> None:
    with h5py.File(tmp_path / "u.h5", "w", userblock_size=size) as out:
        out["X"] = X
    with (tmp_path / "u.h5").open("r+b") as raw:
        raw.write(b"PK\x03\x04 a block of the user's own")
    with (tmp_path / "v.h5").open("wb") as copy:
        copy.write(bytes(size) + (tmp_path / "u.h5").read_bytes()[size:])
    assert np.array_equal(read_back(layout_of(tmp_path / "v.h5", tensor="X")), X)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("scalar", "a single value"),
        ("text", "items of variable length"),
        ("unwritten", "without space of its own"),
    ],
)
def test_what_has_no_one_offset_is_refused_with_the_way_out(file: Path, name: str, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        layout_of(file, tensor=name)
    listed = {member.name: member for member in members_of(str(file))}
    assert not listed[f"/{name}"].in_place
    with pytest.raises(FormatError) as caught:
        layout_of(file, tensor=name)
    assert listed[f"/{name}"].why_not in str(caught.value)


def test_data_in_other_files_is_refused(tmp_path: Path) -> None:
    X.tofile(tmp_path / "outside.raw")
    with h5py.File(tmp_path / "source.h5", "w") as out:
        out["X"] = X
    with h5py.File(tmp_path / "x.h5", "w") as out:
        external = [(str(tmp_path / "outside.raw"), 0, X.nbytes)]
        out.create_dataset("external", shape=X.shape, dtype="f4", external=external)
        virtual = h5py.VirtualLayout(shape=X.shape, dtype="f4")
        virtual[:] = h5py.VirtualSource(str(tmp_path / "source.h5"), "X", shape=X.shape)
        out.create_virtual_dataset("virtual", virtual)
        out["link"] = h5py.ExternalLink("gone.h5", "/X")
    for name, words in (
        ("external", "another file"),
        ("virtual", "view of other files"),
        ("link", "expected the file its link names, .*gone.h5, got no such file"),
    ):
        with pytest.raises(FormatError, match=words):
            layout_of(tmp_path / "x.h5", tensor=name)


def linked(place: Path) -> Path:
    """x.h5, whose names lead in every way to a dataset of ``data/y.h5`` that lies at another offset there."""
    (place / "data").mkdir()
    with h5py.File(place / "data" / "y.h5", "w") as out:
        out["before"] = np.arange(999)
        out["deep/X"] = X
    with h5py.File(place / "x.h5", "w") as out:
        out["own"] = np.zeros(5000)
        out["link"] = h5py.ExternalLink("data/y.h5", "/deep/X")
        out["group"] = h5py.ExternalLink("data/y.h5", "/deep")
        out["soft"] = h5py.SoftLink("/link")
        out["inner/soft"] = h5py.SoftLink("/group/X")
        out["circle"] = h5py.SoftLink("/circle")
    return place / "x.h5"


@pytest.mark.parametrize("name", ["link", "group/X", "soft", "inner/soft", "/inner/./soft"])
def test_a_link_is_read_from_the_file_that_holds_the_dataset(tmp_path: Path, read_back: ReadBack, name: str) -> None:
    layout = layout_of(linked(tmp_path), tensor=name)
    assert layout.extents[0].path == str(tmp_path / "data" / "y.h5")
    assert np.array_equal(read_back(layout), X)
    assert "which is read instead" in layout.notes[0]


def test_a_link_out_of_the_directory_has_to_be_asked_for(
    tmp_path: Path, read_back: ReadBack, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    with h5py.File(tmp_path / "secret.h5", "w") as out:
        out["X"] = X
    (tmp_path / "below" / "beside.h5").symlink_to(tmp_path / "secret.h5")
    with h5py.File(tmp_path / "below" / "x.h5", "w") as out:
        out["up"] = h5py.ExternalLink("../secret.h5", "X")
        out["absolute"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "X")
        out["symbolic"] = h5py.ExternalLink("beside.h5", "X")
    monkeypatch.chdir(tmp_path)  # HDF5 itself would look there too
    for name in ("up", "absolute", "symbolic"):
        with pytest.raises(FormatError, match="expected links to files in its own directory, got one to") as caught:
            layout_of(tmp_path / "below" / "x.h5", tensor=name)
        with eval(str(caught.value).rpartition("open that file: ")[2].rstrip(".")) as asked:
            assert np.array_equal(asked[:], X)


def test_a_link_that_leads_nowhere_or_to_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    path = linked(tmp_path)
    with pytest.raises(FormatError, match="expected a dataset 'circle'"):
        layout_of(path, tensor="circle")
    (tmp_path / "data" / "y.h5").unlink()
    os.mkfifo(tmp_path / "data" / "y.h5")
    with pytest.raises(FormatError, match="expected a regular file, got a FIFO"):
        layout_of(path, tensor="link")


def test_a_dataset_that_does_not_exist_is_told_with_those_that_do(file: Path) -> None:
    for name in ("Z", "group", "/", "group/ids/deeper"):
        with pytest.raises(FormatError, match=r"expected a dataset .* got 13 datasets: '/X', .*'/group/ids'"):
            layout_of(file, tensor=name)
    with pytest.raises(FormatError, match="the name of one dataset, got 13"):
        layout_of(file)


def test_tokens_are_the_only_dataset_of_integers_with_one_axis(file: Path) -> None:
    assert token_layout(file).dtype == "<u2"
    assert token_layout(file, tensor="group/ids").shape == (500,)
    with pytest.raises(FormatError, match="expected dtype uint16 as the HDF5 file says"):
        token_layout(file, dtype="uint32")


def test_a_place_that_h5py_told_may_be_stated_instead(file: Path, read_back: ReadBack) -> None:
    offset = layout_of(file, tensor="X").extents[0].offset
    layout = layout_of(file, dtype="f4", shape=(300, 7), offset=offset)
    assert layout.format == "raw"
    assert np.array_equal(read_back(layout), X)


def test_a_file_cut_short_is_a_format_error(file: Path) -> None:
    whole = file.read_bytes()
    for length in (9, 100, 2000, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(FormatError, match="cut short"):
            layout_of(file, tensor="X")


def test_a_file_without_its_suffix_is_known_by_its_first_bytes(file: Path) -> None:
    other = file.rename(file.with_name("model"))
    assert layout_of(other, tensor="X").shape == (300, 7)
    with pytest.raises(FormatError, match=r"HDF5|dataset"):
        token_layout(other, dtype="uint32")


def test_without_h5py_the_error_says_what_to_install(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "h5py.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    MAKER.close()  # the next one finds no h5py
    with pytest.raises(FormatError, match=r"expected h5py .* pip install 'lowtide\[hdf5\]'"):
        lowtide.open(file, tensor="X")
    MAKER.close()


def test_opening_and_reading_imports_no_h5py_here(file: Path) -> None:
    script = (
        "import sys, lowtide\n"
        f"array = lowtide.open({str(file)!r}, tensor='X')\n"
        f"packed = lowtide.open({str(file)!r}, tensor='packed', cache_dir={str(file.parent / 'cache')!r})\n"
        "print(float(array[5].sum()), float(packed[5].sum()), 'h5py' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert [float(one) for one in told[:2]] == [pytest.approx(float(X[5].sum()))] * 2
    assert told[2] == "False"


def test_a_file_that_is_being_written_is_refused_and_may_be_written_again_while_it_is_read(tmp_path: Path) -> None:
    how: dict[str, Any] = {"data": X, "chunks": (10, 7), "compression": "gzip"}
    with h5py.File(tmp_path / "x.h5", "w") as out:
        out.create_dataset("X", **how)
        with pytest.raises(FormatError, match="open for writing"):
            lowtide.open(tmp_path / "x.h5", tensor="X", cache_dir=tmp_path / "cache")
    found = lowtide.open(tmp_path / "x.h5", tensor="X", cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(found[:], X)
    with h5py.File(tmp_path / "x.h5", "w") as out:
        out.create_dataset("X", **{**how, "data": X + 1})
    again = lowtide.open(tmp_path / "x.h5", tensor="X", cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(again[:], X + 1)


@pytest.mark.parametrize("name", ["SIGABRT", "SIGSEGV"])
def test_bytes_that_end_h5py_are_a_typed_error(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The real library crashes only on files that nobody may publish: one that crashes for sure takes its place."""
    (tmp_path / "h5py.py").write_text(f"import signal\nsignal.raise_signal(signal.{name})")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    MAKER.close()
    with pytest.raises(lowtide.ReadError, match=f"x.h5: expected its maker .* got it ended by {name} 3 times"):
        lowtide.open(file, tensor="X")
    MAKER.close()


FILTERS: dict[str, dict[str, Any]] = {
    "gzip": {"chunks": (1_000, 64), "compression": "gzip"},
    "lzf": {"chunks": (1_000, 64), "compression": "lzf"},
    "shuffle and lzf": {"chunks": (1_000, 64), "compression": "lzf", "shuffle": True},
    "lzf that cuts rows and ends behind them": {"chunks": (900, 24), "compression": "lzf"},
    "shuffle and fletcher32": {"chunks": (1_000, 64), "compression": "gzip", "shuffle": True, "fletcher32": True},
    "tiles that cut rows": {"chunks": (900, 24), "compression": "gzip"},
    "chunks longer than the data": {"chunks": (20_000, 64), "maxshape": (None, 64), "compression": "gzip"},
}


@pytest.mark.parametrize("kind", FILTERS)
def test_filtered_chunks_are_decoded_to_the_rows_h5py_reads(tmp_path: Path, kind: str) -> None:
    rows = np.random.default_rng(5).integers(0, 99, (20_000, 64)).astype("i4")
    with h5py.File(tmp_path / "x.h5", "w") as out:
        out.create_dataset("group/X", data=rows, **FILTERS[kind])
    for name in ("group/X", "/group/X"):
        found = lowtide.open(tmp_path / "x.h5", tensor=name, cache_dir=tmp_path / "cache")
        np.testing.assert_array_equal(found[[19_999, 0, 1_000, 999]], rows[[19_999, 0, 1_000, 999]])
    np.testing.assert_array_equal(np.concatenate(list(found.chunks(3_333))), rows)
    shuffled = np.concatenate(list(found.shuffled(500, locality="1MiB")))
    assert sorted(shuffled[:, 0].tolist()) == sorted(rows[:, 0].tolist())
    assert "decoded by chunks of" in str(found.plan())
    MAKER.close()


def test_without_isal_gzip_is_unpacked_by_zlib(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "isal.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    MAKER.close()  # the next one finds no isal
    np.testing.assert_array_equal(lowtide.open(file, tensor="packed", cache_dir=tmp_path / "cache")[:], X)
    MAKER.close()


@pytest.mark.parametrize("compression", ["gzip", "lzf"])
def test_a_damaged_chunk_is_named_and_rows_elsewhere_still_read(tmp_path: Path, compression: str) -> None:
    rows = np.random.default_rng(5).integers(0, 99, (20_000, 64)).astype("i4")
    with h5py.File(tmp_path / "x.h5", "w") as out:
        dataset = out.create_dataset("X", data=rows, chunks=(2_000, 64), compression=compression)
        place = dataset.id.get_chunk_info(7)
    with (tmp_path / "x.h5").open("r+b") as file:
        file.seek(place.byte_offset + 100)
        file.write(bytes(500))
    found = lowtide.open(tmp_path / "x.h5", tensor="X", cache_dir=tmp_path / "cache")
    with pytest.raises(lowtide.ReadError, match=r"expected chunk \(7, 0\) \(rows 14000 to 16000\) whole"):
        found[15_000]
    np.testing.assert_array_equal(found[:10_000], rows[:10_000])
    np.testing.assert_array_equal(found[12_000], rows[12_000])  # decoded together with it, in another block
    MAKER.close()


def test_a_file_changed_in_place_and_opened_again_has_the_rows_it_has_now(tmp_path: Path) -> None:
    """HDF5 keeps what it knows of a file as long as anybody in the process has it open."""
    rows = np.random.default_rng(5).integers(0, 99, (20_000, 64)).astype("i4")
    with h5py.File(tmp_path / "x.h5", "w") as out:
        out.create_dataset("X", data=rows, chunks=(1_000, 64), maxshape=(None, 64), compression="gzip")
    old = lowtide.open(tmp_path / "x.h5", tensor="X", cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(old[0], rows[0])
    with h5py.File(tmp_path / "x.h5", "r+") as out:
        out["X"].resize((21_000, 64))
        out["X"][:500] = -1
        out["X"][20_000:] = 7
        out["Y"] = np.arange(5)
    with pytest.raises(lowtide.ReadError, match="got it changed meanwhile"):
        old[15_000]
    found = lowtide.open(tmp_path / "x.h5", tensor="X", cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(
        found[:], np.concatenate([np.full((500, 64), -1), rows[500:], np.full((1_000, 64), 7)])
    )
    assert lowtide.open(tmp_path / "x.h5", tensor="Y")[:].tolist() == [0, 1, 2, 3, 4]
    MAKER.close()
