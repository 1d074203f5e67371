"""``lowtide peek``: what a step of a corpus or of a run is made of, its JSON, and bad input in one line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.commands import called, document_of, refusal_of
from tests.formats.conftest import TokenFiles

import lowtide

TEXT = "".join(f"Sentence number {n} of a small corpus.\n" for n in range(400))


peek, document, refusal = partial(called, "peek"), partial(document_of, "peek"), partial(refusal_of, "peek")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.bin"
    path.write_bytes(TEXT.encode())
    return path


def test_every_row_of_a_step_has_its_place_ids_and_text(text: Path) -> None:
    found = document(text, "--dtype", "uint8", "--step", 5, "--batch", 4, "--length", 32, "--seed", 7)
    feed = lowtide.open_tokens(text, dtype="uint8").batches(4, length=32, seed=7)
    x, y = feed[5]
    assert [row["row"] for row in found["rows"]] == [20, 21, 22, 23]
    for row, place, ids, following in zip(found["rows"], feed.where(5), x, y, strict=True):
        assert (row["file"], row["offset"]) == (place.file, place.offset)
        assert row["ids"] == [*ids.tolist(), int(following[-1])]
        assert row["text"] == TEXT[place.offset : place.offset + 33]


def test_a_rank_sees_its_own_rows(text: Path) -> None:
    common = (text, "--dtype", "uint8", "--step", 5, "--batch", 4, "--length", 32)
    whole = document(*common)["rows"]
    assert document(*common, "--rank", 1, "--world", 2)["rows"] == whole[2:]


def test_documents_are_told_where_the_format_keeps_them(tmp_path: Path) -> None:
    pair = TokenFiles(tmp_path).megatron("corpus", [list(range(10)), list(range(40)), list(range(25))])
    found = document(pair, "--step", 0, "--batch", 1, "--length", 16, "--order", "sequential")
    row = found["rows"][0]
    assert row["document"] == {"number": 0, "first_token": 0, "tokens": 10}
    row = document(pair, "--step", 1, "--batch", 1, "--length", 16, "--order", "sequential")["rows"][0]
    assert row["token"] == 16
    assert row["document"] == {"number": 1, "first_token": 10, "tokens": 40}


def test_ends_of_documents_are_told_where_their_id_is_known(text: Path) -> None:
    row = document(text, "--dtype", "uint8", "--step", 0, "--batch", 1, "--length", 64, "--eot", 10)["rows"][0]
    assert row["ends"] == [column for column, one in enumerate(row["ids"][:-1]) if one == 10]
    assert row["ends"]


def test_ids_without_a_known_tokenizer_have_no_text(tmp_path: Path) -> None:
    path = tmp_path / "ids.bin"
    np.arange(2_000).astype(np.uint16).tofile(path)
    words = (path, "--dtype", "uint16", "--step", 0, "--batch", 2, "--length", 16)
    assert document(*words)["rows"][0]["text"] is None
    shown = peek(*words).stdout
    assert "byte" in shown and "ids" in shown and "|" not in shown


def test_for_a_person_long_rows_are_cut_short_unless_all_is_asked_for(text: Path) -> None:
    words = (text, "--dtype", "uint8", "--step", 1, "--batch", 1, "--length", 2048)
    short, full = peek(*words).stdout, peek(*words, "--full").stdout
    assert "more characters: --full" in short and "--full" not in full
    assert len(full) > 4 * len(short)
    assert "| Sentence number" in full


def test_a_corpus_is_looked_at_without_torch(text: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from lowtide.cli import main\n"
        f"sys.exit(main(['peek', {str(text)!r}, '--dtype', 'uint8', '--step', '1', '--length', '16']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_bad_input_is_refused_in_one_line(text: Path, tmp_path: Path) -> None:
    words = (text, "--dtype", "uint8", "--length", 16)
    assert "--step: expected 0 or more, got -1. Use --step 0." in refusal(*words, "--step", -1, code=2)
    for step, more in ((99999, ("--order", "sequential")), (10**20, ())):
        told = refusal(*words, "--step", step, *more, code=2)
        assert told.startswith("lowtide peek: --step: expected a step from 0 to ") and f", got {step}. Use a" in told
    assert "expected a whole number" in refusal(*words, "--step", "x", code=2)
    assert "got nothing of that name" in refusal(tmp_path / "none.bin", "--step", 0, code=1)
    assert "locality: expected at least one window" in refusal(*words, "--step", 0, "--locality", 4, code=2)
    assert "--step" in refusal(*words, code=2)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    assert "expected a checkpoint of the run, got none" in refusal(tmp_path / "run", "--step", 1, code=1)


# Packed rows and mixtures


@pytest.fixture
def short_documents(tmp_path: Path) -> Path:
    """Documents of 4 to 7 tokens that end with 0, so that rows of 16 have room left."""
    path = tmp_path / "short.bin"
    documents = [[*range(1, 4 + number % 4), 0] for number in range(60)]
    np.array([one for document in documents for one in document], np.uint16).tofile(path)
    return path


def test_a_packed_row_names_every_document_and_counts_no_padding(short_documents: Path) -> None:
    words = (short_documents, "--dtype", "uint16", "--eot", 0, "--cut", "packed", "--length", 16, "--batch", 8)
    rows = document(*words, "--step", 0)["rows"]
    feed = lowtide.open_tokens(short_documents, dtype="uint16", eot=0).windows(16, cut="packed").batches(8)
    assert any(row["padding"] for row in rows)
    for row, place in zip(rows, feed.where(0), strict=True):
        stands = [(one["file"], one["offset"], one["tokens"]) for one in row["packed"]]
        assert stands == [tuple(one) for one in place.documents]
        assert len(row["ids"]) + row["padding"] == 16
        assert len(row["ends"]) == row["ids"].count(0) == len(row["packed"])
    padded = next(row for row in rows if row["padding"])
    said = peek(*words, "--step", 0).stdout
    assert f"{len(padded['packed'])} documents, then {padded['padding']} token" in said
    assert all(f"{one['tokens']} tokens from byte {one['offset']:,}" in said for one in padded["packed"])


def test_a_packed_row_numbers_its_documents_where_the_format_keeps_them(tmp_path: Path) -> None:
    pair = TokenFiles(tmp_path).megatron("corpus", [list(range(n)) for n in (10, 5, 25)])
    rows = document(pair, "--cut", "packed", "--step", 0, "--batch", 1, "--length", 32)["rows"]
    known = {one["document"]["number"]: one["document"]["tokens"] for row in rows for one in row["packed"]}
    assert known.items() <= {0: 10, 1: 5, 2: 25}.items()


def test_a_mixture_is_looked_at_by_its_corpora_and_weights(text: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.bin"
    other.write_bytes(b"x" * 5000)
    spelled = f"text={text}:0.5,other={other}:0.5;4:other=1"
    found = document("--mix", spelled, "--dtype", "uint8", "--step", 0, "--batch", 8, "--length", 32, "--seed", 3)
    tokens = {name: lowtide.open_tokens(path, dtype="uint8") for name, path in (("text", text), ("other", other))}
    mixture = lowtide.mix({name: (one, 0.5) for name, one in tokens.items()}, then={4: {"other": 1.0}})
    places = mixture.batches(8, length=32, seed=3).where(0)
    assert [(row["corpus"], row["offset"]) for row in found["rows"]] == [(one.corpus, one.offset) for one in places]
    assert {row["corpus"] for row in found["rows"][4:]} == {"other"}
    assert "expected a corpus, an out directory or --mix, got both" in refusal(
        text, "--mix", spelled, "--step", 0, code=2
    )
    assert "expected a corpus, an out directory or --mix, got neither" in refusal("--step", 0, code=2)


def test_a_manifest_that_is_a_pipe_does_not_hang(text: Path) -> None:
    os.mkfifo(text.parent / "manifest.json")
    code = f"import sys; from lowtide.cli import main; sys.exit(main(['peek', {str(text)!r}, *sys.argv[1:]]))"
    words = [sys.executable, "-c", code, "--dtype", "uint8", "--step", "1", "--length", "16"]
    assert subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).returncode == 0


# A run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a corpus of one sentence over and over, a planted row of noise, and a run over it."""
    pytest.importorskip("torch", reason="NOT TESTED: peek at a run, which needs torch")
    from tests.train.running import TINY, train

    from lowtide.train import Settings

    place = tmp_path_factory.mktemp("spike")
    (place / "data").mkdir()
    data = place / "data" / "train.bin"
    sentence = b"the tide comes in. "
    corpus = bytearray(sentence * 400)
    (place / "data" / "val.bin").write_bytes(sentence * 20)
    data.write_bytes(corpus)
    told = {**TINY, "data_dtype": "uint8", "vocab_size": 256, "max_iters": 80, "eval_interval": 40, "dropout": 0.0}
    settings = Settings(
        **{**told, "data": str(data.parent), "out_dir": str(place / "out"), "learning_rate": 1e-2, "keep": 1}
    )
    feed = lowtide.open_tokens(data, dtype="uint8").batches(4, length=16, seed=settings.seed)
    offset = feed.where(69)[2].offset  # the 70th step meets it
    corpus[offset : offset + 16] = b"#Q7%Z~x!@9^K&j$W"
    data.write_bytes(corpus)
    train(settings)
    return place


