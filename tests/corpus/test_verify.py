"""Verification finds every planted fault, says where, and finds none where there is none."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.commands import called
from tests.prepare.conftest import make_documents, write_jsonl

from lowtide.corpus import convert, verify
from lowtide.prepare import Request, prepare

TEXTS = make_documents(60, longest=60)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    place = tmp_path_factory.mktemp("prepared")
    path = write_jsonl(place / "a.jsonl", TEXTS)
    prepare([str(path)], place / "out", Request(shard_tokens=6000, tokenizer=str(tokenizer)))
    return place / "out"


@pytest.fixture
def corpus(tmp_path: Path, prepared: Path) -> Path:
    """A copy to spoil."""
    return shutil.copytree(prepared, tmp_path / "out")


def change(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"  ")


def test_a_sound_corpus_has_no_fault(corpus: Path) -> None:
    found = verify([corpus])
    assert (found.faults, found.documents) == ((), len(TEXTS))
    assert found.bytes == sum(path.stat().st_size for path in corpus.glob("shard-*"))


FAULTS: list[tuple[str, Callable[[Path], object], str, int | None, str]] = [
    (
        "a flipped byte",
        lambda c: change(c / "shard-00001.bin", 1001, b"\x01"),
        "shard-00001.bin",
        0,
        "checksum differs",
    ),
    (
        "an id beyond the vocabulary",
        lambda c: change(c / "shard-00000.bin", 2000, struct.pack("<H", 60_000)),
        "shard-00000.bin",
        2000,
        "expected ids from 0 to 261, got 60000",
    ),
    (
        "a cut tail",
        lambda c: os.truncate(c / "shard-00001.bin", 4001),
        "shard-00001.bin",
        4001,
        "cut short: expected",
    ),
    ("a longer file", lambda c: longer(c / "shard-00000.bin"), "shard-00000.bin", None, "too long"),
    ("a missing shard", lambda c: (c / "shard-00000.bin").unlink(), "shard-00000.bin", None, "No such file"),
    (
        "documents out of order",
        lambda c: change(c / "shard-00000.ends", 8, bytes(8)),
        "shard-00000.ends",
        8,
        "documents out of order",
    ),
    (
        "ends cut short",
        lambda c: os.truncate(c / "shard-00000.ends", 9),
        "shard-00000.ends",
        9,
        "expected",
    ),
    (
        "another tokenizer",
        lambda c: longer(c / "tokenizer.json"),
        "tokenizer.json",
        None,
        "sha256 differs",
    ),
    ("no tokenizer", lambda c: (c / "tokenizer.json").unlink(), "tokenizer.json", None, "got no file"),
    ("a broken manifest", lambda c: (c / "manifest.json").write_text("{"), "manifest.json", None, "expected JSON"),
    ("an unfinished run", lambda c: (c / ".lowtide-prepare").mkdir(), "out", None, "unfinished"),
]


@pytest.mark.parametrize(("plant", "file", "offset", "told"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_every_planted_fault_is_found_with_its_file_and_byte(
    corpus: Path, plant: Callable[[Path], object], file: str, offset: int | None, told: str
) -> None:
    plant(corpus)
    found = [fault for fault in verify([corpus]).faults if told in fault.what]
    assert found, verify([corpus]).faults
    assert Path(found[0].file).name == file
    assert offset is None or found[0].offset == offset


def test_a_document_that_does_not_end_with_the_end_of_text_is_a_fault(corpus: Path) -> None:
    manifest = json.loads((corpus / "manifest.json").read_text())
    ends = np.fromfile(corpus / "shard-00000.ends", "<u8")
    ends[1] += 1
    ends.tofile(corpus / "shard-00000.ends")
    del manifest["shards"][0]["ends_crc32"]
    (corpus / "manifest.json").write_text(json.dumps(manifest))
    (fault,) = verify([corpus]).faults
    assert "expected the end-of-text id 0 at the end of a document" in fault.what
    assert fault.offset == 2 * (int(ends[1]) - 1)


def test_the_command_names_faults_and_ends_with_1(corpus: Path) -> None:
    assert called("verify", corpus).returncode == 0
    change(corpus / "shard-00001.bin", 1001, b"\x01")
    done = called("verify", corpus, "--json")
    content = json.loads(done.stdout)
    assert (done.returncode, content["ok"]) == (1, False)
    assert content["faults"][0]["offset"] == 0
    shown = called("verify", corpus)
    assert "shard-00001.bin, byte 0: checksum differs" in " ".join(shown.stdout.split())


@pytest.mark.parametrize("to", ["nanogpt", "llmc", "megatron"])
def test_other_formats_are_verified_by_their_own_headers(corpus: Path, tmp_path: Path, to: str) -> None:
    convert(corpus, tmp_path / to, to)
    (data,) = (tmp_path / to).glob("*.bin")
    dtype = "uint16" if to == "nanogpt" else None
    assert verify([data], dtype=dtype, vocab=262).faults == ()
    with data.open("r+b") as file:
        file.truncate(data.stat().st_size - 1)
    assert verify([data], dtype=dtype).faults


def test_a_wrong_dtype_and_wrong_ids_of_other_formats_are_faults(corpus: Path, tmp_path: Path) -> None:
    (np.arange(20_000, dtype="<u4") % 50_000).tofile(tmp_path / "a.bin")
    assert "looks like uint32" in verify([tmp_path / "a.bin"], dtype="uint16").faults[0].what
    (fault,) = verify([tmp_path / "a.bin"], dtype="uint32", vocab=19_999).faults
    assert (fault.offset, "got 19999" in fault.what) == (4 * 19_999, True)


def test_an_array_is_read_to_its_end(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((100, 3)))
    assert verify([tmp_path / "a.npy"]).faults == ()
    with (tmp_path / "a.npy").open("r+b") as file:
        file.truncate(500)
    assert verify([tmp_path / "a.npy"]).faults
