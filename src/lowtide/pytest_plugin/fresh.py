"""Run one test in a process of its own and bring its outcome back.

No fixture is set up and no test code runs here; a new pytest process runs that one node id, where nothing ran before,
and writes its reports to a file. Costs about a second. Command-line options for plugins of your own are not passed on;
ini settings and PYTEST_ADDOPTS are.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

_TAIL_LINES = 40  # lines of output shown when the process died without a report
_XPASS = "[XPASS(strict)]"  # what pytest writes for a strict xfail that passed


def run_fresh(item: pytest.Item) -> None:
    """Run the test elsewhere; pass, fail, skip or xfail here as it did there."""
    with tempfile.TemporaryDirectory(prefix="lowtide-fresh-") as directory:
        reports = Path(directory, "reports")
        done = subprocess.run(
            _command(item, reports, directory),
            cwd=item.config.invocation_params.dir,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        found = [json.loads(line) for line in reports.read_text().splitlines()] if reports.exists() else []
    for report in found:
        _bring_back(item, report)
    if not any(report["when"] == "teardown" for report in found):  # it died, or never found the test
        pytest.fail(f"memory_budget: {_ending(done.returncode)}\n{_last(done.stdout)}", pytrace=False)
    for report in found:
        _repeat(report)


def note(report: pytest.TestReport, path: str) -> None:
    """In the fresh process: keep one report for the parent."""
    longrepr = report.longrepr
    reason = longrepr[2] if isinstance(longrepr, tuple) else report.longreprtext
    data = {
        "when": report.when,
        "outcome": report.outcome,
        "text": report.longreprtext,
        "reason": reason.removeprefix("Skipped: "),
        "wasxfail": getattr(report, "wasxfail", None),
        "sections": report.sections,
        "properties": report.user_properties if report.when == "teardown" else [],
    }
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(data, default=str) + "\n")


def _command(item: pytest.Item, reports: Path, directory: str) -> list[str]:
    config = item.config
    inside = item.nodeid.partition("::")[2]
    words = [sys.executable, "-m", "pytest", f"{item.path}::{inside}", f"--lowtide-fresh={reports}"]
    words += ["--rootdir", str(config.rootpath), "--import-mode", config.getoption("importmode")]
    words += ["-o", f"cache_dir={directory}/cache", "-m", "", "-k", "", "--color=no"]
    if config.inipath is not None:
        words += ["-c", str(config.inipath)]
    if config.pluginmanager.hasplugin("xdist"):
        words += ["-n", "0"]
    for option, name in (("-p", "plugins"), ("-W", "pythonwarnings"), ("-o", "override_ini")):
        for value in config.getoption(name, None) or ():
            words += [option, value]
    return words


def _bring_back(item: pytest.Item, report: dict[str, Any]) -> None:
    """Captured output and properties, as if the test had run here; sections grow from phase to phase."""
    if report["when"] == "teardown":
        for title, text in report["sections"]:
            item.add_report_section("call", title.removeprefix("Captured ").partition(" ")[0], text)
        item.user_properties += [(str(name), value) for name, value in report["properties"]]


def _repeat(report: dict[str, Any]) -> None:
    if report["outcome"] == "skipped" and report["wasxfail"] is not None:
        pytest.xfail(report["wasxfail"])
    if report["outcome"] == "skipped":
        pytest.skip(report["reason"])
    if report["outcome"] == "failed" and not report["text"].startswith(_XPASS):  # the parent's own xfail adds that
        pytest.fail(report["text"], pytrace=False)


def _ending(code: int) -> str:
    if code < 0:
        return f"the fresh process was killed by signal {-code} ({signal.strsignal(-code)})"
    return f"the fresh process ended with exit code {code} before it had run the test"


def _last(output: str) -> str:
    return "\n".join(output.splitlines()[-_TAIL_LINES:])
