"""Run by ``make wheel`` under qemu, by a Python of another architecture: the wheel's own engine reads."""

from __future__ import annotations

import platform
import tempfile
from pathlib import Path

import numpy as np

import lowtide

with tempfile.TemporaryDirectory() as directory:
    rows = np.arange(10_000 * 8, dtype=np.float32).reshape(-1, 8)
    np.save(Path(directory, "rows.npy"), rows)
    opened = lowtide.open(Path(directory, "rows.npy"), engine="native")
    assert (opened[[7, 3, 9_999]] == rows[[7, 3, 9_999]]).all()
    shuffled = np.concatenate([batch.copy() for batch in opened.shuffled(512, seed=0)])
    assert (np.sort(shuffled[:, 0]) == rows[:, 0]).all()
    assert (shuffled != rows).any()
    tokens = np.arange(65_000, dtype=np.uint16)
    tokens.tofile(Path(directory, "tokens.bin"))
    feed = lowtide.open_tokens(Path(directory, "tokens.bin"), dtype="uint16", engine="native").batches(
        8, length=64, seed=1
    )
    x, y = next(feed)
    assert (y == x + 1).all()
    python = lowtide.open_tokens(Path(directory, "tokens.bin"), dtype="uint16", engine="python").batches(
        8, length=64, seed=1
    )
    assert (next(python)[0] == x).all()
print(f"read natively under Python {platform.python_version()} of {platform.machine()}")
