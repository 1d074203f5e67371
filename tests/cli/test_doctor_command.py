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
from tests.commands import called

DOCTOR = [sys.executable, "-m", "lowtide", "doctor"]

# Whoever runs the tests in the background, or with nohup, has signals ignored, and what they start inherits that.
DEFAULTS = """
import os, signal, sys
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
AS_A_SHELL_STARTS_IT = [sys.executable, "-c", DEFAULTS]


def doctor(*words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DOCTOR, *words], capture_output=True, text=True, env={**os.environ, **settings})


def document(*words: str, **settings: str) -> dict[str, Any]:
    done = doctor("--json", *words, **settings)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def keys(value: Any) -> Any:
    """The keys of dicts inside dicts."""
    return {name: keys(item) for name, item in value.items()} if isinstance(value, dict) else None


def test_the_json_document_has_a_version_and_the_same_keys_whatever_happened(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"format":"lowtide trace 1","command":"x","started":0,"interval":0.25}\n{"samples":0}\n')
    nothing = json.loads(called("doctor", "--json", "--trace", str(trace)).stdout)
    found = document("--budget", "8GiB", "--", sys.executable, "-c", "pass")
    assert nothing["version"] == found["version"] == 1
    assert set(nothing) == set(found)
    assert keys(nothing["held"]) == keys(found["held"])
    assert set(nothing["verdict"]) == set(found["verdict"])
    assert nothing["held"]["anon"]["end"] is None  # not 0: nobody looked
    assert found["held"]["total"]["stays"] > 0
    assert set(found["ended"]) >= {"how", "code"}
    assert {"end", "peak", "owners"} <= set(found["held"]["anon"])


def test_the_commands_stdout_goes_to_stderr_beside_one_json_document() -> None:
    done = doctor("--json", "--", sys.executable, "-c", "print('from the command')")
    assert json.loads(done.stdout)["verdict"]["grew"] == "nothing"
    assert "from the command" in done.stderr


def test_without_json_stdout_is_the_commands_own_and_the_verdict_is_on_stderr() -> None:
    done = doctor("--", sys.executable, "-c", "import time; print('from the command'); time.sleep(0.5)")
    assert done.stdout == "from the command\n"
    assert "Nothing grew" in done.stderr
    assert "\033" not in done.stderr  # no live view and no colours without a terminal
    assert not [line for line in done.stderr.splitlines() if line != line.rstrip()]  # a log needs no blanks


@pytest.mark.parametrize(("program", "code"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_the_commands_exit_code_is_passed_through(program: str, code: int) -> None:
    assert doctor("--", sys.executable, "-c", program).returncode == code


def test_words_after_the_dashes_are_the_commands_even_when_they_look_like_options() -> None:
    program = "import sys; print(sys.argv[1:])"
    done = doctor("--budget", "1GiB", "--", sys.executable, "-c", program, "--json", "--", "--pid", "3")
    assert done.stdout == "['--json', '--', '--pid', '3']\n"


@pytest.mark.slow
def test_a_broken_budget_is_exit_1_and_a_kept_one_0() -> None:
    words = ("--", sys.executable, "-c", "import time; kept = bytearray(b'x' * 2**26); time.sleep(1)")
    broken = doctor("--budget", "32MiB", *words)
    assert broken.returncode == 1
    assert "broken" in broken.stderr
    kept = doctor("--budget", "512MiB", "--json", *words)
    assert kept.returncode == 0
    assert json.loads(kept.stdout)["verdict"]["budget"]["ok"] is True


def test_ctrl_c_reaches_the_command_and_the_verdict_still_comes() -> None:
    program = (
        "import time\ntry:\n print('begun', flush=True)\n time.sleep(600)\n"
        "except KeyboardInterrupt:\n raise SystemExit(5)"
    )
    words = [*AS_A_SHELL_STARTS_IT, *DOCTOR, "--json", "--", sys.executable, "-c", program]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True) as running:
        assert running.stderr is not None
        assert running.stderr.readline() == "begun\n"  # the command's own output
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate(timeout=120)
    assert running.returncode == 5
    assert json.loads(out)["exit_code"] == 5


HEARS = """
import signal
names = "SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGCONT SIGWINCH SIGTERM"
numbers = [getattr(signal, name) for name in names.split()]
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("begun", flush=True)
for _ in numbers:
    print(signal.Signals(signal.sigwait(numbers)).name, flush=True)
