"""Every command takes a corpus with train and val as one thing: says both, uses train, and --part takes the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.commands import called
from tests.prepare.conftest import make_documents, write_jsonl

from lowtide.prepare import Request, prepare


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("parts")
    path = write_jsonl(place / "a.jsonl", make_documents(300, longest=60))
    prepare([str(path)], place / "corpus", Request(val=0.3))
    return place / "corpus"


def tokens_of(corpus: Path, part: str) -> int:
    return int(json.loads((corpus / part / "manifest.json").read_text())["tokens"])


def test_info_shows_both_parts_and_takes_train(corpus: Path) -> None:
    found = json.loads(called("info", corpus, "--json").stdout)
    assert found["parts"] == {part: tokens_of(corpus, part) for part in ("train", "val")}
    assert found["shape"] == [tokens_of(corpus, "train")]
    other = json.loads(called("info", corpus, "--part", "val", "--json").stdout)
    assert other["shape"] == [tokens_of(corpus, "val")]
    assert 'part="val"' in other["open"]
    text = " ".join(called("info", corpus).stdout.split())
    assert f"train {tokens_of(corpus, 'train'):,} tokens (this one), val {tokens_of(corpus, 'val'):,} tokens" in text


def test_info_of_a_part_calls_it_a_corpus_of_ours(corpus: Path) -> None:
    for path in (corpus, corpus / "train", corpus / "train" / "shard-00000.bin"):
        shown = called("info", path).stdout
        assert "a corpus of Lowtide's own" in shown
        assert "nanoGPT" not in shown


def test_plan_shows_both_parts_and_takes_train(corpus: Path) -> None:
    words = ("--batch", 4, "--length", 32)
    shown = called("plan", corpus, *words).stdout
    assert f"train {tokens_of(corpus, 'train'):,} tokens (this one), val {tokens_of(corpus, 'val'):,} tokens" in shown
    found = json.loads(called("plan", corpus, *words, "--part", "val", "--json").stdout)
    assert found["shape"] == [tokens_of(corpus, "val")]


def test_peek_takes_train_or_the_part_it_is_told(corpus: Path) -> None:
    for part in ("train", "val"):
        done = called("peek", corpus, "--step", 0, "--batch", 2, "--length", 32, "--part", part, "--json")
        rows = json.loads(done.stdout)["rows"]
        assert all(Path(row["file"]).parent.name == part for row in rows)
        assert all(row["text"] for row in rows)


def test_bench_takes_a_part(corpus: Path) -> None:
    done = called("bench", corpus, "--part", "val", "--batch", 2, "--length", 99_999_999)
    assert done.returncode == 2
    assert str(corpus / "val") in done.stderr


def test_a_part_that_is_not_there_is_told_with_those_that_are(corpus: Path) -> None:
    done = called("info", corpus, "--part", "test")
    assert done.returncode == 1
    assert "expected a test part, got train and val. State --part train." in done.stderr


@pytest.mark.parametrize("words", [["train", "--data"], ["convert", "-o", "out", "--to", "nanogpt"]])
def test_a_command_without_a_flag_for_parts_does_not_advise_one(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for part in ("val", "test"):
        (tmp_path / f"{part}.bin").write_bytes(bytes(64))
    dtype = "--data-dtype" if words[0] == "train" else "--dtype"
    done = called(*words, ".", dtype, "uint16", *(["--eot", 0] if words[0] == "convert" else []))
    assert done.returncode == 1
    assert done.stderr.endswith("expected a train part, got val (val.bin) and test (test.bin). Name val itself.\n")
