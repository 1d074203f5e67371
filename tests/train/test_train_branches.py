"""Going on from an older checkpoint starts a branch; nothing that another branch has or needs is ever lost."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.commands import called
from tests.train.running import Forked, flags, start, train, wait_for
from tests.train.test_train_checkpoint import contents, past
from tests.train.test_train_run import assert_same_weights

from lowtide.cli import main
from lowtide.train import Settings, checkpoints
from lowtide.train.checkpoints import Branch, DirectoryInUseError, only_run

Make = Callable[..., Settings]


def names(directory: Path) -> list[str]:
    return [path.name for path in checkpoints.saved(directory)]


def latest(directory: Path) -> str:
    return (directory / "latest.pt").resolve(strict=True).name


def test_a_branch_from_an_older_checkpoint_keeps_everything_it_must(tiny: Make, tmp_path: Path) -> None:
    """From 6 while 9 and 12 exist, keeping one: 6 is where the run came from, 9 and 12 are another branch's."""
    out = tmp_path / "out"
    train(tiny())
    (out / "step-00000003.pt").unlink()
    train(tiny(max_iters=10, keep=1), out / "step-00000006.pt")
    assert names(out)[:3] == ["step-00000006.pt", "step-00000009.pt", "step-00000012.pt"]
    assert {*names(out)[3:]} <= {"step-00000010-2.pt", checkpoints.best(out).name}
    assert latest(out) == "step-00000010-2.pt"
    assert checkpoints.newest(out).name == "step-00000010-2.pt"
    assert checkpoints.glance(out / "step-00000010-2.pt")["run"]["lineage"] == ["step-00000006.pt"]
    for path in checkpoints.saved(out):
        checkpoints.load_whole(path)


def test_a_plain_resume_goes_on_with_the_branch_and_not_with_the_highest_step(tiny: Make, tmp_path: Path) -> None:
    out = tmp_path / "out"
    train(tiny())
    train(tiny(max_iters=7, lr_decay_iters=12, learning_rate=5e-3), out / "step-00000006.pt")
    assert main(["train", "--resume", "--out-dir", str(out), "--max-iters", "11"]) == 0
    assert names(out)[-3:] == ["step-00000007-2.pt", "step-00000009-2.pt", "step-00000011-2.pt"]
    whole = tiny(max_iters=11, lr_decay_iters=12, learning_rate=5e-3, out_dir=str(tmp_path / "whole"))
    train(whole, out / "step-00000006.pt")
    assert_same_weights(out / "step-00000011-2.pt", tmp_path / "whole" / "step-00000011.pt")


def test_a_branch_of_a_branch_keeps_both_places_it_came_from(tmp_path: Path) -> None:
    trunk = Branch(tmp_path)
    for step in (10, 20, 30, 40):
        trunk.save(contents(step), keep=9)
    second = checkpoints.continued(tmp_path, tmp_path / "step-00000020.pt", past(file="step-00000020.pt"))
    for step in (25, 30):
        second.save(contents(step), keep=9)
    known = checkpoints.glance(tmp_path / "step-00000025-2.pt")["run"]
    third = checkpoints.continued(tmp_path, tmp_path / "step-00000025-2.pt", known)
    assert (second.number, third.number, third.lineage) == (2, 3, ("step-00000020.pt", "step-00000025-2.pt"))
    third.save(contents(26), keep=1)
    for path, keeps in (("step-00000040.pt", "step-00000020.pt"), ("step-00000030-2.pt", "step-00000025-2.pt")):
        again = checkpoints.continued(tmp_path, tmp_path / path, checkpoints.glance(tmp_path / path)["run"])
        for step in (50, 60, 70):
            again.save(contents(step), keep=1)
        assert keeps in names(tmp_path)
    assert "step-00000010.pt" not in names(tmp_path)
    assert "step-00000026-3.pt" in names(tmp_path)


