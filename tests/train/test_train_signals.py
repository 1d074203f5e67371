"""Signals: answered inside a step, twice at once, and in one line while starting; an orphaned rank ends by itself."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.train.running import Forked, flags, losses, start_fresh, train, wait_for

from lowtide.cli import main, no_interrupt_lost
from lowtide.memory.measure.process import children, process_identity
from lowtide.train import Settings, checkpoints, ledger
from lowtide.train.model import Block
from lowtide.train.run import _Run
from lowtide.train.trainer import Trainer

Make = Callable[..., Settings]

PYTHON = "python"  # where a handler can run
ONE_CALL = "one call"  # minutes outside of Python, as a large product is


def slow_training(
    owner: type, method: str, wait: str, words: list[str], seconds: float = 300.0, begun: Path | None = None
) -> int:
    """``lowtide train`` with one method made to last as long as the test likes, from two ledger lines of steps on."""
    real = getattr(owner, method)

    def slow(*given: Any) -> Any:
        print("slow", flush=True)
        until = time.monotonic() + seconds
        while (begun is None or (begun.exists() and begun.read_text().count("\n") > 2)) and time.monotonic() < until:
            if wait == PYTHON:
                time.sleep(0.01)
            else:
                hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
        return real(*given)

    setattr(owner, method, slow)
    return main(["train", *words])


def wait_until_slow(process: Forked) -> None:
    wait_for(lambda: "slow" in process.said().splitlines(), process)


@pytest.mark.slow
@pytest.mark.parametrize("passes", [1, 6])
def test_a_signal_inside_a_step_leaves_it_and_the_resumed_run_is_exact(tiny: Make, tmp_path: Path, passes: int) -> None:
    """From the third step on each pass sleeps, so that the signal comes inside a step long before the last one."""
    lines = tmp_path / "ledger"
    settings = tiny(max_iters=6, n_layer=2, gradient_accumulation_steps=passes, ledger=str(lines), eval_interval=2)
    process = Forked(slow_training, Block, "forward", PYTHON, ["--json", *flags(settings)], 0.2, lines)
    wait_for(lambda: lines.exists() and len(ledger.chain(lines)) >= 3, process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 128 + signal.SIGTERM, err
    stopped = json.loads(out.splitlines()[-1])["steps"]
    assert stopped < 6
    assert checkpoints.load_whole(checkpoints.newest(tmp_path / "out"))["rows"] == stopped * 4 * passes
    resumed = train(settings, checkpoints.newest(tmp_path / "out"))
    whole = train(tiny(max_iters=6, n_layer=2, gradient_accumulation_steps=passes, out_dir=str(tmp_path / "whole")))
    assert losses(resumed) == {step: loss for step, loss in losses(whole).items() if step > stopped}
    assert len(ledger.chain(lines)) == 6


@pytest.mark.slow
def test_a_second_signal_ends_at_once_with_one_line_whatever_the_main_thread_does(tiny: Make, tmp_path: Path) -> None:
    process = Forked(slow_training, Trainer, "_update", ONE_CALL, flags(tiny()))
    wait_until_slow(process)
    for _ in range(2):
        os.kill(process.pid, signal.SIGTERM)
        time.sleep(0.5)  # two at one moment are one: signals do not queue
    _, err = process.communicate(timeout=240)
    assert process.returncode == 128 + signal.SIGTERM
    assert "SIGTERM: stopping and saving; a second signal would end at once without saving" in err
    assert err.splitlines()[-1].startswith("lowtide train: ended at once by SIGTERM; the last checkpoint remains")
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_signal_while_the_sample_is_written_ends_the_sample_without_a_traceback(tiny: Make, tmp_path: Path) -> None:
    process = Forked(slow_training, Trainer, "sample", PYTHON, flags(tiny(sample_tokens=64)), 300.0, tmp_path / "gone")
    (tmp_path / "gone").write_text("\n\n\n")
    wait_until_slow(process)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)  # heard, before the sample begins
    (tmp_path / "gone").unlink()
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("wait", [PYTHON, ONE_CALL], ids=["python", "one long call"])
def test_a_signal_while_starting_is_one_line(tiny: Make, wait: str, number: signal.Signals) -> None:
    process = Forked(slow_training, _Run, "_with_corpus", wait, flags(tiny()))
    wait_until_slow(process)
    process.send_signal(number)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 128 + number
    assert err == f"lowtide train: stopped by {number.name} before the first step; nothing was saved.\n"


def test_a_ctrl_c_that_an_import_swallows_is_raised_behind_it() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    behind = False
    with pytest.raises(KeyboardInterrupt), no_interrupt_lost():
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        behind = True
    assert behind
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with no_interrupt_lost():
        pass  # the control: nothing came, nothing is raised


def test_a_ctrl_c_in_a_finalizer_is_raised_behind_it_and_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """A lock's callback in the import system was one such, with a traceback before the one line."""

    class Ends:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    hook = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), no_interrupt_lost():
        inside = Ends()
        del inside
    assert sys.unraisablehook is hook
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("module", ["lowtide.cli", "lowtide.errors", "lowtide.train.run"])
def test_ctrl_c_while_a_module_of_ours_is_imported_is_one_line(module: str) -> None:
    """As a rank gets it that torchrun has just started."""
    program = f"""
import runpy, sys
class Interrupts:
    def find_spec(self, name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
sys.argv = ["lowtide", "train"]
runpy.run_module("lowtide", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 128 + signal.SIGINT
    assert re.fullmatch(r"lowtide( train)?: stopped by Ctrl-C\.\n", done.stderr), done.stderr


def test_ctrl_c_while_torch_is_imported_is_one_line(tiny: Make) -> None:
    process = start_fresh(*flags(tiny()))
    maps = Path(f"/proc/{process.pid}/maps")
    if not maps.exists():
        process.kill()
        pytest.skip("NOT TESTED: Ctrl-C while importing, there is no /proc to see when that is")
    wait_for(lambda: "libtorch" in maps.read_text(), process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 128 + signal.SIGINT
    assert err.startswith("lowtide train: ")
    assert err.count("\n") == 1, err


def _lives(pid: int) -> bool:
    try:
        return process_identity(pid).state not in "ZX"
    except OSError:
        return False


@pytest.mark.trainers
@pytest.mark.slow
def test_ranks_whose_launcher_was_killed_save_and_end(tiny: Make, tmp_path: Path) -> None:
    settings = tiny(max_iters=1_000_000, eval_interval=1_000_000, ledger=str(tmp_path / "ledger"))
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "lowtide"]
    with (tmp_path / "said").open("w") as said:
        launcher = subprocess.Popen(
            [*words, "train", *flags(settings)],
            stdout=said,
            stderr=said,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        lines = tmp_path / "ledger"
        wait_for(lambda: lines.exists() and lines.stat().st_size > 500, launcher)
    ranks = [
        pid for pid in children(launcher.pid) if b"lowtide" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    ]
    assert len(ranks) == 2
    launcher.kill()
    launcher.communicate()
    deadline = time.monotonic() + 240
    while (alive := [rank for rank in ranks if _lives(rank)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    for rank in alive:
        os.kill(rank, signal.SIGKILL)
    assert not alive
    assert "the process that started this rank is gone: stopping and saving" in (tmp_path / "said").read_text()
    step = checkpoints.load_whole(checkpoints.newest(tmp_path / "out"))["step"]
    assert len(ledger.chain(lines)) == step
