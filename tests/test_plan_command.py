"""``lowtide plan``: its figures against the library's own plans, rates and times, and bad input in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide

PLAN = [sys.executable, "-m", "lowtide", "plan"]
MIB = 1 << 20


def plan(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PLAN, *map(str, words)], capture_output=True, text=True)


def document(*words: object) -> dict[str, Any]:
    done = plan("--json", *words)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


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


def test_measuring_gives_a_rate_and_the_share_of_it_a_target_needs(tokens: Path) -> None:
    found = document(tokens, "--dtype", "uint16", "--measure")
    assert found["rate_from"] == "measured"
    assert found["measured_steps_per_second"] == found["projection"]["steps_per_second"] > 1
    text = plan(tokens, "--dtype", "uint16", "--measure", "--steps-per-second", 1).stdout
    assert "at 1 steps/s" in text
    assert "of what one rank can be fed" in " ".join(text.split())


def test_the_text_has_everything_a_person_asks(tokens: Path) -> None:
    text = plan(tokens, "--dtype", "uint16", "--world", 4, "--steps-per-second", 2).stdout
    told = " ".join(text.split())
    for words in ("a process", "a machine (4 ranks)", "anon", "mapped", "budget", "64 reads", "an epoch in", "state"):
        assert words in told
    assert text.splitlines()[-1].startswith("run ")
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["nowhere.bin"], "nowhere.bin: expected a file, got nothing of that name", 1),
        (["tokens.bin"], "expected dtype= for a file without a header", 1),
        (["tokens.bin", "--dtype", "uint16", "--world", "7"], "Use batch=63 or batch=70", 2),
        (["tokens.bin", "--dtype", "uint16", "--batch", "0"], "--batch: expected more than 0, got 0", 2),
        (["tokens.bin", "--dtype", "uint16", "--length", "1000000"], "expected 2000000 tokens or more", 1),
        (["tokens.bin", "--dtype", "uint16", "--budget", "1MiB"], "expected a budget of", 1),
        (["table.npy", "--row", "3"], "--row: expected data along one axis", 2),
    ],
)
def test_bad_input_to_plan_is_one_line(words: list[str], said: str, code: int, tokens: Path, table: Path) -> None:
    done = plan(tokens.parent / words[0], *words[1:])
    assert done.returncode == code
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
