"""Traces on disk: our own lines, cut short or damaged, and memory-profiler's format."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lowtide.errors import FormatError
from lowtide.memory import Trace, judge, traces, watch
from lowtide.memory.measure.process import children
from lowtide.memory.samples import MOST_SAMPLES, FileSample, ProcessSample, Sample
from lowtide.units import MIB


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


KILLED = """
import os, signal, sys, time
import lowtide
with lowtide.watch(interval=0.05, save=sys.argv[1]) as trace:
    kept = bytearray(b"x" * 2**26)
    while len(open(sys.argv[1]).readlines()) < 8:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_block_that_was_killed_leaves_a_trace_that_can_be_judged(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)])
    assert done.returncode == -signal.SIGKILL
    back = traces.load(path)
    assert back.cut_short
    assert len(back.samples) >= 7
    verdict = judge(back)
    assert verdict.held is not None
    assert verdict.held.kinds[0].peak >= 2**26  # anon
    assert verdict.grew == "anon"  # also what happened before the second sample
    assert "its writer was killed too" in verdict.headline


@pytest.mark.slow
def test_a_doctor_killed_with_its_command_leaves_a_trace_that_can_be_judged(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    program = "kept = bytearray(b'x' * 2**26); print('held', flush=True); input()"
    words = [sys.executable, "-m", "lowtide", "doctor", "--save", str(path), "--", sys.executable, "-c", program]
    with subprocess.Popen(words, stdin=-1, stdout=-1) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        while len(path.read_text().splitlines()) < 8:
            time.sleep(0.05)
        (inner,) = children(child.pid)
        os.kill(child.pid, signal.SIGKILL)
        os.kill(inner, signal.SIGKILL)
    done = subprocess.run([*words[:4], "--json", "--trace", str(path)], capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert found["cut_short"] is True
    assert found["ended"] is None
    assert found["held"]["anon"]["peak"] >= 2**26


def test_a_trace_written_as_it_happens_is_the_trace_that_was_taken(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with watch(interval=0.02, save=path) as watched:
        sum(range(1_000_000))
    assert traces.load(path) == watched.trace


def test_samples_in_which_nothing_moves_are_written_rarely_once_a_run_is_long(tmp_path: Path, recorded: Trace) -> None:
    day, step = 86_400, 10
    writer = traces.TraceWriter(tmp_path / "t.jsonl", recorded)
    calm = dataclasses.replace(recorded.samples[0], anon=10**8)
    for place in range(day // step):
        jump = 10**7 if place == 5000 else 0
        writer.add(dataclasses.replace(calm, seconds=float(place * step), anon=calm.anon + jump))
    writer.end(recorded)
    back = traces.load(tmp_path / "t.jsonl")
    assert not back.cut_short
    assert 500 < len(back.samples) < 6000
    assert max(sample.anon for sample in back.samples) == calm.anon + 10**7  # what moves is always written
    assert back.samples[-1].seconds == day - step


def test_a_trace_whose_clock_jumps_back_is_judged_all_the_same(recorded: Trace, tmp_path: Path) -> None:
    samples = tuple(dataclasses.replace(each, seconds=100.0 - place) for place, each in enumerate(recorded.samples))
    traces.save(dataclasses.replace(recorded, samples=samples), tmp_path / "t.jsonl")
    assert judge(traces.load(tmp_path / "t.jsonl")).grew == "nothing"


FULL = """
import resource, sys, time
import lowtide
resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))
with lowtide.watch(interval=0.02, save=sys.argv[1]) as watched:
    while len(watched.samples) < 12:
        time.sleep(0.02)
print(watched.trace.missing["saved trace"])
"""


def test_a_file_that_can_grow_no_more_ends_the_file_and_not_the_watching(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True)
    assert "File too large" in done.stdout, done.stderr
    assert traces.load(path).cut_short
    with pytest.raises(OSError, match="No space left"), watch(save="/dev/full"):
        pass  # what is full from the start is refused at once


def test_what_is_no_file_is_refused_without_reading_on(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    endless = tmp_path / "endless"
    with endless.open("wb") as file:
        file.truncate(1 << 40)  # zeros without an end, and on the disk nothing
    for path in ("/dev/zero", str(tmp_path / "pipe"), str(endless)):
        with pytest.raises(FormatError, match=f"{path}: expected a first line with format '.*', got another"):
            traces.load(path)


def weighty(seconds: float, anon: int) -> Sample:
    """A sample of 8 processes and 24 files, about 7 KB as a line."""
    processes = tuple(
        ProcessSample(100 + n, 1, f"p{n}", anon // 8, 0, 0, 0, 0, anon // 8, 0, 0, n > 0) for n in range(8)
    )
    files = tuple(FileSample(f"/data/corpus/{n}/tokens.bin", 10**9, 10**8, 0, 0, 0, "ext4", False) for n in range(24))
    return Sample(seconds, anon, 0, 24 * 10**8, 0, 0, 0, processes=processes, files=files)


def test_a_saved_trace_stays_bounded_and_keeps_its_first_its_last_and_every_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "_MOST_BYTES", 2 * MIB)  # a week at 32 MiB, in a second
    path, count = tmp_path / "t.jsonl", 3000
    head = Trace("python train.py", 0.0, 0.25)
    writer = traces.TraceWriter(path, head)
    largest = 0
    for place in range(count):
        jump = 10**9 if place == count // 3 else 0
        writer.write(weighty(0.25 * place, 10**8 + 10**5 * place + jump))
        largest = max(largest, path.stat().st_size)
    writer.end(head)
    assert largest < 2.1 * MIB
    assert list(tmp_path.iterdir()) == [path]  # nothing is left of writing it anew
    back = traces.load(path)
    assert not back.cut_short
    assert max(sample.anon for sample in back.samples) == 10**8 + 10**5 * (count // 3) + 10**9
    assert back.samples[0].seconds == 0.0 and back.samples[-1].seconds == 0.25 * (count - 1)
    assert judge(back).grew == "anon"


def test_a_trace_of_any_length_becomes_no_more_samples_than_a_watcher_keeps(tmp_path: Path) -> None:
    path, count = tmp_path / "t.jsonl", 5000
    head = Trace("python train.py", 0.0, 0.25)
    writer = traces.TraceWriter(path, head)
    for place in range(count):
        writer.write(dataclasses.replace(weighty(float(place), 10**8), processes=(), files=()))
    writer.end(head)
    assert path.read_bytes().count(b"\n") == count + 2  # the control: the file has them all
    back = traces.load(path)
    assert len(back.samples) <= MOST_SAMPLES
    assert not back.cut_short


def test_a_file_of_very_long_lines_stays_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "_MOST_BYTES", MIB // 16)  # nine lines of this size
    head = Trace("python train.py", 0.0, 0.25)
    writer = traces.TraceWriter(tmp_path / "t.jsonl", head)
    for place in range(60):
        writer.write(weighty(float(place), 10**8))
        assert (tmp_path / "t.jsonl").stat().st_size < MIB // 8
    writer.end(head)
    back = traces.load(tmp_path / "t.jsonl")
    assert (back.samples[0].seconds, back.samples[-1].seconds) == (0.0, 59.0)


def test_a_link_to_a_trace_stays_a_link_when_the_file_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "_MOST_BYTES", MIB // 4)
    link, path = tmp_path / "link", tmp_path / "there" / "t.jsonl"
    path.parent.mkdir()
    link.symlink_to(path)
    head = Trace("python train.py", 0.0, 0.25)
    writer = traces.TraceWriter(link, head)
    for place in range(100):
        writer.write(weighty(float(place), 10**8))
    writer.end(head)
    assert link.is_symlink()
    assert path.stat().st_size < MIB // 2
    assert len(traces.load(link).samples) > 10


READ = """
import json, sys
from lowtide.memory import judge, traces
from lowtide.memory.samples import Sample
if sys.argv[1] == "stream":
    judge(traces.load(sys.argv[2]))
else:
    kept = [traces.from_dict(Sample, json.loads(line)) for line in open(sys.argv[2]).readlines()[1:]]
(line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(line.split()[1]) // 1024)
"""


@pytest.mark.slow
def test_judging_a_long_trace_takes_less_than_64_mib(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with path.open("w") as file:  # as files of another writer may be: longer than ours ever are
        file.write('{"format":"lowtide trace 1","command":"x","started":0,"interval":0.25}\n')
        for place in range(4000):
            file.write(json.dumps(traces.to_dict(weighty(float(place), 10**8 + place))) + "\n")
    stream, whole = (
        int(subprocess.run([sys.executable, "-c", READ, how, path], capture_output=True, check=True).stdout)
        for how in ("stream", "whole")
    )
    assert stream < 64
    assert whole > 64  # the control


def test_a_trace_without_a_name_is_refused_before_anything_is_watched(recorded: Trace) -> None:
    with pytest.raises(ValueError, match="save: expected the name of a file, got empty text"):
        traces.save(recorded, "")
    with pytest.raises(ValueError, match="save: expected the name of a file, got empty text"), watch(save=""):
        pytest.fail("it began")
