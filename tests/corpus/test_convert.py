"""Conversion: byte-exact files of other projects, and back to the same tokens."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from tests.commands import called
from tests.prepare.conftest import as_bytes, documents_of, make_documents, snapshot, write_jsonl

import lowtide
from lowtide.corpus import conversion, convert, verify
from lowtide.corpus.conversion import Stated
from lowtide.errors import FormatError
from lowtide.prepare import Request, prepare
from lowtide.prepare.tokenizers.spelling import words_of

TEXTS = make_documents(40, longest=60)
FLAT = [number for ids in as_bytes(TEXTS) for number in ids]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("corpus")
    prepare([str(write_jsonl(directory / "a.jsonl", TEXTS))], directory / "out", Request(shard_tokens=3000))
    return directory / "out"


def llmc_shards(ids: list[int], size: int) -> dict[str, bytes]:
    """What llm.c's write_datafile writes: int32[256] with magic, version and count, then uint16 ids."""
    shards = [ids[at : at + size] for at in range(0, len(ids), size)]
    head = [struct.pack("<256i", 20240520, 1, len(shard), *[0] * 253) for shard in shards]
    return {
        f"tokens_train_{number:06d}.bin": top + np.array(shard, "<u2").tobytes()
        for number, (top, shard) in enumerate(zip(head, shards, strict=True))
    }


def megatron_pair(documents: list[list[int]]) -> dict[str, bytes]:
    """What Megatron's IndexedDatasetBuilder writes for one sequence per document."""
    lengths = [len(ids) for ids in documents]
    pointers = np.concatenate([[0], np.cumsum(lengths)[:-1]]) * 2
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1)
    tables = np.array(lengths, "<i4").tobytes() + pointers.astype("<i8").tobytes()
    borders = np.arange(len(lengths) + 1, dtype="<i8").tobytes()
    data = np.array([number for ids in documents for number in ids], "<u2").tobytes()
    return {"train_text_document.bin": data, "train_text_document.idx": head + tables + borders}


def files(directory: Path) -> dict[str, bytes]:
    """What a conversion wrote for other programs: all but the manifest that says whose ids they are."""
    return {name: data for name, data in snapshot(directory).items() if name != "manifest.json"}


def test_nanogpt_is_the_ids_and_nothing_else(tmp_path: Path, corpus: Path) -> None:
    convert(corpus, tmp_path / "out", "nanogpt")
    assert files(tmp_path / "out") == {"train.bin": np.array(FLAT, "<u2").tobytes()}


def test_llmc_shards_are_exact_and_documents_begin_with_the_boundary(tmp_path: Path, corpus: Path) -> None:
    found = convert(corpus, tmp_path / "out", "llmc", shard_tokens=2500)
    assert files(tmp_path / "out") == llmc_shards([256, *FLAT[:-1]], 2500)
    assert found.moved


def test_megatron_s_pair_is_byte_exact(tmp_path: Path, corpus: Path) -> None:
    convert(corpus, tmp_path / "out", "megatron")
    assert files(tmp_path / "out") == megatron_pair(as_bytes(TEXTS))


def test_wide_ids_become_llmc_s_other_magic_and_megatron_s_int32(tmp_path: Path) -> None:
    ids = np.array([5, 70_000, 9, 1, 2, 9], "<u4")
    ids.tofile(tmp_path / "a.bin")
    stated = Stated(dtype="uint32", eot=9)
    convert(tmp_path / "a.bin", tmp_path / "llmc", "llmc", stated)
    head = struct.pack("<256i", 20240801, 7, 6, *[0] * 253)
    expected = np.array([9, 5, 70_000, 9, 1, 2], "<u4").tobytes()
    assert files(tmp_path / "llmc") == {"tokens_train_000000.bin": head + expected}
    convert(tmp_path / "a.bin", tmp_path / "megatron", "megatron", stated)
    with lowtide.open_tokens(tmp_path / "megatron" / "train_text_document.bin") as tokens:
        assert (tokens.dtype, tokens[:].tolist()) == (np.dtype("<i4"), ids.tolist())


