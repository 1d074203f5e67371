"""Zarr arrays of both versions, sharded or not: decoded by chunk, read like any file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide.blocks.asking import MAKER

pytest.importorskip("zarr", reason="NOT TESTED: Zarr, because it is not installed (pip install lowtide[zarr])")
MADE = "np.random.default_rng(3).integers(0, 50, (20_000, 40)).astype('f4')"
ROWS = np.random.default_rng(3).integers(0, 50, (20_000, 40)).astype("f4")
KINDS: dict[str, dict[str, Any]] = {
    "version 3": {"zarr_format": 3, "chunks": (700, 40)},
    "version 2": {"zarr_format": 2, "chunks": (700, 40)},
    "tiles that cut rows": {"zarr_format": 3, "chunks": (512, 16)},
    "sharded": {"zarr_format": 3, "chunks": (100, 40), "shards": (1000, 40)},
    "big-endian": {"zarr_format": 3, "chunks": (700, 40), "dtype": ">f4"},
}


@pytest.fixture(autouse=True)
def no_maker_left() -> Iterator[None]:
    yield
    MAKER.close()


def zarr_writes(program: str, *arguments: str) -> None:
    """In a process of its own: zarr leaves threads behind."""
    code = f"import json, sys, numpy as np, zarr\nrows = {MADE}\n{program}"
    subprocess.run([sys.executable, "-c", code, *arguments], check=True)


def write(path: Path, **settings: Any) -> None:
    said = json.dumps({"dtype": "f4", **settings})
    program = "said = json.loads(sys.argv[2])\n"
    program += "zarr.create_array(store=sys.argv[1], shape=rows.shape, overwrite=True, **said)[:] = rows"
    zarr_writes(program, str(path), said)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_that_zarr_reads(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "x.zarr", **KINDS[kind])
    a = lowtide.open(tmp_path / "x.zarr", cache_dir=tmp_path / "cache")
    assert (a.shape, a.dtype.newbyteorder("=")) == (ROWS.shape, np.dtype("f4"))
    np.testing.assert_array_equal(a[[19_999, 0, 700, 699]], ROWS[[19_999, 0, 700, 699]])
    np.testing.assert_array_equal(np.concatenate(list(a.chunks(3_000))), ROWS)
    assert sorted(np.concatenate(list(a.shuffled(500)))[:, 0].tolist()) == sorted(ROWS[:, 0].tolist())


def test_an_array_of_a_group_is_named_with_or_without_a_slash(tmp_path: Path) -> None:
    program = """
