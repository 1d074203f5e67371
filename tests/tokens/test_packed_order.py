"""Packed rows and their order never change: a saved run must find its rows again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lowtide
from lowtide.order.locality import Locality
from lowtide.order.streams import Drawn, InOrder, Shuffled, Stream

# Never change this file: a saved run resumes at the same rows only as long as these numbers hold.
GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden_packed.json").read_text(encoding="utf-8"))


def documents(tokens: int) -> NDArray[np.uint16]:
    """Ids by arithmetic alone, no generator whose stream might change; about every 97th is the eot, 0."""
    number = np.arange(tokens, dtype=np.uint64)
    word = (number * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)) >> np.uint64(33)
    ids = (word % np.uint64(60_000)).astype(np.uint16) + np.uint16(1)
    ids[(word >> np.uint64(11)) % np.uint64(97) == 0] = 0
    return ids


@pytest.mark.parametrize("case", GOLDEN["PackedOrder"], ids=str)
def test_orders_of_packed_rows_never_change(case: dict[str, Any]) -> None:
    count, seed = int(case["count"]), int(case["seed"])
    if case["order"] == "shuffled":
        near = None if case["locality"] is None else Locality(*case["locality"])
        stream: Stream = Shuffled(count, seed, purpose="packed", locality=near)
    else:
        stream = Drawn(count, seed, "packed") if case["order"] == "random" else InOrder(count)
    start = int(case["start"])
    assert stream.at(np.arange(start, start + len(case["rows"]))).tolist() == case["rows"]


@pytest.mark.parametrize("case", GOLDEN["packing"], ids=str)
def test_what_stands_in_packed_rows_never_changes(tmp_path: Path, case: dict[str, Any]) -> None:
    path = tmp_path / "tokens.bin"
    documents(case["tokens"]).tofile(path)
    windows = lowtide.open_tokens(path, dtype="uint16", eot=0).windows(case["length"], cut="packed")
    assert len(windows) == case["rows"]
    seen = hashlib.sha256()
    for x, y in windows.batches(16, order="sequential"):
        seen.update(x.astype("<i8").tobytes())
        seen.update(y.astype("<i8").tobytes())
    assert seen.hexdigest() == case["sha256"]
