"""Files that change while they are read: nothing is given that may be of two versions."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide.errors import ReadError
from lowtide.storage.watched_files import Files

ROWS, WIDTH = 600, 64


def written(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-64, os.SEEK_END)
        file.write(b"\7" * 64)


def cut(path: Path) -> None:
    """Shorter, and as long as before again: what was there is zeros now."""
    size = path.stat().st_size
    os.truncate(path, size // 2)
    os.truncate(path, size)


CALLS: dict[str, Callable[[lowtide.Array], Any]] = {
    "slice": lambda array: array[:],
    "row": lambda array: array[5],
    "mask": lambda array: array[np.arange(len(array)) % 3 > 0],
    "rows": lambda array: array[np.arange(len(array))[::-7]],
    "chunks": lambda array: list(array.chunks(200)),
    "shuffled": lambda array: next(array.shuffled(64)),
    "gather": lambda array: next(array.gather(np.arange(40) * 11, 40)),
}


class Change:
    """Changes a file right behind the look at it that comes before the ``at``-th read (0: never), and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Any, path: Path, how: Callable[[Path], None]) -> None:
        self.looks = self.at = 0
        self._path, self._how = path, how
        looked, locate = Files.descriptor, store.engine.locate

        def descriptor(files: Files, *arguments: Any) -> Any:
            found = looked(files, *arguments)
            self._looked()
            return found

        def located(*arguments: Any) -> bool:
            if arguments[-1]:  # the look behind a read
                return bool(locate(*arguments))
            self._looked()
            return bool(locate(*arguments))

        monkeypatch.setattr(Files, "descriptor", descriptor)
        monkeypatch.setattr(store.engine, "locate", located)

    def _looked(self) -> None:
        self.looks += 1
        if self.looks == self.at:
            self._how(self._path)


def made(tmp_path: Path, files: int) -> list[Path]:
    paths = [tmp_path / f"{number}.npy" for number in range(files)]
    for path in paths:
        np.save(path, np.ones((ROWS // files, WIDTH), np.uint16))
    time.sleep(0.02)  # so that the next change has a later time
    return paths


@pytest.mark.parametrize("strategy", ["read", "map", "remap", "advise"])
@pytest.mark.parametrize("engine", ["native", "python"])
@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("change", [written, cut])
def test_a_file_that_changes_during_a_call_is_an_error(
    strategy: str,
    engine: str,
    files: int,
    call: str,
    change: Callable[[Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths = made(tmp_path, files)
    changed = paths[0]
    with lowtide.open(paths if files > 1 else changed, strategy=strategy, engine=engine, cache="keep") as array:
        CALLS[call](array)  # everything is open now
        counted = Change(monkeypatch, array._store, changed, change)
        CALLS[call](array)
        last, counted.looks = counted.looks, 0
        assert last >= 1
        counted.at = 1 if files > 1 else last  # of one file the last read of the call is the one nobody follows
        with pytest.raises(ReadError) as caught:
            CALLS[call](array)
    assert str(changed) in str(caught.value)
    assert caught.value.path == str(changed)


@pytest.mark.parametrize("engine", ["native", "python"])
def test_batches_of_tokens_too(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens.bin"
    np.arange(50_000, dtype=np.uint16).tofile(path)
    time.sleep(0.02)
    with lowtide.open_tokens(path, dtype="uint16", engine=engine, cache="keep") as tokens:
        feed = tokens.batches(8, length=128)
        next(feed)
        counted = Change(monkeypatch, tokens.store, path, written)
        next(feed)
        last, counted.looks = counted.looks, 0
        counted.at = last
        before = feed.state_dict()
        with pytest.raises(ReadError, match="rewritten in place"):
            next(feed)
        assert feed.state_dict() == before


@pytest.mark.parametrize("engine", ["native", "python"])
def test_new_permissions_and_names_during_a_call_are_fine(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the time of the last change moves, and no byte does."""
    (path,) = made(tmp_path, 1)
    for harmless in (lambda path: path.chmod(0o640), lambda path: path.rename(tmp_path / "elsewhere.npy")):
        with lowtide.open(path, engine=engine, cache="keep") as array:
            counted = Change(monkeypatch, array._store, path, harmless)
            counted.at = 1
            np.testing.assert_array_equal(array[:], np.ones((ROWS, WIDTH), np.uint16))
            assert counted.looks >= 1
            monkeypatch.undo()