group = zarr.open_group(sys.argv[1], mode="w")
group.create_group("deep").create_array("X", data=rows[:100], chunks=(10, 40))
group.create_array("y", data=np.arange(100), chunks=(30,))
"""
    zarr_writes(program, str(tmp_path / "g.zarr"))
    for name in ("deep/X", "/deep/X"):
        found = lowtide.open(tmp_path / "g.zarr", tensor=name, cache_dir=tmp_path / "cache")
        np.testing.assert_array_equal(found[:], ROWS[:100])
    tokens = lowtide.open_tokens(tmp_path / "g.zarr", tensor="y", cache_dir=tmp_path / "cache")
    assert tokens[97:].tolist() == [97, 98, 99]
    with pytest.raises(lowtide.FormatError, match=r"expected the name of one array, got 2 arrays: 'deep/X', 'y'"):
        lowtide.open(tmp_path / "g.zarr")


def test_a_damaged_chunk_is_named_and_other_rows_still_read(tmp_path: Path) -> None:
    write(tmp_path / "x.zarr", zarr_format=3, chunks=(2_000, 40))
    (tmp_path / "x.zarr" / "c" / "7" / "0").write_bytes(b"not what it was")
    a = lowtide.open(tmp_path / "x.zarr", cache_dir=tmp_path / "cache")
    with pytest.raises(lowtide.ReadError, match=r"expected chunk \(7, 0\) \(rows 14000 to 16000\) whole"):
        a[15_000]
    np.testing.assert_array_equal(a[:10_000], ROWS[:10_000])


def test_what_was_written_anew_is_decoded_anew(tmp_path: Path) -> None:
    write(tmp_path / "x.zarr", zarr_format=3, chunks=(2_000, 40))
    old = lowtide.open(tmp_path / "x.zarr", cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(old[0], ROWS[0])
    settings = 'shape=rows.shape, dtype="f4", chunks=(2_000, 40), overwrite=True'
    zarr_writes(f"zarr.create_array(store=sys.argv[1], {settings})[:] = rows + 1", str(tmp_path / "x.zarr"))
    np.testing.assert_array_equal(lowtide.open(tmp_path / "x.zarr", cache_dir=tmp_path / "cache")[0], ROWS[0] + 1)
    with pytest.raises(lowtide.ReadError, match="got it changed meanwhile"):
        old[19_000]


def test_chunks_that_were_written_anew_are_decoded_anew(tmp_path: Path) -> None:
    """Nothing but the file of a chunk changes then: neither the description nor the directory that was named."""
    write(tmp_path / "x.zarr", zarr_format=3, chunks=(2_000, 40))
    assert lowtide.open(tmp_path / "x.zarr", cache_dir=tmp_path / "cache")[15_000, 0] == ROWS[15_000, 0]
    zarr_writes("zarr.open_array(sys.argv[1], mode='r+')[14_000:16_000] = 77", str(tmp_path / "x.zarr"))
    assert lowtide.open(tmp_path / "x.zarr", cache_dir=tmp_path / "cache")[15_000, 0] == 77


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"zarr_format": 3}, {"zarr_format": 2}, {"zarr_format": 3, "shards": (4_000, 40)}]
)
@pytest.mark.parametrize("how", ["by zarr", "in place", "taken away", "with its directory"])
def test_a_chunk_that_changes_between_opening_and_decoding_is_noticed(
    tmp_path: Path, settings: dict[str, Any], how: str
) -> None:
    write(tmp_path / "x.zarr", chunks=(2_000, 40), **settings)
    a = lowtide.open(tmp_path / "x.zarr", cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(a[0], ROWS[0])
    name = "7.0" if settings["zarr_format"] == 2 else "c/3/0" if "shards" in settings else "c/7/0"
    chunk = tmp_path / "x.zarr" / name
    if how == "by zarr":
        zarr_writes("zarr.open_array(sys.argv[1], mode='r+')[14_000:16_000] = 77", str(tmp_path / "x.zarr"))
    elif how == "in place":
        with chunk.open("r+b") as file:
            file.write(file.read())
    else:
        chunk.unlink()
        if how == "with its directory" and settings["zarr_format"] == 3:
            chunk.parent.rmdir()
    with pytest.raises(lowtide.ReadError, match=r"x.zarr: expected the file that was opened, got it changed meanwhile"):
        a[15_000]
    np.testing.assert_array_equal(a[1], ROWS[1])  # decoded before


def test_a_chunk_that_appears_after_opening_is_noticed(tmp_path: Path) -> None:
    settings = "shape=rows.shape, dtype='f4', chunks=(2_000, 40), fill_value=5"
    zarr_writes(f"zarr.create_array(sys.argv[1], {settings})[:2_000] = rows[:2_000]", str(tmp_path / "x.zarr"))
    a = lowtide.open(tmp_path / "x.zarr", cache_dir=tmp_path / "cache")
    assert (a[3_000] == 5).all()
    zarr_writes("zarr.open_array(sys.argv[1], mode='r+')[14_000:16_000] = 77", str(tmp_path / "x.zarr"))
    with pytest.raises(lowtide.ReadError, match="got it changed meanwhile"):
        a[15_000]
    assert lowtide.open(tmp_path / "x.zarr", cache_dir=tmp_path / "cache")[15_000, 0] == 77


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_records_keep_the_names_of_their_fields(tmp_path: Path, zarr_format: int) -> None:
    made = "records = np.zeros(50, [('a', '<f4'), ('b', '<i2')]); records['a'], records['b'] = rows[:50, 0], range(50)"
    program = f"{made}\nzarr.create_array(sys.argv[1], data=records, chunks=(20,), zarr_format={zarr_format})"
    zarr_writes(f"import warnings; warnings.simplefilter('ignore')\n{program}", str(tmp_path / "x.zarr"))
    a = lowtide.open(tmp_path / "x.zarr", cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(a[:]["a"], ROWS[:50, 0])
    assert a[[49, 3]]["b"].tolist() == [49, 3]


def test_texts_of_any_length_are_refused_and_a_name_that_cannot_be_one_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = """
group = zarr.open_group(sys.argv[1], mode="w")
group.create_array("words", shape=3, dtype=str, chunks=2)[:] = ["a", "bb", "ccc"]
"""
    zarr_writes(f"import warnings; warnings.simplefilter('ignore')\n{program}", str(tmp_path / "g.zarr"))
    with pytest.raises(lowtide.FormatError, match=r"expected items of one fixed size, got .* Read it with zarr\."):
        lowtide.open(tmp_path / "g.zarr", tensor="words")
    with pytest.raises(lowtide.FormatError, match=r"expected an array '\.\./words', got 1 arrays: 'words'"):
        lowtide.open(tmp_path / "g.zarr", tensor="../words")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (5, 0), (0, 0)])
def test_an_array_without_data_reads_as_a_npy_file_without_any(
    tmp_path: Path, shape: tuple[int, ...], zarr_format: int
) -> None:
    program = "shape, version = json.loads(sys.argv[2])\n"
    program += "zarr.create_array(sys.argv[1], shape=shape, dtype='i2', chunks=[4] * len(shape), zarr_format=version)"
    zarr_writes(program, str(tmp_path / "x.zarr"), json.dumps([shape, zarr_format]))
    np.save(tmp_path / "x.npy", np.zeros(shape, "i2"))
    found, plain = (lowtide.open(tmp_path / name, cache_dir=tmp_path / "cache") for name in ("x.zarr", "x.npy"))
    for a in (found, plain):
        assert (a.shape, a.dtype, a[:].shape, a[:].dtype) == (shape, np.dtype("i2"), shape, np.dtype("i2"))
        for batches in (a.chunks(2), a.shuffled(2), a.shuffled(2, locality="1MiB")):
            assert [len(rows) for rows in batches] == ([2, 2, 1] if shape[0] else [])
        assert a.subset(np.zeros(len(a), bool)).shape == (0, *shape[1:])
        if shape[0]:
            assert [len(part) for part in a.split(val=0.4)] == [3, 2]
    assert str(found.stats()) == str(plain.stats())


def test_a_link_back_into_an_array_is_not_followed_for_ever(tmp_path: Path) -> None:
    write(tmp_path / "x.zarr", zarr_format=3, chunks=(2_000, 40))
    for name in ("one", "two"):
        (tmp_path / "x.zarr" / name).symlink_to(tmp_path / "x.zarr", target_is_directory=True)
    np.testing.assert_array_equal(lowtide.open(tmp_path / "x.zarr", cache_dir=tmp_path / "cache")[0], ROWS[0])


def test_an_array_of_a_group_that_was_made_anew_is_decoded_anew(tmp_path: Path) -> None:
    zarr_writes("zarr.open_group(sys.argv[1], mode='w').create_group('deep')", str(tmp_path / "g.zarr"))
    for added in (0, 1):
        settings = f"data=rows[:1000] + {added}, chunks=(10, 40), overwrite=True"
        zarr_writes(f"zarr.create_array(sys.argv[1], {settings})", str(tmp_path / "g.zarr" / "deep" / "X"))
        found = lowtide.open(tmp_path / "g.zarr", tensor="deep/X", cache_dir=tmp_path / "cache")
        np.testing.assert_array_equal(found[:], ROWS[:1000] + added)


def test_what_is_no_array_of_numbers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.zarr").mkdir()
    (tmp_path / "x.zarr" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "array", "shape": ["?"]}')
    with pytest.raises(lowtide.FormatError, match="got one that zarr cannot open"):
        lowtide.open(tmp_path / "x.zarr")
