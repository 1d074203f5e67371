"""How long the way of a warm batch is: files and Python functions that one step enters, as the interpreter sees them.

A newcomer follows this way with the debugger, and every call on it is time that each batch pays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import lowtide


def entered_by(step: Callable[[], Any]) -> list[tuple[str, str]]:
    """File and name of every Python function that ``step`` enters, itself left out."""
    found: list[tuple[str, str]] = []

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found.append((frame.f_code.co_filename, frame.f_code.co_qualname))

    for _ in range(5):
        step()
    sys.setprofile(look)
    try:
        step()
    finally:
        sys.setprofile(None)
    return found


def hold(step: Callable[[], Any], *, files: int, calls: int) -> None:
    found = [entry for entry in entered_by(step) if entry[0] != __file__]
    said = "\n".join(f"{Path(file).name} {name}" for file, name in found)
    assert len({file for file, _ in found}) <= files, said
    assert len(found) <= calls, said
    assert found, "nothing was counted"


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> lowtide.Tokens:
    path = tmp_path_factory.mktemp("counts") / "tokens.bin"
    np.random.default_rng(0).integers(0, 50_000, 500_000).astype(np.uint16).tofile(path)
    return lowtide.open_tokens(path, dtype="uint16", cache="keep")


@pytest.fixture(scope="module")
def array(tmp_path_factory: pytest.TempPathFactory) -> lowtide.Array:
    path = tmp_path_factory.mktemp("counts") / "rows.npy"
    np.save(path, np.arange(80_000, dtype=np.float32).reshape(-1, 8))
    return lowtide.open(path, cache="keep")


def test_a_warm_batch_of_a_feed_passes_8_files_and_24_calls(tokens: lowtide.Tokens) -> None:
    feed = tokens.batches(64, length=128, seed=1)
    hold(lambda: next(feed), files=8, calls=24)


def test_a_warm_batch_of_shuffled_rows_passes_8_files_and_24_calls(array: lowtide.Array) -> None:
    rows = array.shuffled(64, seed=0, epochs=None)
    hold(lambda: next(rows), files=8, calls=24)


def test_a_warm_batch_of_tensors_passes_9_files_and_32_calls(tokens: lowtide.Tokens) -> None:
    torch = pytest.importorskip("lowtide.torch", reason="NOT TESTED: tensors - torch is not installed")
    batches = torch.tensors(tokens.batches(64, length=128, seed=1))
    hold(lambda: next(batches), files=9, calls=32)


def test_a_single_row_passes_7_files_and_14_calls(array: lowtide.Array) -> None:
    hold(lambda: array[777], files=7, calls=14)
