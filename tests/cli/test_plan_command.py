"""``lowtide plan``: its figures against the library's own plans, rates and times, and bad input in one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.commands import called, document_of

import lowtide
from lowtide.cli import main

PLAN = [sys.executable, "-m", "lowtide", "plan"]
MIB = 1 << 20


plan, document = partial(called, "plan"), partial(document_of, "plan")


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.bin"
    np.random.default_rng(0).integers(0, 50_257, MIB, dtype=np.uint16).tofile(path)
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.npy"
    np.save(path, np.zeros((100_000, 8), np.float32))
    return path


def test_a_corpus_batch_length_and_world_give_the_plan_of_that_very_feed(tokens: Path) -> None:
    found = document(tokens, "--dtype", "uint16", "--batch", 64, "--length", 256, "--world", 8, "--budget", "16MiB")
    with lowtide.open_tokens(tokens, dtype="uint16", budget="16MiB") as opened:
        feed = opened.batches(64, length=256, rank=0, world=8)
        own = feed.plan()
        state = len(json.dumps(feed.state_dict()))
    projection = found["projection"]
    assert projection["process"] == {"anon": own.anon, "mapped": own.mapped, "cache": own.cache}
    assert projection["machine"]["anon"] == 8 * own.anon
    assert projection["items_per_epoch"] == MIB // 256 - 1
    assert projection["steps_per_epoch"] == (MIB // 256 - 1) / 64
    assert projection["requests_per_step"] == 64
    assert projection["useful_bytes_per_step"] == 64 * 257 * 2
    assert found["state_bytes"] == state
    assert projection["seconds_per_epoch"] is None  # no rate was given, and none is made up
    assert eval(found["open"], {"lowtide": lowtide, "rank": 3}).rank == 3


def test_fewer_ranks_here_need_less_memory_here(tokens: Path) -> None:
    words = (tokens, "--dtype", "uint16", "--world", 8)
    anon = document(*words)["projection"]["process"]["anon"]
    assert document(*words, "--ranks-here", 2)["projection"]["machine"]["anon"] == 2 * anon


def test_rates_in_steps_and_in_tokens_say_the_same(tokens: Path) -> None:
    words = (tokens, "--dtype", "uint16", "--batch", 16, "--length", 64)
    by_steps = document(*words, "--steps-per-second", 10)["projection"]
    by_tokens = document(*words, "--tokens-per-second", 10 * 16 * 64)["projection"]
    assert by_steps == by_tokens
    assert by_steps["requests_per_second"] == 160
    assert by_steps["seconds_per_epoch"] == pytest.approx((MIB // 64 - 1) / 16 / 10)


def test_rows_of_an_array_are_planned_for_each_rank(table: Path) -> None:
    found = document(table, "--batch", 128, "--world", 4)
    with lowtide.open(table) as array:
        own = array.plan(128)
    assert (found["what"], found["batch"], found["projection"]["items_per_epoch"]) == ("rows", 512, 100_000)
    assert found["projection"]["process"]["anon"] == own.anon
    assert not found["projection"]["requests_at_most"]
    # 4,096 of 100,000 rows have neighbours among them, which are read together.
    assert document(table, "--batch", 4096)["projection"]["requests_at_most"]


def test_a_local_shuffle_is_planned_and_says_how_well_it_mixes(tokens: Path, table: Path) -> None:
    words = (tokens, "--dtype", "uint16", "--length", 256, "--cache", "drop")
    found = document(*words, "--locality", "512KiB,8KiB")
    assert any("a window mixes 64 blocks of 8.00 KiB" in reason for reason in found["plan"]["why"])
    feed = eval(found["open"], {"lowtide": lowtide})
    assert feed.state_dict()["locality"] == [512 << 10, 8 << 10]
    assert found["projection"]["process"]["cache"] == feed.plan().cache
    few = document(table, "--locality", "64KiB")
    assert any("1 mixes little" in reason for reason in few["plan"]["why"])
    for order in ("sequential", "random"):
        done = plan(table, "--order", order, "--locality", "64KiB")
        assert (done.returncode, "--locality: expected --order shuffled" in done.stderr) == (2, True)
    assert "--locality: expected a size such as '64MiB'" in plan(table, "--locality", "64MiB,").stderr


def test_one_axis_can_be_planned_as_rows(tokens: Path) -> None:
    found = document(tokens, "--dtype", "uint16", "--row", 512)
    assert (found["what"], found["shape"]) == ("rows", [2048, 512])


def test_dropping_is_planned_as_reading_every_epoch_from_the_disk(tokens: Path) -> None:
    kept = document(tokens, "--dtype", "uint16", "--cache", "keep")
    dropped = document(tokens, "--dtype", "uint16", "--cache", "drop")
    assert kept["projection"]["device_bytes_later_epochs"] == 0
    assert kept["projection"]["device_bytes_first_epoch"] == 2 * MIB
    later = dropped["projection"]["device_bytes_later_epochs"]
    assert later == dropped["projection"]["device_bytes_first_epoch"] > 2 * MIB
    assert "will hold the data" in plan(tokens, "--dtype", "uint16", "--cache", "keep").stdout
    assert "left clean" in plan(tokens, "--dtype", "uint16", "--cache", "drop").stdout


@pytest.mark.slow
def test_measuring_gives_a_rate_and_the_share_of_it_a_target_needs(tokens: Path) -> None:
    found = document(tokens, "--dtype", "uint16", "--measure")
    assert found["rate_from"] == "measured"
    assert found["measured_steps_per_second"] == found["projection"]["steps_per_second"] > 0
    text = plan(tokens, "--dtype", "uint16", "--measure", "--steps-per-second", 1).stdout
    assert "at 1 steps/s" in text
    assert "of what one rank can be fed" in " ".join(text.split())


def test_one_row_for_four_ranks_is_planned_and_measured(tmp_path: Path) -> None:
    np.save(tmp_path / "one_row.npy", np.zeros((1, 8), np.float32))
    found = document(tmp_path / "one_row.npy", "--world", 4, "--measure")
    assert (found["batch"], found["projection"]["steps_per_epoch"]) == (1, 1.0)
    assert found["measured_steps_per_second"] > 0
    assert found["projection"]["seconds_per_epoch"] > 0


def test_a_headerless_file_is_planned_with_a_dtype_that_is_called_a_guess_as_info_does(tokens: Path) -> None:
    found = document(tokens)
    assert (found["dtype"], found["dtype_guessed"]) == ("uint16", True)
    assert not document(tokens, "--dtype", "uint16")["dtype_guessed"]
    assert "uint16 (a guess from its name or first block" in plan(tokens).stdout
    x, _ = next(eval(found["open"], {"lowtide": lowtide}))  # the line states what was guessed
    assert x.shape == (64, 1024)


@pytest.mark.parametrize("order", ["shuffled", "random", "sequential"])
def test_every_order_of_windows_has_the_plan_and_the_steps_of_that_very_feed(order: str, tokens: Path) -> None:
    found = document(tokens, "--dtype", "uint16", "--order", order, "--batch", 32, "--length", 1000, "--world", 2)
    feed = eval(found["open"], {"lowtide": lowtide, "rank": 1})
    own = feed.plan()
    if order == "sequential":
        assert found["projection"]["steps_per_epoch"] == len(feed)
        assert found["projection"]["items_per_epoch"] == 1049  # 1,048 windows and a shorter last one
    assert found["order"] == order
    assert found["projection"]["process"] == {"anon": own.anon, "mapped": own.mapped, "cache": own.cache}
    assert f" tokens, {order}, 16 per rank" in plan(tokens, "--order", order, "--batch", 32, "--world", 2).stdout


@pytest.mark.parametrize(("order", "call"), [("random", "sample"), ("sequential", "chunks"), ("shuffled", "shuffled")])
def test_every_order_of_rows_is_planned_and_printed_as_a_call(order: str, call: str, table: Path) -> None:
    found = document(table, "--order", order, "--batch", 100)
    assert f".{call}(100)" in found["open"]
    assert len(next(iter(eval(found["open"], {"lowtide": lowtide})))) == 100
    assert found["projection"]["steps_per_epoch"] == 1000
    if order == "random":
        assert "seed=rank" in document(table, "--order", order, "--world", 2)["open"]


def test_every_line_but_the_one_to_copy_fits_80_columns(tokens: Path, table: Path) -> None:
    for words in ([tokens, "--world", 8, "--steps-per-second", 3], [table, "--order", "random"]):
        environment = {**os.environ, "COLUMNS": "80"}
        done = subprocess.run([*PLAN, *map(str, words)], capture_output=True, text=True, env=environment)
        assert not [line for line in done.stdout.splitlines() if len(line) > 80 and not line.startswith(("run", "/"))]


def test_ctrl_c_is_one_line_and_exit_130(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Measuring alone takes two seconds, so half a second from now is inside the command on any machine.
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    code = main(["plan", str(table), "--measure"])
    timer.join()
    assert code == 130
    assert capsys.readouterr() == ("", "lowtide plan: stopped by Ctrl-C.\n")


def test_the_text_has_everything_a_person_asks(tokens: Path) -> None:
    text = plan(tokens, "--dtype", "uint16", "--world", 4, "--steps-per-second", 2).stdout
    told = " ".join(text.split())
    for words in (
        "one process",
        "one machine (4 ranks)",
        "16 per rank on 4 ranks",
        "engine",
        "anon",
        "mapped",
        "budget",
        "64 reads",
        "an epoch in",
        "state",
    ):
        assert words in told
    assert text.splitlines()[-1].startswith("run ")
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["nowhere.bin"], "nowhere.bin: expected a file, got nothing of that name", 1),
        (["odd.bin"], "expected --dtype for a file without a header", 1),
        (["empty.npy"], "empty.npy: expected rows to read, got none", 1),
        (["tokens.bin", "--dtype", "uint16", "--world", "7"], "Use --batch 63 or --batch 70", 2),
        (["tokens.bin", "--dtype", "uint16", "--batch", "0"], "--batch: expected more than 0, got 0", 2),
        (["tokens.bin", "--dtype", "uint16", "--length", "1000000"], "expected 2000000 tokens or more", 1),
        (["tokens.bin", "--dtype", "uint16", "--budget", "1MiB"], "expected a budget of", 1),
        (["table.npy", "--tokens-per-second", "5"], "--tokens-per-second: expected tokens, got rows", 2),
        (["table.npy", "--steps-per-second", "inf"], "--steps-per-second: expected more than 0, got inf", 2),
        (["table.npy", "--steps-per-second", "1", "--tokens-per-second", "1"], "expected one rate", 2),
        (
            ["table.npy", "--order", "upwards"],
            "--order: expected one of shuffled, random, sequential, got",
            2,
        ),
        (
            ["table.npy", "--nope"],
            "--nope: expected an option of 'lowtide plan', got another. Run '",
            2,
        ),
        (["table.npy", "--batch", "many"], "--batch: expected a whole number, got 'many'", 2),
        (["table.npy", "--row", "3"], "--row: expected data along one axis", 2),
    ],
)
def test_bad_input_to_plan_is_one_line(words: list[str], said: str, code: int, tokens: Path, table: Path) -> None:
    (tokens.parent / "odd.bin").write_bytes(np.random.default_rng(0).bytes(4097))
    np.save(tokens.parent / "empty.npy", np.zeros((0, 3)))
    done = plan(tokens.parent / words[0], *words[1:])
    assert done.returncode == code
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
