"""``lowtide doctor --listen`` and ``--every``: scraped by a real Prometheus parser from a real process."""

from __future__ import annotations

import dataclasses
import json
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.report.made import cgroup, mapped_trace

from lowtide.memory import KINDS, judge
from lowtide.memory.samples import GREW
from lowtide.report.endpoint import Endpoint, parse_address
from lowtide.report.prometheus import OWNERS, freshness_text, measured_text

parser = pytest.importorskip("prometheus_client.parser", reason="NOT TESTED: metrics need prometheus_client's parser")

DOCTOR = [sys.executable, "-m", "lowtide", "doctor"]
HOLDS = "kept = bytearray(b'x' * 2**26); print('held', flush=True); input()"


def parsed(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Every sample by the name of its series."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in parser.text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


@contextmanager
def served(*options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a doctor that watches a program which waits."""
    words = [*DOCTOR, "--listen", ":0", *options, "--", sys.executable, "-c", HOLDS]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
        assert child.stderr is not None and child.stdout is not None
        match = re.search(r"metrics at (http://127\.0\.0\.1:\d+/metrics)", child.stderr.readline())
        assert match is not None
        assert child.stdout.readline() == "held\n"
        yield match[1], child
        child.communicate("\n", timeout=240)


def scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=120) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


def test_a_real_parser_reads_what_a_running_doctor_serves_and_no_path_is_in_it() -> None:
    with served() as (url, _):
        found = parsed(scrape(url))
        while "lowtide_memory_bytes" not in found or "lowtide_verdict" not in found:
            found = parsed(scrape(url))
        assert {labels["kind"] for labels, _ in found["lowtide_memory_bytes"]} == set(KINDS)
        assert {labels["grew"] for labels, _ in found["lowtide_verdict"]} == set(GREW)
        assert sum(value for _, value in found["lowtide_verdict"]) == 1
        heap = {labels["kind"]: value for labels, value in found["lowtide_memory_bytes"]}["anon"]
        assert heap >= 0
        values = [value for series in found.values() for labels, _ in series for value in labels.values()]
        assert not any("/" in value or "python" in value for value in values)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url.replace("/metrics", "/etc/passwd"))


def test_a_scraper_that_hangs_keeps_nobody_else_from_scraping_nor_the_doctor_from_ending() -> None:
    with served() as (url, child):
        host, port = url.removeprefix("http://").removesuffix("/metrics").split(":")
        hanging = [socket.create_connection((host, int(port))) for _ in range(4)]
        assert "lowtide_sample_age_seconds" in scrape(url)
    assert child.returncode == 0
    for each in hanging:
        each.close()


def test_names_are_labels_only_when_asked_for_and_series_stay_few() -> None:
    trace = mapped_trace(40)
    sample, verdict = trace.samples[-1], judge(trace)
    bare = measured_text(sample, verdict, names=False)
    named = measured_text(sample, verdict, names=True)
    assert "/data/train.bin" not in bare
    owners = parsed(named)["lowtide_owner_bytes"]
    assert any(labels.get("owner") == "/data/train.bin" for labels, _ in owners)
    assert len(owners) <= OWNERS * len(KINDS)


def test_hostile_names_stay_inside_their_labels() -> None:
    trace = mapped_trace(10)
    path = 'a"} 1\nlowtide_danger 9\n\\'
    last = trace.samples[-1]
    sample = dataclasses.replace(last, files=tuple(dataclasses.replace(each, path=path) for each in last.files))
    found = parsed(measured_text(sample, judge(trace), names=True))
    assert any(labels.get("owner") == path for labels, _ in found["lowtide_owner_bytes"])
    assert [value for _, value in found["lowtide_danger"]] == [0.0]


def test_a_port_that_is_taken_is_refused_before_the_command_runs(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = [*DOCTOR, "--listen", f":{port}", "--", "touch", str(tmp_path / "ran")]
        done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"--listen 127.0.0.1:{port}: expected a free port, got: Address already in use" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":9177", ("127.0.0.1", 9177)),
        ("9177", ("127.0.0.1", 9177)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:9", ("::1", 9)),
    ],
)
def test_an_address_without_a_host_is_this_machine_alone(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


def test_an_endpoint_ends_with_its_block() -> None:
    with Endpoint(("127.0.0.1", 0), lambda: "lowtide_x 1\n") as endpoint:
        assert scrape(endpoint.url) == "lowtide_x 1\n"
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(endpoint.url, timeout=5)


def test_a_line_per_interval_goes_to_stderr_for_logs() -> None:
    words = [*DOCTOR, "--every", "0.3s", "--", sys.executable, "-c", HOLDS]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
        assert child.stderr is not None
        lines = [child.stderr.readline() for _ in range(2)]
        child.communicate("\n", timeout=240)
    for line in lines:
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ lowtide after=\S+ anon=\S+ mapped=", line), line
        assert " grew=" in line


def test_the_shipped_dashboard_asks_for_series_that_are_served() -> None:
    dashboard = json.loads((Path(__file__).parents[2] / "examples" / "grafana-doctor.json").read_text())
    trace = mapped_trace(40)
    sample = dataclasses.replace(trace.samples[-1], cgroup=cgroup(2**30))
    served_names = set(parsed(freshness_text(0, 0.0) + measured_text(sample, judge(trace), names=False)))
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"lowtide_\w+", target["expr"])
    }
    assert len(asked) >= 10
    assert asked <= served_names
