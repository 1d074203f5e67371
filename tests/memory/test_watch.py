"""``with lowtide.watch() as trace:`` and its counters beside independent witnesses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lowtide.memory import judge, watch
from lowtide.memory.elsewhere import PlainCounters

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


def test_without_proc_one_number_is_given_and_the_rest_named() -> None:
    counters = PlainCounters(os.getpid(), children=False)
    sample = counters.sample()
    assert sample is not None
    assert sample.anon > MIB
    assert sample.rss > MIB
    assert {"mapped", "cache", "dirty", "tables", "shmem", "cgroup"} <= set(counters.missing)


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
