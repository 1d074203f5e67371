"""``%%lowtide`` in a real Jupyter kernel, and its output in a real browser."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.report.browser import Browser, find

from lowtide.memory import watch
from lowtide.memory.judge.findings import COLOURS

nbclient = pytest.importorskip("nbclient", reason="NOT TESTED: notebooks need nbclient and ipykernel")
nbformat = pytest.importorskip("nbformat", reason="NOT TESTED: notebooks need nbformat")
pytest.importorskip("ipykernel", reason="NOT TESTED: notebooks need ipykernel")

CELLS = (
    "%load_ext lowtide.notebook",
    "%%lowtide --budget 8GiB\nkept = bytearray(b'x' * 2**27)\nprint('from the cell')\n6 * 7",
    "_lowtide.verdict.grew, kept[0]",
    "%lowtide small = bytearray(10)",
    "%%lowtide\n1 / 0",
    "%%lowtide --bugdet 3\npass",
    "_lowtide.verdict",
)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """The outputs of each cell, run by a kernel of this interpreter."""
    directory = tmp_path_factory.mktemp("kernel")
    spec = directory / "kernels" / "lowtide-test"
    spec.mkdir(parents=True)
    words = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": words, "display_name": "t", "language": "python"}))
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    before = dict(os.environ)
    os.environ |= {"JUPYTER_PATH": str(directory), "IPYTHONDIR": str(directory), "JUPYTER_RUNTIME_DIR": str(directory)}
    try:
        client = nbclient.NotebookClient(
            book, timeout=240, startup_timeout=240, kernel_name="lowtide-test", allow_errors=True
        )
        client.execute()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return [cell["outputs"] for cell in book["cells"]]


def html_of(outputs: list[dict[str, Any]]) -> str:
    return next(str(each["data"]["text/html"]) for each in outputs if "text/html" in each.get("data", {}))


pytestmark = pytest.mark.filterwarnings("ignore")  # of the kernel's own libraries


@pytest.mark.slow
def test_a_cell_under_the_magic_reports_held_and_growth_by_kind_with_a_chart(
    outputs: list[list[dict[str, Any]]],
) -> None:
    cell = outputs[1]
    assert any("from the cell" in each.get("text", "") for each in cell)
    assert any(each.get("data", {}).get("text/plain") == "42" for each in cell)  # the cell's own value is still shown
    html = html_of(cell)
    assert re.search(r"anon \+1[23]\d MiB", html)
    assert "<svg" in html and "at the end" in html and "at most" in html
    text = next(each["data"]["text/plain"] for each in cell if "text/html" in each.get("data", {}))
    assert text.startswith("Held ")
    assert re.search(r"anon .*\+1[23]\d MiB", text)


@pytest.mark.slow
def test_the_trace_stays_in_the_notebook_and_a_line_can_be_watched_too(outputs: list[list[dict[str, Any]]]) -> None:
    assert outputs[2][0]["data"]["text/plain"] == "('anon', 120)"
    assert "Nothing grew" in html_of(outputs[3])
    assert "Nothing grew" in html_of(outputs[6])


@pytest.mark.slow
def test_an_error_in_the_cell_is_shown_and_the_report_still_comes(outputs: list[list[dict[str, Any]]]) -> None:
    assert any(each.get("ename") == "ZeroDivisionError" for each in outputs[4])
    assert "Nothing grew" in html_of(outputs[4])
    (wrong,) = outputs[5]
    assert wrong["ename"] == "ValueError"
    assert "%%lowtide --budget 2GiB" in wrong["evalue"]


@pytest.mark.slow
def test_the_report_of_a_cell_is_seen_in_a_browser_and_nothing_of_it_acts(
    outputs: list[list[dict[str, Any]]], tmp_path: Path
) -> None:
    program = find()
    if program is None:
        pytest.skip("NOT TESTED: the notebook's report in a browser. Chromium is not installed.")
    page = tmp_path / "cell.html"
    page.write_text(f"<!doctype html><meta charset=utf-8><body>{html_of(outputs[1])}</body>")
    with Browser(program) as browser:
        browser.look(width=700, height=500)
        browser.open(page)
        assert browser.evaluate("document.querySelectorAll('svg polygon').length") == len(COLOURS)
        assert browser.evaluate("document.querySelector('table').getBoundingClientRect().width <= 700")
        assert "anon" in browser.evaluate("document.querySelector('tbody').innerText")
        assert browser.evaluate("document.querySelectorAll('script').length") == 0


def test_a_watch_prints_well_and_shows_html_without_any_extension() -> None:
    with watch(interval=0.02) as trace:
        sum(range(100_000))
    assert str(trace).startswith("Held ")
    assert "<table>" in trace._repr_html_()
    assert str(trace.verdict).startswith("Held ")
    assert "<table>" in trace.verdict._repr_html_()
