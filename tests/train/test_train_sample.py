"""``lowtide sample``, the files a run leaves for others (metrics, weights, curves), and text through tokenizers."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.running import TINY, train

import lowtide
from lowtide.cli import main
from lowtide.corpus import convert
from lowtide.prepare import Request, prepare
from lowtide.prepare.tokenizers.spelling import Decoder, NumberWords, words_of
from lowtide.train import GPT, Settings, Shape, checkpoints
from lowtide.train.data import open_data
from lowtide.train.trained import load_trained

Make = Callable[..., Settings]
PAGE = Path(__file__).parents[2] / "docs" / "train.md"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over bytes that has learned a little: each letter is followed by the next."""
    directory = tmp_path_factory.mktemp("trained")
    corpus = directory / "corpus.bin"
    corpus.write_bytes(b"abcdefghij" * 3000)
    values = {**TINY, "data_dtype": "uint8", "vocab_size": 256, "max_iters": 60, "learning_rate": 2e-2, "dropout": 0.0}
    values |= {"eval_interval": 30, "log_interval": 10}
    train(Settings(**values, data=str(corpus), val_fraction=0.1, out_dir=str(directory / "out")))
    return directory / "out"


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["sample", *words]) == 0
    return capsys.readouterr().out


def test_a_model_goes_on_from_the_prompt(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(trained), "--prompt", "abcd", "--tokens", "12", "--temperature", "0"]
    assert said(capsys, *words) == "abcdefghijabcdef\n"


def test_the_prompt_may_come_from_standard_input(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in ([], ["--prompt", "-"]):
        monkeypatch.setattr("sys.stdin", io.StringIO("cde"))
        assert said(capsys, str(trained), "--tokens", "3", "--temperature", "0", *words) == "cdefgh\n"


def test_the_same_seed_gives_the_same_text_and_json_is_one_document(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(trained), "--prompt", "ab", "--tokens", "30", "--temperature", "3", "--top-k", "0", "--json"]
    one, same, other = (json.loads(said(capsys, *words, "--seed", seed)) for seed in ("1", "1", "2"))
    assert one == same
    assert one["ids"] != other["ids"]
    assert (one["prompt"], len(one["ids"]), one["step"]) == ("ab", 30, 60)


def test_any_checkpoint_can_write(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([str(checkpoints.saved(trained)[0])], [str(trained), "--best"]):
        assert len(said(capsys, *words, "--prompt", "a", "--tokens", "4")) > 1


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ["nowhere"],
            1,
            "nowhere: expected the out directory of a run, with a checkpoint, got no ",
        ),
        (["OUT", "--tokens", "0"], 2, "--tokens: expected 1 or more, got 0. Use --tokens 200."),
        (["OUT", "--temperature", "-1"], 2, "--temperature: expected 0 or more, got -1.0"),
        (["OUT", "--top-k", "-1"], 2, "--top-k: expected 0 or more, got -1"),
        (["OUT", "--device", "tpu"], 2, "--device tpu: expected cpu, cuda or cuda:N"),
        (["OUT", "--tokenizer", "none.json"], 1, "none.json: expected a tokenizer.json, got no such file"),
    ],
)
def test_a_mistake_is_one_line(
    trained: Path, words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--tokenizer" in words:
        pytest.importorskip("tokenizers", reason="NOT TESTED: a tokenizer.json, tokenizers is not installed")
    given = [str(trained) if word == "OUT" else word for word in words]
    assert main(["sample", *given, "--prompt", "a"]) == code
    err = capsys.readouterr().err
    assert err.startswith(f"lowtide sample: {message}")
    assert err.count("\n") == 1


def test_without_a_tokenizer_ids_are_written_and_read(
    tiny: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny(max_iters=2))
    out = str(tmp_path / "out")
    text = said(capsys, out, "--prompt", "1 2 3", "--tokens", "4")
    assert re.fullmatch(r"1 2 3( \d+){4}\n", text)
    assert main(["sample", out, "--prompt", "hello"]) == 2
    assert "expected ids such as '15 262 3290', because no tokenizer is known" in capsys.readouterr().err
    assert main(["sample", out, "--prompt", "64"]) == 2
    assert "expected ids below the model's vocabulary of 64, got 64" in capsys.readouterr().err


def test_text_goes_through_the_tokenizer_that_the_corpus_names(tmp_path: Path) -> None:
    tokenizers: Any = pytest.importorskip("tokenizers", reason="NOT TESTED: a tokenizer.json, it is not installed")
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"low": 0, "tide": 1, "[UNK]": 2}, unk_token="[UNK]"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    corpus = tmp_path / "corpus"
    (corpus / "train").mkdir(parents=True)
    library.save(str(corpus / "train" / "tokenizer.json"))
    (corpus / "train" / "manifest.json").write_text(json.dumps({"tokenizer": {"file": "tokenizer.json"}}))
    for place in (corpus, corpus / "train", corpus / "train" / "train.bin"):
        words = words_of(str(place), 3)
        assert words.ids("tide low") == [1, 0]
        assert words.text([0, 1]) == "low tide"


