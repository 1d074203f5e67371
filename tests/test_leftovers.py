"""The check at the end of every file of tests sees what it is there to see, and nothing in a file that cleans up."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests import leftovers

if not Path("/proc/self").exists():
    pytest.skip("NOT TESTED: what tests leave behind. This system has no /proc.", allow_module_level=True)

WAITS = "import sys; sys.stdin.read()"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "PATIENCE", 0.1)


@pytest.fixture
def before(tmp_path: Path) -> leftovers.Before:
    return leftovers.Before(tmp_path)


def test_nothing_new_is_nothing_left(before: leftovers.Before) -> None:
    assert before.left_since() == []


def test_a_running_process_is_named_and_ended(before: leftovers.Before) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE) as child:
        (left,) = before.left_since()
        assert left.startswith(f"process {child.pid}: ")
        assert WAITS in left
        assert child.wait() == -9


def test_an_orphan_is_found_by_its_environment(before: leftovers.Before) -> None:
    """Its parent is gone, so it is nobody's child; its standard input stays open until this test is over."""
    receive, send = os.pipe()
    script = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {WAITS!r}], stdin={receive})"
    subprocess.run([sys.executable, "-c", script], pass_fds=[receive], check=True)
    os.close(receive)
    (left,) = before.left_since()
    os.close(send)
    assert WAITS in left


def test_a_thread_that_goes_on_is_named(before: leftovers.Before) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="goes on")
    thread.start()
    left = before.left_since()
    stop.set()
    thread.join()
    assert left == ["thread 'goes on'"]


def test_big_files_are_named_and_small_ones_are_not(before: leftovers.Before, tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(bytes(1000))
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "big").write_bytes(os.urandom(2 * leftovers.BIG))
    (left,) = before.left_since()
    assert left.endswith(f"bytes in {tmp_path / 'directory'}")