raise SystemExit(3)
"""


def test_every_signal_a_program_may_be_sent_reaches_it_and_the_verdict_still_comes() -> None:
    names = ["SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH", "SIGTERM"]
    words = [*AS_A_SHELL_STARTS_IT, *DOCTOR, "--", sys.executable, "-c", HEARS]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "begun\n"
        for name in names:  # each once the one before has arrived
            running.send_signal(getattr(signal, name))
            assert running.stdout.readline() == f"{name}\n"
        _, report = running.communicate(timeout=120)
    assert running.returncode == 3
    assert "VERDICT" in report


def test_what_nohup_ignores_is_ignored_by_the_command_too() -> None:
    program = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    words = [*DOCTOR, "--", sys.executable, "-c", program]
    ignoring = subprocess.run(["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *words], capture_output=True, text=True)
    assert ignoring.stdout == "True\n"
    minding = subprocess.run([*AS_A_SHELL_STARTS_IT, *words], capture_output=True, text=True)
    assert minding.stdout == "False\n"  # the control


def test_a_script_without_its_interpreter_cannot_be_run_and_is_not_called_missing(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/no/such/shell\n")
    script.chmod(0o755)
    done = called("doctor", "--", str(script))
    assert done.returncode == 126
    assert "got one whose interpreter is missing" in done.stderr


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
    assert b" s  anon " in shown
    assert b"hello" in shown
    assert shown.rindex(b"\033[r") > shown.rindex(b"\033[1;23r")  # the scroll margins are given back
    assert b"Nothing grew" in shown


@pytest.mark.slow
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
    assert found["ended"] is None  # it still ran when the time was up


def test_a_saved_trace_gets_the_same_verdict_again(tmp_path: Path) -> None:
    trace, mprof = str(tmp_path / "t.jsonl"), str(tmp_path / "t.dat")
    first = document("--save", trace, "--mprof", mprof, "--", sys.executable, "-c", "import time; time.sleep(0.6)")
    again = json.loads(called("doctor", "--json", "--trace", trace).stdout)
    assert again["verdict"] == first["verdict"]
    assert Path(mprof).read_text().startswith("CMDLINE ")
    told = called("doctor", "--trace", trace)  # there is no command whose stdout this could be
    assert "VERDICT" in told.stdout
    assert told.stderr == ""
    whole = Path(trace).read_bytes()
    Path(trace).write_bytes(whole[: len(whole) - 200])
    cut = json.loads(called("doctor", "--json", "--trace", trace).stdout)
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
        (["--", "no-such-command-anywhere"], "no-such-command-anywhere: expected a command that exists", 127),
        (["--", "/etc/passwd"], "/etc/passwd: expected a command that can be run", 126),
        (["--pid", "4194000"], "pid 4194000: expected a running process", 1),
        (["--pid", "2"], "pid 2: expected a process with memory of its own", 1),
        (
            ["--trace", "/no/such/trace"],
            "/no/such/trace: expected a file, got nothing of that name",
            1,
        ),
        (["--trace", __file__], "expected a first line with format", 1),
        (["--budget", "lots", "--", "true"], "--budget: expected a size such as '64MiB'", 2),
        (["--interval", "0", "--", "true"], "interval: expected 0.01 to 3600 seconds", 2),
        ([], "--cgroup PATH, --container ID, --trace FILE, got none. Try: lowtide doctor -- python train.py", 2),
        (["--pid", "1", "--", "true"], "expected one of -- COMMAND ..., --pid N, --cgroup PATH, ", 2),
        (["--seconds", "100"], "--seconds 100: expected a process to watch for so long, got none. Name one: ", 2),
        (["--seconds", "0", "--pid", "1"], "--seconds: expected more than 0, got 0. Use --seconds 60.", 2),
        (["--pidd", "1"], "--pidd: expected an option of 'lowtide doctor', got another. Did you mean --pid?", 2),
        (["--cgroup", "/no/such/cgroup"], "/no/such/cgroup: expected a directory of a memory cgroup, got none", 1),
        (["--container", "nginx"], "nginx: expected a container id of 6 to 64 hexadecimal digits", 2),
        (["--container", "0123456789abcdef"], "expected a container on this machine, got none", 1),
        (["--listen", "9177x", "--", "true"], "--listen 9177x: expected HOST:PORT or :PORT", 2),
        (["--every", "soon", "--", "true"], "--every: expected a time of 0.1 s or more", 2),
        (["--trace", __file__, "--listen", ":0"], "--trace: expected no --listen, --every or --save beside it", 2),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do(words: list[str], says: str, code: int) -> None:
    if words == ["--pid", "2"] and not Path("/proc/2/status").exists():
        pytest.skip("NOT TESTED: this machine shows no kernel thread as pid 2")
    done = called("doctor", *words)
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.returncode == code
    assert done.stdout == ""


def test_a_command_that_ends_at_once_still_gets_a_verdict() -> None:
    found = document("--", "true")
    assert found["verdict"]["grew"] == "nothing"
    assert found["verdict"]["confidence"] == "low"


def test_a_wrong_interval_is_refused_before_the_command_starts(tmp_path: Path) -> None:
    done = called("doctor", "--interval", "0", "--", "touch", str(tmp_path / "ran"))
    assert done.returncode == 2
    assert "interval: expected 0.01 to 3600 seconds, got 0" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_command_given_without_the_dashes_is_told_where_they_go() -> None:
    done = called("doctor", "python", "-c", "1")
    assert done.returncode == 2
    assert "lowtide doctor -- python -c 1" in done.stderr


def test_bytes_that_are_no_text_in_an_argument_cost_no_report(tmp_path: Path) -> None:
    words: list[str | bytes | Path] = [
        *DOCTOR,
        "--mprof",
        tmp_path / "t.dat",
        "--save",
        tmp_path / "t.jsonl",
        "--html",
        tmp_path / "t.html",
    ]
    done = subprocess.run([*words, "--", sys.executable, "-c", "pass", b"\xff"], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "t.dat").read_text().startswith("CMDLINE ")
    assert "\\udcff" in (tmp_path / "t.html").read_text()
    assert document("--trace", str(tmp_path / "t.jsonl"))["command"].endswith("'\udcff'")


@pytest.mark.parametrize("option", ["--save", "--mprof", "--html", "--png"])
def test_a_file_that_cannot_be_written_is_refused_before_the_command_runs(option: str, tmp_path: Path) -> None:
    done = called("doctor", option, str(tmp_path / "no" / "file"), "--", "touch", str(tmp_path / "ran"))
    assert done.returncode == 1
    assert option in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "ran").exists()


def test_a_picture_that_cannot_be_drawn_costs_neither_the_verdict_nor_the_other_files(tmp_path: Path) -> None:
    samples = tmp_path / "nothing.jsonl"
    samples.write_text('{"format":"lowtide trace 1","command":"x","started":0,"interval":0.25}\n{"samples":0}\n')
    done = called(
        "doctor",
        "--json",
        "--png",
        str(tmp_path / "p.png"),
        "--html",
        str(tmp_path / "p.html"),
        "--trace",
        str(samples),
    )
    assert json.loads(done.stdout)["verdict"]["grew"] == "nothing"
    assert "p.png: not written" in done.stderr
    assert done.returncode == 1
    assert (tmp_path / "p.html").exists()


@pytest.mark.parametrize("words", [("--seconds", "3", "--", "true"), ("--seconds", "-1", "--pid", "1")])
def test_seconds_that_would_mean_nothing_are_wrong_usage(words: tuple[str, ...]) -> None:
    done = called("doctor", *words)
    assert done.returncode == 2
    assert "--seconds" in done.stderr


def _with_nobody_reading(stream: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    """The doctor with a pipe as its ``stream`` that nobody reads from."""
    read, write = os.pipe()
    os.close(read)
    try:
        settings: dict[str, Any] = {stream: write}
        return subprocess.run([*DOCTOR, *words], **settings, cwd=cwd)
    finally:
        os.close(write)


def test_a_command_is_watched_to_its_end_when_nobody_reads_the_doctor(tmp_path: Path) -> None:
    command = "sleep 1; touch done; exit 3"
    words = ("--every", "0.1s", "--html", "page.html", "--", "sh", "-c", command)
    assert _with_nobody_reading("stderr", *words, cwd=tmp_path).returncode == 3
    assert (tmp_path / "done").exists(), "it ran on without the doctor"
    assert (tmp_path / "page.html").exists()


def test_a_document_that_nobody_reads_leaves_the_exit_code_as_it_is(tmp_path: Path) -> None:
    assert _with_nobody_reading("stdout", "--json", "--", "sh", "-c", "exit 3", cwd=tmp_path).returncode == 3
    held = "import time; held = bytearray(50 << 20); time.sleep(0.5)"
    words = ("--budget", "1MiB", "--json", "--", sys.executable, "-c", held)
    assert _with_nobody_reading("stdout", *words, cwd=tmp_path).returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="NOT TESTED: a full disk behind stderr - no /dev/full here")
def test_a_log_that_takes_nothing_more_ends_neither_the_command_nor_the_watching(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        words = ("--every", "0.1s", "--html", "page.html", "--", "sh", "-c", "sleep 1; touch done; exit 3")
        assert subprocess.run([*DOCTOR, *words], stderr=full, cwd=tmp_path).returncode == 3
    assert (tmp_path / "done").exists()
    assert (tmp_path / "page.html").exists()