def test_ids_that_do_not_fit_a_format_are_refused(tmp_path: Path) -> None:
    np.array([5, 70_000, 9], "<u4").tofile(tmp_path / "a.bin")
    with pytest.raises(FormatError, match="expected ids from 0 to 65535 for this format, got 70000"):
        convert(tmp_path / "a.bin", tmp_path / "out", "nanogpt", Stated(dtype="uint32"))
    with pytest.raises(FormatError, match="expected at most 65536 ids for nanogpt, got a vocabulary of 90000"):
        convert(tmp_path / "a.bin", tmp_path / "other", "nanogpt", Stated(dtype="uint32", vocab=90_000))


@pytest.mark.parametrize("through", ["llmc", "megatron", "nanogpt"])
def test_what_was_converted_needs_nothing_stated_and_keeps_its_tokenizer(
    tmp_path: Path, tokenizer: Path, through: str
) -> None:
    """The manifest beside other projects' files says dtype, vocabulary, boundary and tokenizer, of every part."""
    path = write_jsonl(tmp_path / "a.jsonl", make_documents(200, longest=10))
    prepare([str(path)], tmp_path / "corpus", Request(tokenizer=str(tokenizer), val=0.3))
    convert(tmp_path / "corpus", tmp_path / "there", through)
    convert(tmp_path / "there", tmp_path / "back", "lowtide")
    for part in ("train", "val"):
        with (
            lowtide.open_tokens(tmp_path / "corpus", part=part) as before,
            lowtide.open_tokens(tmp_path / "there", part=part) as there,
            lowtide.open_tokens(tmp_path / "back", part=part) as after,
        ):
            assert (len(there), there.vocab) == (len(before), before.vocab)
            assert (there.bos if through == "llmc" else there.eot) == before.eot
            assert after[:].tolist() == before[:].tolist()
    ids = words_of(str(tmp_path / "corpus"), 0).ids("so it goes")
    for place in ("there", "back"):
        assert words_of(str(tmp_path / place), 0).ids("so it goes") == ids
        assert verify([tmp_path / place]).faults == ()
    assert sum(verify([tmp_path / "there"]).parts.values()) in (0, verify([tmp_path / "corpus"]).tokens)


@pytest.mark.parametrize("through", ["llmc", "megatron", "nanogpt"])
def test_there_and_back_gives_the_same_documents(tmp_path: Path, corpus: Path, through: str) -> None:
    convert(corpus, tmp_path / "there", through)
    stated = {"llmc": Stated(bos=256), "megatron": Stated(eot=256), "nanogpt": Stated("uint16", eot=256)}[through]
    source = tmp_path / "there" / ("train_text_document.bin" if through == "megatron" else "")
    convert(source, tmp_path / "back", "lowtide", stated, shard_tokens=3000)
    assert documents_of(tmp_path / "back") == as_bytes(TEXTS)
    shards = [name for name in snapshot(corpus) if name.startswith("shard")]
    assert {name: snapshot(corpus)[name] for name in shards} == {
        name: snapshot(tmp_path / "back")[name] for name in shards
    }


def test_megatron_s_own_boundaries_are_kept_without_an_id(tmp_path: Path, corpus: Path) -> None:
    convert(corpus, tmp_path / "there", "megatron")
    convert(tmp_path / "there" / "train_text_document.bin", tmp_path / "back", "lowtide")
    assert documents_of(tmp_path / "back") == as_bytes(TEXTS)


def test_without_a_boundary_ids_are_copied_and_shards_are_exact(tmp_path: Path) -> None:
    np.arange(1000, dtype="<u2").tofile(tmp_path / "train.bin")
    found = convert(tmp_path / "train.bin", tmp_path / "out", "lowtide", Stated("uint16"), shard_tokens=300)
    assert "no boundary id is known" in found.notes[0]
    with lowtide.open_tokens(tmp_path / "out") as tokens:
        assert tokens.layout.rows == (300, 300, 300, 100)
        assert tokens[:].tolist() == list(range(1000))
        assert tokens.documents() is None
    with pytest.raises(FormatError, match="expected documents for megatron"):
        convert(tmp_path / "train.bin", tmp_path / "other", "megatron", Stated("uint16"))


