"""Several ranks, dying ranks, and kills at any moment: the rows behind the weights stay those of one quiet run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.train.running import Forked, flags, losses, start, start_ranks, train, wait_for
from tests.train.test_train_run import weights

from lowtide.cli import main
from lowtide.errors import LowtideError
from lowtide.train import Settings, checkpoints, ledger, run
from lowtide.train.telling import RunProgress

Make = Callable[..., Settings]


def ended(processes: list[Forked], seconds: float = 240) -> list[tuple[int | None, str, str]]:
    results = []
    for process in processes:
        out, err = process.communicate(timeout=seconds)
        results.append((process.returncode, out, err))
    return results


@pytest.mark.slow
def test_two_ranks_under_torchrun_read_the_rows_of_one_and_learn_the_same(tiny: Make, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    alone = train(tiny(dropout=0.0, gradient_accumulation_steps=3, batch_size=8, ledger=str(one)))
    settings = tiny(
        dropout=0.0, gradient_accumulation_steps=3, batch_size=8, ledger=str(two), out_dir=str(tmp_path / "ranks")
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    found = subprocess.run(
        [*launcher, "-m", "lowtide", "train", "--json", *flags(settings)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    events = [json.loads(line) for line in found.stdout.splitlines()]  # one rank prints
    assert events[0]["world"] == 2
    assert ledger.chain(one) == ledger.chain(two)
    assert losses(events) == pytest.approx(losses(alone), rel=1e-4)
    last = "step-00000012.pt"
    for name, tensor in weights(tmp_path / "out" / last).items():
        torch.testing.assert_close(weights(tmp_path / "ranks" / last)[name], tensor, rtol=1e-3, atol=1e-4)


def threads_after_training(settings: Settings) -> None:
    try:
        run(settings, RunProgress())
    except LowtideError:
        print("failed", end=" ")
    names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    print("threads", sorted(name for name in names if "gloo" in name), flush=True)


@pytest.mark.trainers
@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="NOT TESTED: gloo's threads, no /proc here to see them"
)
@pytest.mark.parametrize(("changed", "said"), [({}, "threads []"), ({"learning_rate": 1e30}, "failed threads []")])
def test_gloos_threads_end_with_the_run_also_after_an_error(tiny: Make, changed: dict[str, float], said: str) -> None:
    """A thread that outlives the run may abort the process while the interpreter is torn down."""
    ranks = start_ranks(2, threads_after_training, tiny(grad_clip=0.0, warmup_iters=0, **changed))
    for code, out, err in ended(ranks):
        assert (code, out.strip()) == (0, said), err


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_other_with_a_clear_line(tiny: Make, tmp_path: Path) -> None:
    lines = tmp_path / "ledger"
    settings = tiny(max_iters=100_000, eval_interval=100_000, ledger=str(lines))
    first, second = ranks = start_ranks(2, main, ["train", *flags(settings)])
    wait_for(lambda: lines.exists() and lines.stat().st_size > 500, first)
    second.kill()
    (code, out, err), _ = ended(ranks)  # long before the time limit of 600 s
    assert code == 1
    assert out == ""
    message = err.splitlines()[-1]
    assert message.startswith("lowtide train: rank 0: expected all 2 ranks to answer, got no answer (")
    assert message.endswith("See the other ranks' messages, then start again with --resume.")
    assert "Traceback" not in err


@pytest.mark.trainers
@pytest.mark.slow
def test_a_rank_that_falls_silent_ends_the_other_after_the_time_limit(tiny: Make, tmp_path: Path) -> None:
    lines = tmp_path / "ledger"
    settings = tiny(max_iters=100_000, eval_interval=100_000, ledger=str(lines), rank_timeout=3)
    first, second = start_ranks(2, main, ["train", *flags(settings)])
    wait_for(lambda: lines.exists() and lines.stat().st_size > 500, first)
    second.send_signal(signal.SIGSTOP)
    try:
        _, err = first.communicate(timeout=240)
    finally:
        second.kill()
        second.communicate()
    assert first.returncode == 1
    assert "expected all 2 ranks to answer" in err.splitlines()[-1]


@pytest.mark.trainers
@pytest.mark.slow
def test_kills_at_any_moment_and_other_world_sizes_leave_the_same_rows_behind_the_weights(
    tiny: Make, tmp_path: Path
) -> None:
    quiet, hunted = tmp_path / "quiet", tmp_path / "hunted"
    steps = 40
    settings = tiny(max_iters=steps, eval_interval=4, eval_iters=1, keep=2, ledger=str(hunted))
    train(tiny(max_iters=steps, eval_interval=40, ledger=str(quiet), out_dir=str(tmp_path / "quiet-out")))
    chooses = random.Random(20)
    out = tmp_path / "out"
    for world in (1, 2, 1):  # `make torture` goes on for as long as one likes
        # Two saves further than before, then a kill at a random moment, which may be in the middle of the next save.
        before = checkpoints.saved(out)[-1].name if checkpoints.saved(out) else ""
        words = ["--resume", "--out-dir", str(out), "--ledger", str(hunted)] if before else flags(settings)
        ranks = start_ranks(world, main, ["train", *words]) if world > 1 else [start(*words)]
        wait_for(lambda: bool(found := checkpoints.saved(out)) and found[-1].name > before, ranks[0])  # noqa: B023
        time.sleep(chooses.uniform(0, 0.03))
        for process in ranks:
            process.kill()
        ended(ranks)
    (code, _, err), *_ = ended([start("--resume", "--out-dir", str(out), "--ledger", str(hunted))])
    assert code == 0, err
    restarts = [json.loads(line) for line in hunted.read_text().splitlines() if "resume" in line]
    assert len(restarts) >= 3
    assert ledger.chain(hunted) == ledger.chain(quiet)
    assert checkpoints.load_whole(out / f"step-{steps:08d}.pt")["rows"] == steps * 4
    assert not list(out.glob(".step-*.tmp"))
