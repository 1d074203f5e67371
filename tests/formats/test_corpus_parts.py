"""A directory that holds train and val is one corpus with parts: which is opened, what is said, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import lowtide
from lowtide.errors import FormatError
from lowtide.formats import token_layout
from lowtide.formats.corpus_parts import part_named

SIZES = {"train": 300, "val": 40, "test": 7}


def ids(path: Path, count: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.arange(count, dtype="<u2").tofile(path)


def manifest(directory: Path, files: dict[str, int]) -> None:
    for name, count in files.items():
        ids(directory / name, count)
    shards = [{"file": name, "tokens": count} for name, count in files.items()]
    (directory / "manifest.json").write_text(json.dumps({"lowtide": 1, "dtype": "uint16", "shards": shards}))


def ours(root: Path) -> None:
    for part, count in SIZES.items():
        manifest(root / part, {"shard-00000.bin": count})


def nanogpt(root: Path) -> None:
    for part, count in SIZES.items():
        ids(root / f"{part}.bin", count)
    (root / "meta.pkl").write_bytes(b"\x80\x04.")
    (root / "prepare.py").touch()


def llmc(root: Path) -> None:
    for part, count in SIZES.items():
        ids(root / f"fineweb_{part}_000000.bin", count - 1)
        ids(root / f"fineweb_{part}_000001.bin", 1)


def directories(root: Path) -> None:
    for part, count in {"train": 300, "validation": 40, "test": 7}.items():
        ids(root / part / "a.bin", count)


def one_manifest(root: Path) -> None:
    root.mkdir(exist_ok=True)
    manifest(root, {f"{part}.bin": count for part, count in SIZES.items()})


LAYOUTS = [ours, nanogpt, llmc, directories, one_manifest]


@pytest.mark.parametrize("write", LAYOUTS)
@pytest.mark.parametrize("part", [None, "train", "val", "test"])
def test_every_layout_opens_as_train_unless_another_part_is_asked_for(tmp_path: Path, write, part) -> None:  # type: ignore[no-untyped-def]
    write(tmp_path)
    dtype = None if write in (ours, one_manifest) else "uint16"
    with lowtide.open_tokens(tmp_path, dtype=dtype, part=part) as tokens:
        assert len(tokens) == SIZES[part or "train"]
        assert f"{part or 'train'} part" in repr(tokens)
        other = "val" if part in (None, "train") else "train"
        assert f"(part={other!r})" in str(tokens.plan())
    first, *_ = tokens.split(0.5)
    assert f"{part or 'train'} part" in repr(first)


def test_a_corpus_without_parts_says_nothing_of_them(tmp_path: Path) -> None:
    manifest(tmp_path, {"shard-00000.bin": 9})
    with lowtide.open_tokens(tmp_path) as tokens:
        assert " part," not in repr(tokens)
        assert "part of this corpus" not in str(tokens.plan())
    with pytest.raises(FormatError, match=r"expected a val part, got none \(shard-00000.bin\). Leave part= out"):
        lowtide.open_tokens(tmp_path, part="val")


def test_files_of_one_part_and_of_none_stay_in_their_order(tmp_path: Path) -> None:
    for k, name in enumerate(("a.bin", "b_train.bin", "c.bin")):
        ids(tmp_path / name, k + 1)
    assert token_layout(tmp_path, dtype="u2").rows == (1, 2, 3)


def test_a_part_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    ids(tmp_path / "train.bin", 5)
    with pytest.raises(FormatError, match=r"expected a val part, got train \(train.bin\). State part='train'"):
        token_layout(tmp_path, dtype="u2", part="val")
    assert token_layout(tmp_path, dtype="u2").shape == (5,)
    with pytest.raises(ValueError, match="expected one of train, val, test, got 'valid'"):
        token_layout(tmp_path, dtype="u2", part="valid")
    with pytest.raises(ValueError, match=r"expected a directory that holds a val part, got .*train.bin"):
        token_layout(tmp_path / "train.bin", dtype="u2", part="val")


def test_held_out_parts_without_train_are_not_taken_for_it(tmp_path: Path) -> None:
    for name in ("val.bin", "test.bin"):
        ids(tmp_path / name, 5)
    with pytest.raises(FormatError, match=r"expected a train part, got val \(val.bin\) and test \(test.bin\)"):
        token_layout(tmp_path, dtype="u2")
    assert token_layout(tmp_path, dtype="u2", part="test").shape == (5,)


def test_a_file_of_no_part_beside_the_parts_is_refused_by_name(tmp_path: Path) -> None:
    nanogpt(tmp_path)
    ids(tmp_path / "extra.bin", 3)
    with pytest.raises(FormatError, match=r"expected only files of train and val and test, got extra.bin beside them"):
        token_layout(tmp_path, dtype="u2")


def test_a_list_or_glob_that_mixes_the_parts_is_refused_naming_both(tmp_path: Path) -> None:
    ours(tmp_path / "a")
    ours(tmp_path / "b")
    for source in (
        [tmp_path / "a/train", tmp_path / "b/val"],
        [tmp_path / "a", tmp_path / "b/val"],
        str(tmp_path / "a/*"),
    ):
        with pytest.raises(FormatError, match=r"got train and val.*files together \(.*train.* and .*val"):
            token_layout(source)
    both = token_layout([tmp_path / "a", tmp_path / "b"])  # each gives its train part
    assert (both.shape, both.part) == ((600,), "train")
    assert token_layout([tmp_path / "a", tmp_path / "b"], part="val").shape == (80,)


def test_a_directory_of_columns_has_parts_too(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name, count in {"train-00000-of-00001.parquet": 3, "validation-00000-of-00001.parquet": 2}.items():
        pq.write_table(pa.table({"input_ids": [[1, 2]] * count}), tmp_path / name)
    with lowtide.open_tokens(tmp_path, column="input_ids", cache_dir=tmp_path / "cache") as tokens:
        assert len(tokens) == 6
        assert "train part" in repr(tokens)
        assert "(part='val')" in str(tokens.plan())
    with lowtide.open_tokens(tmp_path, column="input_ids", part="val", cache_dir=tmp_path / "cache") as tokens:
        assert len(tokens) == 4


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("train.bin", "train"), ("fineweb_val_000000.bin", "val"), ("Validation-00.bin", "val"), ("dev.bin", "val"),
        ("openwebtext.test.bin", "test"), ("latest.bin", None), ("interval.bin", None), ("train_test.bin", None),
    ],
)  # fmt: skip
def test_a_name_speaks_of_one_part_or_none(name: str, part: str | None) -> None:
    assert part_named(name) == part
