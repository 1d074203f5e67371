"""Checkpoint files: whole, few, safe to load, and kept when the disk is full."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import signal
import zipfile
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tests.train.running import SERVER

from lowtide.errors import StateError
from lowtide.train import checkpoints
from lowtide.train.checkpoints import Branch, Contents, Past, SaveError


def past(**known: object) -> Past:
    """What a run remembers, as far as a test needs it."""
    return cast(Past, known)


SIZES = {"block_size": 8, "n_layer": 1, "n_head": 1, "n_embd": 2}


def contents(step: int, size: int = 1000) -> Contents:
    return {
        "step": step,
        "rows": 16 * step,
        "settings": {"seed": 1, **SIZES},
        "shape": {"vocab_size": 3, **SIZES},
        "model": {"weight": torch.full((size,), float(step))},
        "optimizer": {},
        "scaler": {},
        "feed": {"rows": step},
        "run": past(points=[[1.0, 2, float("nan")]]),
    }


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = Branch(tmp_path).save(contents(7), keep=2)
    loaded = checkpoints.load_whole(path)
    assert (path.name, loaded["step"], loaded["feed"]) == ("step-00000007.pt", 7, {"rows": 7})
    torch.testing.assert_close(loaded["model"]["weight"], torch.full((1000,), 7.0))
    assert checkpoints.glance(path)["settings"] == {"seed": 1, **SIZES}


def test_the_newest_are_kept_and_latest_points_at_the_last(tmp_path: Path) -> None:
    for step in (10, 20, 30, 100_000_000):
        Branch(tmp_path).save(contents(step), keep=2)
    assert [path.name for path in checkpoints.saved(tmp_path)] == ["step-00000030.pt", "step-100000000.pt"]
    assert (tmp_path / "latest.pt").resolve().name == "step-100000000.pt"
    assert checkpoints.newest(tmp_path).name == "step-100000000.pt"


@pytest.mark.parametrize("left", [0, 1, 100, 0.5, 0.99])
def test_a_checkpoint_cut_short_is_refused_naming_the_one_before(tmp_path: Path, left: float) -> None:
    good, bad = (Branch(tmp_path).save(contents(step), keep=2) for step in (1, 2))
    size = bad.stat().st_size
    with bad.open("r+b") as file:
        file.truncate(int(left * size) if isinstance(left, float) else left)
    with pytest.raises(
        StateError, match=rf"{bad}: expected a whole checkpoint, got .*Use the one saved before it: {good}\."
    ):
        checkpoints.load_whole(bad)
    with pytest.raises(StateError, match="expected a whole checkpoint"):
        checkpoints.glance(bad)["settings"]


def test_one_flipped_bit_in_the_weights_is_found(tmp_path: Path) -> None:
    path = Branch(tmp_path).save(contents(3), keep=1)
    whole = bytearray(path.read_bytes())
    place = whole.index(torch.full((8,), 3.0).numpy().tobytes())
    whole[place + 1] ^= 4
    path.write_bytes(whole)
    with pytest.raises(StateError, match=r"wrong checksum in .*No other one is beside it: train again"):
        checkpoints.load_whole(path)


class Harmful:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path("/tmp/lowtide-harm").touch, ())


def test_a_checkpoint_with_code_in_it_is_refused_and_not_run(tmp_path: Path) -> None:
    path = tmp_path / "step-00000001.pt"
    torch.save({**contents(1), "format": 1, "run": Harmful()}, path)
    with pytest.raises(StateError, match="expected a whole checkpoint"):
        checkpoints.load_whole(path)
    path.write_bytes(pickle.dumps(Harmful()))
    with pytest.raises(StateError, match="got a file of another kind"):
        checkpoints.load_whole(path)
    assert not Path("/tmp/lowtide-harm").exists()


def test_a_checkpoint_that_unpacks_to_more_than_it_is_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    whole = Branch(tmp_path).save(contents(1, size=1 << 20), keep=1)
    bomb = tmp_path / "bomb.pt"
    with zipfile.ZipFile(whole) as records, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as packed:
        for record in records.infolist():
            packed.writestr(record.filename, records.read(record))
    assert bomb.stat().st_size < whole.stat().st_size / 20
    for read in (checkpoints.load_whole, checkpoints.glance):
        with pytest.raises(StateError, match=r"with 'records of 4,\d\d\d,\d\d\d bytes packed into it"):
            read(bomb)


class Large:
    """What torch lets a checkpoint ask for: as many bytes as it likes."""

    def __reduce__(self) -> tuple[object, ...]:
        return (bytearray, (1 << 40,))


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"run": Large()}, "with '__builtin__ bytearray where numbers, text and tensors were expected'"),
        ({"shape": {"vocab_size": 1 << 40, **SIZES}}, "expected weights of 8,796,093,022,400 bytes .* got a file of"),
        ({"shape": {"vocab_size": 3, **SIZES, "n_layer": True}}, "expected the sizes of a model, got"),
        ({"settings": {"seed": 1, **SIZES, "n_embd": 1 << 30}}, "expected settings of the model it holds, got another"),
        ({"step": "1"}, "expected a checkpoint of `lowtide train`, got other contents"),
    ],
)
def test_what_a_checkpoint_declares_is_held_against_its_size(
    tmp_path: Path, changed: dict[str, object], fault: str
) -> None:
    path = tmp_path / "step-00000001.pt"
    torch.save({**contents(1), "format": 1, **changed}, path)
    for read in (checkpoints.load_whole, checkpoints.glance):
        with pytest.raises(StateError, match=fault):
            read(path)


def test_another_programs_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "step-00000001.pt"
    torch.save({"model": {}, "iter_num": 5}, path)
    with pytest.raises(StateError, match="expected a checkpoint of `lowtide train`, got other contents"):
        checkpoints.load_whole(path)


def test_nothing_to_resume_from_is_said(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"none: expected the out directory of a run, .*no such directory\. Make one"
    ):
        checkpoints.newest(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="expected a checkpoint, got no such file"):
        checkpoints.load_whole(tmp_path / "none.pt")


def test_what_is_no_file_is_refused_naming_another_one(tmp_path: Path) -> None:
    good = Branch(tmp_path).save(contents(1), keep=9)
    directory, link = tmp_path / "step-00000002.pt", tmp_path / "step-00000003.pt"
    directory.mkdir()
    link.symlink_to("gone.pt")
    for path, what in ((directory, "a directory"), (link, "a link to nothing")):
        with pytest.raises(FileNotFoundError, match=rf"got {what}\. Use another one: {good}\."):
            checkpoints.load_whole(path)


def test_the_advice_leads_from_one_damaged_checkpoint_back_to_the_first(tmp_path: Path) -> None:
    """Neighbours are named and not read: what lies beside a checkpoint may be anything."""
    paths = [Branch(tmp_path).save(contents(step), keep=9) for step in (1, 2, 3)]
    for number, path in enumerate(paths):
        path.write_bytes(b"not a checkpoint")
        os.utime(path, (number, number))
    for path, named in ((paths[2], paths[1]), (paths[1], paths[0]), (paths[0], paths[2])):
        with pytest.raises(StateError, match=rf"(Use the one saved before it|Use another one): {named}\."):
            checkpoints.load_whole(path)


def test_a_path_with_a_blank_is_quoted_in_the_advice(tmp_path: Path) -> None:
    directory = tmp_path / "my runs"
    good = Branch(directory).save(contents(1), keep=9)
    with pytest.raises(FileNotFoundError, match=rf"Use another one: '{good}'\."):
        checkpoints.load_whole(directory / "step-00000009.pt")


def _save_with_little_room(directory: Path, answers: Any) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    try:
        Branch(directory).save(contents(2, size=1_000_000), keep=1)
    except OSError as problem:
        answers.put((problem.errno, str(problem)))
    else:
        answers.put((0, "saved"))


@pytest.mark.slow
def test_a_write_that_fails_keeps_the_last_good_checkpoint_and_leaves_nothing_behind(tmp_path: Path) -> None:
    good = Branch(tmp_path).save(contents(1), keep=1)
    answers = SERVER.SimpleQueue()
    child = SERVER.Process(target=_save_with_little_room, args=(tmp_path, answers))
    child.start()
    number, message = answers.get()
    child.join()
    assert number == errno.EFBIG
    assert f"the last good one is {good}" in message
    assert checkpoints.load_whole(good)["step"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest.pt", "step-00000001.pt"]


def test_what_a_killed_writer_left_is_tidied(tmp_path: Path) -> None:
    (tmp_path / ".step-00000009.pt.123-abcd.tmp").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    checkpoints.tidy(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_the_first_checkpoint_that_fails_does_not_send_to_resume(tmp_path: Path) -> None:
    file = tmp_path / "taken"
    file.write_text("")
    with pytest.raises(SaveError, match=r"no earlier one exists\. Free some space, .*, and start again\.$"):
        Branch(file).save(contents(1), keep=1)


def test_an_earlier_run_is_set_aside_whole(tmp_path: Path) -> None:
    assert checkpoints.set_aside(tmp_path) is None
    for expected in ("earlier-1", "earlier-2"):
        Branch(tmp_path).save(contents(5), keep=2)
        aside = checkpoints.set_aside(tmp_path)
        assert aside == tmp_path / expected
        assert checkpoints.load_whole(aside / "step-00000005.pt")["step"] == 5
        assert checkpoints.saved(tmp_path) == []
        assert not (tmp_path / "latest.pt").is_symlink()


def test_values_that_differ_are_named() -> None:
    with pytest.raises(StateError, match=r"checkpoint's model \(n_layer=2\), got n_layer=3"):
        checkpoints.check_same(Path("a.pt"), "model", {"n_layer": 2, "n_head": 1}, {"n_layer": 3, "n_head": 1})
