"""Every command that reads takes addresses: of a web server, and of S3 as moto serves it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.blocks.conftest import BUCKET, S3, Behind, a_corpus

from lowtide.cli import main

Output = pytest.CaptureFixture[str]
FEED = ["--batch", "8", "--length", "64"]


@pytest.fixture(params=["http", "s3"])
def address(
    request: pytest.FixtureRequest, behind: Behind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Path], str]:
    """Puts a corpus behind a server and gives its address."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))

    def of_web_server(here: Path) -> str:
        behind.server.objects.update({f"c/{file.name}": file.read_bytes() for file in here.iterdir()})
        return behind.server.url("c/")

    def of_s3(here: Path) -> str:
        s3: S3 = request.getfixturevalue("s3")
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
        for file in here.iterdir():
            s3.put(f"{tmp_path.name}/{file.name}", file.read_bytes())
        return f"s3://{BUCKET}/{tmp_path.name}/"

    return of_s3 if request.param == "s3" else of_web_server


def test_info_and_plan(address: Callable[[Path], str], tmp_path: Path, capsys: Output) -> None:
    there = address(a_corpus(tmp_path / "corpus"))
    assert main(["info", there, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shape"] == [600_000]
    assert main(["plan", there, *FEED, "--json"]) == 0
    assert "blocks of 256 KiB" in capsys.readouterr().out
    assert list((tmp_path / "xdg" / "lowtide" / "blocks").iterdir())


def test_peek_shows_the_ids_that_the_same_corpus_here_has(
    address: Callable[[Path], str], tmp_path: Path, capsys: Output
) -> None:
    here = a_corpus(tmp_path / "corpus")
    shown = []
    for corpus in (str(here), address(here)):
        assert main(["peek", corpus, "--step", "3", *FEED, "--json"]) == 0
        shown.append([row["ids"] for row in json.loads(capsys.readouterr().out)["rows"]])
    assert len(shown[0]) == 8
    assert shown[0] == shown[1]


def test_verify_finds_nothing_and_then_the_damage(
    address: Callable[[Path], str], tmp_path: Path, capsys: Output
) -> None:
    here = a_corpus(tmp_path / "corpus")
    assert main(["verify", address(here)]) == 0
    with (here / "shard-1.bin").open("r+b") as file:
        file.seek(100_000)
        file.write(b"\xff\xff")  # beyond the vocabulary
    assert main(["verify", address(here)]) == 1
    assert "shard-1.bin" in capsys.readouterr().out


def test_bench_measures(address: Callable[[Path], str], tmp_path: Path, capsys: Output) -> None:
    there = address(a_corpus(tmp_path / "corpus"))
    assert main(["bench", there, *FEED, "--seconds", "0.01", "--rounds", "1", "--no-drop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_no_command_shows_or_keeps_the_secrets_of_an_address(
    behind: Behind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    """A name and a password before the host, a token behind a signed address: neither printed nor in files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    here = a_corpus(tmp_path / "corpus")
    behind.server.objects.update({f"c/{file.name}": file.read_bytes() for file in here.iterdir()})
    behind.server.faults.user = "me:s3cr3t"
    corpus = behind.server.url("c").replace("//", "//me:s3cr3t@")
    shard = f"{corpus}/shard-0.bin?token=s3cr3t2"
    mixed = f"a={corpus}:0.5,b={corpus}:0.5"
    for command in (
        ["info", corpus],
        ["info", shard, "--dtype", "uint16", "--json"],
        ["plan", corpus, *FEED],
        ["plan", shard, "--dtype", "uint16", *FEED, "--json"],
        ["peek", shard, "--dtype", "uint16", "--step", "1", *FEED],
        ["peek", "--mix", mixed, "--step", "1", *FEED, "--json"],
        ["verify", corpus],
        ["verify", shard, "--dtype", "uint16", "--json"],
        ["bench", corpus, "--seconds", "0.1", "--rounds", "1"],
    ):
        assert main(command) == 0, command
        said = capsys.readouterr()
        assert "s3cr3t" not in said.out + said.err, command
    del behind.server.objects["c/shard-1.bin"]
    behind.server.objects["c/manifest.json"] = b"no JSON"
    for command in (["info", corpus], ["verify", corpus], ["info", f"{corpus}/none?token=s3cr3t2"]):
        assert main(command) == 1, command
        said = capsys.readouterr()
        assert "s3cr3t" not in said.out + said.err, command
    for file in (tmp_path / "xdg").rglob("*"):
        assert "s3cr3t" not in str(file)
        assert not file.is_file() or b"s3cr3t" not in file.read_bytes()


def test_a_run_on_an_address_keeps_no_secret_of_it_and_its_steps_can_be_looked_at(
    behind: Behind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    pytest.importorskip("torch", reason="NOT TESTED: train on an address - torch is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    here = a_corpus(tmp_path / "corpus")
    behind.server.objects.update({f"c/{file.name}": file.read_bytes() for file in here.iterdir()})
    shape = ["--block-size=32", "--n-layer=1", "--n-head=1", "--n-embd=16", "--max-iters=3", "--eval-iters=1"]
    out = ["--out-dir", str(tmp_path / "out"), "--no-picture", "--sample-tokens", "0"]
    corpus = behind.server.url("c").replace("//", "//me:s3cr3t@")
    assert main(["train", "--data", corpus, *shape, *out]) == 0
    assert main(["peek", str(tmp_path / "out"), "--step", "2"]) == 0
    said = capsys.readouterr()
    assert "s3cr3t" not in said.out + said.err
    for file in (tmp_path / "out").rglob("*"):
        assert not file.is_file() or b"s3cr3t" not in file.read_bytes(), file


def test_verify_reads_the_tokenizer_of_a_corpus_behind_an_address(
    address: Callable[[Path], str], tmp_path: Path, capsys: Output
) -> None:
    here = a_corpus(tmp_path / "corpus")
    (here / "tokenizer.json").write_bytes(b"{}")
    said = json.loads((here / "manifest.json").read_text())
    told = {"file": "tokenizer.json", "sha256": hashlib.sha256(b"{}").hexdigest()}
    (here / "manifest.json").write_text(json.dumps({**said, "tokenizer": told}))
    assert main(["verify", address(here)]) == 0, capsys.readouterr().out


def test_train_learns_from_what_the_same_corpus_here_has(
    address: Callable[[Path], str], tmp_path: Path, capsys: Output
) -> None:
    pytest.importorskip("torch", reason="NOT TESTED: train on an address - torch is not installed")
    here = a_corpus(tmp_path / "corpus")
    small = [
        "--batch-size",
        "4",
        "--block-size",
        "32",
        "--n-layer",
        "1",
        "--n-head",
        "1",
        "--n-embd",
        "16",
        "--max-iters",
        "3",
        "--eval-iters",
        "1",
    ]
    losses = []
    for number, corpus in enumerate((str(here), address(here))):
        out = [
            "--out-dir",
            str(tmp_path / f"out-{number}"),
            "--no-picture",
            "--sample-tokens",
            "0",
            "--log-interval",
            "1",
        ]
        assert main(["train", "--data", corpus, *small, *out, "--json"]) == 0
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        losses.append([event["loss"] for event in told if "loss" in event])
    assert losses[0]
    assert losses[0] == losses[1]
