"""Whole runs in this process: they learn, they resume to the bit, and they refuse what they must."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.commands import called
from tests.train.running import losses, train, write_tokens

from lowtide.errors import FormatError, StateError
from lowtide.train import Settings, checkpoints, ledger, run
from lowtide.train.checkpoints import Branch
from lowtide.train.telling import JsonLines

Make = Callable[..., Settings]


def weights(path: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = checkpoints.load_whole(path)["model"]
    return found


def assert_same_weights(one: Path, other: Path) -> None:
    left, right = weights(one), weights(other)
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


def test_a_run_learns_and_ends_with_its_figures(tiny: Make) -> None:
    events = train(tiny(max_iters=60, learning_rate=1e-2, eval_interval=30, dropout=0.0))
    end = events[-1]
    assert [event["event"] for event in events[:2]] == ["start", "eval"]
    assert end["steps"] == 60
    assert end["val_loss"] < 0.8 * end["unigram"]
    assert end["verdict"]["word"] == "ok"
    assert 0 <= end["data_wait"] < 0.5
    assert len(end["sample"].split()) == 5


def test_a_resumed_run_repeats_the_uninterrupted_one_to_the_bit(tiny: Make, tmp_path: Path) -> None:
    whole = train(tiny(log_interval=2))
    out = tmp_path / "out"
    for step in (3, 6):  # 3 is in the middle of a line of progress
        resumed = train(tiny(log_interval=2, out_dir=str(tmp_path / f"from{step}")), out / f"step-{step:08d}.pt")
        expected = {at: loss for at, loss in losses(whole).items() if at > step}
        assert losses(resumed) == expected
        assert resumed[-1]["val_loss"] == whole[-1]["val_loss"]
        assert_same_weights(out / "step-00000012.pt", tmp_path / f"from{step}" / "step-00000012.pt")


def test_two_resumes_in_a_row_are_still_exact(tiny: Make, tmp_path: Path) -> None:
    train(tiny())
    train(tiny(out_dir=str(tmp_path / "b")), tmp_path / "out" / "step-00000003.pt")
    train(tiny(out_dir=str(tmp_path / "c")), tmp_path / "b" / "step-00000009.pt")
    assert_same_weights(tmp_path / "out" / "step-00000012.pt", tmp_path / "c" / "step-00000012.pt")


def test_without_its_feeds_cursor_a_resumed_run_would_differ(tiny: Make, tmp_path: Path) -> None:
    """The control: the comparison above can fail."""
    train(tiny())
    path = tmp_path / "out" / "step-00000006.pt"
    contents = checkpoints.load_whole(path)
    fresh = checkpoints.load_whole(tmp_path / "out" / "step-00000003.pt")
    Branch(tmp_path / "b").save({**contents, "feed": fresh["feed"], "format": 1}, keep=9)
    train(tiny(out_dir=str(tmp_path / "b")), tmp_path / "b" / path.name)
    with pytest.raises(AssertionError):
        assert_same_weights(tmp_path / "out" / "step-00000012.pt", tmp_path / "b" / "step-00000012.pt")


def test_accumulation_uses_the_same_rows_as_one_large_batch(tiny: Make, tmp_path: Path) -> None:
    large, small = tmp_path / "large", tmp_path / "small"
    one = train(tiny(batch_size=8, dropout=0.0, ledger=str(large)))
    two = train(tiny(batch_size=2, gradient_accumulation_steps=4, dropout=0.0, ledger=str(small)))
    assert ledger.chain(large) == ledger.chain(small)
    assert len(ledger.chain(large)) == 12
    assert losses(one) == pytest.approx(losses(two), rel=1e-4)


def test_a_resumed_run_may_change_its_batch_size_and_goes_on_with_the_next_row(tiny: Make, tmp_path: Path) -> None:
    lines = str(tmp_path / "ledger")
    train(tiny(ledger=lines, max_iters=3))
    train(tiny(ledger=lines, batch_size=2, max_iters=5), tmp_path / "out" / "step-00000003.pt")
    spans = [(entry["first"], entry["last"]) for entry in ledger.chain(lines)]
    assert spans == [(0, 3), (4, 7), (8, 11), (12, 13), (14, 15)]


def test_a_finished_run_resumed_with_more_steps_goes_on(tiny: Make, tmp_path: Path) -> None:
    train(tiny())
    assert any(
        "higher --max-iters" in said.get("text", "") for said in train(tiny(), tmp_path / "out" / "step-00000012.pt")
    )
    events = train(tiny(max_iters=15), tmp_path / "out" / "step-00000012.pt")
    assert list(losses(events)) == [13, 14, 15]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_learns_and_resumes_exactly(tiny: Make, tmp_path: Path, dtype: str) -> None:
    whole = train(tiny(dtype=dtype, max_iters=6))
    resumed = train(tiny(dtype=dtype, max_iters=6, out_dir=str(tmp_path / "b")), tmp_path / "out" / "step-00000003.pt")
    assert losses(whole)[6] == losses(resumed)[6]
    assert all(math.isfinite(loss) for loss in losses(whole).values())
    assert losses(whole) != losses(train(tiny(max_iters=6)))  # it was not float32 all along


def test_another_model_is_refused_naming_what_differs(tiny: Make, tmp_path: Path) -> None:
    train(tiny(max_iters=3))
    with pytest.raises(StateError, match=r"checkpoint's model \(n_layer=1\), got n_layer=2"):
        train(tiny(n_layer=2), tmp_path / "out" / "step-00000003.pt")


def test_another_corpus_is_refused(tiny: Make, tmp_path: Path) -> None:
    train(tiny(max_iters=3))
    other = write_tokens(tmp_path / "other.bin", seed=9)
    with pytest.raises(StateError, match=r"step-00000003\.pt"):
        train(tiny(data=str(other)), tmp_path / "out" / "step-00000003.pt")


def test_a_copied_corpus_is_the_same_corpus(tiny: Make, tmp_path: Path, corpus: Path) -> None:
    train(tiny(max_iters=3))
    copy = tmp_path / "elsewhere.bin"
    copy.write_bytes(corpus.read_bytes())
    train(tiny(data=str(copy), max_iters=4), tmp_path / "out" / "step-00000003.pt")


def test_a_corpus_too_small_for_the_window_is_refused(tiny: Make, tmp_path: Path) -> None:
    small = write_tokens(tmp_path / "small.bin", count=100)
    with pytest.raises(FormatError, match=r"small\.bin: expected \d+ tokens or more for length=256"):
        train(tiny(data=str(small), block_size=256))
    said = called("train", "--data", small, "--data-dtype", "uint16", "--block-size", 256, "--val-fraction", 0.5)
    assert "tokens or more for --block-size 256" in said.stderr


def test_an_id_beyond_the_vocabulary_is_refused_not_wrapped(tiny: Make) -> None:
    with pytest.raises(FormatError, match=r"expected ids from 0 to 39 .*, got \d+ at byte"):
        train(tiny(vocab_size=40))


def test_nanogpts_directory_is_taken_as_it_is(tiny: Make, tmp_path: Path) -> None:
    directory = tmp_path / "nanogpt"
    directory.mkdir()
    write_tokens(directory / "train.bin", count=5000)
    write_tokens(directory / "val.bin", count=2000, seed=1)
    facts = train(tiny(data=str(directory), max_iters=3))[0]
    assert (facts["train_tokens"], facts["val_tokens"]) == (5000, 2000)


def test_a_loss_that_is_no_number_ends_the_run_and_is_not_saved(tiny: Make, tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"expected a finite loss, got nan.*--resume and a lower --learning-rate"):
        train(tiny(learning_rate=1e30, grad_clip=0.0, warmup_iters=0, log_interval=1000))
    for path in checkpoints.saved(tmp_path / "out"):
        assert all(bool(tensor.isfinite().all()) for tensor in weights(path).values())


def test_a_new_run_sets_an_earlier_ones_checkpoints_aside(tiny: Make, tmp_path: Path) -> None:
    train(tiny(max_iters=6))
    events = train(tiny(max_iters=3))
    assert any("earlier-1" in event.get("text", "") for event in events)
    assert [path.name for path in checkpoints.saved(tmp_path / "out")] == ["step-00000003.pt"]
    assert [path.name for path in checkpoints.saved(tmp_path / "out" / "earlier-1")][-1] == "step-00000006.pt"


def test_a_run_of_one_step_cannot_say_whether_the_budget_was_kept(tiny: Make) -> None:
    assert train(tiny(max_iters=1))[-1]["verdict"]["word"] == "unknown"
    assert train(tiny(max_iters=4))[-1]["verdict"]["word"] == "ok"


def test_the_val_loss_is_over_the_same_rows_each_time(tiny: Make) -> None:
    events = train(tiny(learning_rate=0.0, weight_decay=0.0, min_lr=0.0))
    assert len({event["val_loss"] for event in events if event["event"] == "eval"}) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 104 KiB: room for one checkpoint of the tiny model, and for half of the next."""
    directory = tmp_path / "disk"
    directory.mkdir()
    if os.getuid() != 0:
        pytest.skip("NOT TESTED: a full disk, mounting one needs root")
    mounting = ["mount", "-t", "tmpfs", "-o", "size=104k", "tmpfs", str(directory)]
    if subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("NOT TESTED: a full disk, this machine does not let us mount one")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)  # somebody may be looking at it


