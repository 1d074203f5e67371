"""What tests of blocks share: an object behind a server, a cache directory, the same bytes in a file."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.blocks.server import FaultyServer

import lowtide
from lowtide.blocks.asking import MAKER


@dataclass
class Behind:
    """An array behind a server, and the same bytes here."""

    server: FaultyServer
    rows: Any
    local: Path
    cache: Path

    @property
    def address(self) -> str:
        return self.server.url("data/x.npy")

    def open(self, **options: Any) -> lowtide.Array:
        return lowtide.open(self.address, **{"cache_dir": self.cache, **options})


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Behind]:
    rows = np.random.default_rng(7).integers(0, 2**31, (40_000, 32), dtype=np.int32)  # 20 blocks
    buffer = io.BytesIO()
    np.save(buffer, rows)
    (tmp_path / "x.npy").write_bytes(buffer.getvalue())
    with FaultyServer({"data/x.npy": buffer.getvalue()}) as server:
        yield Behind(server, rows, tmp_path / "x.npy", tmp_path / "cache")


@pytest.fixture(autouse=True)
def no_maker_left() -> Iterator[None]:
    yield
    MAKER.close()
