"""``lowtide bench`` as users run it: figures that can be believed, the time it keeps, and bad input in one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide.bench.jobs import WAYS
from lowtide.machine import file_kind
from lowtide.memory.process import children

BENCH = [sys.executable, "-m", "lowtide", "bench"]
MIB = 1 << 20


def bench(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*BENCH, *map(str, words)], capture_output=True, text=True)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "tokens.bin"
    block = np.random.default_rng(0).integers(0, 50_257, 8 * MIB, dtype=np.uint16)
    with path.open("wb") as file:
        for _ in range(8):  # 128 MiB
            file.write(block.tobytes())
        os.fsync(file.fileno())
    return path


@pytest.fixture(scope="module")
def quick_run(tokens: Path) -> tuple[dict[str, Any], float]:
    """One whole quick run, and the seconds it took."""
    start = time.monotonic()
    done = bench("--quick", "--seconds", 0.1, "--json", "--dtype", "uint16", tokens)
    seconds = time.monotonic() - start
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), seconds


@pytest.fixture
def cases(quick_run: tuple[dict[str, Any], float]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(case["pattern"], case["way"]): case for case in quick_run[0]["cases"]}


pytestmark = [pytest.mark.slow, pytest.mark.serial]


def test_a_quick_run_ends_within_30_seconds_and_names_what_it_left_out(quick_run: tuple[dict[str, Any], float]) -> None:
    found, seconds = quick_run
    assert seconds < 30
    missing = {(entry["pattern"], entry["way"]) for entry in found["not_measured"]}
    for case in found["cases"]:
        assert bool(case["rounds"]) != ((case["pattern"], case["way"]) in missing), case
    assert {case["way"] for case in found["cases"]} == {way.name for way in WAYS}


def test_the_kept_map_grows_and_ours_do_not(cases: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert cases["chunks", "np.memmap"]["mapped"] > 32 * MIB
    assert cases["windows", "map, keep"]["mapped"] > 32 * MIB
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
    assert cases["windows", "direct"]["left"] == 0
    # At any usual read-ahead a fault of the map reads far more than the window it is for.
    assert cases["windows", "np.memmap"]["device"] > 2 * cases["windows", "read, keep"]["device"]


def test_ratios_are_to_the_kept_map(cases: dict[tuple[str, str], dict[str, Any]]) -> None:
    base = cases["rows", "np.memmap"]
    assert base["ratio"]["warm"] == 1
    ours = cases["rows", "read, keep"]
    assert ours["ratio"]["warm"] == pytest.approx(ours["warm"] / base["warm"])


def test_the_recommended_line_opens_the_file(quick_run: tuple[dict[str, Any], float]) -> None:
    advice = quick_run[0]["recommended"]
    with eval(advice["open"], {"lowtide": lowtide}) as opened:
        assert len(opened) == 64 * MIB
        assert opened.plan().strategy == advice["strategy"]
        assert opened.plan().budget == quick_run[0]["budget"]
    assert len(advice["reasons"]) >= 2


@pytest.fixture
def in_memory() -> Iterator[Path]:
    directory = Path("/dev/shm")
    if not directory.is_dir() or file_kind(directory).name != "tmpfs":
        pytest.skip("NOT TESTED: a file that lives in memory - no tmpfs at /dev/shm")
    path = directory / f"lowtide-bench-{os.getpid()}.npy"
    np.save(path, np.zeros((4096, 256), np.float32))
    yield path
    path.unlink()


def test_a_file_on_tmpfs_is_measured_warm_only_and_the_text_says_why(in_memory: Path) -> None:
    done = bench("--quick", "--seconds", 0.05, in_memory)
    assert done.returncode == 0, done.stderr
    assert "warm only: the file lives in memory (tmpfs)" in done.stdout
    assert "cold" not in done.stdout.split("ratio         ")[0]
    assert "no time left for" not in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("recommended   lowtide.open(")


def test_a_file_with_holes_is_measured_with_a_word_about_them(tmp_path: Path) -> None:
    path = tmp_path / "sparse.bin"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    done = bench("--quick", "--seconds", 0.05, "--no-drop", "--dtype", "float32", path)
    assert done.returncode == 0, done.stderr
    assert "1.00 TiB of the file are holes" in done.stdout


def test_ctrl_c_ends_it_with_the_figures_so_far(tokens: Path) -> None:
    words = [*BENCH, "--json", "--no-drop", "--seconds", "0.1", "--dtype", "uint16", str(tokens)]
    run = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    seen: set[int] = set()
    while len(seen) < 5 and run.poll() is None:  # the fifth case runs: four have figures
        seen.update(children(run.pid))
        time.sleep(0.01)
    os.killpg(run.pid, signal.SIGINT)
    out, problem = run.communicate(timeout=60)
    assert run.returncode == 0, problem
    found = json.loads(out)
    assert found["stopped"]
    assert sum(bool(case["rounds"]) for case in found["cases"]) in (3, 4, 5)
    assert "Traceback" not in problem


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["nowhere.bin"], "nowhere.bin: expected a file, got nothing of that name", 1),
        (["few.npy"], "expected 64 rows or more for a batch of 64, got 10 (80 B). Use --batch 10 or a larger file", 2),
        (["few"], "expected token files", 1),
        (["plain.bin"], "expected dtype= for a file without a header", 1),
        (["plain.bin", "--dtype", "uint8", "--budget", "100KiB"], "expected a budget of", 1),
        (["plain.bin", "--dtype", "uint8", "--seconds", "0"], "--seconds: expected more than 0", 2),
        (["plain.bin", "--dtype", "uint8", "--length", "600000"], "Use --length", 2),
        (["few.npy", "--row", "9"], "--row: expected data along one axis", 2),
    ],
)
def test_bad_input_to_bench_is_one_line(words: list[str], said: str, code: int, tmp_path: Path) -> None:
    np.save(tmp_path / "few.npy", np.zeros((10, 1)))
    (tmp_path / "few").mkdir()
    (tmp_path / "plain.bin").write_bytes(bytes(range(256)) * 4096)
    done = bench(tmp_path / words[0], *words[1:])
    assert done.returncode == code
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
