"""The torture run itself: each campaign runs a short program, and the runner sees hangs, crashes and losses."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.torture.campaigns import CAMPAIGNS
from tests.torture.runner import Ran, Row, report, run_program, table
from tests.torture.tally import Tally

if not Path("/proc/self").exists():
    pytest.skip("NOT TESTED: the torture run. It needs Linux.", allow_module_level=True)

# A seed and a number of rounds that make a quick program of each campaign; `make torture` runs the long ones.
QUICK = {
    "interrupts": (30, 20),
    "reads": (12, 6),
    "changes": (6, 3),
    "programs": (16, 2),
    "descriptors": (6, 1),
    "limits": (1, 1),
    "headers": (1, 40),
    "orders": (3, 2),
    "surroundings": (1794881547, 30),
    "preparing": (1, 4),
    "training": (1, 1),
}
LONGER: dict[str, list[pytest.MarkDecorator]] = {
    "limits": [pytest.mark.slow],
    "preparing": [pytest.mark.slow],
    "training": [pytest.mark.slow, pytest.mark.trainers],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=LONGER.get(name, ())) for name in CAMPAIGNS])
def test_a_short_program_of_each_campaign_tries_its_faults_and_finds_nothing(name: str) -> None:
    if name == "training":
        pytest.importorskip("torch", reason="NOT TESTED: torch is not installed, so no run was killed")
    seed, rounds = QUICK[name]
    ran = run_program(CAMPAIGNS[name], seed, rounds)
    if ran.tally.skipped:
        pytest.skip(f"NOT TESTED: {ran.tally.skipped}")
    assert ran.tally.tried == rounds or name in ("interrupts", "training")
    assert ran.tally.tried > 0
    assert not ran.hung, ran.said
    assert (ran.tally.wrong, ran.tally.lost, ran.tally.hung) == (0, 0, 0), ran.tally.examples


def planted(program: str, patience: float = 60.0) -> Ran:
    """A program of our own in place of a campaign's."""
    return run_program(replace(CAMPAIGNS["reads"], patience=patience), 5, words=[sys.executable, "-c", program])


TALLY = 'print(\'tally {"tried": 3, "fired": 2, "problems": {"lost": 1}, "examples": {}, "skipped": ""}\', flush=True)'


@pytest.mark.slow
def test_a_program_that_falls_silent_is_killed_and_counted_with_what_it_saw_until_then() -> None:
    ran = planted(
        f"import faulthandler, signal, time; faulthandler.register(signal.SIGUSR2); {TALLY}; time.sleep(3600)",
        patience=1.5,
    )
    assert ran.hung
    assert (ran.tally.tried, ran.tally.fired, ran.tally.lost) == (3, 2, 1)
    assert "most recent call first" in ran.said


def test_a_program_that_dies_is_counted_with_its_signal() -> None:
    ran = planted(f"import os; {TALLY}; os.kill(os.getpid(), 11)")
    assert not ran.hung
    assert "SIGSEGV" in ran.tally.examples["died"][0]


@pytest.mark.slow
def test_what_a_killed_program_started_is_killed_with_it(tmp_path: Path) -> None:
    program = f"import subprocess, time; c = subprocess.Popen(['sleep', '3600']); open({str(tmp_path / 'pid')!r}, 'w')"
    planted(program + ".write(str(c.pid)); time.sleep(3600)", patience=3)
    pid = int((tmp_path / "pid").read_text())
    ends = time.monotonic() + 60  # a kill takes effect when the kernel has time for it
    while alive(pid) and time.monotonic() < ends:
        time.sleep(0.02)
    assert not alive(pid)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_line_cut_short_by_a_kill_is_left_out() -> None:
    good = '{"tried": 1, "fired": 1, "problems": {}, "examples": {}, "skipped": ""}'
    assert Tally.from_output(f'tally {good}\ntally {{"tried": 2, "fi').tried == 1
    assert Tally.from_output("").tried == 0


def test_the_table_counts_what_programs_found_and_names_what_was_not_tested() -> None:
    row = Row()
    found = Tally(tried=9, fired=8)
    for kind in ("lost", "repeated", "overwritten", "hung", "danger"):
        found.problems[kind] += 1
    row.add(Ran(CAMPAIGNS["reads"], 1, found, True, 1.0, ""))
    assert (row.survived, row.wrong, row.lost, row.hung, row.danger) == (2, 1, 2, 2, 1)
    words = table({"reads": row, "limits": Row(skipped={"no cgroups here"})})
    assert "5 failures" in words
    assert "NOT TESTED: limits: no cgroups here" in words


def test_a_failure_prints_the_command_that_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = Tally()
    found.add("lost", "batch 3 never came")
    report(Ran(CAMPAIGNS["reads"], 77, found, False, 1.0, ""), rounds=None)
    said = capsys.readouterr().out
    assert "batch 3 never came" in said
    assert "python -m tests.torture --only reads --seed 77 --programs 1" in said


def test_a_signal_that_ends_a_program_of_many_threads_is_the_one_that_came() -> None:
    """faulthandler used to walk the frames of threads that ran on, and ended in SIGSEGV now and then."""
    program = f"""
import os, signal, sys, threading
from tests.torture import __main__ as torture
{TALLY}
def busy(depth=0):
    while True:
        sum(str(k) != "" for k in range(50))
class Campaign:
    class module:
        @staticmethod
        def program(*_):
            for _ in range(4): threading.Thread(target=busy, daemon=True).start()
            os.kill(os.getpid(), signal.SIGBUS)
torture.CAMPAIGNS["planted"] = Campaign
torture.one_program("planted", 1, 1, None)
"""
    for _ in range(3):
        ran = planted(program)
        assert "the program ended with SIGBUS" in ran.tally.examples["died"][0]
