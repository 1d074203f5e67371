"""What a run says: the gauge's verdict, the fixed last line, JSON lines, the picture."""

from __future__ import annotations

import io
import json
import math
import os
import platform
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lowtide.prepare import Control
from lowtide.report.png import write_panels
from lowtide.train.gauge import MOST_POINTS, BudgetVerdict, CurvePoint, Gauge, MemoryNow, panels, thinned
from lowtide.train.telling import Evaluated, Facts, JsonLines, Lines, RunOutcome, Stepped, clock
from lowtide.units import MIB

LAST_LINE = re.compile(
    r"lowtide train: steps=\d+ val_loss=\d+\.\d+ tokens_per_s=\d+ anon_mib=\d+\.\d mapped_mib=\d+\.\d "
    r"cache_mib=\d+\.\d budget=(ok|broken|unknown)"
)
STEPPED = Stepped(10, 3.25, 1e-3, 20_000.0, 0.001, 61.0, MemoryNow(300 * MIB, 200 * MIB, 10 * MIB))


def outcome(ok: bool = True) -> RunOutcome:
    settled, peak = MemoryNow(300 * MIB, 200 * MIB, 0), MemoryNow(302 * MIB, 199 * MIB, 0)
    verdict = BudgetVerdict(settled, peak, MemoryNow(301 * MIB, 200 * MIB, 10 * MIB), 64 * MIB, ok)
    return RunOutcome(900, 1.5, 3.4, 21_000.4, 0.001, 99.0, verdict, "def f():\n  pass", "out/train.png", 0)


def points(count: int) -> list[CurvePoint]:
    found = []
    for n in range(count):
        val = 3.0 - n / count if n % 100 == 0 else math.nan
        found.append(CurvePoint(n * 1.0, n, 3.0 - n / count, val, 300 * MIB, 200 * MIB, 10 * MIB))
    return found


def test_the_last_line_never_changes_its_form() -> None:
    assert outcome().last_line == (
        "lowtide train: steps=900 val_loss=1.5000 tokens_per_s=21000 "
        "anon_mib=2.0 mapped_mib=0.0 cache_mib=10.0 budget=ok"
    )
    assert LAST_LINE.fullmatch(outcome(ok=False).last_line)
    assert outcome(ok=False).last_line.endswith("budget=broken")


def test_lines_put_the_report_on_stdout_with_the_last_line_last() -> None:
    err, out = io.StringIO(), io.StringIO()
    progress = Lines(err, out)
    progress.tell(STEPPED)
    progress.tell(outcome())
    assert "loss 3.2500" in err.getvalue()
    assert out.getvalue().splitlines()[-1] == outcome().last_line
    assert "| def f():" in out.getvalue()


def test_all_that_a_person_reads_fits_80_columns_but_the_last_line() -> None:
    facts = Facts(
        parameters=1_312_896,
        compute="cpu, float32",
        world=1,
        data="corpora/of/some/length/prepared/from/text",
        train_tokens=39_800_000,
        val_tokens=200_000,
        vocab_size=4096,
        unigram=7.1,
        rows_per_step=16,
        block_size=128,
        budget=10 * MIB,
        reader_holds=MIB,
        strategy="read",
        first_step=100,
        max_iters=100_000,
    )
    control = Control(640 * MIB, 639 * MIB, MIB, ((0.5, 300 * MIB, 0), (1.0, 639 * MIB, 0)))
    step = replace(STEPPED, step=99_990, tokens_per_s=123_456.0, seconds_left=36_000.0)
    err, out = io.StringIO(), io.StringIO()
    progress = Lines(err, out)
    long = replace(outcome(), sample="a word " * 40, control=control, picture="runs/of/some/length/train.png")
    for event in (facts, step, Evaluated(100_000, 3.25), long):
        progress.tell(event)
    lines = [*err.getvalue().splitlines(), *out.getvalue().splitlines()]
    assert lines[-1] == outcome().last_line
    assert [line for line in lines[:-1] if len(line) > 80] == []
    assert "anon 300  mapped 200  kept 0  cache 10 MiB" in err.getvalue()  # beside the val loss


def test_the_report_puts_the_control_beside_the_budget() -> None:
    control = Control(640 * MIB, 639 * MIB, MIB, ((0.5, 300 * MIB, 0), (1.0, 639 * MIB, 0)))
    err, out = io.StringIO(), io.StringIO()
    Lines(err, out).tell(replace(outcome(), control=control))
    said = " ".join(out.getvalue().split())
    assert "one pass over the same 640 MiB through a kept np.memmap" in said
    assert "mapped grew 639 MiB; the corpus is 10.0 times this run's budget" in said
    printed = io.StringIO()
    JsonLines(printed).tell(replace(outcome(), control=control))
    assert json.loads(printed.getvalue())["control"] == {"corpus_bytes": 640 * MIB, "mapped": 639 * MIB, "anon": MIB}


