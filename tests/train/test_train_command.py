"""``lowtide train`` as a process: flags, files, signals, and what it prints where."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.commands import called
from tests.train.running import flags, losses, start, start_fresh, train, wait_for
from tests.train.test_train_progress import LAST_LINE
from tests.train.test_train_run import assert_same_weights

from lowtide.cli import main
from lowtide.train import Settings, checkpoints
from lowtide.train.data import own_budget
from lowtide.units import MIB

Make = Callable[..., Settings]


def test_a_run_prints_a_report_and_the_last_line_and_nothing_else_on_stdout(
    tiny: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *flags(tiny())]) == 0
    said = capsys.readouterr()
    assert LAST_LINE.fullmatch(said.out.splitlines()[-1])
    assert "anon + mapped grew" in said.out
    assert "step 12/12  val loss" in said.err


def test_json_mode_has_only_json_on_stdout(tiny: Make, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--json", *flags(tiny())]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (events[0]["event"], events[-1]["event"], events[-1]["steps"]) == ("start", "end", 12)


def test_flags_win_over_the_config_and_nanogpts_spelling_works(
    tiny: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "run.toml"
    config.write_text("max_iters = 2\nbatch_size = 8\n")
    words = flags(tiny(max_iters=900, batch_size=16))
    assert main(["train", "--json", *words, "--config", str(config), "--max_iters=3"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (events[-1]["steps"], events[0]["rows_per_step"]) == (3, 8)


def test_resuming_needs_no_flag_but_the_directory(
    tiny: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = train(tiny())
    (tmp_path / "out" / "step-00000012.pt").unlink()
    assert main(["train", "--json", "--resume", "--out-dir", str(tmp_path / "out")]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert losses(events) == {step: loss for step, loss in losses(whole).items() if step > 9}


@pytest.mark.skipif(torch.cuda.is_available(), reason="NOT TESTED: refusing CUDA, this machine has it")
def test_cuda_that_is_not_there_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--device", "cuda"]) == 2
    expected = "lowtide train: --device cuda: expected a CUDA device, got none. Use --device cpu.\n"
    assert capsys.readouterr() == ("", expected)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--device", "tpu"], 2, "lowtide train: --device tpu: expected cpu, cuda or cuda:N"),
        (["--batch-size", "0"], 2, "lowtide train: --batch-size: expected 1 or more, got 0"),
        (
            ["--data", "/no-such-file.bin"],
            1,
            "lowtide train: /no-such-file.bin: expected a file, got nothing of that name",
        ),
        (["--resume", "--out-dir", "nowhere"], 1, "lowtide train: nowhere: expected the out directory of a run"),
        (
            ["--config", "no-such.toml"],
            1,
            "lowtide train: no-such.toml: expected a file, got nothing",
        ),
    ],
)
def test_a_mistake_is_one_line_and_its_exit_code(
    words: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)  # a run without --out-dir locks ./out
    assert main(["train", *words]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(message)
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("there", [False, True])
def test_a_mistake_leaves_no_directory_that_was_not_there(tmp_path: Path, there: bool) -> None:
    out = tmp_path / "runs" / "first"
    if there:
        out.mkdir(parents=True)
    said = called("train", "--data", tmp_path / "nothere", "--out-dir", out)
    assert said.returncode != 0 and "nothing of that name" in said.stderr
    assert [one.name for one in tmp_path.iterdir()] == (["runs"] if there else [])


def test_an_unknown_flag_is_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "--batch-sise", "3"])
    assert ended.value.code == 2
    assert "--batch-sise" in capsys.readouterr().err


def test_what_a_run_writes_is_never_named_by_the_content_of_a_checkpoint(
    tiny: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny(max_iters=6))
    path, victim = tmp_path / "out" / "step-00000006.pt", tmp_path / "victim"
    victim.write_text("mine\n")
    contents = dict(checkpoints.load_whole(path))
    contents["settings"] = {**checkpoints.load_whole(path)["settings"], "ledger": str(victim), "out_dir": str(tmp_path)}
    torch.save(contents, path)
    assert main(["train", "--resume", str(path), "--max-iters", "9"]) == 0
    assert victim.read_text() == "mine\n"
    assert not list(tmp_path.glob("step-*"))
    assert (tmp_path / "out" / "step-00000009.pt").is_file()
    assert "the run before kept a ledger and this one keeps none: state --ledger" in capsys.readouterr().err
    assert main(["train", "--resume", str(path), "--max-iters", "9", "--ledger", str(tmp_path / "lines")]) == 0
    assert (tmp_path / "lines").is_file()  # the control: what the command line names is written


def test_a_damaged_checkpoint_is_one_line_with_the_one_to_use(
    tiny: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny(max_iters=6))
    bad = tmp_path / "out" / "step-00000006.pt"
    bad.write_bytes(bad.read_bytes()[:2000])
    assert main(["train", "--resume", "--out-dir", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.rstrip().endswith(f"Use the one saved before it: {tmp_path / 'out' / 'step-00000003.pt'}.")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_a_signal_saves_and_says_how_to_go_on(tiny: Make, tmp_path: Path, number: signal.Signals) -> None:
    out_dir = tmp_path / "my run"
    settings = tiny(max_iters=2000, eval_interval=1000, out_dir=str(out_dir), ledger=str(tmp_path / "ledger"))
    process = start(*flags(settings))
    wait_for(lambda: (tmp_path / "ledger").exists() and (tmp_path / "ledger").stat().st_size > 200, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 128 + number
    saved = checkpoints.newest(out_dir)
    steps = checkpoints.load_whole(saved)["step"]
    assert 0 < steps < 2000
    assert err.splitlines()[-1] == (
        f"stopped after step {steps} and saved; continue with: "
        f"lowtide train --resume --out-dir '{out_dir}' --ledger {tmp_path / 'ledger'}"
    )
    assert f"steps={steps} " in out.splitlines()[-1]
    longer = ["--max-iters", str(steps + 5), "--lr-decay-iters", "2000"]
    assert main(["train", "--resume", "--out-dir", str(out_dir), *longer]) == 0
    train(tiny(max_iters=steps + 5, lr_decay_iters=2000, eval_interval=1000, out_dir=str(tmp_path / "whole")))
    last = f"step-{steps + 5:08d}.pt"
    assert_same_weights(out_dir / last, tmp_path / "whole" / last)


@pytest.mark.slow
def test_without_data_it_prepares_this_machines_text_and_draws_the_control_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--corpus-tokens", "500000", "--max-iters", "2", "--n-embd", "16", "--n-layer", "1", "--eval-iters", "1"]
    environment = {**os.environ, "LOWTIDE_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, "-m", "lowtide", "train", *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert LAST_LINE.fullmatch(found.stdout.splitlines()[-1])
    assert (tmp_path / "out" / "train.png").read_bytes().startswith(b"\x89PNG")
    assert "through a kept np.memmap" in found.stdout
    assert "prepared" in found.stderr
    (corpus,) = (tmp_path / "cache").glob("corpus-machine-*")
    settings = checkpoints.glance(checkpoints.newest(tmp_path / "out"))["settings"]
    assert settings["data"] == str(corpus), "a checkpoint names its corpus"
    size = sum(path.stat().st_size for path in corpus.glob("*/*.bin"))
    assert settings["budget"] == "2MiB", "an eighth of so little text would be less than torch itself moves by"
    control = json.loads((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()[-1])["control_mapped"]
    assert control > size * 9 // 10, "the plain way maps the whole corpus"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOWTIDE_CACHE", environment["LOWTIDE_CACHE"])
    again = called("train", *words, "--resume", "--max-iters", "3", "--no-picture")
    assert again.returncode == 0, again.stderr
    assert "prepared" not in again.stderr
    sampled = called("sample", "out", "--prompt", "import os", "--tokens", "8")
    assert sampled.returncode == 0, sampled.stderr
    assert sampled.stdout.startswith("import os")
    assert not sampled.stderr


def test_the_budget_of_a_run_on_this_machines_text_is_an_eighth_of_it_in_whole_mib_and_2_at_least() -> None:
    assert [own_budget(size) for size in (MIB, 23 * MIB, 24 * MIB, 1000 * MIB)] == ["2MiB", "2MiB", "3MiB", "125MiB"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="NOT TESTED: no /proc here to measure memory with")
def test_reading_keeps_the_budget_that_mapping_breaks(tiny: Make, tmp_path: Path) -> None:
    corpus = tmp_path / "large.bin"
    with corpus.open("wb") as file:
        file.truncate(1024 * MIB)  # holes: they cost no disk, and page cache like any other pages
    settings = tiny(data=str(corpus), budget="48MiB", batch_size=512, block_size=8, max_iters=80, eval_interval=80)
    ends = {}
    for strategy in ("read", "map"):
        out = str(tmp_path / strategy)
        process = start_fresh("--json", *flags(replace(settings, strategy=strategy, out_dir=out, log_interval=10)))
        said, err = process.communicate(timeout=280)
        assert process.returncode == 0, err
        ends[strategy] = json.loads(said.splitlines()[-1])
    assert ends["read"]["verdict"]["word"] == "ok", ends["read"]["last_line"]
    assert ends["map"]["verdict"]["word"] == "broken", ends["map"]["last_line"]
    mapped = {
        name: end["verdict"]["peak"]["mapped"] - end["verdict"]["settled"]["mapped"] for name, end in ends.items()
    }
    assert mapped["read"] < MIB < 48 * MIB < mapped["map"]
    assert ends["read"]["val_loss"] == ends["map"]["val_loss"]
