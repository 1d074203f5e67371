"""Verification finds every planted fault, says where, and finds none where there is none."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.commands import called
from tests.prepare.conftest import make_documents, write_jsonl

import lowtide
from lowtide.corpus import convert, verify
from lowtide.corpus.shards import write_manifest
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
    (
        "a missing shard",
        lambda c: (c / "shard-00000.bin").unlink(),
        "shard-00000.bin",
        None,
        "got nothing of that name",
    ),
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
    write_manifest(corpus, manifest)
    (fault,) = verify([corpus]).faults
    assert "expected the end-of-text id 0 at the end of a document" in fault.what
    assert fault.offset == 2 * (int(ends[1]) - 1)


def edited(corpus: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """The manifest changed by hand, as it is without its digest being made anew."""
    content = json.loads((corpus / "manifest.json").read_text())
    change(content)
    (corpus / "manifest.json").write_text(json.dumps(content))


def flip(path: Path, bit: int = 4321) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    path.write_bytes(data)


def swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def unsummed(content: dict[str, Any]) -> None:
    for shard in content["shards"]:
        del shard["crc32"], shard["ends_crc32"]


def unsummed_and_flipped(corpus: Path) -> None:
    edited(corpus, unsummed)
    flip(corpus / "shard-00000.bin")


def zeroed(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:4096] + bytes(4096) + data[8192:])


def in_place_of(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "one bit of a shard": lambda c: flip(c / "shard-00000.bin"),
    "one bit of the last byte": lambda c: flip(c / "shard-00001.bin", 8 * (c / "shard-00001.bin").stat().st_size - 1),
    "one bit of the ends": lambda c: flip(c / "shard-00000.ends", 70),
    "one bit of the tokenizer": lambda c: flip(c / "tokenizer.json"),
    "a shard cut by one byte": lambda c: os.truncate(c / "shard-00000.bin", (c / "shard-00000.bin").stat().st_size - 1),
    "a shard cut by one id": lambda c: os.truncate(c / "shard-00000.bin", (c / "shard-00000.bin").stat().st_size - 2),
    "a shard that is longer": lambda c: longer(c / "shard-00000.bin"),
    "an empty shard": lambda c: (c / "shard-00000.bin").write_bytes(b""),
    "ends cut by one": lambda c: os.truncate(c / "shard-00001.ends", (c / "shard-00001.ends").stat().st_size - 8),
    "a page of zeros": lambda c: zeroed(c / "shard-00000.bin"),
    "a shard that is gone": lambda c: (c / "shard-00001.bin").unlink(),
    "ends that are gone": lambda c: (c / "shard-00001.ends").unlink(),
    "a tokenizer that is gone": lambda c: (c / "tokenizer.json").unlink(),
    "two shards swapped on the disk": lambda c: swap(c / "shard-00000.bin", c / "shard-00001.bin"),
    "an extra shard": lambda c: shutil.copy(c / "shard-00000.bin", c / "shard-00099.bin"),
    "extra ends": lambda c: shutil.copy(c / "shard-00000.ends", c / "shard-00099.ends"),
    "a FIFO for a shard": lambda c: in_place_of(c / "shard-00000.bin", os.mkfifo),
    "a FIFO for the ends": lambda c: in_place_of(c / "shard-00000.ends", os.mkfifo),
    "a FIFO for the manifest": lambda c: in_place_of(c / "manifest.json", os.mkfifo),
    "a directory for a shard": lambda c: in_place_of(c / "shard-00000.bin", Path.mkdir),
    "a link to another shard": lambda c: in_place_of(
        c / "shard-00000.bin", lambda p: p.symlink_to(c / "shard-00001.bin")
    ),
    "a manifest that is no JSON": lambda c: (c / "manifest.json").write_text("{"),
    "an empty manifest": lambda c: (c / "manifest.json").write_text(""),
    "other totals of tokens": lambda c: edited(c, lambda m: m.update(tokens=m["tokens"] + 1)),
    "other totals of documents": lambda c: edited(c, lambda m: m.update(documents=m["documents"] - 1)),
    "shards in another order": lambda c: edited(c, lambda m: m["shards"].reverse()),
    "a shard left out": lambda c: edited(c, lambda m: m["shards"].pop()),
    "a shard named twice": lambda c: edited(c, lambda m: m["shards"].append(m["shards"][0])),
    "another number of tokens": lambda c: edited(c, lambda m: m["shards"][0].update(tokens=7)),
    "another dtype": lambda c: edited(c, lambda m: m.update(dtype="int16")),
    "another end of text": lambda c: edited(c, lambda m: m.update(eot=5)),
    "a larger vocabulary": lambda c: edited(c, lambda m: m.update(vocab=60_000)),
    "no end of text": lambda c: edited(c, lambda m: m.pop("eot")),
    "another checksum": lambda c: edited(c, lambda m: m["shards"][1].update(crc32="00000000")),
    "another digest": lambda c: edited(c, lambda m: m.update(digest="0" * 64)),
    "no checksums and one bit": unsummed_and_flipped,
    "another provenance": lambda c: edited(c, lambda m: m["provenance"]["inputs"].update(files=9)),
    "an unfinished run": lambda c: (c / ".lowtide-prepare").mkdir(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_no_damage_goes_unseen(corpus: Path, damage: Callable[[Path], object]) -> None:
    damage(corpus)
    assert verify([corpus]).faults


def test_an_older_manifest_without_a_digest_opens_and_is_said_to_be_less_than_proven(corpus: Path) -> None:
    edited(corpus, lambda content: content.pop("digest"))
    found = verify([corpus])
    assert found.faults == ()
    assert "manifest" not in found.checks
    assert "has no digest" in found.unverifiable[0]
    with lowtide.open_tokens(corpus) as tokens:
        assert len(tokens) == found.tokens


def test_a_corpus_without_checksums_is_said_to_be_unverifiable_and_is_no_fault(corpus: Path) -> None:
    manifest = json.loads((corpus / "manifest.json").read_text())
    unsummed(manifest)
    write_manifest(corpus, manifest)
    done = called("verify", corpus)
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    assert "has no checksums for its shards: damage to ids cannot be detected" in text
    assert "no fault found; not verifiable beyond what was checked" in text
    assert "checksums" not in verify([corpus]).checks


def test_every_part_of_a_directory_is_verified(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    prepare([str(path)], tmp_path / "corpus", Request(val=0.3))
    found = verify([tmp_path / "corpus"])
    assert found.faults == ()
    assert (sorted(found.parts), sum(found.parts.values())) == (["train", "val"], found.tokens)
    assert verify([tmp_path / "corpus"], part="val").tokens == found.parts["val"]
    flip(tmp_path / "corpus" / "val" / "shard-00000.bin")
    assert verify([tmp_path / "corpus"]).faults
    assert verify([tmp_path / "corpus"], part="train").faults == ()
    shown = " ".join(called("verify", tmp_path / "corpus").stdout.split())
    assert f"(train {found.parts['train']:,}, val {found.parts['val']:,})" in shown


def test_every_part_of_another_format_is_verified(tmp_path: Path) -> None:
    np.arange(3000, dtype="<u2").tofile(tmp_path / "train.bin")
    np.arange(99, dtype="<u2").tofile(tmp_path / "val.bin")
    found = verify([tmp_path], dtype="uint16", vocab=3000)
    assert (found.parts, found.faults) == ({"train": 3000, "val": 99}, ())
    np.full(99, 60_000, "<u2").tofile(tmp_path / "val.bin")
    assert verify([tmp_path], dtype="uint16", vocab=3000).faults


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


@pytest.mark.parametrize("damage", ["removed", "emptied", "begins otherwise"])
def test_an_index_of_megatron_that_is_gone_or_no_index_is_a_fault(corpus: Path, tmp_path: Path, damage: str) -> None:
    """Beside a manifest the tokens alone were read, and nothing was found."""
    convert(str(corpus), tmp_path / "megatron", "megatron")
    index = tmp_path / "megatron" / "train_text_document.idx"
    assert verify([tmp_path / "megatron"]).faults == ()
    content = index.read_bytes()
    index.write_bytes(b"" if damage == "emptied" else b"x" + content[1:])
    if damage == "removed":
        index.unlink()
    faults = verify([tmp_path / "megatron"]).faults
    assert [Path(fault.file).name for fault in faults] == [index.name], faults


def test_a_part_that_lost_its_manifest_is_a_fault(tmp_path: Path) -> None:
    """The other part was read, and nothing was said about this one."""
    prepare([str(write_jsonl(tmp_path / "a.jsonl", TEXTS))], tmp_path / "out", Request(val=0.3))
    (tmp_path / "out" / "train" / "manifest.json").unlink()
    (fault,) = verify([tmp_path / "out"]).faults
    assert fault.file == str(tmp_path / "out" / "train" / "manifest.json")
    (tmp_path / "plain" / "train").mkdir(parents=True)  # the control: parts that never had one
    np.arange(99, dtype="u2").tofile(tmp_path / "plain" / "train" / "a.bin")
    assert verify([tmp_path / "plain"], dtype="uint16").faults == ()
    assert verify([tmp_path / "out"], part="val").faults == ()
    assert called("verify", tmp_path / "out").returncode == 1


def test_a_corpus_and_another_file_are_verified_in_one_call(corpus: Path, tmp_path: Path) -> None:
    """Neither was read: the corpus was said to be an array of the wrong shape."""
    np.save(tmp_path / "x.npy", np.zeros((100, 3)))
    both = verify([corpus, tmp_path / "x.npy"])
    assert (both.faults, both.tokens) == ((), verify([corpus]).tokens)
    assert both.bytes == verify([corpus]).bytes + 2400
    flip(corpus / "shard-00000.bin")
    assert verify([corpus, tmp_path / "x.npy"]).faults


def test_a_manifest_of_another_program_hides_neither_tokens_nor_their_faults(tmp_path: Path) -> None:
    """Nothing was read, and no fault was found."""
    np.arange(99, dtype="u2").tofile(tmp_path / "a.bin")
    (tmp_path / "manifest.json").write_text('{"name": "an extension"}')
    assert verify([tmp_path], dtype="uint16").files == 1
    assert verify([tmp_path], dtype="uint32").faults


def test_a_part_whose_manifest_was_replaced_is_a_fault(tmp_path: Path) -> None:
    prepare([str(write_jsonl(tmp_path / "a.jsonl", TEXTS))], tmp_path / "out", Request(val=0.3))
    (tmp_path / "out" / "train" / "manifest.json").write_text("[]")
    (fault,) = verify([tmp_path / "out"]).faults
    assert fault.file == str(tmp_path / "out" / "train" / "manifest.json")
