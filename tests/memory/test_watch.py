"""``with lowtide.watch() as trace:`` and its counters beside independent witnesses."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lowtide.errors import LowtideError
from lowtide.memory import Sample, judge, watch
from lowtide.memory.samples import MOST_SAMPLES, FileSample, Ring
from lowtide.memory.watch import PROC

MIB = 1024**2

GROWS = """
import sys, time
from lowtide.memory import watch
with watch(interval=0.05) as trace:
    kept = []
    for number in range(30):
        kept.append(bytearray(3 * 1024**2))
        time.sleep(0.05)
print(trace.verdict.grew, trace.verdict.confidence, len(trace.samples), trace.running)
trace.save(sys.argv[1])
"""


def run(program: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def test_growth_inside_the_block_is_judged_after_it_and_saved(tmp_path: Path) -> None:
    grew, confidence, samples, running = run(GROWS, str(tmp_path / "t.jsonl")).split()
    assert (grew, confidence, running) == ("anon", "high", "False")
    assert int(samples) >= 10
    assert len((tmp_path / "t.jsonl").read_text().splitlines()) == int(samples) + 2


def test_the_same_block_without_growth_is_nothing(tmp_path: Path) -> None:
    """The negative control of the test above."""
    calm = GROWS.replace("kept.append(bytearray(3 * 1024**2))", "bytearray(3 * 1024**2)")
    assert run(calm, str(tmp_path / "t.jsonl")).split()[0] == "nothing"


def test_the_thread_ends_with_the_block_and_an_error_passes_through() -> None:
    with pytest.raises(ZeroDivisionError), watch(interval=0.02) as watched:
        raise ZeroDivisionError
    assert not watched.running
    assert all(thread.name != "lowtide watch" for thread in threading.enumerate())
    assert watched.samples


def test_a_budget_is_judged_on_what_is_held() -> None:
    with watch(interval=0.05, budget="1GiB") as kept, watch(interval=0.05, budget="1MiB") as broken:
        time.sleep(0.1)
    assert kept.verdict.budget is not None
    assert kept.verdict.budget.ok
    assert broken.verdict.budget is not None
    assert not broken.verdict.budget.ok


def test_a_used_watch_wrong_intervals_and_pids_that_are_gone_are_refused() -> None:
    watched = watch(interval=0.05)
    with watched:
        pass
    with pytest.raises(RuntimeError, match="Call watch\\(\\) again"), watched:
        pass
    with pytest.raises(ValueError, match="interval: expected"):
        watch(interval=0)
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    with pytest.raises(ProcessLookupError, match=f"pid {child.pid}: expected a running process"), watch(pid=child.pid):
        pass


WITNESS = """
import json, os, sys, time
from memory_profiler import memory_usage
from lowtide.memory import watch

def work():
    kept = []
    for _ in range(20):
        kept.append(bytearray(os.urandom(4096)) * 1024)
        time.sleep(0.05)

with watch(interval=0.05, children=False) as trace:
    usage = memory_usage((work, ()), interval=0.05)
ours = [sample.rss / 2**20 for sample in trace.samples]
print(json.dumps([max(usage), max(ours), usage[0], ours[0]]))
"""


@pytest.mark.slow
def test_memory_profiler_sees_the_same_rss() -> None:
    peak, our_peak, _, _ = map(float, run(WITNESS).strip("[]\n").split(","))
    assert abs(peak - our_peak) < 6, f"memory-profiler {peak} MiB, ours {our_peak} MiB"
    assert our_peak > 80


def test_without_proc_watching_is_refused_and_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert PROC.exists()
    monkeypatch.setattr(sys.modules["lowtide.memory.watch"], "PROC", tmp_path / "status")  # `watch` is the class, too
    with pytest.raises(LowtideError, match=r"expected Linux with /proc mounted, got .*a trace saved there"), watch():
        pass


def test_another_users_process_is_measured_as_far_as_permissions_go(tmp_path: Path) -> None:
    """Run the watcher as nobody on a process of root: RSS by kind is public, the rest must be named as
    missing."""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: becoming another user needs root")
    program = (
        "import json, os, sys, time; from lowtide.memory import watch; os.setgid(65534); os.setuid(65534)\n"
        "with watch(pid=int(sys.argv[1]), interval=0.05) as trace: time.sleep(0.2)\n"
        "print(json.dumps([trace.samples[-1].anon, trace.samples[-1].cache, sorted(trace.trace.missing)]))"
    )
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        time.sleep(0.2)
        out = run(program, str(child.pid))
    finally:
        child.communicate(b"\n")
    anon, cache, missing = json.loads(out)
    assert anon > MIB
    assert cache == 0
    assert {"bytes read", "cache", "dirty", "sharing"} <= set(missing)


def test_the_live_trace_can_be_judged_before_the_block_ends() -> None:
    with watch(interval=0.02) as watched:
        time.sleep(0.1)
        assert judge(watched.trace).growth
        assert watched.running


BLOCK = """
import time
import lowtide
with lowtide.watch(interval=0.05) as trace:
    kept = bytearray(b"x" * 2**27)  # all of it in the first instant
    time.sleep(1.0)
