"""Every kind of input gives the same documents in input order, and the ids of the reference tokenizer."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from tests.commands import called
from tests.prepare.conftest import as_bytes, documents_of, make_documents, run_cli, snapshot, write_jsonl

import lowtide
from lowtide.errors import FormatError
from lowtide.prepare import Request, Resources, decoder_of, prepare
from lowtide.prepare.tokenizers import bpe

Encoded = Callable[[Sequence[str]], list[list[int]]]
TEXTS = make_documents(60)


def written(directory: Path, kind: str) -> tuple[list[str], Request]:
    """The documents in one kind of file, and the request that reads them."""
    directory.mkdir()
    if kind == "files":
        for number, text in enumerate(TEXTS):
            (directory / f"{number}.txt").write_text(text, encoding="utf-8")
        return [str(directory)], Request()
    if kind.startswith("lines"):
        data = "\n".join(TEXTS).encode() + b"\n"
        path = directory / f"a.txt{kind.removeprefix('lines')}"
        path.write_bytes(packed(data, path.suffix))
        return [str(path)], Request(lines=True)
    if kind == "separator":
        (directory / "a.txt").write_text("\n--\n".join(TEXTS), encoding="utf-8")
        return [str(directory / "a.txt")], Request(separator="\n--\n")
    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="NOT TESTED: Parquet - pyarrow is not installed")
        import pyarrow.parquet

        table = pyarrow.table({"text": TEXTS, "other": list(range(len(TEXTS)))})
        pyarrow.parquet.write_table(table, directory / "a.parquet", row_group_size=7)
        return [str(directory / "*.parquet")], Request()
    path = write_jsonl(directory / f"a{kind}", TEXTS) if not kind.endswith(".zst") else directory / f"a{kind}"
    if kind.endswith(".zst"):
        path.write_bytes(packed(write_jsonl(directory / "plain", TEXTS).read_bytes(), ".zst"))
        (directory / "plain").unlink()
    return [str(path)], Request()


def test_the_name_of_a_column_may_have_dots(tmp_path: Path) -> None:
    """Parquet parts the names of nested values with them."""
    pytest.importorskip("pyarrow", reason="NOT TESTED: Parquet - pyarrow is not installed")
    import pyarrow.parquet

    from lowtide.prepare.inputs.parquet_text import column_texts, row_groups

    table = pyarrow.table({"a": [{"b": number} for number in range(len(TEXTS))], "a.b": TEXTS})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    path = str(tmp_path / "a.parquet")
    found = [text for texts in column_texts(path, "a.b", range(9), 1000) for text in texts]
    assert found == [text.encode() for text in TEXTS]
    assert len(list(row_groups(path, "a.b", 1000))) > 1  # parts of about so many bytes


def test_without_isal_gzip_is_unpacked_by_zlib(tmp_path: Path) -> None:
    data = "\n".join(TEXTS).encode()
    (tmp_path / "a.gz").write_bytes(packed(data, ".gz"))
    code = """
