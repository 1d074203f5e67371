"""Mistakes at the command line, as a new user makes them: one line, in its own words, with the way out."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.commands import called

from lowtide.cli import COMMANDS, GROUPS
from lowtide.engine import engine


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("trian", "lowtide: expected a command, got 'trian'. Did you mean train?"),
        ("foo", "lowtide: expected a command, got 'foo'. Run 'lowtide --help'"),
        ("--verson", "lowtide: --verson: expected an option of 'lowtide', got another. Did you mean --version?"),
        ("plan x.npy --bach 3", "--bach: expected an option of 'lowtide plan', got another. Did you mean --batch?"),
        ("plan x.npy --nope", "lowtide plan: --nope: expected an option of 'lowtide plan', got another. Run "),
        ("plan x.npy --cache dorp", "--cache: expected one of auto, keep, drop, got 'dorp'. Did you mean drop?"),
        ("plan x.npy --batch", "lowtide plan: --batch: expected a value after it, got none."),
        ("plan x.npy --batch x", "lowtide plan: --batch: expected a whole number, got 'x'."),
        ("plan", "lowtide plan: expected PATH, got none."),
        ("info", "lowtide info: expected a file, a corpus or a glob, got none."),
        ("convert x -o out", "lowtide convert: expected --to, got none."),
        ("info x.npy --tensor a", "lowtide info: x.npy: expected a .safetensors, .npz or HDF5 file for --tensor a, "),
        ("info x.npy --shape 3,3", "x.npy: expected shape (8, 4) as its npy header says, got --shape 3,3. "),
        ("info x.npy --dtype foo", "lowtide info: --dtype: expected a numpy dtype such as 'float32', got 'foo'."),
        ("info x.npy --dtype float64", "dtype float32 as its npy header says, got --dtype float64. Leave --dtype out."),
        ("info x.npy t.bin", "lowtide info: t.bin: expected --dtype for a file without a header, got none."),
        ("peek t.bin --step 1", "lowtide peek: t.bin: expected --dtype for a file without a header, got none."),
        ("peek t.bin --dtype u2 --step 0 --rank 1", "got --rank 1 and no --world. "),
        ("train --out x --data nothere", "nothere: expected a file"),  # both spellings of --out-dir begin so
        ("train --eval 3", "--eval: expected the name of one option, got the beginning of --eval-interval and"),
        ("verify x.npy --vocab 0", "lowtide verify: --vocab: expected more than 0, got 0. Use --vocab 50257."),
        ("doctor --trace x.npy/", "doctor: x.npy/: expected a path that can be used so, got: Not a directory. Chec"),
        ("verify nothere", "nothere: expected a file, got nothing of that name. Check the path."),
        ("peek nothere --step 1", "nothere: expected a file, got nothing of that name. Check the path."),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_the_nearest_right_word(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros((8, 4), "f4"))
    np.arange(5000, dtype="u2").tofile("t.bin")
    done = called(*words.split())
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert message in done.stderr.replace(f"{tmp_path}/", "")
    assert done.stderr.count("\n") == 1


def test_a_path_with_an_equals_sign_is_left_as_it_is(tmp_path: Path) -> None:
    place = tmp_path / "shape=3" / "length=10"
    assert f"{place}/x.npy: expected a file" in called("info", place / "x.npy").stderr


@pytest.mark.parametrize("words", [["help"], ["help", "plan"], ["plan", "--help"]])
def test_help_is_help(words: list[str]) -> None:
    done = called(*words)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: lowtide")


def test_the_help_shows_every_command_once_in_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = called("--help").stdout.splitlines()
    for group, commands in GROUPS.items():
        at = lines.index(f"{group}:")
        assert [line.split()[0] for line in lines[at + 1 : at + 1 + len(commands)]] == list(commands)
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_is_no_wider_than_the_terminal(command: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if command in ("train", "sample"):
        pytest.importorskip("torch", reason=f"NOT TESTED: {command}, because torch is not installed")
    monkeypatch.setenv("COLUMNS", "1000")
    wide = called(*command.split(), "--help").stdout
    monkeypatch.setenv("COLUMNS", str(columns))
    said = called(*command.split(), "--help").stdout
    assert [line for line in said.splitlines() if len(line) > columns] == []
    assert re.sub(r"[\s-]", "", said) == re.sub(r"[\s-]", "", wide)  # and nothing is missing


def test_the_engine_in_use_and_why_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    found = engine()
    assert called("info", "--engine").stdout == f"engine {found.name}: {found.why}\n"
    assert json.loads(called("info", "--engine", "--json").stdout) == {"name": found.name, "why": found.why}
    monkeypatch.setenv("LOWTIDE_ENGINE", "python")
    assert called("info", "--engine").stdout == "engine python: LOWTIDE_ENGINE=python\n"
    assert "expected no path where it has no value" in called("info", "x.npy", "--engine").stderr


def test_python_minus_m_says_the_engine_too() -> None:
    words = [sys.executable, "-m", "lowtide", "info", "--engine"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.startswith("engine ")


def test_how_the_page_cache_is_left_clean_is_said(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((8, 4), "f4"))
    for command in ("info", "plan"):
        said = " ".join(called(command, tmp_path / "x.npy", "--cache", "drop").stdout.split())
        assert "cleaned by fadvise(DONTNEED)" in said


def test_a_command_to_make_a_run_here_names_this_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended in `--out-dir ..`, which is the directory above."""
    pytest.importorskip("torch", reason="NOT TESTED: sample, because torch is not installed")
    monkeypatch.chdir(tmp_path)
    assert called("sample", ".", "--prompt", "x").stderr.endswith("Make one with: lowtide train --out-dir ./.\n")


