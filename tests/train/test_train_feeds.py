"""What a run reads: cuts, documents kept apart, local shuffles and mixtures, each exact through a resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.running import losses, train, write_tokens

import lowtide
from lowtide.cli import main
from lowtide.errors import StateError
from lowtide.survey.mix_plan import mix_plan
from lowtide.train import GPT, Settings, Shape
from lowtide.train.model import inside_documents
from lowtide.train.settings import first_corpus, from_toml, layered

Make = Callable[..., Settings]
EOT = 63


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """Short documents of ids below 63, each ended by 63."""
    chooses = np.random.default_rng(1)
    parts: list[np.ndarray[Any, Any]] = []
    for _ in range(1200):
        start, size = int(chooses.integers(0, 62)), int(chooses.integers(2, 30))
        parts += [np.arange(start, start + size) % 62, np.array([EOT])]
    np.concatenate(parts).astype(np.uint16).tofile(tmp_path / "documents.bin")
    return tmp_path / "documents.bin"


# The model


def test_a_document_is_computed_as_if_it_stood_alone() -> None:
    torch.manual_seed(0)
    model = GPT(Shape(vocab_size=31, block_size=16, n_layer=2, n_head=2, n_embd=16)).eval()
    tokens = torch.randint(0, 31, (1, 12))
    runs = torch.tensor([[0] * 5 + [1] * 7])
    together = model(tokens, documents=runs)[0]
    torch.testing.assert_close(together[:, :5], model(tokens[:, :5])[0])
    torch.testing.assert_close(together[:, 5:], model(tokens[:, 5:])[0])
    assert not torch.allclose(together[:, 5:], model(tokens)[0][:, 5:]), "the control: without runs it looks back"


def test_a_mask_lets_a_token_look_back_in_its_own_document_only() -> None:
    found = inside_documents(torch.tensor([[0, 0, 1, -1]]))[0, 0].tolist()
    assert found == [
        [True, False, False, False],
        [True, True, False, False],
        [False, False, True, False],
        [False, False, False, True],
    ]


def test_targets_that_do_not_count_change_nothing() -> None:
    torch.manual_seed(0)
    model = GPT(Shape(vocab_size=31, block_size=8, n_layer=1, n_head=2, n_embd=16)).eval()
    tokens, targets = torch.randint(0, 31, (2, 8)), torch.randint(0, 31, (2, 8))
    counted = torch.ones(2, 8, dtype=torch.bool)
    counted[1, 3:] = False
    others = targets.clone()
    others[1, 3:] = 7
    assert model(tokens, targets, counted=counted)[1] == model(tokens, others, counted=counted)[1]
    assert model(tokens, targets)[1] != model(tokens, others)[1]
    none = torch.zeros(2, 8, dtype=torch.bool)
    assert model(tokens, targets, counted=none)[1] == 0


# Runs


def goes_on_exactly(settings: Settings, tmp_path: Path) -> None:
    """The second half of a run has the losses of one that was not interrupted."""
    whole = losses(train(replace(settings, out_dir=str(tmp_path / "whole"))))
    train(replace(settings, max_iters=6, lr_decay_iters=12))
    rest = losses(train(replace(settings, lr_decay_iters=12), tmp_path / "out" / "step-00000006.pt"))
    assert len(rest) == 6
    assert {step: whole[step] for step in rest} == rest


@pytest.mark.parametrize(
    "changed",
    [
        {"documents": True},
        {"cut": "packed"},
        {"cut": "packed", "documents": True},
        {"locality": "4KiB"},
        {"locality": "4KiB,512"},
        {"locality": "4KiB", "documents": True},
        {"eot": -1, "bos": EOT, "documents": True},
    ],
    ids=str,
)
def test_a_run_goes_on_exactly(changed: dict[str, Any], documents: Path, tiny: Make, tmp_path: Path) -> None:
    settings = tiny(**{"data": str(documents), "eot": EOT, **changed})
    goes_on_exactly(settings, tmp_path)


def test_a_cut_or_locality_of_another_run_is_refused(documents: Path, tiny: Make, tmp_path: Path) -> None:
    settings = tiny(data=str(documents), eot=EOT, max_iters=3)
    train(settings)
    others: list[dict[str, Any]] = [{"cut": "packed"}, {"locality": "4KiB"}]
    for changed in others:
        with pytest.raises(StateError, match=next(iter(changed))):
            train(replace(settings, max_iters=6, **changed), tmp_path / "out" / "step-00000003.pt")


def test_documents_need_something_that_tells_them_apart(tiny: Make, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tiny(documents=True)
    flags = ["--data", settings.data, "--data-dtype", "uint16", "--documents", "--out-dir", settings.out_dir]
    assert main(["train", *flags]) == 1
    assert "eot" in capsys.readouterr().err


# Mixtures


@pytest.fixture
def mixed(tmp_path: Path) -> str:
    for name, seed in (("web", 1), ("code", 2), ("math", 3)):
        write_tokens(tmp_path / f"{name}.bin", 8000, seed)
    return f"web={tmp_path}/web.bin:0.75,code={tmp_path}/code.bin:0.25"


def test_a_mixture_is_trained_named_in_the_metrics_and_resumed_with_another_future(
    mixed: str, tiny: Make, tmp_path: Path
) -> None:
    changing = f"{mixed};24:web=0.5,math={tmp_path}/math.bin:0.5"
    settings = tiny(data="", mix=changing)
    whole = losses(train(replace(settings, out_dir=str(tmp_path / "whole"))))
    train(replace(settings, mix=mixed, max_iters=6, lr_decay_iters=12))  # 24 rows, before the change
    rest = losses(train(replace(settings, lr_decay_iters=12), tmp_path / "out" / "step-00000006.pt"))
    assert {step: whole[step] for step in rest} == rest
    rows = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    shares = {row["step"]: row["shares"] for row in rows if row["event"] == "step"}
    assert shares[6] == {"web": 0.75, "code": 0.25}
    assert shares[7] == {"web": 0.5, "math": 0.5}
    epochs = {row["step"]: row["epochs"] for row in rows if row["event"] == "step"}
    assert epochs[6]["math"] == 0 < epochs[6]["code"] < epochs[6]["web"] < epochs[7]["web"]
    assert epochs[7]["math"] > 0
    assert epochs[7]["code"] == epochs[6]["code"]


def test_peek_shows_the_rows_a_mixture_was_trained_on(
    mixed: str, tiny: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny(data="", mix=mixed, max_iters=4))
    assert main(["peek", str(tmp_path / "out"), "--step", "4", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["row"] for row in rows] == [12, 13, 14, 15]
    assert sorted(row["corpus"] for row in rows) == ["code", "web", "web", "web"]
    for row in rows:
        found = np.fromfile(row["file"], np.uint16, 17, offset=row["offset"])
        assert Path(row["file"]).stem == row["corpus"]
        assert row["ids"] == found.tolist()
        assert row["token"] * 2 == row["offset"]
    (tmp_path / "code.bin").unlink()
    assert main(["peek", str(tmp_path / "out"), "--step", "4"]) == 1
    assert "expected the corpus of 'code'" in capsys.readouterr().err


@pytest.mark.parametrize("changed", [{"cut": "packed"}, {"documents": True}, {"locality": "4KiB"}], ids=str)
def test_peek_reads_the_cut_a_run_had(
    changed: dict[str, Any], documents: Path, tiny: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny(data=str(documents), eot=EOT, max_iters=2, **changed))
    assert main(["peek", str(tmp_path / "out"), "--step", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    tokens = lowtide.open_tokens(documents, dtype="uint16", eot=EOT).split(val=0.1)[0]
    windows = tokens.windows(16, cut=changed.get("cut", "stride"))
    x = windows.batches(4, seed=1337, locality=changed.get("locality"))[1][0]
    for row, ids in zip(rows, x.tolist(), strict=True):  # padding is counted, not shown
        assert row["ids"][: 16 - row["padding"]] == ids[: 16 - row["padding"]]


@pytest.mark.parametrize(
    "changed", [{"documents": True}, {"cut": "packed"}, {"cut": "packed", "documents": True}], ids=str
)
def test_documents_and_packed_rows_are_mixed_and_go_on_exactly(
    changed: dict[str, Any], documents: Path, tiny: Make, tmp_path: Path
) -> None:
    other = write_tokens(tmp_path / "other.bin", 8000, 5)  # 63 occurs in it too
    settings = tiny(data="", mix=f"a={documents}:0.5,b={other}:0.5", eot=EOT, **changed)
    goes_on_exactly(settings, tmp_path)


def test_a_mixture_with_another_past_is_refused(mixed: str, tiny: Make, tmp_path: Path) -> None:
    settings = tiny(data="", mix=mixed, max_iters=3)
    train(settings)
    other = mixed.replace("0.75", "0.5")
    with pytest.raises(StateError, match="expected the plan that gave its 12 rows"):
        train(replace(settings, mix=other, max_iters=6), tmp_path / "out" / "step-00000003.pt")


def test_a_table_of_a_toml_file_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        '[mix]\nweb = ["a,b:c", 0.7]\ncode = ["code", 0.3]\n[mix.then.1000]\nweb = 1\nmath = ["m", 2]\n'
    )
    plan = mix_plan(layered(from_toml(tmp_path / "run.toml")).mix)
    assert plan.paths == {"web": "a,b:c", "code": "code", "math": "m"}
    assert plan.first == {"web": 0.7, "code": 0.3}
    assert plan.then == {1000: {"web": 1.0, "math": 2.0}}
    assert mix_plan("web=w:0.7,code=c:0.3;1000:web=1,math=m:2").then == plan.then


def test_the_first_corpus_of_a_mixture_spells_its_text() -> None:
    assert first_corpus({"data": "", "mix": "web=w:1,code=c:1"}) == "w"
    assert first_corpus({"data": "d", "mix": ""}) == first_corpus({"data": "d"}) == "d"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("web", "expected name=PATH:weight for each corpus, got 'web'"),
        ("web=a:x", "expected a weight after the last colon"),
        ("web=0.5", "expected a path for 'web'"),
        ("web=a:1,web=b:1", "expected each corpus once"),
        ("web=a:1;5:web=b:1", "expected a for 'web' as before, got b"),
        ("web=a:1;0:web=1", "expected changes at rows from 1 on"),
        ("web=a:1;x", "expected name=PATH:weight"),
        ('{"web": ["a", true]}', "expected a path and a weight for 'web'"),
    ],
)
def test_what_is_no_mixture_is_refused_in_one_line(text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--mix", text]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("flags", [["--data", "x"], ["--val-data", "x"]], ids=str)
def test_what_cannot_be_mixed_is_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--mix", "web=a:1", *flags]) == 2
    assert flags[0] in capsys.readouterr().err


def test_corpora_of_other_vocabularies_are_not_mixed(tiny: Make, tmp_path: Path) -> None:
    for name, vocab in (("a", 64), ("b", 65)):
        (tmp_path / name).mkdir()
        write_tokens(tmp_path / name / "x.bin", 2000)
        manifest = {"lowtide": 1, "dtype": "uint16", "vocab": vocab, "shards": [{"file": "x.bin", "tokens": 2000}]}
        (tmp_path / name / "manifest.json").write_text(json.dumps(manifest))
    settings = tiny(data="", data_dtype="", vocab_size=0, mix=f"a={tmp_path}/a:1,b={tmp_path}/b:1")
    with pytest.raises(ValueError, match="expected the 64 ids of the other corpora for 'b', got 65"):
        train(settings)