import sys
sys.modules["isal"] = None
from lowtide.prepare.inputs.decompress import decompressed
sys.stdout.buffer.write(b"".join(text for text, _ in decompressed(sys.argv[1], "gzip")))
"""
    told = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.gz")], capture_output=True, check=True)
    assert told.stdout == data


def packed(data: bytes, ending: str) -> bytes:
    if ending == ".gz":
        return gzip.compress(data[:100]) + gzip.compress(data[100:])  # two members, as cat makes them
    if ending == ".zst":
        zstandard = pytest.importorskip("zstandard", reason="NOT TESTED: .zst - zstandard is not installed")
        return bytes(zstandard.compress(data))
    return data


KINDS = ["files", "lines", "lines.gz", "lines.zst", "separator", ".jsonl", ".jsonl.gz", ".jsonl.zst", "parquet"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_input_gives_the_same_documents_in_order(tmp_path: Path, kind: str) -> None:
    named, request = written(tmp_path / "in", kind)
    found = prepare(named, tmp_path / "out", request)
    assert found.documents == len(TEXTS)
    assert documents_of(tmp_path / "out") == as_bytes(TEXTS)


def test_ids_are_those_of_tokenizers_and_special_spellings_are_text(
    tmp_path: Path, tokenizer: Path, encoded: Encoded
) -> None:
    named, _ = written(tmp_path / "in", ".jsonl")
    found = prepare(named, tmp_path / "out", Request(tokenizer=str(tokenizer)), Resources(workers=2))
    assert found.encoder.startswith("gigatoken")
    assert documents_of(tmp_path / "out") == encoded(TEXTS)
    decoder = decoder_of(tmp_path / "out")
    assert decoder is not None
    assert decoder.text(encoded(TEXTS)[3][:-1]) == TEXTS[3]
    assert decoder.ids(TEXTS[3]) == encoded(TEXTS)[3][:-1]


def test_tokenizers_gives_the_same_shards_as_gigatoken(tmp_path: Path, tokenizer: Path) -> None:
    named, _ = written(tmp_path / "in", ".jsonl")
    request = Request(tokenizer=str(tokenizer))
    prepare(named, tmp_path / "fast", request, Resources(workers=1))
    slow = prepare(named, tmp_path / "slow", request, Resources(workers=1, tokenizer_engine="tokenizers"))
    assert slow.encoder.startswith("tokenizers")
    one, two = snapshot(tmp_path / "fast"), snapshot(tmp_path / "slow")
    assert {name: data for name, data in one.items() if name != "manifest.json"} == {
        name: data for name, data in two.items() if name != "manifest.json"
    }


def test_order_is_that_of_the_command_line_and_of_counting_in_a_directory(tmp_path: Path) -> None:
    for name in ("b.txt", "d/2.txt", "d/10.txt", "d/.hidden.txt", "d/skipped.bin", "a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    prepare([str(tmp_path / "b.txt"), str(tmp_path / "d"), str(tmp_path / "a.txt")], tmp_path / "out")
    assert documents_of(tmp_path / "out") == as_bytes(["b.txt", "d/2.txt", "d/10.txt", "a.txt"])


def test_standard_input_is_read_when_it_is_named(tmp_path: Path) -> None:
    done = run_cli("prepare", "-", "-o", tmp_path / "out", "--lines", "--json", input="one\ntwo\n")
    assert done.returncode == 0, done.stderr
    assert documents_of(tmp_path / "out") == as_bytes(["one", "two"])


def test_standard_input_that_begins_like_json_is_lines_of_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "one"}\n{"text": "two"}\n')))
    prepare(["-"], tmp_path / "out")
    assert documents_of(tmp_path / "out") == as_bytes(["one", "two"])


@pytest.mark.parametrize("refused", [b"", b'{"text": "one"}\n{"text": 5}\n'])
def test_standard_input_that_was_refused_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bytes
) -> None:
    """The copy of what had failed was read again and again, whatever was piped in."""
    for piped in (refused, b'{"text": "one"}\n{"text": "two"}\n'):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped)))
        if piped == refused:
            with pytest.raises(FormatError, match=r"^standard input[:,]"):  # its copy is gone
                prepare(["-"], tmp_path / "out")
    prepare(["-"], tmp_path / "out")
    assert documents_of(tmp_path / "out") == as_bytes(["one", "two"])


def test_train_and_val_share_no_document_and_lose_none(tmp_path: Path) -> None:
    texts = make_documents(400, longest=20)
    prepare([str(write_jsonl(tmp_path / "a.jsonl", texts))], tmp_path / "out", Request(val=0.2))
    train, val = documents_of(tmp_path / "out" / "train"), documents_of(tmp_path / "out" / "val")
    assert sorted(train + val) == sorted(as_bytes(texts))
    assert 40 <= len(val) <= 120
    order = {tuple(ids): place for place, ids in enumerate(as_bytes(texts))}
    for part in (train, val):
        places = [order[tuple(ids)] for ids in part]
        assert places == sorted(places), "each part keeps the input's order"


def test_train_val_and_test_share_no_document_and_lose_none(tmp_path: Path) -> None:
    texts = make_documents(400, longest=20)
    prepare([str(write_jsonl(tmp_path / "a.jsonl", texts))], tmp_path / "out", Request(val=0.2, test=0.1))
    parts = {part: documents_of(tmp_path / "out" / part) for part in ("train", "val", "test")}
    assert sorted(chain.from_iterable(parts.values())) == sorted(as_bytes(texts))
    assert len(parts["train"]) > len(parts["val"]) > len(parts["test"]) > 10
    prepare([str(tmp_path / "a.jsonl")], tmp_path / "two", Request(val=0.2))
    assert documents_of(tmp_path / "two" / "val") == parts["val"], "val does not depend on test"


@pytest.mark.parametrize("size", [1000, 6_000_000])
def test_one_document_is_cut_at_a_token_and_said(tmp_path: Path, size: int) -> None:
    text = "the tide goes out and comes back in\n" * (size // 36)
    (tmp_path / "input.txt").write_text(text)
    found = prepare([str(tmp_path / "input.txt")], tmp_path / "out", Request(val=0.1, test=0.05))
    (train,), (val,), (test,) = (documents_of(tmp_path / "out" / part) for part in ("train", "val", "test"))
    assert bytes(train[:-1]) + bytes(val[:-1]) + bytes(test[:-1]) == text.encode()
    assert abs(len(val) - 0.1 * len(text)) < 3
    assert found.notes[0].startswith("one document: train, val, test are cut from it at token borders")


def test_duplicates_are_left_out_wherever_they_stand(tmp_path: Path) -> None:
    texts = make_documents(50, longest=20)
    doubled = [*texts, texts[3], *texts[:10], "new", "new"]
    found = prepare([str(write_jsonl(tmp_path / "a.jsonl", doubled))], tmp_path / "out", Request(dedup=True))
    assert documents_of(tmp_path / "out") == as_bytes([*texts, "new"])
    assert (found.tally["duplicates"], found.documents) == (12, 51)


def test_a_trained_bpe_is_kept_with_the_corpus_and_decodes_it(tmp_path: Path) -> None:
    texts = make_documents(80)
    prepare([str(write_jsonl(tmp_path / "a.jsonl", texts))], tmp_path / "out", Request(train_bpe=400))
    with lowtide.open_tokens(tmp_path / "out") as tokens:
        assert tokens.vocab is not None
        assert 257 < tokens.vocab <= 400
    decoder = decoder_of(tmp_path / "out")
    assert decoder is not None
    assert [decoder.text(ids[:-1]) for ids in documents_of(tmp_path / "out")] == texts


@pytest.mark.parametrize("trainer", ["gigatoken", "tokenizers"])
def test_a_text_that_supports_fewer_ids_gives_as_many_and_no_merge_twice(
    tmp_path: Path, trainer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trainer == "tokenizers":
        monkeypatch.setattr(bpe, "find_spec", lambda _: None)
    path = write_jsonl(tmp_path / "a.jsonl", make_documents(80))
    found = {asked: prepare([str(path)], tmp_path / f"{asked}", Request(train_bpe=asked)) for asked in (8192, 20000)}
    merges = json.loads((tmp_path / "20000" / "tokenizer.json").read_text())["model"]["merges"]
    assert len(merges) == len({tuple(merge) for merge in merges})
    assert found[8192].tokens == found[20000].tokens, "more ids do not make more tokens"
    assert f"the text supports {found[20000].vocab} ids of the 20000 asked for" in found[20000].notes


def test_a_tokenizer_file_with_a_merge_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text(bpe.tokenizer_json([["t", "h"], ["th", "e"], ["t", "h"]]))
    path = write_jsonl(tmp_path / "a.jsonl", ["the"])
    with pytest.raises(FormatError, match=r"expected each merge once, got 't h' as merge 0 and again as merge 2"):
        prepare([str(path)], tmp_path / "out", Request(tokenizer=str(file)))


def test_shards_end_with_the_document_that_fills_them(tmp_path: Path) -> None:
    texts = ["abc", "de", "f" * 30, "g", "h"]
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    prepare([str(path)], tmp_path / "out", Request(shard_tokens=6))
    sizes = [np.fromfile(shard, "<u2").size for shard in sorted((tmp_path / "out").glob("*.bin"))]
    assert sizes == [4 + 3, 31, 2 + 2]
    assert documents_of(tmp_path / "out") == as_bytes(texts)


def test_nanogpt_s_own_loop_reads_a_shard(tmp_path: Path) -> None:
    prepare([str(write_jsonl(tmp_path / "a.jsonl", TEXTS))], tmp_path / "out")
    data = np.memmap(tmp_path / "out" / "shard-00000.bin", dtype=np.uint16, mode="r")
    block = 64
    starts = np.random.default_rng(0).integers(0, len(data) - block, 8)
    x = np.stack([data[i : i + block].astype(np.int64) for i in starts])
    whole = np.array([number for ids in as_bytes(TEXTS) for number in ids])
    assert (x == np.stack([whole[i : i + block] for i in starts])).all()


def test_a_sentencepiece_model_is_encoded_by_its_own_library(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece", reason="NOT TESTED: .model files - no sentencepiece")
    sample = tmp_path / "sample.txt"
    sample.write_text("\n".join(make_documents(300, longest=60)), encoding="utf-8")
    options = {"vocab_size": 400, "model_type": "bpe", "byte_fallback": True, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(input=str(sample), model_prefix=str(tmp_path / "sp"), **options)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "sp.model"))
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS[:20])
    found = prepare([str(path)], tmp_path / "out", Request(tokenizer=str(tmp_path / "sp.model")))
    assert found.encoder.startswith("sentencepiece")
    eos = processor.eos_id()
    assert documents_of(tmp_path / "out") == [[*processor.encode(text), eos] for text in TEXTS[:20]]
    assert (tmp_path / "out" / "tokenizer.model").exists()


def test_a_tiktoken_file_gives_tiktoken_s_ids(tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken", reason="NOT TESTED: .tiktoken against tiktoken - not installed")
    import base64

    ranks = {bytes([byte]): byte for byte in range(256)}
    for pair in (b"th", b"the", b" the", b"en", b" t", b"re", b"\xe6\x97"):
        ranks[pair] = len(ranks)
    path = tmp_path / "r50k_base.tiktoken"
    path.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()))
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
    library = tiktoken.Encoding("r50k", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})
    source = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    found = prepare([str(source)], tmp_path / "out", Request(tokenizer=str(path)))
    assert documents_of(tmp_path / "out") == [[*library.encode_ordinary(text), 50256] for text in TEXTS]
    assert found.vocab == 50257
    assert (tmp_path / "out" / "r50k_base.tiktoken").exists()


def test_a_tiktoken_file_of_another_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.tiktoken").write_text("IQ== 0\n")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(FormatError, match="does not say how it cuts words"):
        prepare([str(tmp_path / "a.txt")], tmp_path / "out", Request(tokenizer=str(tmp_path / "mine.tiktoken")))


def test_the_command_reads_line_ends_in_a_separator_and_shows_what_came_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n\nthree")
    done = called("prepare", tmp_path / "a.txt", "-o", tmp_path / "out", "--separator", r"\n\n")
    assert done.returncode == 0, done.stderr
    assert documents_of(tmp_path / "out") == as_bytes(["one", "two", "three"])
    assert "lowtide verify" in done.stdout
    assert "14 x uint16, vocabulary 257" in done.stdout


def test_what_is_left_out_of_a_directory_is_said(tmp_path: Path) -> None:
    (tmp_path / "in" / ".git").mkdir(parents=True)
    for name in ("a.txt", "b.txt.bz2", "c.txt.bz2", "d.py", ".hidden.py", ".git/e.py"):
        (tmp_path / "in" / name).write_text("text")
    found = prepare([str(tmp_path / "in")], tmp_path / "out", Request())
    assert found.notes == ("left out: 3 files with other endings, 2 of them .bz2",)
    assert prepare([str(tmp_path / "in")], tmp_path / "more", Request(endings="py,bz2")).notes == ()


def test_nobody_is_told_to_read_packed_bytes_as_text(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt.bz2").write_bytes(b"BZh9")
    for named in (tmp_path / "in", tmp_path / "in" / "a.txt.bz2"):
        done = called("prepare", named, "-o", tmp_path / "out")
        assert done.returncode == 1
        assert done.stderr.endswith("Unpack it first, or pack it with gzip or zstd.\n")
