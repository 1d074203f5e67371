"""The pytest plugin: ``@pytest.mark.memory_budget(anon="64 MiB", mapped="16 MiB")`` and ``memory_growth``.

Kinds are anon, mapped, shmem and tables (growth of this process without its children, sampled every 10 ms), rss
(the kernel's own high-water mark, which misses no peak) and cache (page cache of ``files=``, read at the end). Growth
counts from after the fixtures to the end of the test. ``fresh=True`` runs the test in a process of its own. Without
/proc the test runs and a warning says that its budget was not checked.

This file is loaded into every pytest run of the machine, so the measuring code is imported only when a test needs it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lowtide.pytest_plugin.budgets import StatedBudget
    from lowtide.pytest_plugin.meter import Meter

__all__ = ["MemoryBudgetWarning", "Meter"]

_KINDS = ("anon", "mapped", "shmem", "tables", "rss", "cache")
_BUDGET: pytest.StashKey[StatedBudget] = pytest.StashKey()
_METER: pytest.StashKey[Meter] = pytest.StashKey()
_MARK = "memory_budget"


def __getattr__(name: str) -> Any:
    """``Meter``, for annotating the fixture."""
    if name == "Meter":
        from lowtide.pytest_plugin.meter import Meter

        return Meter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class MemoryBudgetWarning(pytest.PytestWarning):
    """A stated budget could not be checked here."""


def pytest_addoption(parser: pytest.Parser) -> None:
    # Tells a fresh process where to leave its reports; not for users.
    parser.addoption("--lowtide-fresh", metavar="FILE", default=None, help="used by memory_budget(fresh=True) only")


def pytest_configure(config: pytest.Config) -> None:
    kinds = ", ".join(f"{kind}=SIZE" for kind in _KINDS)
    config.addinivalue_line(
        "markers",
        f"{_MARK}({kinds}, files=PATHS, fresh=False): fail when memory of a kind grows by more during the test "
        "(lowtide)",
    )
    fresh = config.getoption("lowtide_fresh")
    if fresh is not None:
        config.pluginmanager.register(_TestNotes(fresh))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Read every budget before the first test. A test whose budget cannot be read fails and says why; others run."""
    for item in items:
        marks = [(mark.args, mark.kwargs) for mark in item.iter_markers(_MARK)]
        if not marks:
            continue
        from lowtide.pytest_plugin.budgets import read_budget
        from lowtide.pytest_plugin.fresh import run_fresh

        try:
            budget = read_budget(marks)
        except ValueError as problem:
            item.setup = _no_set_up  # type: ignore[method-assign]  # fixtures of a test that cannot pass are not set up
            item.runtest = partial(pytest.fail, f"{_MARK}: {problem}", False)  # type: ignore[method-assign]
            continue
        item.stash[_BUDGET] = budget
        if budget.fresh and config.getoption("lowtide_fresh") is None:
            item.setup = _no_set_up  # type: ignore[method-assign]  # fixtures belong to the fresh process
            item.runtest = partial(run_fresh, item)  # type: ignore[method-assign]


@pytest.fixture
def memory_growth(request: pytest.FixtureRequest) -> Iterator[Meter]:
    """How much memory of this process has grown since the test began, in bytes by kind: ``.anon``,
    ``.mapped``, ``.shmem``, ``.tables``, ``.rss`` now, ``.peak["anon"]`` the most so far. ``.restart()``
    forgets a warm-up, ``.count(path)`` adds a file to ``.cache``."""
    if not can_measure():
        pytest.skip("memory_growth: this system has no /proc to measure with")
    yield _meter(request.node)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Measure around the test itself, inside all other plugins."""
    budget = item.stash.get(_BUDGET, None)
    elsewhere = isinstance(item.runtest, partial)
    if elsewhere or (budget is None and _METER not in item.stash):
        return (yield)
    if not can_measure():
        item.warn(MemoryBudgetWarning(f"{_MARK}: not checked, this system has no /proc to measure with"))
        return (yield)
    from lowtide.pytest_plugin.budgets import broken, summary, verdict

    meter = _meter(item)
    meter.start()
    try:
        yield
    finally:
        meter.stop()
        measured = meter.measured()
        item.add_report_section("call", "memory", summary(measured))
        item.user_properties += [(f"memory_{kind}", size) for kind, size in measured.peak.items()]
    if budget is not None:
        if "cache" in budget.allowed and not meter.files:
            pytest.fail(f"{_MARK}: cache: expected files to count, got none. Add files=[...] or count(path).", False)
        if broken(budget, measured):
            pytest.fail(verdict(budget, measured), pytrace=False)


class _TestNotes:
    """Only in a fresh process: keep the reports for the parent."""

    def __init__(self, path: str) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        from lowtide.pytest_plugin.fresh import note

        note(report, self._path)


def can_measure() -> bool:
    return Path("/proc/self/status").exists()


def _meter(item: pytest.Item) -> Meter:
    if _METER not in item.stash:
        from lowtide.pytest_plugin.meter import Meter

        budget = item.stash.get(_BUDGET, None)
        item.stash[_METER] = Meter(budget.files if budget is not None else ())
    return item.stash[_METER]


def _no_set_up() -> None:
    pass
