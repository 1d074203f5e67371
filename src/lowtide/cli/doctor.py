"""``lowtide doctor``: run a command, or look at a running process or a saved trace, and say which memory
grew.

One idea: the command runs as if we were not there - its output, its signals, its exit code - and the
verdict follows it. While it runs, one line at the bottom of the terminal shows memory by kind; without a
terminal nothing is shown. Arithmetic is elsewhere: this file starts, waits and prints.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from lowtide.errors import LowtideError
from lowtide.memory import HELD, KINDS, Sample, Trace, Verdict, judge, to_dict, traces, watch
from lowtide.memory.watch import INTERVAL
from lowtide.report import html, picture, text
from lowtide.units import format_size, parse_size

_REDRAW = 0.5  # seconds


def add(parser: argparse.ArgumentParser) -> None:
    forms = ("[options] -- COMMAND ...", "[options] --pid N", "[options] --trace FILE")
    parser.usage = "\n       ".join(f"lowtide doctor {form}" for form in forms)
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="after --: the command to run and watch")
    parser.add_argument("--pid", type=int, help="watch a running process and its children")
    parser.add_argument("--trace", metavar="FILE", help="judge a trace saved before")
    parser.add_argument(
        "--seconds", type=float, help="with --pid: stop watching after so long (else when it ends, or Ctrl-C)"
    )
    parser.add_argument("--interval", type=float, default=INTERVAL, help="seconds between samples (%(default)s)")
    parser.add_argument(
        "--budget", metavar="SIZE", help="most that " + " + ".join(HELD) + " may come to; exit 1 beyond it"
    )
    parser.add_argument("--save", metavar="FILE", help="keep the trace as JSON lines, for --trace")
    parser.add_argument("--mprof", metavar="FILE", help="keep RSS over time for `mprof plot`")
    parser.add_argument("--html", metavar="FILE", help="write the report as one self-contained page")
    parser.add_argument("--png", metavar="FILE", help="draw memory by kind over time")
    parser.add_argument(
        "--json", action="store_true", help="one JSON document on stdout; the command's stdout goes to stderr"
    )


def run(arguments: argparse.Namespace) -> int:
    asked = [bool(arguments.words), arguments.pid is not None, arguments.trace is not None]
    if sum(asked) != 1:
        raise TypeError("expected one of: -- COMMAND, --pid N, --trace FILE. Try: lowtide doctor -- python train.py")
    if arguments.seconds is not None and (arguments.pid is None or not arguments.seconds > 0):
        raise TypeError(
            f"--seconds {arguments.seconds:g}: expected more than 0, with --pid; a command is watched to its end."
        )
    budget = None if arguments.budget is None else parse_size(arguments.budget, what="--budget")
    _check_files(arguments)
    if arguments.trace is not None:
        trace = traces.load(arguments.trace)
        trace = dataclasses.replace(trace, budget=trace.budget if budget is None else budget)
        code = 0
    elif arguments.pid is not None:
        trace = _watch_process(arguments, budget)
        code = 0
    else:
        trace = _watch_command(arguments, budget)
        code = trace.exit_code or 0
    verdict = judge(trace)
    if arguments.json:
        print(json.dumps(_document(trace, verdict), indent=2))
    else:  # on stderr: stdout belongs to the command
        Console(stderr=True).print(text.render(trace, verdict))
    written = _write_files(arguments, trace, verdict)
    over = verdict.budget is not None and not verdict.budget.ok
    return code or int(over or not written)


def _check_files(arguments: argparse.Namespace) -> None:
    """Refuse before the run what could not be written after it: a run may take days."""
    for option in ("save", "mprof", "html", "png"):
        if getattr(arguments, option) is None:
            continue
        path = Path(getattr(arguments, option))
        if not path.parent.is_dir():
            raise OSError(f"--{option} {path}: expected a directory {path.parent}, got none. Make it first.")
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise OSError(f"--{option} {path}: expected a file that can be written, got none. Name another one.")
    if arguments.png is not None:
        picture.check()


def _write_files(arguments: argparse.Namespace, trace: Trace, verdict: Verdict) -> bool:
    """Whether every file asked for was written. One that was not is said, and keeps nothing else back."""
    jobs: list[tuple[str | None, Callable[[str], None]]] = [
        (arguments.save, lambda path: traces.save(trace, path)),
        (arguments.mprof, lambda path: traces.save_mprof(trace, path)),
        (arguments.html, lambda path: html.write(trace, verdict, path)),
        (arguments.png, lambda path: picture.write(trace, verdict, path)),
    ]
    written = True
    for path, write in jobs:
        try:
            if path is not None:
                write(path)
        except (LowtideError, OSError) as problem:
            print(f"lowtide doctor: {path}: not written: {problem}", file=sys.stderr)
            written = False
    return written


def _watch_command(arguments: argparse.Namespace, budget: int | None) -> Trace:
    """Run the command to its end. Signals sent to us go to it; a Ctrl-C at the terminal reaches it without
    our help."""
    words = arguments.words
    received: list[int] = []
    before = {each: signal.signal(each, lambda number, _: received.append(number)) for each in _FORWARDED}
    try:
        try:
            child = subprocess.Popen(words, stdout=sys.stderr if arguments.json else None)
        except OSError as problem:
            raise _cannot_start(words[0], problem) from problem
        with (
            watch(
                pid=child.pid, interval=arguments.interval, budget=budget, launched=True, command=shlex.join(words)
            ) as watched,
            _StatusLine() as line,
        ):
            while child.poll() is None:
                while received:
                    _pass_on(received.pop(), child)
                line.show(watched.samples[-1:])
                _wait(child, _REDRAW)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    code = child.returncode
    watched.exit_code = 128 - code if code < 0 else code  # as shells do: 128 + the signal's number
    return watched.trace


def _watch_process(arguments: argparse.Namespace, budget: int | None) -> Trace:
    """Watch until the process ends, the time is up, or Ctrl-C."""
    end = None if arguments.seconds is None else time.monotonic() + arguments.seconds
    with (
        watch(pid=arguments.pid, interval=arguments.interval, budget=budget) as watched,
        _StatusLine() as line,
    ):
        if not watched.samples:
            raise ProcessLookupError(
                f"pid {arguments.pid}: expected a process with memory of its own, got one that has ended or "
                "belongs to the kernel. Check the number with ps."
            )
        try:
            while watched.running and (end is None or time.monotonic() < end):
                line.show(watched.samples[-1:])
                time.sleep(_REDRAW if end is None else max(0.0, min(_REDRAW, end - time.monotonic())))
        except KeyboardInterrupt:
            pass  # enough seen: now the verdict
    return watched.trace


_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _pass_on(number: int, child: subprocess.Popen[bytes]) -> None:
    at_terminal = sys.stdin is not None and sys.stdin.isatty() and os.tcgetpgrp(0) == os.getpgrp()
    if number == signal.SIGINT and at_terminal:
        return  # the terminal sent it to the whole group, the command included
    child.send_signal(number)


def _wait(child: subprocess.Popen[bytes], seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(seconds)


def _cannot_start(word: str, problem: OSError) -> OSError:
    if isinstance(problem, FileNotFoundError):
        return OSError(f"{word}: expected a command that exists, got none of that name. Check it with `which {word}`.")
    return OSError(f"{word}: expected a command that can be run, got: {problem.strerror}. Check its permissions.")


class _StatusLine:
    """The last line of the terminal, kept free for us by scroll margins so that the command's own output
    scrolls above it."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._rows = 0

    def __enter__(self) -> _StatusLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._rows:
            self._write(f"\0337\033[r\033[{self._rows};1H\033[2K\0338")

    def show(self, last: tuple[Sample, ...]) -> None:
        if not self._on or not last:
            return
        columns, rows = shutil.get_terminal_size()
        if rows != self._rows:
            self._rows = rows  # a line feed first, so that nothing of the command's lies under ours
            self._write(f"\n\0337\033[1;{rows - 1}r\0338\033[1A")
        sample = last[0]
        parts = [f"{kind} {format_size(sample.of(kind))}" for kind in KINDS]
        line = f"lowtide doctor {sample.seconds:,.0f} s  " + "  ".join(parts)
        self._write(f"\0337\033[{rows};1H\033[2K\033[7m{line[:columns]}\033[0m\0338")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def _document(trace: Trace, verdict: Verdict) -> dict[str, Any]:
    """What --json prints: everything but the samples in between, which --save keeps."""
    peak = {kind: max((sample.of(kind) for sample in trace.samples), default=0) for kind in KINDS}
    return {
        "verdict": to_dict(verdict),
        "command": trace.command,
        "exit_code": trace.exit_code,
        "seconds": round(trace.seconds, 3),
        "samples": len(trace.samples),
        "peak": peak,
        "last": to_dict(trace.samples[-1]) if trace.samples else None,
        "machine": trace.machine,
        "missing": trace.missing,
        "cut_short": trace.cut_short,
    }
