"""``lowtide bench`` as users run it: figures that can be believed, Ctrl-C, and bad input in one line.

Nothing here depends on how fast the machine is: whole runs are without ``--quick``, whose end is a matter of time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.commands import called

import lowtide
from lowtide.bench import jobs
from lowtide.bench.jobs import READING_WAYS
from lowtide.machine import file_kind
from lowtide.memory.measure.process import children

BENCH = [sys.executable, "-m", "lowtide", "bench"]
MIB = 1 << 20


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "tokens.bin"
    block = np.random.default_rng(0).integers(0, 50_257, 8 * MIB, dtype=np.uint16)
    with path.open("wb") as file:
        for _ in range(4):  # 64 MiB
            file.write(block.tobytes())
        os.fsync(file.fileno())
    return path


@pytest.fixture(scope="module")
def one_round(tokens: Path) -> dict[str, Any]:
    """One whole round: every case is measured, however long that takes."""
    done = called("bench", "--rounds", 1, "--seconds", 0.1, "--json", "--dtype", "uint16", tokens)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def cases(one_round: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(case["pattern"], case["way"]): case for case in one_round["cases"]}


pytestmark = [pytest.mark.slow, pytest.mark.one_process]


def test_a_whole_round_measures_every_way(one_round: dict[str, Any]) -> None:
    assert {case["way"] for case in one_round["cases"]} == {way.name for way in READING_WAYS}
    assert all(case["rounds"] == 1 for case in one_round["cases"]), one_round["cases"]
    assert one_round["not_measured"] == []
    assert one_round["engine"] in ("native", "python")


def test_the_kept_map_grows_and_ours_do_not(cases: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert cases["chunks", "np.memmap"]["mapped"] > 32 * MIB
    assert cases["windows", "map, keep"]["mapped"] > 16 * MIB
    for (pattern, way), case in cases.items():
        if case["strategy"] not in (None, "map"):
            assert case["anon"] + case["mapped"] <= 72 * MIB, (pattern, way)
    for pattern in ("chunks", "rows", "windows"):
        assert cases[pattern, "read, keep"]["mapped"] < 8 * MIB


def test_cold_cases_count_the_device_and_what_stays_in_the_page_cache(
    tokens: Path, cases: dict[tuple[str, str], dict[str, Any]]
) -> None:
    if file_kind(tokens).memory:
        pytest.skip("NOT TESTED: cold cases - temporary files live in memory here")
    assert 0.9 < cases["chunks", "read, keep"]["device"] < 3
    assert 2.5 < cases["windows", "read, keep"]["device"] < 4  # one and a half pages for 2,050 bytes
    assert cases["chunks", "read, keep"]["left"] > cases["chunks", "read, drop"]["left"]
    assert cases["windows", "read, drop"]["left"] < 4 * MIB
    # At any usual read-ahead a fault of the map reads far more than the window it is for.
    assert cases["windows", "np.memmap"]["device"] > 2 * cases["windows", "read, keep"]["device"]


def test_ratios_are_to_the_kept_map(cases: dict[tuple[str, str], dict[str, Any]]) -> None:
    base = cases["rows", "np.memmap"]
    assert base["ratio"]["warm"] == 1
    ours = cases["rows", "read, keep"]
    assert ours["ratio"]["warm"] == pytest.approx(ours["warm"] / base["warm"])


def test_the_recommended_line_opens_the_file(one_round: dict[str, Any]) -> None:
    advice = one_round["recommended"]
    with eval(advice["open"], {"lowtide": lowtide}) as opened:
        assert len(opened) == 32 * MIB
        assert opened.plan().strategy == advice["strategy"]
        assert opened.plan().budget == one_round["budget"]
    assert len(advice["reasons"]) >= 2


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The text, 80 columns wide, of a corpus of three headerless files full of holes; on tmpfs if there is one."""
    directory = tmp_path_factory.mktemp("corpus")
    if on_tmpfs():
        directory = Path("/dev/shm") / f"lowtide-bench-{os.getpid()}"
        directory.mkdir()
    for place in range(3):
        with (directory / f"shard_{place}.bin").open("wb") as file:
            file.write((np.arange(32_768, dtype="<u2") % 5000).tobytes())  # so that there is something to guess from
            file.truncate((8 + place) * MIB)
    words = ["--rounds", "1", "--seconds", "0.05", "--length", "64", str(directory / "*.bin")]
    words += [] if on_tmpfs() else ["--no-drop"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        patch.setattr(jobs, "READING_WAYS", READING_WAYS[:3])  # the words around the figures need no more
        done = called("bench", *words)
    assert done.returncode == 0, done.stderr
    yield done.stdout
    shutil.rmtree(directory)


def on_tmpfs() -> bool:
    return Path("/dev/shm").is_dir() and file_kind(Path("/dev/shm")).name == "tmpfs"


def test_a_corpus_on_tmpfs_is_measured_warm_only_and_the_text_says_why(told: str) -> None:
    if not on_tmpfs():
        pytest.skip("NOT TESTED: a file that lives in memory - no tmpfs at /dev/shm")
    assert "warm only: the file lives in memory (tmpfs)" in told
    assert "cold" not in told.split("ratio         ")[0]


def test_of_a_corpus_it_says_that_only_the_largest_file_was_read(told: str) -> None:
    words = " ".join(told.split())
    assert "only the largest of 3 files was read, 10.0 MiB of 27.0 MiB: np.memmap opens one file" in words
    with eval(told.splitlines()[-1].removeprefix("recommended").strip(), {"lowtide": lowtide}) as opened:
        assert len(opened) == 27 * MIB // 2


def test_holes_and_a_guessed_dtype_are_noted_and_the_line_to_copy_states_the_guess(told: str) -> None:
    words = " ".join(told.split())
    assert re.search(r"(9\.9\d|10\.0) MiB of the file are holes", words)
    assert "dtype uint16 is a guess from its name or first block: nothing in the file says so" in words
    assert 'dtype="uint16"' in told.splitlines()[-1]


def test_every_line_but_those_to_copy_fits_80_columns_without_colour(told: str) -> None:
    assert not [line for line in told.splitlines() if len(line) > 80 and not line.startswith(("recommended", "/"))]
    assert "\x1b" not in told


def test_ctrl_c_ends_it_with_the_figures_so_far(tokens: Path) -> None:
    words = [*BENCH, "--json", "--no-drop", "--seconds", "0.1", "--dtype", "uint16", str(tokens)]
    run = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    seen: set[int] = set()
    while len(seen) < 5 and run.poll() is None:  # a fifth case runs: four have figures
        seen.update(children(run.pid))
        time.sleep(0.01)
    os.killpg(run.pid, signal.SIGINT)
    out, problem = run.communicate()
    assert run.returncode == 0, problem
    found = json.loads(out)
    assert found["stopped"]
    assert 0 < sum(bool(case["rounds"]) for case in found["cases"]) < len(found["cases"])
    assert "stopped by Ctrl-C: figures are from the rounds so far" in found["notes"]
    assert "Traceback" not in problem


def test_ctrl_c_in_the_first_run_that_nobody_counts_is_one_line(tokens: Path) -> None:
    words = [*BENCH, "--seconds", "60", "--dtype", "uint16", str(tokens)]
    run = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not children(run.pid) and run.poll() is None:
        time.sleep(0.01)
    os.killpg(run.pid, signal.SIGINT)
    out, problem = run.communicate()
    assert (run.returncode, out) == (130, "")
    assert problem == "lowtide bench: stopped by Ctrl-C before the first figure.\n"


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["nowhere.bin"], "nowhere.bin: expected a file, got nothing of that name", 1),
        (["few.npy"], "expected 64 rows or more for a batch of 64, got 10 (80 B). Use --batch 10 or a larger file", 2),
        (["few"], "expected token files", 1),
        (["odd.bin"], "expected --dtype for a file without a header", 1),
        (["plain.bin", "--dtype", "uint8", "--budget", "100KiB"], "expected a budget of", 1),
        (["plain.bin", "--dtype", "uint8", "--seconds", "0"], "--seconds: expected more than 0", 2),
        (["plain.bin", "--dtype", "uint8", "--seconds", "inf"], "--seconds: expected more than 0, got inf", 2),
        (["plain.bin", "--dtype", "uint8", "--rounds", "two"], "--rounds: expected a whole number, got 'two'", 2),
        (["plain.bin", "--dtype", "uint8", "--length", "600000"], "Use --length", 2),
        (["few.npy", "--row", "9"], "--row: expected data along one axis", 2),
    ],
)
def test_bad_input_to_bench_is_one_line(words: list[str], said: str, code: int, tmp_path: Path) -> None:
    np.save(tmp_path / "few.npy", np.zeros((10, 1)))
    (tmp_path / "few").mkdir()
    (tmp_path / "odd.bin").write_bytes(np.random.default_rng(0).bytes(4097))
    (tmp_path / "plain.bin").write_bytes(bytes(range(256)) * 4096)
    done = called("bench", tmp_path / words[0], *words[1:])
    assert done.returncode == code
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
