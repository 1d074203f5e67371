"""The parts of the pytest plugin: what a mark allows, whether a measurement kept it, and the meter itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lowtide.pytest_plugin import can_measure
from lowtide.pytest_plugin.budgets import Measured, broken, read_budget, verdict
from lowtide.units import MIB

SOURCE = Path(__file__).parents[2] / "src"

if not can_measure():
    pytest.skip("NOT TESTED: the meter of the pytest plugin. This system has no /proc.", allow_module_level=True)


@pytest.mark.parametrize(
    ("positional", "named", "says"),
    [
        ((), {"anno": "1 MiB"}, "anno: expected one of anon, mapped, .* Did you mean 'anon'"),
        ((), {"heap": "1 MiB"}, "Did you mean 'anon'"),
        ((), {"page_cache": "1 MiB"}, "Did you mean 'cache'"),
        ((), {"qqqq": "1 MiB"}, "got 'qqqq'. Write @pytest.mark.memory_budget"),
        ((), {"anon": "64 MebiBytes"}, "anon: expected a size such as '64MiB' .*got '64 MebiBytes'"),
        ((), {"anon": 6.4}, "anon: expected an int of bytes or text .* got float"),
        ((), {"anon": -1}, "anon: expected 0 bytes or more, got -1"),
        (("64 MiB",), {}, "expected sizes by kind, got '64 MiB' without a kind"),
        ((), {}, "expected at least one of anon, mapped, .* got none"),
        ((), {"anon": 1, "fresh": "yes"}, "fresh: expected True or False, got 'yes'"),
        ((), {"cache": 1, "files": 3}, "files: expected a path or a list of paths, got 3"),
    ],
)
def test_a_wrong_budget_names_what_was_meant(positional: tuple[Any, ...], named: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_budget([(positional, named)])


def test_the_nearest_mark_wins_for_each_kind() -> None:
    budget = read_budget([((), {"anon": "1 MiB"}), ((), {"anon": "64 MiB", "mapped": 5, "fresh": True})])
    assert budget.allowed == {"anon": MIB, "mapped": 5}
    assert budget.fresh


def test_a_jump_is_blamed_only_on_kinds_it_can_have_been() -> None:
    when = {"anon": 0.0}
    anon_only = read_budget([((), {"anon": "32 MiB"})])
    still = {"anon": 2 * MIB, "mapped": 0, "shmem": 0, "tables": 0, "rss": 2 * MIB, "cache": 0}
    assert broken(anon_only, Measured(still, when, 31 * MIB, 1.0, 9))
    assert "RSS rose 31.0 MiB between two samples, more than the budget had left" in verdict(
        anon_only, Measured(still, when, 31 * MIB, 1.0, 9)
    )
    assert not broken(anon_only, Measured(still, when, 29 * MIB, 1.0, 9))
    remapping = still | {"mapped": 8 * MIB}  # pages of a file come and go: the jump may be theirs
    assert not broken(anon_only, Measured(remapping, when, 500 * MIB, 1.0, 9))
    both = read_budget([((), {"anon": "32 MiB", "mapped": "64 MiB"})])
    assert not broken(both, Measured(remapping, when, 86 * MIB, 1.0, 9))
    assert broken(both, Measured(remapping, when, 87 * MIB, 1.0, 9))


def fresh(program: str) -> str:
    """What a program prints in a process of its own: freed heap of this one would hide growth."""
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    words = [sys.executable, "-c", "from lowtide.pytest_plugin.meter import Meter\n" + program]
    return subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout


def test_the_meter_rests_between_two_samples() -> None:
    """Its cost is a benchmark's affair; that it sleeps at all is not: a meter that spun would take thousands."""
    program = """
import time
meter = Meter()
meter.start()
time.sleep(1.0)
meter.stop()
found = meter.measured()
print(found.samples / found.seconds)
"""
    assert float(fresh(program)) <= 110  # samples per second at an interval of 10 ms


def test_a_meter_can_be_used_again() -> None:
    program = """
meter = Meter()
for _ in range(2):
    meter.start()
    kept = b"x" * (20 * 1024**2)
    meter.stop()
    print(meter.measured().peak["anon"])
    del kept
"""
    peaks = [int(line) for line in fresh(program).splitlines()]
    assert len(peaks) == 2
    assert all(19 * MIB < peak < 24 * MIB for peak in peaks)