print(trace.verdict.grew, trace.verdict.growth[0].grew >> 20)
with lowtide.watch(interval=0.05) as trace:
    time.sleep(0.5)
    bytearray(b"x" * 2**27)
print(trace.verdict.grew)
"""


def test_a_block_is_judged_whole_also_in_its_first_instant() -> None:
    first, second = run(BLOCK).splitlines()
    grew, size = first.split()
    assert grew == "anon"
    assert int(size) >= 120
    assert second == "nothing"  # the control: what was freed inside the block


FAILS = """
import itertools, os, time
from lowtide.memory import watch
real, calls, armed = os.scandir, itertools.count(1), False
def scandir(path):
    if armed and str(path).startswith("/proc") and FAULT(next(calls)):
        raise RuntimeError("planted")
    return real(path)
os.scandir = scandir
with watch(interval=0.02) as trace:
    begun, armed = time.monotonic(), True
    while not (DONE) and time.monotonic() < begun + 120:
        time.sleep(0.05)
print(trace.errors > 0, len(trace.samples) > 0, trace.verdict.confidence)
print(trace.verdict.headline)
"""


def with_fault(fault: str, done: str) -> list[str]:
    return run(FAILS.replace("FAULT", f"(lambda call: {fault})").replace("DONE", done)).splitlines()


@pytest.mark.slow
def test_an_error_inside_the_sampler_is_told_and_the_samples_go_on() -> None:
    """The fault is planted in the standard library's own function, below all of ours."""
    facts, headline = with_fault("2 < call < 5", "trace.errors and time.monotonic() > begun + 2")
    assert facts == "True True low"
    assert "RuntimeError: planted; sampling went on" in headline
    facts, headline = with_fault("call > 2", "not trace.running")
    assert "RuntimeError: planted; sampling stopped" in headline
    assert facts == "True True low"
    facts, headline = with_fault("False", "time.monotonic() > begun + 2")
    assert facts.startswith("False True")  # the control


def test_proc_that_hides_other_users_is_named_as_the_reason() -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("NOT TESTED: hidepid needs root and unshare")
    program = (
        "import os, sys; from lowtide.memory import watch; os.setgid(65534); os.setuid(65534)\n"
        "try:\n with watch(pid=1): pass\nexcept ProcessLookupError as problem: print(problem)"
    )
    mount = "mount -t proc -o hidepid=2 proc /proc"
    words = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$0" -c "$1"', sys.executable, program]
    done = subprocess.run(words, capture_output=True, text=True)
    if "mount" in done.stderr:
        pytest.skip(f"NOT TESTED: this machine refuses to mount /proc with hidepid ({done.stderr.strip()})")
    assert "/proc hides those of others (hidepid). Run as that user or as root." in done.stdout, done.stderr


def test_processes_that_come_and_go_by_the_hundred_are_summed_up() -> None:
    script = (
        "for i in $(seq 90); do sleep 20 & done; for i in $(seq 300); do /bin/true; done; echo; read x; kill $(jobs -p)"
    )
    with subprocess.Popen(["bash", "-c", script], stdin=-1, stdout=-1) as child:
        assert child.stdout is not None
        with watch(pid=child.pid, interval=0.05, about="process") as watched:
            child.stdout.readline()
            while watched.last is None or len(watched.last.processes) < 65:
                time.sleep(0.05)
        child.communicate(b"\n")
    last = watched.samples[-1]
    assert len(last.processes) == 65
    assert last.processes[-1].name.endswith(" smaller processes")
    assert sum(each.anon for each in last.processes) == last.anon


def test_a_week_of_samples_takes_bounded_memory_and_keeps_every_peak() -> None:
    ring = Ring()
    files = tuple(FileSample(f"/data/{n}", 1, 1, 0, 0, 0, "ext4", False) for n in range(24))
    count = 7 * 86_400 // 10
    for place in range(count):
        anon = 10**9 if place == 12_345 else 10**8
        ring.add(Sample(place * 10.0, anon, 0, 0, 0, 0, 0, files=files))
    assert len(ring.samples()) <= MOST_SAMPLES
    assert ring.taken == count
    kept = ring.samples()
    assert max(sample.anon for sample in kept) == 10**9
    assert kept[0].seconds == 0.0
    assert kept[-1].seconds == (count - 1) * 10.0
    assert [sample.seconds for sample in kept] == sorted(sample.seconds for sample in kept)
    gaps = [later.seconds - earlier.seconds for earlier, later in itertools.pairwise(kept)]
    assert max(gaps) < 0.05 * count * 10  # no day is without samples