def test_json_lines_are_one_object_each_and_the_last_has_the_figures() -> None:
    out = io.StringIO()
    progress = JsonLines(out)
    progress.note("a\nb")
    progress.tell(STEPPED)
    progress.tell(Evaluated(10, math.nan))
    progress.tell(outcome())
    events = [json.loads(line, parse_constant=pytest.fail) for line in out.getvalue().splitlines()]
    assert [event["event"] for event in events] == ["note", "step", "eval", "end"]
    assert events[2]["val_loss"] is None  # NaN is no JSON
    assert (events[-1]["steps"], events[-1]["verdict"]["word"]) == (900, "ok")


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (61.4, "1:01"), (3 * 3600 + 125, "3:02:05"), (-1, "0:00")])
def test_a_clock_reads_as_people_write_it(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_a_long_run_keeps_few_points_and_every_val_loss() -> None:
    kept: list[CurvePoint] = []
    for point in points(5000):
        kept = thinned([*kept, point])
    assert len(kept) <= MOST_POINTS
    assert kept[-1].step == 4999
    assert [p.step for p in kept if not math.isnan(p.val_loss)] == list(range(0, 5000, 100))


GROW = """
import sys
import numpy as np
from lowtide.train.gauge import Gauge, kept_heap
heap = kept_heap()
heap.__enter__()
for grown in map(int, sys.argv[1:]):
    gauge = Gauge([], 8 << 20)
    before = np.ones(4 << 20)   # 32 MiB, before settling: the model's
    gauge.settle()
    freed = np.ones(12 << 20)   # 96 MiB that a step needs and gives back: kept, and no growth
    del freed
    held = np.ones(grown << 17)   # MiB of float64
    gauge.read()
    del held
    verdict = gauge.verdict()
    print(verdict.word, round((verdict.peak.held - verdict.settled.held) / 2**20))
"""
FREED = """
from lowtide.memory import process_memory
from lowtide.train.gauge import KEPT, Gauge, kept_heap
import numpy as np
def step(mib):
    needed = [np.ones(1 << 20) for _ in range(mib // 8)]
def anon():
    return process_memory().anon >> 20
gauge = Gauge([], 8 << 20)
before = anon()
step(200)
usual = anon() - before
with kept_heap():
    gauge.settle()
    step(200)
    kept, reading = anon() - before, gauge.read()
    step(2000)
    gauge.read()  # where glibc could not give it back by itself, the next reading does
    most = anon() - before
after = anon() - before
print(gauge.verdict().word, usual, kept, reading.kept >> 20, most, KEPT >> 20, after)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="NOT TESTED: no /proc here to measure memory with")
def test_growth_after_settling_is_held_against_the_budget_even_when_given_back() -> None:
    cases = {2: "ok", 24: "broken"}
    words = [sys.executable, "-c", GROW, *map(str, cases)]
    found = subprocess.run(words, capture_output=True, text=True, check=True)
    for line, (grown, word) in zip(found.stdout.splitlines(), cases.items(), strict=True):
        said, measured = line.split()
        assert said == word
        assert int(measured) == pytest.approx(grown, abs=2)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="NOT TESTED: the heap of another C library than glibc")
def test_what_a_step_frees_is_kept_and_counted_apart_up_to_a_bound_and_given_back_at_the_end() -> None:
    words = [sys.executable, "-c", FREED]
    free = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    said = subprocess.run(words, capture_output=True, text=True, check=True, env=free).stdout.split()
    word, (usual, kept, told, most, bound, after) = said[0], map(int, said[1:])
    assert usual < 20  # the control: without it the step's memory is gone
    assert 180 < kept < 220
    assert told == pytest.approx(kept, abs=20)
    assert word == "ok"  # kept memory is no growth of the reader's
    assert most <= bound + 20
    assert after < 20


def test_a_run_that_never_settled_says_unknown() -> None:
    gauge = Gauge([], 0)
    gauge.read()
    assert gauge.verdict().word == "unknown"
    gauge.settle()
    assert gauge.verdict().word != "unknown"


def test_the_gauge_sees_the_corpus_in_the_page_cache(tmp_path: Path) -> None:
    file = tmp_path / "corpus.bin"
    file.write_bytes(bytes(3 * MIB))
    if Gauge([str(file)], 0).read().cache == 0:
        pytest.skip("NOT TESTED: this filesystem does not say what it caches")
    assert Gauge([str(file)], 0).read().cache == 3 * MIB


def test_the_picture_is_a_png_of_some_size(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="NOT TESTED: the picture, matplotlib is not installed")
    path = tmp_path / "train.png"
    write_panels(path, panels(points(300), 3.4, outcome().verdict))
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000


def test_a_run_too_short_for_a_curve_still_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="NOT TESTED: the picture, matplotlib is not installed")
    write_panels(tmp_path / "train.png", panels(points(1), math.nan, outcome().verdict))
    assert (tmp_path / "train.png").stat().st_size > 0
