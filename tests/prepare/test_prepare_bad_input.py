"""Bad input: one line that says where, what and what to do; or counted where the request says to go on."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.commands import called
from tests.prepare.conftest import as_bytes, documents_of, write_jsonl

from lowtide.corpus.journal import WORK
from lowtide.errors import FormatError, LowtideError
from lowtide.prepare import Request, Resources, job, prepare
from lowtide.prepare.tokenizers.encoders import choose_encoder, fitting_ids
from lowtide.prepare.tokenizers.vocabulary import Vocabulary, load_vocabulary


def refused(tmp_path: Path, path: Path, request: Request | None = None) -> str:
    """The error of a run that must fail; no file has a final name afterwards."""
    with pytest.raises((LowtideError, OSError, ValueError)) as caught:
        prepare([str(path)], tmp_path / "out", request or Request(), Resources(workers=1))
    assert not [name for name in (tmp_path / "out").glob("*") if name.name != WORK]
    return str(caught.value)


def test_invalid_utf8_is_refused_with_file_and_byte(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"fine\nnot \xff fine\n")
    told = refused(tmp_path, tmp_path / "a.txt", Request(lines=True, tokenizer=str(tokenizer)))
    assert "a.txt: expected UTF-8, got byte 0xff at byte 9. Use --invalid-utf8 replace" in told


def test_invalid_utf8_is_replaced_and_counted_when_asked_for(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"fine\nnot \xff fine\n")
    request = Request(lines=True, tokenizer=str(tokenizer), invalid_utf8="replace")
    found = prepare([str(tmp_path / "a.txt")], tmp_path / "out", request)
    assert (found.documents, found.tally["replaced"]) == (2, 1)
    assert len(documents_of(tmp_path / "out")[1]) == len("not \ufffd fine".encode()) + 1


def test_bytes_take_any_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"not \xff fine")
    prepare([str(tmp_path / "a.txt")], tmp_path / "out")
    assert documents_of(tmp_path / "out") == [[*b"not \xff fine", 256]]


BAD_LINES = [
    (b'{"text": "cut', "line 3: expected a JSON object, got: Unterminated string"),
    (b'{"body": "x"}', "line 3: expected a field 'text', got none. Name another with --field"),
    (b'{"text": 7}', "line 3: expected text in field 'text', got int"),
    (b"[1, 2]", "line 3: expected a JSON object, got: a list"),
    (b'{"text": "\xff"}', "line 3: expected UTF-8, got invalid start byte"),
    (rb'{"text": "\ud800"}', "line 3: expected UTF-8, got surrogates not allowed"),
]


@pytest.mark.parametrize(("line", "told"), BAD_LINES)
@pytest.mark.parametrize("compressed", [False, True])
def test_a_line_of_json_that_cannot_be_used_is_refused_with_file_and_line(
    tmp_path: Path, line: bytes, told: str, compressed: bool
) -> None:
    data = b'{"text": "one"}\n\n' + line + b'\n{"text": "four"}\n'
    path = tmp_path / ("a.jsonl.gz" if compressed else "a.jsonl")
    path.write_bytes(gzip.compress(data) if compressed else data)
    message = refused(tmp_path, path)
    assert told in message
    assert path.name in message


@pytest.mark.parametrize("line", [line for line, _ in BAD_LINES[:4]])
def test_bad_lines_are_passed_over_and_counted_when_asked_for(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one"}\n' + line + b'\n{"text": "four"}\n')
    found = prepare([str(tmp_path / "a.jsonl")], tmp_path / "out", Request(skip_bad=True))
    assert found.tally["bad"] == 1
    assert documents_of(tmp_path / "out") == as_bytes(["one", "four"])


def test_half_of_a_surrogate_pair_is_u_fffd_or_passed_over_as_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(rb'{"text": "x \ud83d y"}' + b'\n{"text": "two"}\n')
    replaced = prepare([str(tmp_path / "a.jsonl")], tmp_path / "replaced", Request(invalid_utf8="replace"))
    assert documents_of(tmp_path / "replaced") == as_bytes(["x \ufffd y", "two"])
    assert replaced.tally["replaced"] == 1
    skipped = prepare([str(tmp_path / "a.jsonl")], tmp_path / "skipped", Request(skip_bad=True))
    assert documents_of(tmp_path / "skipped") == as_bytes(["two"])
    assert skipped.tally["bad"] == 1


def test_a_line_far_into_a_file_is_counted_from_its_beginning(tmp_path: Path) -> None:
    good = json.dumps({"text": "x" * 1000}).encode() + b"\n"
    (tmp_path / "a.jsonl").write_bytes(good * 9000 + b"broken\n" + good)
    assert "line 9001: expected a JSON object" in refused(tmp_path, tmp_path / "a.jsonl")


def test_a_missing_column_is_refused_and_names_those_there_are(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="NOT TESTED: Parquet - pyarrow is not installed")
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"body": ["x"], "n": [1]}), tmp_path / "a.parquet")
    told = refused(tmp_path, tmp_path / "a.parquet")
    assert "expected a column 'text', got body, n. Name one of them with --column" in told
    assert "expected text in column 'n', got int64" in refused(tmp_path, tmp_path / "a.parquet", Request(column="n"))


@pytest.mark.parametrize("content", [b"", b"\n\n\n"])
def test_input_without_text_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    assert "expected text, got none in 1 file of" in refused(tmp_path, tmp_path / "a.jsonl")


def damaged(data: bytes, how: str) -> bytes:
    if how == "cut":
        return data[: len(data) // 2]
    if how == "empty":
        return b""
    middle = len(data) // 2
    return data[:middle] + bytes(byte ^ 0x5A for byte in data[middle : middle + 64]) + data[middle + 64 :]


@pytest.mark.parametrize("how", ["cut", "changed", "empty"])
@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_damaged_compression_is_refused_and_never_shorter_text(tmp_path: Path, how: str, ending: str) -> None:
    text = "".join(json.dumps({"text": f"{number * 7919} tide"}) + "\n" for number in range(5000)).encode()
    if ending == ".gz":
        data = gzip.compress(text)
    else:
        zstandard = pytest.importorskip("zstandard", reason="NOT TESTED: .zst - zstandard is not installed")
        data = zstandard.ZstdCompressor(write_checksum=True).compress(text)
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(damaged(data, how))
    told = refused(tmp_path, path)
    assert f"a.jsonl{ending}: expected" in told
    assert "Download it again or leave it out" in told or "expected text, got none" in told


@pytest.mark.parametrize("how", ["cut", "empty", "text"])
def test_a_damaged_parquet_is_refused(tmp_path: Path, how: str) -> None:
    pytest.importorskip("pyarrow", reason="NOT TESTED: Parquet - pyarrow is not installed")
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x" * 100] * 100}), path)
    path.write_bytes(b"just text" if how == "text" else damaged(path.read_bytes(), how))
    assert "a.parquet: expected a whole Parquet file" in refused(tmp_path, path)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("t.json", b"\xff\xfe", "got bytes that are not text"),
        ("t.json", b"not json", "expected a tokenizer.json"),
        ("t.json", b'{"a": 1}', "expected a tokenizer.json with a model and its vocab"),
        ("t.json", b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}', "expected an end-of-text token"),
        ("t.json", b'{"model": {"vocab": {"<|endoftext|>": 0}, "merges": 3}}', "tokenizers can load"),
        ("t.model", b"not a model", "expected a SentencePiece model"),
        ("r50k_base.tiktoken", b"IQ== zero\n", "expected 'token rank' in line 1"),
        ("r50k_base.tiktoken", b"IQ== 0\n", "expected a rank for every byte"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(content)
    path = write_jsonl(tmp_path / "a.jsonl", ["one"])
    assert told in refused(tmp_path, path, Request(tokenizer=str(tmp_path / name)))


def test_ids_that_do_not_fit_are_refused_and_never_wrapped() -> None:
    vocabulary = Vocabulary("json", "tokenizer.json", b"x", "{}", 0, "<|endoftext|>", 300)
    with pytest.raises(FormatError, match="expected ids below 300, got 70000"):
        fitting_ids(np.array([1, 70_000], np.uint32), vocabulary, "a.jsonl")


def test_gigatoken_s_difference_is_settled_in_favour_of_tokenizers(tokenizer: Path) -> None:
    """A normalizer that gigatoken does not know or does otherwise must not change a corpus."""
    content = json.loads(tokenizer.read_text())
    content["normalizer"] = {"type": "Lowercase"}
    path = tokenizer.parent / "lower.json"
    path.write_text(json.dumps(content))
    choice = choose_encoder(load_vocabulary(str(path)))
    assert choice.name == "tokenizers"
    assert "encoding with tokenizers" in choice.notes[0]


def test_without_gigatoken_everything_works_and_says_so(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gigatoken", None)
    monkeypatch.setitem(__import__("sys").modules, "gigatoken.gigatoken_rs", None)
    path = write_jsonl(tmp_path / "a.jsonl", ["the tide", "ends"])
    found = prepare([str(path)], tmp_path / "out", Request(tokenizer=str(tokenizer)), Resources(workers=1))
    assert found.encoder.startswith("tokenizers")
    assert "gigatoken is not installed" in found.notes[0]


def test_training_without_tokenizers_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "find_spec", lambda _: None)
    path = write_jsonl(tmp_path / "a.jsonl", ["the tide"])
    told = refused(tmp_path, path, Request(train_bpe=400))
    assert told.startswith("--train-bpe 400: expected the package tokenizers, got none. Install it with: pip install")


def test_documents_for_val_that_are_not_there_name_the_share_that_gives_one(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [str(number) for number in range(9)])
    with pytest.raises(FormatError, match="expected documents for val, got none of 9") as caught:
        prepare([str(path)], tmp_path / "out", Request(val=0.0001))
    share = float(str(caught.value).rpartition("Use --val ")[2].split(",")[0])
    prepare([str(path)], tmp_path / "again", Request(val=share))
    assert len(documents_of(tmp_path / "again" / "val")) == 1


def test_inputs_that_are_not_there_or_say_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"x")
    assert "expected .txt" in refused(tmp_path, tmp_path / "a.bin")
    assert "expected a file or a directory, got nothing of that name" in refused(tmp_path, tmp_path / "nodir")
    assert "Add --endings .bin if it is text" in refused(tmp_path, tmp_path / "a.bin")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("print()")
    assert "1 of them .py. Add --endings .py" in refused(tmp_path, tmp_path / "src")
    assert "nothing of that name" in refused(tmp_path, tmp_path / "b.txt")
    assert "got none" in refused(tmp_path, tmp_path / "*.txt")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Request(val=1.5), "--val: expected a share"),
        (lambda: Request(lines=True, separator="x"), "--separator: expected one way"),
        (lambda: Request(train_bpe=8), "--train-bpe: expected 300"),
        (lambda: Request(shard_tokens=2**31), "--shard-tokens: expected at most"),
        (lambda: Resources(budget="1MiB"), "--budget: expected 96MiB or more"),
        (lambda: Resources(address="auto"), "--address: expected --engine ray"),
    ],
)
def test_wrong_settings_are_refused_with_the_flag_to_change(make: Callable[[], object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make()


def test_the_command_says_it_in_one_line_and_tells_usage_from_data(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("broken\n")
    data = called("prepare", tmp_path / "a.jsonl", "-o", tmp_path / "out")
    assert (data.returncode, len(data.stderr.strip().splitlines())) == (1, 1)
    assert "Traceback" not in data.stderr
    usage = called("prepare", tmp_path / "a.jsonl", "-o", tmp_path / "out", "--val", "3")
    assert (usage.returncode, len(usage.stderr.strip().splitlines())) == (2, 1)


@pytest.mark.parametrize("bpe", [0, 300])
def test_an_end_of_text_token_that_the_tokenizer_will_not_have_is_refused_at_once(bpe: int) -> None:
    """Bytes left it out without a word, and a BPE was trained before it was refused."""
    with pytest.raises(ValueError, match=r"^--eot: expected the tokenizer of a file beside it, got"):
        Request(eot="<|x|>", train_bpe=bpe)
    with pytest.raises(ValueError, match=r"^--eot:"):
        Request(eot="7", train_bpe=bpe)
    Request(eot="<|x|>", tokenizer="tokenizer.json")
    Request(eot="<|endoftext|>", train_bpe=300)
    Request(eot="256")