def test_going_on_from_the_newest_extends_its_branch_and_prunes_it(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        Branch(tmp_path).save(contents(step), keep=2)
    branch = checkpoints.continued(tmp_path, tmp_path / "step-00000030.pt", past(file="step-00000030.pt"))
    assert branch.number == 1
    for step in (40, 50, 60):
        branch.save(contents(step), keep=2)
    assert names(tmp_path) == ["step-00000030.pt", "step-00000050.pt", "step-00000060.pt"]  # 30: this run came from it


def test_a_kill_between_a_save_and_its_link_does_not_start_a_branch(tmp_path: Path) -> None:
    for step in (10, 20):
        Branch(tmp_path).save(contents(step), keep=2)
    (tmp_path / "latest.pt").unlink()
    (tmp_path / "latest.pt").symlink_to("step-00000010.pt")
    assert checkpoints.newest(tmp_path).name == "step-00000020.pt"


def test_a_directory_copied_without_links_goes_on(tiny: Make, tmp_path: Path) -> None:
    out, copy = tmp_path / "out", tmp_path / "copy"
    train(tiny(max_iters=6))
    shutil.copytree(out, copy)  # follows links
    assert not (copy / "latest.pt").is_symlink()
    train(tiny(max_iters=9, out_dir=str(copy)), checkpoints.newest(copy))
    assert names(copy) == ["step-00000003.pt", "step-00000006.pt", "step-00000009.pt"]
    assert (copy / "latest.pt").is_symlink()


def test_following_the_advice_about_a_damaged_checkpoint_loses_nothing(
    tiny: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    train(tiny(keep=2))
    bad = out / "step-00000012.pt"
    bad.write_bytes(bad.read_bytes()[:-50])
    assert main(["train", "--resume", "--out-dir", str(out)]) == 1
    advice = capsys.readouterr().err.rstrip().removesuffix(".").split("before it: ")[1]
    assert main(["train", "--resume", advice]) == 0
    assert names(out) == ["step-00000009.pt", "step-00000012.pt", "step-00000012-2.pt"]
    assert latest(out) == "step-00000012-2.pt"


def test_best_names_the_lowest_val_loss_and_stays(tiny: Make, tmp_path: Path) -> None:
    out = tmp_path / "out"
    events = train(tiny(max_iters=30, eval_interval=3, learning_rate=0.3, grad_clip=0.0, warmup_iters=0, keep=1))
    lowest = min((event["val_loss"], event["step"]) for event in events if event["event"] == "eval" and event["step"])
    best = checkpoints.best(out)
    assert checkpoints.load_whole(best)["run"]["val_loss"] == lowest[0]
    assert names(out) == sorted({best.name, "step-00000030.pt"})


# One run per directory


@pytest.mark.slow
def test_a_second_run_in_the_directory_is_refused_and_a_dead_one_does_not_block(tiny: Make, tmp_path: Path) -> None:
    settings = tiny(max_iters=100_000, eval_interval=5)
    first = start(*flags(settings))
    wait_for(lambda: len(checkpoints.saved(tmp_path / "out")) > 1, first)
    second = called("train", *flags(settings))
    assert (second.returncode, second.stdout) == (1, "")
    held = f"expected a directory that no other run is using, got one in use by process {first.pid} on "
    assert held in second.stderr
    assert first.poll() is None
    assert not (tmp_path / "out" / "earlier-1").exists()
    first.kill()
    first.communicate()
    train(replace(settings, max_iters=3))
    assert names(tmp_path / "out") == ["step-00000003.pt"]


def leave_a_child_behind(directory: Path) -> None:
    with only_run(directory):
        child = os.fork()
        if child == 0:
            os.execvp("sleep", ["sleep", "300"])
        print(child, flush=True)
        os._exit(0)


@pytest.mark.slow
def test_a_lock_is_not_inherited_by_a_child_that_outlives_the_run(tmp_path: Path) -> None:
    holder = Forked(leave_a_child_behind, tmp_path)
    holder.communicate()
    child = int(holder.said())
    try:
        with only_run(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def test_one_process_does_not_lock_twice_and_locks_again_after(tmp_path: Path) -> None:
    this_one = f"process {os.getpid()}, this one"
    with only_run(tmp_path), pytest.raises(DirectoryInUseError, match=this_one), only_run(tmp_path):
        pass
    with only_run(tmp_path):
        pass
