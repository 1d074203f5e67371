"""A FIFO in place of a file is refused, not waited for: as data, as a manifest, as whatever lies beside the data."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.commands import called

import lowtide
from lowtide.corpus import convert, verify
from lowtide.corpus.conversion import Stated
from lowtide.corpus.shards import write_manifest
from lowtide.errors import FormatError


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """What hangs ends as a failure of its own test."""
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    np.arange(3000, dtype="<u2").tofile(tmp_path / "shard-00000.bin")
    shard = {"file": "shard-00000.bin", "tokens": 3000}
    write_manifest(tmp_path, {"lowtide": 1, "dtype": "uint16", "vocab": 3000, "shards": [shard]})
    return tmp_path


def fifo(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("name", ["x.bin", "x.npy", "x.npz", "x.safetensors", "x.h5", "x.parquet", "x.ds", "x.txt"])
def test_a_fifo_is_never_data(tmp_path: Path, name: str) -> None:
    path = fifo(tmp_path / name)
    for open_it in (lowtide.open, lowtide.open_tokens):
        with pytest.raises(FormatError, match="expected a regular file, got a FIFO"):
            open_it(path, dtype="uint16")
    with pytest.raises(FormatError, match="expected a regular file, got a FIFO"):
        lowtide.open_tokens(path, column="input_ids", cache_dir=tmp_path / "cache")


COMMANDS: dict[str, Callable[[Path], Any]] = {
    "info": lambda path: called("info", path),
    "plan": lambda path: called("plan", path),
    "peek": lambda path: called("peek", path, "--step", 0, "--batch", 2, "--length", 16),
    "verify": lambda path: called("verify", path),
    "convert": lambda path: called("convert", path, "-o", path.parent / "out", "--to", "nanogpt"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["manifest.json", "shard-00000.bin"])
def test_every_command_refuses_a_fifo_in_a_corpus(corpus: Path, command: str, name: str) -> None:
    fifo(corpus / name)
    done = COMMANDS[command](corpus)
    assert done.returncode == 1
    assert "expected a regular file, got a FIFO" in " ".join((done.stdout + done.stderr).split())


def test_a_fifo_for_a_manifest_stops_whoever_names_a_shard_too(corpus: Path) -> None:
    fifo(corpus / "manifest.json")
    with pytest.raises(FormatError, match="got a FIFO"):
        lowtide.open_tokens(corpus / "shard-00000.bin")
    with lowtide.open_tokens(corpus / "shard-00000.bin", dtype="uint16") as tokens:  # nobody asks the manifest
        assert len(tokens) == 3000
    words = ("--dtype", "uint16", "--step", 0, "--batch", 2, "--length", 16)
    assert called("peek", corpus / "shard-00000.bin", *words).returncode == 0


@pytest.mark.parametrize("name", ["x.idx", "index.json", "meta.pkl"])
def test_a_fifo_beside_a_token_file_is_not_opened(tmp_path: Path, name: str) -> None:
    np.arange(3000, dtype="<u2").tofile(tmp_path / "x.bin")
    fifo(tmp_path / name)
    with lowtide.open_tokens(tmp_path / "x.bin", dtype="uint16") as tokens:
        assert len(tokens) == 3000
    assert verify([tmp_path / "x.bin"], dtype="uint16").faults == ()
    convert(tmp_path / "x.bin", tmp_path / "out", "llmc", Stated(dtype="uint16"))
