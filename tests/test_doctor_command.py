"""``lowtide doctor`` on the command line: the planted programs, signals and exit codes, bad input."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

PLANTED = Path(__file__).with_name("memory") / "planted"
DOCTOR = [sys.executable, "-m", "lowtide", "doctor"]


def doctor(*words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DOCTOR, *words], capture_output=True, text=True, env={**os.environ, **settings})


def document(*words: str, **settings: str) -> dict[str, Any]:
    done = doctor("--json", *words, **settings)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("planted", ["anon", "mapped", "cache", "dirty", "tables", "shmem", "workers", "healthy"])
def test_each_planted_program_gets_the_right_verdict(planted: str, tmp_path: Path) -> None:
    found = document("--", sys.executable, str(PLANTED / f"{planted}.py"), str(tmp_path), SECONDS="3")
    verdict = found["verdict"]
    assert verdict["grew"] == ("nothing" if planted == "healthy" else planted), json.dumps(verdict, indent=1)
    assert verdict["confidence"] in ("high", "medium")
    assert found["exit_code"] == 0
    names = {"mapped": "rows.bin", "cache": "read.bin", "dirty": "written.bin", "shmem": "/dev/shm/"}
    if planted in names:
        assert names[planted] in verdict["who"][0]
    elif planted != "healthy":
        assert verdict["who"][0].startswith("process ")


def test_the_commands_stdout_goes_to_stderr_beside_one_json_document() -> None:
    done = doctor("--json", "--", sys.executable, "-c", "print('from the command')")
    assert json.loads(done.stdout)["verdict"]["grew"] == "nothing"
    assert "from the command" in done.stderr


def test_without_json_stdout_is_the_commands_own_and_the_verdict_is_on_stderr() -> None:
    done = doctor("--", sys.executable, "-c", "import time; print('from the command'); time.sleep(0.5)")
    assert done.stdout == "from the command\n"
    assert "Nothing grew" in done.stderr
    assert "\033" not in done.stderr  # no live view and no colours without a terminal


@pytest.mark.parametrize(("program", "code"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_the_commands_exit_code_is_passed_through(program: str, code: int) -> None:
    assert doctor("--", sys.executable, "-c", program).returncode == code


def test_words_after_the_dashes_are_the_commands_even_when_they_look_like_options() -> None:
    program = "import sys; print(sys.argv[1:])"
    done = doctor("--budget", "1GiB", "--", sys.executable, "-c", program, "--json", "--", "--pid", "3")
    assert done.stdout == "['--json', '--', '--pid', '3']\n"


def test_a_broken_budget_is_exit_1_and_a_kept_one_0() -> None:
    words = ("--", sys.executable, "-c", "import time; kept = bytearray(b'x' * 2**26); time.sleep(1)")
    broken = doctor("--budget", "32MiB", *words)
    assert broken.returncode == 1
    assert "broken" in broken.stderr
    kept = doctor("--budget", "512MiB", "--json", *words)
    assert kept.returncode == 0
    assert json.loads(kept.stdout)["verdict"]["budget"]["ok"] is True


def test_ctrl_c_reaches_the_command_and_the_verdict_still_comes() -> None:
    program = "import time\ntry:\n time.sleep(60)\nexcept KeyboardInterrupt:\n raise SystemExit(5)"
    words = [*DOCTOR, "--json", "--", sys.executable, "-c", program]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as running:
        time.sleep(2)
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate(timeout=20)
    assert running.returncode == 5
    assert json.loads(out)["exit_code"] == 5


def test_at_a_terminal_a_status_line_shows_memory_by_kind_and_is_cleared() -> None:
    ours, theirs = pty.openpty()
    words = [*DOCTOR, "--", sys.executable, "-c", "import time; print('hello'); time.sleep(1.5)"]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "150", "LINES": "24"}
    child = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the terminal closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert child.wait() == 0
    assert b"lowtide doctor 1 s  anon" in shown
    assert b"hello" in shown
    assert shown.rindex(b"\033[r") > shown.rindex(b"\033[1;23r")  # the scroll margins are given back
    assert b"Nothing grew" in shown


def test_a_running_process_is_watched_for_the_seconds_asked_for() -> None:
    program = "import time\nkept = []\nwhile True:\n kept.append(bytearray(2**20)); time.sleep(0.02)"
    child = subprocess.Popen([sys.executable, "-c", program])
    try:
        time.sleep(0.3)
        found = document("--pid", str(child.pid), "--seconds", "3")
    finally:
        child.kill()
        child.wait()
    assert found["verdict"]["grew"] == "anon"
    assert found["exit_code"] is None
    assert 2.5 < found["seconds"] < 5


def test_a_saved_trace_gets_the_same_verdict_again(tmp_path: Path) -> None:
    trace, mprof = str(tmp_path / "t.jsonl"), str(tmp_path / "t.dat")
    first = document("--save", trace, "--mprof", mprof, "--", sys.executable, "-c", "import time; time.sleep(0.6)")
    again = document("--trace", trace)
    assert again["verdict"] == first["verdict"]
    assert Path(mprof).read_text().startswith("CMDLINE ")
    whole = Path(trace).read_bytes()
    Path(trace).write_bytes(whole[: len(whole) - 200])
    cut = document("--trace", trace)
    assert cut["cut_short"] is True
    assert any("middle of a line" in line for line in cut["verdict"]["evidence"])


def test_the_report_is_written_as_a_page_and_as_a_picture(tmp_path: Path) -> None:
    page, drawn = tmp_path / "report.html", tmp_path / "report.png"
    words = ["--html", str(page), "--png", str(drawn), "--", sys.executable, "-c", "import time; time.sleep(0.6)"]
    assert doctor(*words).returncode == 0
    assert "Nothing grew" in page.read_text()
    assert drawn.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "says", "code"),
    [
        (["--", "no-such-command-anywhere"], "no-such-command-anywhere: expected a command that exists", 1),
        (["--", "/etc/passwd"], "/etc/passwd: expected a command that can be run", 1),
        (["--pid", "4194000"], "pid 4194000: expected a running process", 1),
        (["--pid", "2"], "pid 2: expected a process with memory of its own", 1),
        (["--trace", "/no/such/trace"], "/no/such/trace: no such file", 1),
        (["--trace", __file__], "expected a first line with format", 1),
        (["--budget", "lots", "--", "true"], "--budget: expected a size such as '64MiB'", 2),
        (["--interval", "0", "--", "true"], "interval: expected 0.01 to 3600 seconds", 2),
        ([], "expected one of: -- COMMAND, --pid N, --trace FILE", 2),
        (["--pid", "1", "--", "true"], "expected one of: -- COMMAND, --pid N, --trace FILE", 2),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do(words: list[str], says: str, code: int) -> None:
    if words == ["--pid", "2"] and not Path("/proc/2/status").exists():
        pytest.skip("NOT TESTED: this machine shows no kernel thread as pid 2")
    done = doctor(*words)
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.returncode == code
    assert done.stdout == ""


def test_a_command_that_ends_at_once_still_gets_a_verdict() -> None:
    found = document("--", "true")
    assert found["verdict"]["grew"] == "nothing"
    assert found["verdict"]["confidence"] == "low"


@pytest.mark.parametrize("option", ["--save", "--mprof", "--html", "--png"])
def test_a_file_that_cannot_be_written_is_refused_before_the_command_runs(option: str, tmp_path: Path) -> None:
    done = doctor(option, str(tmp_path / "no" / "file"), "--", "touch", str(tmp_path / "ran"))
    assert done.returncode == 1
    assert option in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "ran").exists()


def test_a_picture_that_cannot_be_drawn_costs_neither_the_verdict_nor_the_other_files(tmp_path: Path) -> None:
    samples = tmp_path / "nothing.jsonl"
    samples.write_text('{"format":"lowtide trace 1","command":"x","started":0,"interval":0.25}\n{"samples":0}\n')
    done = doctor(
        "--json", "--png", str(tmp_path / "p.png"), "--html", str(tmp_path / "p.html"), "--trace", str(samples)
    )
    assert json.loads(done.stdout)["verdict"]["grew"] == "nothing"
    assert "p.png: not written" in done.stderr
    assert done.returncode == 1
    assert (tmp_path / "p.html").exists()


@pytest.mark.parametrize("words", [("--seconds", "3", "--", "true"), ("--seconds", "-1", "--pid", "1")])
def test_seconds_that_would_mean_nothing_are_wrong_usage(words: tuple[str, ...]) -> None:
    done = doctor(*words)
    assert done.returncode == 2
    assert "--seconds" in done.stderr
