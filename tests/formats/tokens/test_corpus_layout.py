"""Directories, manifests and lists of token files as one corpus."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

from lowtide.errors import FormatError
from lowtide.formats import Layout, token_layout

if TYPE_CHECKING:
    from tests.formats.conftest import TokenFiles

ReadBack = Callable[[Layout], npt.NDArray[Any]]


def test_a_directory_is_its_token_files_in_counting_order(token_files: TokenFiles, read_back: ReadBack) -> None:
    for k in (10, 2, 1):
        token_files.llmc(f"fineweb_train_{k}.bin", [k, k])
    for name in ("README.md", ".hidden.bin", "meta.pkl", "log.txt"):
        (token_files.directory / name).write_text("not tokens")
    layout = token_layout(token_files.directory)
    assert (layout.format, layout.rows) == ("llm.c", (2, 2, 2))
    assert read_back(layout).tolist() == [1, 1, 2, 2, 10, 10]
    assert token_layout(str(token_files.directory / "*.bin")) == layout


def test_a_directory_of_pairs_counts_each_pair_once(token_files: TokenFiles) -> None:
    for k in range(3):
        token_files.megatron(f"part_{k}", [[k]])
    layout = token_layout(token_files.directory)
    assert layout.shape == (3,)
    assert token_layout(token_files.directory / "*") == layout
    assert layout.documents is not None
    assert len(layout.documents) == 3


def test_a_glob_over_datatrove_files_drops_what_lies_beside_them(token_files: TokenFiles) -> None:
    for k in range(2):
        token_files.datatrove(f"{k}.ds", [[1], [2]])
    assert token_layout(token_files.directory / "*").rows == (2, 2)


def test_names_that_merely_contain_the_letters_are_no_split(token_files: TokenFiles) -> None:
    for name in ("constraint.bin", "interval.bin", "latest.bin"):
        token_files.raw(name, [1])
    assert token_layout(token_files.directory, dtype="u2").shape == (3,)


def test_two_formats_or_dtypes_in_one_directory_are_refused_with_both(token_files: TokenFiles) -> None:
    token_files.llmc("a.bin", [1])
    token_files.litgpt("b.bin", [1])
    with pytest.raises(FormatError, match=r"b\.bin: expected llm\.c as .*a\.bin is, got lit-gpt"):
        token_layout(token_files.directory)
    token_files.llmc("b.bin", [1], magic=20240801, version=7)
    with pytest.raises(FormatError, match=r"expected dtype uint16 as in .*a\.bin, got uint32"):
        token_layout(token_files.directory)


def test_headerless_files_of_any_name_are_one_family(token_files: TokenFiles) -> None:
    paths = [token_files.raw(name, [1, 2]) for name in ("a.bin", "b.tokens", "c.npy")]
    assert token_layout(paths, dtype="u2").format == "raw"
    assert token_layout(paths[:1] * 2, dtype="u2").format == "nanogpt"


def test_a_directory_without_tokens_says_what_is_there(token_files: TokenFiles) -> None:
    with pytest.raises(FormatError, match="got nothing"):
        token_layout(token_files.directory)
    (token_files.directory / "shards").mkdir()
    (token_files.directory / "notes.txt").write_text("")
    with pytest.raises(FormatError, match=r"got notes\.txt, shards"):
        token_layout(token_files.directory)
    for content, name in (('{"chunks": []}', "litData"), ('{"shards": []}', "MosaicML")):
        (token_files.directory / "index.json").write_text(content)
        with pytest.raises(FormatError, match=name):
            token_layout(token_files.directory)


def test_a_list_may_name_directories_and_a_memmap(token_files: TokenFiles, read_back: ReadBack) -> None:
    path = token_files.raw("x.bin", [1, 2, 3])
    other = token_files.directory / "more"
    other.mkdir()
    (other / "y.bin").write_bytes(path.read_bytes())
    assert token_layout([other, path], dtype="u2").rows == (3, 3)
    mapped = np.memmap(path, "u2", "r")
    assert read_back(token_layout(mapped[1:])).tolist() == [2, 3]


def test_a_manifest_gives_dtype_order_eot_and_vocab(token_files: TokenFiles, read_back: ReadBack) -> None:
    token_files.raw("b.bin", [1, 2], "u1")
    token_files.raw("a.bin", [3], "u1")
    token_files.raw("stray.bin", [9, 9, 9], "u1")
    token_files.manifest([("b.bin", 2), ("a.bin", 1)], "uint8", eot=0, vocab=256, later="ignored")
    layout = token_layout(token_files.directory)
    assert (layout.dtype, layout.eot, layout.vocab) == (np.dtype("u1"), 0, 256)
    assert read_back(layout).tolist() == [1, 2, 3]


def test_a_file_that_a_manifest_lists_needs_no_dtype(token_files: TokenFiles) -> None:
    for name in ("train.bin", "val.bin", "other.bin"):
        token_files.raw(name, [1, 2], "u1")
    token_files.manifest([("train.bin", 2), ("val.bin", 2)], "uint8", vocab=256)
    layout = token_layout(token_files.directory / "val.bin")
    assert (layout.dtype, layout.shape, layout.vocab) == (np.dtype("u1"), (2,), 256)
    assert token_layout(token_files.directory).part == "train"
    with pytest.raises(FormatError, match="expected dtype="):
        token_layout(token_files.directory / "other.bin")


def test_a_shard_of_another_length_than_its_manifest_says_is_refused(token_files: TokenFiles) -> None:
    path = token_files.raw("a.bin", [1, 2])
    token_files.manifest([("a.bin", 3)])
    for source in (path, token_files.directory):
        with pytest.raises(FormatError, match=r"expected 3 tokens as .*manifest\.json says, got 2"):
            token_layout(source)


def test_a_dtype_that_contradicts_the_manifest_is_refused(token_files: TokenFiles) -> None:
    token_files.raw("a.bin", [1, 2])
    token_files.manifest([("a.bin", 2)])
    with pytest.raises(FormatError, match=r"expected dtype uint16.*got dtype=uint32"):
        token_layout(token_files.directory, dtype="u4")


def test_a_manifest_whose_shard_is_missing_names_the_file(token_files: TokenFiles) -> None:
    token_files.manifest([("gone.bin", 2)])
    with pytest.raises(FileNotFoundError, match=r"gone\.bin"):
        token_layout(token_files.directory)


def test_a_manifest_of_another_program_is_passed_over(token_files: TokenFiles) -> None:
    token_files.raw("a.bin", [1, 2])
    for content in ('{"version": 3}', "[]"):
        (token_files.directory / "manifest.json").write_text(content)
        assert token_layout(token_files.directory, dtype="u2").shape == (2,)


SHARDS = [{"file": "a.bin", "tokens": 2}]
BAD_MANIFESTS: dict[str, Any] = {
    "no JSON": "{",
    "deep": "[" * 100_000,
    "another version": {"lowtide": 2, "dtype": "uint16", "shards": SHARDS},
    "a bool as version": {"lowtide": True, "dtype": "uint16", "shards": SHARDS},
    "no dtype": {"lowtide": 1, "shards": SHARDS},
    "a float dtype": {"lowtide": 1, "dtype": "float32", "shards": SHARDS},
    "a dtype that is no text": {"lowtide": 1, "dtype": ["uint16"], "shards": SHARDS},
    "no shards": {"lowtide": 1, "dtype": "uint16", "shards": []},
    "shards that are text": {"lowtide": 1, "dtype": "uint16", "shards": "a.bin"},
    "a shard that is text": {"lowtide": 1, "dtype": "uint16", "shards": ["a.bin"]},
    "a way out": {"lowtide": 1, "dtype": "uint16", "shards": [{"file": "../a.bin", "tokens": 2}]},
    "an absolute path": {"lowtide": 1, "dtype": "uint16", "shards": [{"file": "/etc/passwd", "tokens": 2}]},
    "the parent": {"lowtide": 1, "dtype": "uint16", "shards": [{"file": "..", "tokens": 2}]},
    "a NUL": {"lowtide": 1, "dtype": "uint16", "shards": [{"file": "a\0", "tokens": 2}]},
    "no count": {"lowtide": 1, "dtype": "uint16", "shards": [{"file": "a.bin"}]},
    "a negative count": {"lowtide": 1, "dtype": "uint16", "shards": [{"file": "a.bin", "tokens": -2}]},
    "a shard twice": {"lowtide": 1, "dtype": "uint16", "shards": SHARDS * 2},
    "a negative eot": {"lowtide": 1, "dtype": "uint16", "shards": SHARDS, "eot": -1},
    "text as vocab": {"lowtide": 1, "dtype": "uint16", "shards": SHARDS, "vocab": "256"},
}


@pytest.mark.parametrize("content", BAD_MANIFESTS.values(), ids=BAD_MANIFESTS.keys())
def test_a_bad_manifest_is_refused_before_any_shard_is_opened(token_files: TokenFiles, content: Any) -> None:
    token_files.raw("a.bin", [1, 2])
    text = content if isinstance(content, str) else json.dumps(content)
    (token_files.directory / "manifest.json").write_text(text)
    with pytest.raises(FormatError, match=r"manifest\.json"):
        token_layout(token_files.directory)


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize(("train", "val"), [("train.bin", "val.bin"), ("train/a.bin", "val/a.bin")])
def test_train_and_val_in_a_glob_or_a_list_are_refused_by_name(
    token_files: TokenFiles, train: str, val: str, as_list: bool
) -> None:
    for name in (train, val):
        (token_files.directory / name).parent.mkdir(exist_ok=True)
        token_files.raw(name, [1, 2])
    pattern = str(token_files.directory / "**" / "*.bin")
    source = [token_files.directory / train, token_files.directory / val] if as_list else pattern
    with pytest.raises(FormatError, match="train and val") as caught:
        token_layout(source, dtype="u2")
    assert train in str(caught.value)
    assert val in str(caught.value)


def test_a_word_in_the_directory_all_files_share_splits_nothing(token_files: TokenFiles) -> None:
    (token_files.directory / "test").mkdir()
    for name in ("test/train_0.bin", "test/train_1.bin"):
        token_files.raw(name, [1])
    assert token_layout(str(token_files.directory / "test" / "*"), dtype="u2").rows == (1, 1)


def test_empty_shards_are_left_out_with_a_note(token_files: TokenFiles, read_back: ReadBack) -> None:
    for k, documents in enumerate(([[1, 2]], [], [[3]], [])):
        token_files.datatrove(f"{k}.ds", documents)
    for source in (token_files.directory, str(token_files.directory / "*.ds"), str(token_files.directory / "*")):
        layout = token_layout(source)
        assert read_back(layout).tolist() == [1, 2, 3]
        assert "2 empty files left out: 1.ds, 3.ds" in layout.notes
    with pytest.raises(FormatError, match="empty"):
        token_layout(token_files.directory / "1.ds")
    for name in ("0.ds", "2.ds"):
        (token_files.directory / name).write_bytes(b"")
    with pytest.raises(FormatError, match="empty"):
        token_layout(token_files.directory)


def test_a_shard_that_its_manifest_calls_empty_may_be_empty(token_files: TokenFiles) -> None:
    token_files.raw("a.bin", [1, 2])
    token_files.raw("b.bin", [])
    token_files.manifest([("a.bin", 2), ("b.bin", 0)])
    assert token_layout(token_files.directory).rows == (2,)
    token_files.manifest([("b.bin", 0)])
    with pytest.raises(FormatError, match="1 empty shards"):
        token_layout(token_files.directory)


def test_a_manifest_may_name_the_id_that_begins_a_document(token_files: TokenFiles) -> None:
    token_files.raw("a.bin", [1, 2])
    token_files.manifest([("a.bin", 2)], bos=1)
    for source in (token_files.directory, token_files.directory / "a.bin"):
        layout = token_layout(source)
        assert (layout.bos, layout.eot) == (1, None)


def test_the_manifest_beside_a_glob_of_shards_is_read_once(
    token_files: TokenFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{k:03d}.bin" for k in range(50)]
    for name in names:
        token_files.raw(name, [1])
    token_files.manifest([(name, 1) for name in names])
    opened: list[str] = []
    real = os.open

    def noting(path: str, *rest: Any, **more: Any) -> int:
        opened.append(str(path))
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", noting)
    assert token_layout(str(token_files.directory / "*.bin")).shape == (50,)
    assert sum(path.endswith("manifest.json") for path in opened) == 1
    assert sum(path.endswith(".bin") for path in opened) == 50


def test_what_belongs_to_a_corpus_may_lie_in_its_glob(token_files: TokenFiles) -> None:
    token_files.raw("a.npy", [1, 2])
    (token_files.directory / "a.csv.gz").write_bytes(b"\x1f\x8b\x08 rows")
    (token_files.directory / "meta.pkl").write_bytes(b"\x80\x04")
    layout = token_layout(str(token_files.directory / "*"), dtype="u2")
    assert layout.rows == (2,)
    assert any(".csv.gz" in note for note in layout.notes)
