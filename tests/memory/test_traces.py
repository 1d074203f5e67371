"""Traces on disk: our own lines, cut short or damaged, and memory-profiler's format."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide.errors import FormatError
from lowtide.memory import Trace, judge, traces, watch


@pytest.fixture(scope="module")
def recorded() -> Trace:
    """A short real trace of this process."""
    with watch(interval=0.02, budget="8GiB") as watched:
        for _ in range(10):
            sum(range(100_000))
    return watched.trace


def test_a_trace_read_back_is_equal_and_judged_alike(recorded: Trace, tmp_path: Path) -> None:
    assert len(recorded.samples) >= 2
    traces.save(recorded, tmp_path / "t.jsonl")
    back = traces.load(tmp_path / "t.jsonl")
    assert back == recorded
    assert judge(back) == judge(recorded)


def test_a_trace_cut_anywhere_is_read_up_to_the_cut_and_says_so(recorded: Trace, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    traces.save(recorded, path)
    whole = path.read_bytes()
    head = whole.index(b"\n") + 1
    for cut in {head, head + 7, len(whole) // 2, len(whole) - 3}:
        path.write_bytes(whole[:cut])
        back = traces.load(path)
        assert back.cut_short
        assert back.samples == recorded.samples[: len(back.samples)]
        assert any("middle of a line" in line for line in judge(back).evidence) or not back.samples


@pytest.mark.parametrize("text", ["", "{}\n", "hello\n", '{"format": "lowtide trace 9"}\n', "[1, 2]\n"])
def test_another_file_is_refused_by_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_text(text)
    with pytest.raises(FormatError, match="other: expected a first line with format 'lowtide trace 1'"):
        traces.load(path)


@pytest.mark.parametrize(
    "damage", [{"anon": "much"}, {"seconds": None}, {"processes": [3]}, {"cgroup": {"version": 2}}]
)
def test_a_line_with_wrong_types_is_refused_not_guessed(
    damage: dict[str, object], recorded: Trace, tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    traces.save(recorded, path)
    lines = path.read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | damage)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(FormatError, match="Record it again"):
        traces.load(path)


def test_memory_profiler_reads_what_we_export_for_it(recorded: Trace, tmp_path: Path) -> None:
    path = tmp_path / "out.dat"
    traces.save_mprof(recorded, path)
    lines = path.read_text().splitlines()
    assert lines[0].startswith("CMDLINE ")
    assert len(lines) == 1 + len(recorded.samples)
    mprof = Path(sys.executable).with_name("mprof")
    done = subprocess.run(
        [mprof, "peak", str(path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "MPLCONFIGDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    peak = max(sample.rss for sample in recorded.samples) / 1024**2
    assert f"{peak:.3f} MiB" in done.stdout


def test_mprof_plot_opens_the_export(recorded: Trace, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="NOT TESTED: mprof plot needs matplotlib")
    traces.save_mprof(recorded, tmp_path / "out.dat")
    mprof = Path(sys.executable).with_name("mprof")
    picture = tmp_path / "out.png"
    done = subprocess.run(
        [mprof, "plot", "--backend", "agg", "-o", str(picture), str(tmp_path / "out.dat")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "MPLCONFIGDIR": str(tmp_path)},
    )
    assert picture.exists(), done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
