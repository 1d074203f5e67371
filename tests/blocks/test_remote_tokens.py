"""Tokens and corpora behind addresses: S3 as moto serves it, and web servers."""

from __future__ import annotations

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
from tests.blocks.conftest import Behind

import lowtide
from lowtide.cli import main

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


def batches(tokens: lowtide.Tokens) -> list[Any]:
    feed = tokens.batches(16, length=128, seed=1337)
    return [np.array(next(feed)) for _ in range(20)]


def test_an_object_of_s3_is_an_array(s3: S3, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((5_000, 64))
    np.save(tmp_path / "x.npy", rows)
    address = s3.put("arrays/x.npy", (tmp_path / "x.npy").read_bytes())
    remote = lowtide.open(address, **s3.options)
    np.testing.assert_array_equal(np.concatenate(list(remote.chunks(700))), rows)
    np.testing.assert_array_equal(remote[[4_999, 3, 2_500]], rows[[4_999, 3, 2_500]])


def test_a_glob_of_s3_is_its_objects_in_counting_order(s3: S3) -> None:
    for number in (10, 2, 1):
        s3.put(f"parts/rows_{number}.f32", np.full((100, 4), number, "f4").tobytes())
    s3.put("parts/deeper/rows_3.f32", bytes(16))
    remote = lowtide.open(f"s3://{BUCKET}/parts/rows_*.f32", dtype="float32", shape=(-1, 4), **s3.options)
    assert remote[:, 0].tolist() == [1.0] * 100 + [2.0] * 100 + [10.0] * 100
    with pytest.raises(FileNotFoundError, match="expected objects that match this pattern"):
        lowtide.open(f"s3://{BUCKET}/parts/none_*.f32", dtype="float32", **s3.options)


def test_a_corpus_in_s3_feeds_what_the_same_corpus_feeds_here(s3: S3, tmp_path: Path) -> None:
    here = a_corpus(tmp_path / "corpus")
    for file in here.iterdir():
        s3.put(f"ours/{file.name}", file.read_bytes())
    remote, local = lowtide.open_tokens(f"s3://{BUCKET}/ours/", **s3.options), lowtide.open_tokens(here)
    assert (len(remote), remote.eot, remote.vocab) == (600_000, 0, 1000)
    for ours, theirs in zip(batches(remote), batches(local), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    one, two = remote.batches(8, length=64), local.batches(8, length=64)
    assert one.state_dict() == two.state_dict()
    packed = [tokens.windows(256, cut="packed").batches(4, seed=2) for tokens in (remote, local)]
    for _ in range(5):
        for ours, theirs in zip(next(packed[0]), next(packed[1]), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_a_directory_of_shards_and_its_parts_are_found_by_a_listing(s3: S3) -> None:
    for name, first in (("train_0", 0), ("train_1", 1000), ("val_0", 5000)):
        s3.put(f"shards/{name}.bin", np.arange(first, first + 1000, dtype="<u2").tobytes())
    train = lowtide.open_tokens(f"s3://{BUCKET}/shards", dtype="uint16", **s3.options)
    assert len(train) == 2000 and train.layout.part == "train"
    val = lowtide.open_tokens(f"s3://{BUCKET}/shards/", dtype="uint16", part="val", **s3.options)
    assert val[:3].tolist() == [5000, 5001, 5002]


def test_wrong_credentials_and_missing_buckets_are_told(s3: S3) -> None:
    with pytest.raises(FileNotFoundError, match=r"s3://nothing-here/x\.npy: expected an object"):
        lowtide.open("s3://nothing-here/x.npy", **s3.options)


def test_tokens_of_a_web_server_cost_three_requests_to_open(behind: Behind) -> None:
    tokens = np.arange(500_000, dtype="<u2")
    behind.server.objects["t/train.bin"] = tokens.tobytes()
    remote = lowtide.open_tokens(behind.server.url("t/train.bin"), dtype="uint16", cache_dir=behind.cache)
    assert behind.server.seen.requests <= 3
    np.testing.assert_array_equal(remote[250_000:250_100], tokens[250_000:250_100])


def test_a_corpus_of_a_web_server_is_found_by_its_manifest(behind: Behind, tmp_path: Path) -> None:
    here = a_corpus(tmp_path / "corpus")
    behind.server.objects.update({f"c/{file.name}": file.read_bytes() for file in here.iterdir()})
    remote = lowtide.open_tokens(behind.server.url("c/"), cache_dir=behind.cache)
    for ours, theirs in zip(batches(remote), batches(lowtide.open_tokens(here)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_commands_take_addresses(
    behind: Behind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    here = a_corpus(tmp_path / "corpus")
    behind.server.objects.update({f"c/{file.name}": file.read_bytes() for file in here.iterdir()})
    address = behind.server.url("c/")
    assert main(["info", address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shape"] == [600_000]
    assert main(["plan", address, "--batch", "8", "--length", "64", "--json"]) == 0
    assert "blocks of 256 KiB" in capsys.readouterr().out
    assert main(["plan", behind.address, "--json"]) == 0
    assert list((tmp_path / "xdg" / "lowtide" / "blocks").iterdir())