def test_every_heading_of_train_stands_over_its_settings() -> None:
    pytest.importorskip("torch", reason="NOT TESTED: train, because torch is not installed")
    said = called("train", "--help").stdout
    for heading, first in (("the data:", "--data"), ("the model:", "--n-layer"), ("at the end:", "--sample-tokens")):
        assert f"{heading}\n  {first} " in said


def test_a_fault_names_its_file_once(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((8, 4), "f4"))
    with (tmp_path / "x.npy").open("r+b") as file:
        file.truncate(150)
    said = " ".join(called("verify", tmp_path / "x.npy").stdout.split())
    assert said.count("x.npy") == 1, said


@pytest.mark.parametrize(
    "words",
    [
        ["info", ""],
        ["info", "x.npy", "--dtype="],
        ["prepare", "a.txt", "-o", ""],
        ["convert", "t.bin", "-o", "out", "--to", ""],
        ["peek", "", "--step", "0"],
        ["doctor", "--cgroup", ""],
        ["doctor", "--save", "", "--", "true"],
        ["train", "--data", ""],
        ["train", "--mix="],
        ["train", "--out-dir", ""],
        ["train", "--config", ""],
        ["train", "--resume", ""],
        ["sample", ""],
    ],
)
def test_empty_text_is_neither_this_directory_nor_an_option_left_out(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a shell makes of a variable that is not set: `train --data "$DATA"` learned from this machine's own text."""
    if words[0] in ("train", "sample"):
        pytest.importorskip("torch", reason=f"NOT TESTED: {words[0]}, because torch is not installed")
    monkeypatch.chdir(tmp_path)
    done = called(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "expected a value, got empty text; is a shell variable unset? Run 'lowtide" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_watched_command_may_have_empty_words(tmp_path: Path) -> None:
    words = ["doctor", "--json", "--", sys.executable, "-c", "import sys; sys.exit(len(sys.argv))", "", "x"]
    done = subprocess.run([sys.executable, "-m", "lowtide", *words], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 3, done.stderr


def test_a_closed_stdout_is_no_error(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((8, 4), "f4"))
    for words in ("info x.npy", "info x.npy --json", "--version", "info nothere.npy"):
        line = f"{sys.executable} -m lowtide {words} >&-"
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == int("nothere" in words)
        assert done.stderr.count("\n") == done.returncode, done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="NOT TESTED: a full disk behind stdout - no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["info x.npy", "info x.npy --json", "plan x.npy", "--version", "--help", "plan -h"])
def test_a_stdout_that_takes_nothing_more_is_one_line_with_the_way_out(
    words: str, unbuffered: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((8, 4), "f4"))
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "lowtide", *words.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    name = "lowtide" if words.startswith("-") else f"lowtide {words.split()[0]}"
    told = "expected to take what is printed, got: No space left on device. Make room there, or send it to another"
    assert done.stderr == f"{name}: standard output: {told} place.\n"
    assert done.returncode == 1


def test_a_stdout_without_the_signs_of_a_name_shows_their_numbers(tmp_path: Path) -> None:
    np.save(tmp_path / "é漢.npy", np.zeros((8, 4), "f4"))
    done = subprocess.run(
        [sys.executable, "-m", "lowtide", "info", "é漢.npy"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/\\xe9\\u6f22.npy" in done.stdout


def _with_nobody_reading(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    read, write = os.pipe()
    os.close(read)
    try:
        command = [sys.executable, "-m", "lowtide", *words]
        return subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, cwd=cwd)
    finally:
        os.close(write)


def test_what_was_found_is_told_by_the_exit_code_also_when_nobody_reads_it(tmp_path: Path) -> None:
    (tmp_path / "empty.bin").touch()
    np.save(tmp_path / "x.npy", np.zeros((8, 4), "f4"))
    (tmp_path / "a.txt").write_text("low water")
    told = {"verify empty.bin": 1, "verify empty.bin --json": 1, "verify x.npy": 0, "info x.npy": 0, "": 0}
    told |= {"prepare a.txt -o corpus": 0, "convert corpus -o out --to nanogpt": 0}
    for words, code in told.items():
        done = _with_nobody_reading(*words.split(), cwd=tmp_path)
        assert (done.returncode, done.stderr) == (code, ""), words


def test_work_that_a_missing_reader_cut_short_is_no_success(tmp_path: Path) -> None:
    np.arange(4000, dtype="u2").tofile(tmp_path / "x.bin")
    words = ("--max-iters", "2", "--block-size", "8", "--n-layer", "1", "--n-embd", "8", "--n-head", "1")
    done = _with_nobody_reading("train", "--json", "--data", "x.bin", "--data-dtype", "uint16", *words, cwd=tmp_path)
    assert done.returncode == 1
    told = "lowtide train: expected a reader of the output until the end, got one that has gone."
    assert done.stderr == f"{told} Send the output to a file.\n"


def test_a_setting_that_differs_is_named_as_the_help_spells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.arange(4000, dtype="u2").tofile("x.bin")
    tiny = "train --data x.bin --data-dtype uint16 --max-iters 1 --eval-iters 1 --n-layer 1 --n-embd 8 --n-head 1"
    tiny += " --sample-tokens 0 --no-picture --no-weights --control no"
    begun = called(*tiny.split(), "--block-size", "8")
    assert begun.returncode == 0, begun.stderr
    done = called(*tiny.split(), "--block-size", "16", "--resume")
    assert done.returncode == 1
    assert "(--block-size 8), got --block-size 16." in done.stderr