@pytest.mark.slow
def test_a_spike_in_the_metrics_leads_to_its_text(trained: Path) -> None:
    lines = [json.loads(line) for line in (trained / "out" / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in lines if line["event"] == "step"}
    spike = max((step for step in losses if step > 40), key=losses.__getitem__)
    found = document(trained / "out", "--step", spike)
    assert any("Q7%Z~x" in row["text"] for row in found["rows"])
    assert len(found["rows"]) == 4
    others = [row["text"] for step in (spike - 5, 1) for row in document(trained / "out", "--step", step)["rows"]]
    assert not any("Q7%Z~x" in one for one in others)
    assert "Q7%Z~x" in peek(trained / "out", "--step", spike).stdout


@pytest.mark.slow
def test_a_run_refuses_steps_it_has_not_and_settings_it_has(trained: Path) -> None:
    out = trained / "out"
    assert "expected 1 to 80" in refusal(out, "--step", 0, code=2)
    assert "got 81" in refusal(out, "--step", 81, code=2)
    assert "Leave out --seed" in refusal(out, "--step", 1, "--seed", 3, code=2)


@pytest.mark.slow
def test_a_run_whose_corpus_is_gone_or_another_one_is_refused(trained: Path) -> None:
    data, away = trained / "data", trained / "away"
    data.rename(away)
    try:
        assert f"expected the corpus it names, {data}, got no such file" in refusal(
            trained / "out", "--step", 3, code=1
        )
        data.mkdir()
        for name in ("train.bin", "val.bin"):
            (data / name).write_bytes(b"another corpus altogether. " * 400)
        assert "expected the same data, got other data" in refusal(trained / "out", "--step", 3, code=1)
    finally:
        shutil.rmtree(data, ignore_errors=True)
        away.rename(data)