def test_a_full_disk_keeps_the_last_good_checkpoint_and_the_run_goes_on(tiny: Make, small_disk: Path) -> None:
    settings = tiny(out_dir=str(small_disk), keep=1)
    with pytest.raises(OSError, match=r"No space left on device.*the last good one is .*step-00000003\.pt"):
        train(settings)
    assert checkpoints.load_whole(small_disk / "step-00000003.pt")["step"] == 3
    found = {path.name for path in small_disk.iterdir()} - {".lock", "metrics.jsonl"}
    assert found == {"latest.pt", "best.pt", "step-00000003.pt"}
    finished = train(replace(settings, out_dir=str(small_disk.parent / "roomy")), small_disk / "step-00000003.pt")
    assert finished[-1]["steps"] == 12


class StopsAtStep(io.StringIO):
    """Sends this process a SIGTERM when it is told of a step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._sign = f'"step": {step},'

    def write(self, text: str) -> int:
        if self._sign in text:
            signal.raise_signal(signal.SIGTERM)
        return super().write(text)


def test_a_run_asked_to_stop_on_a_full_disk_stops_as_asked(tiny: Make, small_disk: Path) -> None:
    said = StopsAtStep(8)
    outcome = run(tiny(out_dir=str(small_disk), keep=1), JsonLines(said))
    assert (outcome.stopped_by, outcome.steps) == (signal.SIGTERM, 8)
    events = [json.loads(line) for line in said.getvalue().splitlines()]
    (note,) = [one["text"] for one in events if one.get("text", "").startswith("not saved, stopped after step 8: ")]
    assert "the last good one is " in note
    assert note.endswith("start again with --resume.")