def test_a_boundary_that_is_not_at_the_end_is_refused(tmp_path: Path) -> None:
    np.array([1, 2, 3], "<u2").tofile(tmp_path / "train.bin")
    with pytest.raises(FormatError, match="expected 9, a document boundary, as its last id, got 3"):
        convert(tmp_path / "train.bin", tmp_path / "out", "llmc", Stated("uint16", eot=9))


class StoppedError(Exception):
    """Stands for the power failing."""


@pytest.mark.parametrize("to", ["lowtide", "nanogpt", "llmc", "megatron"])
@pytest.mark.parametrize("after", [1, 4, 12])
def test_a_stopped_conversion_goes_on_and_gives_the_same_bytes(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, to: str, after: int
) -> None:
    monkeypatch.setattr(conversion, "IDS_AT_ONCE", 700)
    monkeypatch.setattr(conversion, "OFTEN", 2000)
    convert(corpus, tmp_path / "whole", to, shard_tokens=2000)
    steps = 0

    def stop(done: int, total: int) -> None:
        nonlocal steps
        steps += 1
        if steps == after:
            raise StoppedError

    with pytest.raises(StoppedError):
        convert(corpus, tmp_path / "out", to, shard_tokens=2000, progress=stop)
    convert(corpus, tmp_path / "out", to, shard_tokens=2000)
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "whole")


def test_train_and_val_are_converted_together_with_their_tokenizer(tmp_path: Path, tokenizer: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", make_documents(200, longest=10))
    prepare([str(path)], tmp_path / "corpus", Request(tokenizer=str(tokenizer), val=0.3))
    done = called("convert", tmp_path / "corpus", "-o", tmp_path / "out", "--to", "nanogpt")
    assert done.returncode == 0, done.stderr
    assert sorted(snapshot(tmp_path / "out")) == ["manifest.json", "tokenizer.json", "train.bin", "val.bin"]


@pytest.mark.parametrize("format", ["nanogpt", "llmc", "megatron"])
def test_prepare_writes_the_other_formats_itself(tmp_path: Path, corpus: Path, format: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    prepare([str(path)], tmp_path / "out", Request(format=format, shard_tokens=2500))
    convert(corpus, tmp_path / "converted", format, shard_tokens=2500)
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "converted")


def test_a_corpus_whose_last_document_is_unfinished_converts_into_one_without_a_fault(tmp_path: Path) -> None:
    ids = np.arange(5_000, dtype=np.uint16) % 97 + 1
    ids[99::100] = 0  # the last document of these has 7 tokens and no end
    ids[:4_907].tofile(tmp_path / "train.bin")
    convert(tmp_path / "train.bin", tmp_path / "out", "lowtide", Stated("uint16", eot=0), shard_tokens=2_000)
    assert verify([tmp_path / "out"]).faults == ()
    assert len(list((tmp_path / "out").glob("*.bin"))) > 1


@pytest.mark.parametrize("to", ["megatron", "lowtide"])
def test_an_end_of_text_that_occurs_nowhere_is_refused_and_the_right_one_goes_on(tmp_path: Path, to: str) -> None:
    """All tokens became one document, without a word."""
    np.arange(5000, dtype="u2").tofile(tmp_path / "train.bin")
    words = ["convert", tmp_path / "train.bin", "-o", tmp_path / "out", "--to", to, "--dtype", "uint16"]
    done = called(*words, "--eot", 50256)
    assert done.returncode == 1
    assert "expected the id 50256 at the end of documents, got none among 5000 tokens. State the id" in done.stderr
    assert not list((tmp_path / "out").glob("[a-z]*"))
    assert called(*words, "--eot", 100).returncode == 0
