"""The corpus that every machine has, and its cache."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest

from lowtide.train.stdlib import SKIPPED, cache_directory, source_files, stdlib_corpus


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A small library with things that must stay out."""
    root = tmp_path / "lib"
    for number in range(60):
        file = root / f"package{number % 7}" / f"module{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(f"# module {number}\n".encode() * 300)
    for left_out in ("site-packages/numpy/a.py", "test/b.py", "package1/tests/c.py"):
        (root / left_out).parent.mkdir(parents=True, exist_ok=True)
        (root / left_out).write_bytes(b"LEFT OUT")
    return root


def test_val_is_made_of_files_that_are_not_in_train(tmp_path: Path, library: Path) -> None:
    made = stdlib_corpus(tmp_path / "cache", library)
    train, val = (made.train / "train.bin").read_bytes(), (made.val / "val.bin").read_bytes()
    assert len(train) + len(val) == sum(path.stat().st_size for path in source_files(library))
    assert b"LEFT OUT" not in train + val
    in_val = {line for line in val.splitlines() if line}
    in_train = {line for line in train.splitlines() if line}
    assert len(in_val) == 3  # one file in twenty
    assert not in_val & in_train


def test_the_manifest_says_what_the_bytes_are(tmp_path: Path, library: Path) -> None:
    made = stdlib_corpus(tmp_path / "cache", library)
    manifest = json.loads((made.train / "manifest.json").read_text())
    size = (made.train / "train.bin").stat().st_size
    assert manifest == {
        "lowtide": 1,
        "dtype": "uint8",
        "vocab": 256,
        "shards": [{"file": "train.bin", "tokens": size}],
    }


def test_a_whole_corpus_is_used_again_and_a_cut_one_made_again(tmp_path: Path, library: Path) -> None:
    first = stdlib_corpus(tmp_path / "cache", library)
    whole = (first.train / "train.bin").read_bytes()
    assert first.made
    assert not stdlib_corpus(tmp_path / "cache", library).made
    with (first.train / "train.bin").open("r+b") as file:
        file.truncate(1000)
    assert stdlib_corpus(tmp_path / "cache", library).made
    assert (first.train / "train.bin").read_bytes() == whole


def test_the_order_of_files_does_not_depend_on_where_the_library_lies(tmp_path: Path, library: Path) -> None:
    before = [path.relative_to(library) for path in source_files(library)]
    moved = library.rename(tmp_path / "elsewhere")
    after = [path.relative_to(moved) for path in source_files(moved)]
    assert before == after
    assert before != sorted(before)


def test_a_library_without_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected the standard library's source.*--data"):
        stdlib_corpus(tmp_path / "cache", tmp_path)


def test_this_pythons_library_has_source_enough() -> None:
    library = Path(sysconfig.get_path("stdlib"))
    files = source_files(library)
    assert sum(path.stat().st_size for path in files) > 5_000_000
    assert not any(SKIPPED.intersection(path.relative_to(library).parts) for path in files)


def test_the_cache_lies_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("LOWTIDE_CACHE", raising=False)
    assert cache_directory() == tmp_path / ".cache" / "lowtide"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "lowtide"
    monkeypatch.setenv("LOWTIDE_CACHE", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"