def test_what_ids_mean_where_no_manifest_says_it(tmp_path: Path) -> None:
    assert isinstance(words_of("", 256), Decoder)
    assert isinstance(words_of(str(tmp_path / "gone"), 257), Decoder)
    assert isinstance(words_of(str(tmp_path / "gone"), 50_304), NumberWords)
    assert isinstance(words_of(str(tmp_path / "gone"), 50_304, "bytes"), Decoder)
    assert words_of("", 257).text([104, 105, 256, 106]) == "hi\n\nj"


# What a run leaves for others


def metrics(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=pytest.fail) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_metrics_hold_the_figures_of_every_line_and_evaluation(trained: Path) -> None:
    found = metrics(trained)
    steps = [line for line in found if line["event"] == "step"]
    assert [line["step"] for line in steps] == [10, 20, 30, 40, 50, 60]
    kinds = {"anon", "mapped", "cache"}
    waits = {"wait_p50", "wait_p95", "wait_p99", "loader_reading", "loader_copying", "loader_shipping", "loader_cold"}
    assert steps[0].keys() >= {"loss", "learning_rate", "tokens_per_s", "data_wait", *kinds, *waits}
    assert 0 < steps[-1]["wait_p50"] <= steps[-1]["wait_p99"]
    assert [line["step"] for line in found if line["event"] == "eval"] == [0, 30, 60]
    elapsed = [line["seconds"] for line in found if line["event"] != "end"]
    assert elapsed == sorted(elapsed)
    assert elapsed[0] == 0.0 < elapsed[-1]
    assert (found[0]["event"], found[-1]["event"], found[-1]["step"]) == ("start", "end", 60)


def test_a_resumed_run_adds_to_the_metrics_and_a_new_one_sets_them_aside(tiny: Make, tmp_path: Path) -> None:
    out = tmp_path / "out"
    train(tiny(max_iters=6))
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"event": "st')  # as a power failure leaves it
    train(tiny(max_iters=6), out / "step-00000003.pt")
    starts = [line["step"] for line in metrics(out) if line["event"] == "start"]
    assert starts == [0, 3]
    resumed = next(line for line in metrics(out) if line["event"] == "start" and line["step"] == 3)
    assert resumed["seconds"] > 0  # elapsed time goes on where the checkpoint was
    train(tiny(max_iters=3))
    assert [line["step"] for line in metrics(out) if line["event"] == "start"] == [0]
    assert len(metrics(out / "earlier-1")) > 10


def test_the_lines_of_the_page_load_the_weights(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    lines = next(block for block in blocks if "safetensors" in block)
    monkeypatch.chdir(trained.parent)
    names: dict[str, Any] = {}
    exec(lines, names)
    model = names["model"]
    assert isinstance(model, GPT)
    assert isinstance(model.shape, Shape)
    expected = load_trained(trained, torch.device("cpu")).model
    tokens = torch.arange(16)[None]
    assert torch.equal(model(tokens)[0], expected(tokens)[0])


def test_tensorboard_gets_the_curves_where_it_is_installed(tiny: Make, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="NOT TESTED: --tensorboard, it is not installed")
    train(tiny(max_iters=3, tensorboard=True))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    found.Reload()
    assert [event.step for event in found.Scalars("loss/train")] == [1, 2, 3]
    assert {"loss/val", "memory_mib/anon", "data_wait"} <= set(found.Tags()["scalars"])


def test_tensorboard_that_is_not_there_is_refused_with_the_way_out(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["train", "--data", str(corpus), "--out-dir", str(tmp_path / "o"), "--tensorboard"]) == 2
    assert "Install it with: pip install tensorboard" in capsys.readouterr().err


@pytest.mark.parametrize("to", ["nanogpt", "llmc"])
def test_a_converted_corpus_is_trained_on_and_sampled_from_with_its_own_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], to: str
) -> None:
    """prepare, convert, train, sample: nobody states a dtype, a vocabulary or a tokenizer again."""
    (tmp_path / "a.txt").write_text("".join(f"the tide is low on day {day}\n" for day in range(400)))
    prepare([str(tmp_path / "a.txt")], tmp_path / "corpus", Request(lines=True, val=0.2))
    convert(tmp_path / "corpus", tmp_path / "other", to)
    tiny = {name: value for name, value in TINY.items() if name not in ("data_dtype", "vocab_size")}
    settings = Settings(**{**tiny, "max_iters": 2}, data=str(tmp_path / "other"), out_dir=str(tmp_path / "out"))
    train(settings)
    with lowtide.open_tokens(tmp_path / "other", part="val") as val:
        assert len(val) == len(open_data(settings).val)
    assert said(capsys, str(tmp_path / "out"), "--prompt", "the tide", "--tokens", "3").startswith("the tide")
