"""What tests of blocks share: an object behind a server, a cache directory, the same bytes in a file."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
import time
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


BUCKET = "corpora"


@dataclass
class S3:
    """A server that speaks S3, with one bucket."""

    endpoint: str
    cache: Path

    @property
    def options(self) -> dict[str, Any]:
        return {"cache_dir": self.cache, "remote": {"endpoint": self.endpoint}}

    def put(self, key: str, data: bytes) -> str:
        import obstore
        from obstore.store import S3Store

        store = S3Store(BUCKET, endpoint=self.endpoint, client_options={"allow_http": True}, region="us-east-1")
        obstore.put(store, key, data)
        return f"s3://{BUCKET}/{key}"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    pytest.importorskip("moto.server", reason="NOT TESTED: S3 - moto is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        import urllib.request

        made = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
        urllib.request.urlopen(made, timeout=60).close()
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


@pytest.fixture
def s3(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3:
    for name, value in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    return S3(endpoint, tmp_path / "cache")


def a_corpus(directory: Path) -> Path:
    """A corpus of ours of three shards, with documents."""
    directory.mkdir()
    shards, draw = [], np.random.default_rng(3)
    for number in range(3):
        tokens = draw.integers(1, 1000, 200_000).astype("<u2")
        ends = np.sort(draw.choice(np.arange(1, 200_000), 99, replace=False))
        ends = np.append(ends, 200_000).astype("<u8")
        tokens[ends.astype(int) - 1] = 0
        (directory / f"shard-{number}.bin").write_bytes(tokens.tobytes())
        (directory / f"shard-{number}.ends").write_bytes(ends.tobytes())
        shards.append(
            {"file": f"shard-{number}.bin", "tokens": 200_000, "documents": 100, "ends": f"shard-{number}.ends"}
        )
    said = {"lowtide": 1, "dtype": "uint16", "vocab": 1000, "eot": 0, "shards": shards}
    (directory / "manifest.json").write_text(json.dumps(said))
    return directory
