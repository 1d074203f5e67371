"""``lowtide doctor``: run a command, or look at a running process, a cgroup, a container or a saved trace, and say what
is held, which memory grew and how it ended.

The command runs as if alone (memory/launch.py), and the verdict follows. While it runs, one line at the bottom of the
terminal shows memory by kind; ``--every`` writes a line for logs and ``--listen`` serves metrics.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import json
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lowtide import report
from lowtide.cli.options import number, option, whole
from lowtide.errors import LowtideError
from lowtide.machine import cgroup_at, container_cgroup
from lowtide.memory import KINDS, Sample, Trace, Verdict, judge, traces, watch
from lowtide.memory.launch import StartError, launched
from lowtide.memory.samples import HELD
from lowtide.memory.traces import held_dict, no_held_dict, to_dict
from lowtide.memory.watch import INTERVAL, check_interval
from lowtide.report.prometheus import freshness_text, measured_text
from lowtide.report.status_line import StatusLine, log_line
from lowtide.units import parse_size

_REDRAW = 0.5  # seconds
_JUDGED_AGAIN, _JUDGING_SHARE = 5.0, 0.005  # seconds between verdicts while watching, and the most of one core for them
_SWITCH = 0.0005  # seconds after which the sampler makes room for a scrape: at Python's own 0.005 some took 38 ms
_VERSION = 1  # of the JSON document: raised when a key goes or changes its meaning, not when one comes
_FORMS = ("-- COMMAND ...", "--pid N", "--cgroup PATH", "--container ID", "--trace FILE")


def add(parser: argparse.ArgumentParser) -> None:
    parser.usage = "\n       ".join(f"lowtide doctor [options] {form}" for form in _FORMS)
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="after --: the command to run and watch")
    option(parser, "--pid N", "watch a running process and its children", whole)
    option(parser, "--cgroup PATH", "watch every process of a cgroup (v1 or v2)")
    option(parser, "--container ID", "the same, by the id of a container")
    option(parser, "--trace FILE", "judge a trace that --save wrote")
    option(parser, "--seconds S", "stop watching a process or cgroup after S seconds (default: when it ends)", number)
    option(parser, "--interval S", "seconds between samples (%(default)s)", number, INTERVAL)
    option(parser, "--budget SIZE", f"most that {' + '.join(HELD)} may add up to; exit code 1 if it is exceeded")
    option(parser, "--every TIME", "one line on stderr per interval, for logs: 60s, 5m, 1h")
    option(parser, "--listen [HOST]:PORT", "serve Prometheus metrics (default host: 127.0.0.1)")
    parser.add_argument("--names", action="store_true", help="with --listen: paths and process names as labels")
    option(parser, "--save FILE", "write every sample as a line of JSON while it runs, for --trace")
    option(parser, "--mprof FILE", "write RSS over time for `mprof plot`")
    option(parser, "--html FILE", "write the report as one self-contained page")
    option(parser, "--png FILE", "draw memory by kind over time")
    parser.add_argument(
        "--json", action="store_true", help="one JSON document on stdout; the command's stdout goes to stderr"
    )
    _mention_dashes(parser)


def _mention_dashes(parser: argparse.ArgumentParser) -> None:
    """If the command's own option was taken for one of ours, say that -- goes before the command."""
    parse = parser.parse_known_args

    def checked(args: Any = None, namespace: Any = None) -> Any:
        parsed, unknown = parse(args, namespace)
        known = [name.strip("-") for name in parser._option_string_actions]
        if unknown and parsed.words and not difflib.get_close_matches(unknown[0].strip("-"), known):
            command = shlex.join([*parsed.words, *unknown])
            parser.error(
                f"{unknown[0]}: not an option of doctor. Put -- before the command: lowtide doctor -- {command}"
            )
        return parsed, unknown

    parser.parse_known_args = checked  # type: ignore[method-assign]


def run(arguments: argparse.Namespace) -> int:
    budget, address, every = _check(arguments)
    with contextlib.ExitStack() as stack:
        service = _Service(arguments, every)
        if address is not None:  # before the command starts: a port that is taken must cost nothing
            endpoint = stack.enter_context(report.endpoint.Endpoint(address, service.text))
            stack.callback(sys.setswitchinterval, sys.getswitchinterval())
            sys.setswitchinterval(_SWITCH)
            _say(f"lowtide doctor: metrics at {endpoint.url}")
        try:
            trace, code = _watched(arguments, budget, service)
        except StartError as problem:
            _say(f"lowtide doctor: {problem}")
            return problem.code
    verdict = judge(trace)
    over = verdict.budget is not None and not verdict.budget.ok
    written = _print_report(arguments, trace, verdict) & _write_files(arguments, trace, verdict)
    return code or int(over or not written)


def _print_report(arguments: argparse.Namespace, trace: Trace, verdict: Verdict) -> bool:
    """Whether it was printed, or nobody was there to read it. The files that were asked for are written in any case,
    and the exit code is the command's."""
    try:
        if arguments.json:
            print(json.dumps(_document(trace, verdict), indent=2))
        else:  # a command of ours has stdout for itself
            report.terminal.show(trace, verdict, stderr=bool(arguments.words))
    except (BrokenPipeError, SystemExit):  # rich makes the second of the first
        return True
    except OSError:  # of stdout it is told when it is flushed at the end; of stderr there is no way to tell
        return False
    return True


def _say(line: str) -> None:
    """A line on stderr. Where it cannot be printed the command is watched all the same: it would otherwise run on
    without us, or its verdict would be lost."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def _watched(arguments: argparse.Namespace, budget: int | None, service: _Service) -> tuple[Trace, int]:
    """The trace, and the exit code to pass on."""
    if arguments.trace is not None:
        trace = traces.load(arguments.trace)
        return dataclasses.replace(trace, budget=trace.budget if budget is None else budget), 0
    if arguments.words:
        trace = _watch_command(arguments, budget, service)
        return trace, trace.exit_code or 0
    return _watch_running(arguments, budget, service), 0


def _check(arguments: argparse.Namespace) -> tuple[int | None, tuple[str, int] | None, float | None]:
    """Refuse before the run what could not be done after it: a run may take days."""
    asked = [arguments.pid, arguments.cgroup, arguments.container, arguments.trace]
    count = sum(each is not None for each in asked) + bool(arguments.words)
    if count > 1:
        raise TypeError(f"expected one of {', '.join(_FORMS)}, got {count} of them. Name one.")
    seconds = arguments.seconds
    if seconds is not None and not 0 < seconds < math.inf:
        raise ValueError(f"--seconds: expected more than 0, got {seconds:g}. Use --seconds 60.")
    if count == 0 and seconds is not None:
        raise TypeError(
            f"--seconds {seconds:g}: expected a process to watch for so long, got none. "
            f"Name one: lowtide doctor --pid PID --seconds {seconds:g}"
        )
    if count == 0:
        raise TypeError(f"expected one of {', '.join(_FORMS)}, got none. Try: lowtide doctor -- python train.py")
    if seconds is not None and (arguments.trace is not None or arguments.words):
        what = "a trace, which has ended" if arguments.words == [] else "a command, which is watched to its end"
        raise TypeError(
            f"--seconds {seconds:g}: expected --pid, --cgroup or --container beside it, got {what}. Leave it out."
        )
    check_interval(arguments.interval)
    budget = None if arguments.budget is None else parse_size(arguments.budget, what="--budget")
    address = None if arguments.listen is None else report.endpoint.parse_address(arguments.listen)
    every = None if arguments.every is None else _parse_time(arguments.every)
    if arguments.trace is not None and (address is not None or every is not None or arguments.save is not None):
        raise TypeError(
            "--trace: expected no --listen, --every or --save beside it, got one. A trace has ended already."
        )
    for name in ("save", "mprof", "html", "png"):
        if getattr(arguments, name) is not None:
            _check_file(name, Path(getattr(arguments, name)))
    if arguments.png is not None:
        report.png.check()
    return budget, address, every


def _check_file(option: str, path: Path) -> None:
    if not path.parent.is_dir():
        raise OSError(f"--{option} {path}: expected a directory {path.parent}, got none. Make it first.")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OSError(f"--{option} {path}: expected a file that can be written, got none. Name another one.")


def _parse_time(text: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(s|m|min|h)?", text)
    seconds = float(match[1]) * {"m": 60, "min": 60, "h": 3600}.get(match[2] or "", 1) if match else 0.0
    if seconds < 0.1:
        raise ValueError(
            f"--every: expected a time of 0.1 s or more, such as 60s or 5m, got {text!r}. Write --every 60s."
        )
    return seconds


class _Service:
    """What is shown while the watching goes on: the status line, a line per interval, metrics."""

    def __init__(self, arguments: argparse.Namespace, every: float | None) -> None:
        self._names = bool(arguments.names)
        self._every = every
        self._next = None if every is None else time.monotonic() + every
        self._judges = arguments.listen is not None
        self._judge_at = 0.0
        self._verdict: Verdict | None = None
        self._watched: watch | None = None
        self._written: tuple[Sample | None, Verdict | None, str] = (None, None, "")

    def text(self) -> str:
        watched = self._watched
        if watched is None:
            return freshness_text(0, 0.0)
        last = watched.last
        sample, verdict, text = self._written
        if sample is not last or verdict is not self._verdict:
            verdict = self._verdict
            text = measured_text(last, verdict, names=self._names)
            self._written = (last, verdict, text)
        return freshness_text(watched.errors, watched.age) + text

    def turn(self, watched: watch) -> None:
        """Called a few times a second."""
        self._watched, now = watched, time.monotonic()
        if self._judges and now >= self._judge_at:
            self._verdict, took = watched.verdict, time.monotonic() - now
            self._judge_at = now + max(_JUDGED_AGAIN, took / _JUDGING_SHARE)
        if self._next is not None and self._every is not None and now >= self._next:
            self._next += self._every * max(1, int((now - self._next) / self._every) + 1)
            _say(log_line(watched.trace, watched.verdict))


def _write_files(arguments: argparse.Namespace, trace: Trace, verdict: Verdict) -> bool:
    """Whether every file asked for was written. A file that fails is reported, and the others are still written."""
    jobs: list[tuple[str | None, Callable[[str], None]]] = [
        (arguments.mprof, lambda path: traces.save_mprof(trace, path)),
        (arguments.html, lambda path: report.html.write(trace, verdict, path)),
        (arguments.png, lambda path: report.png.write(trace, verdict, path)),
    ]
    written = True
    if "saved trace" in trace.missing:
        _say(f"lowtide doctor: not saved: {trace.missing['saved trace']}")
        written = False
    for path, write in jobs:
        try:
            if path is not None:
                write(path)
        except (LowtideError, OSError, ValueError) as problem:
            _say(f"lowtide doctor: {path}: not written: {problem}")
            written = False
    return written


def _watch_command(arguments: argparse.Namespace, budget: int | None, service: _Service) -> Trace:
    """Run the command to its end."""
    words, options = arguments.words, {"interval": arguments.interval, "budget": budget, "save": arguments.save}
    with (
        launched(words, stdout=sys.stderr if arguments.json else None) as command,
        watch(pid=command.pid, about="command", command=shlex.join(words), **options) as watched,
        StatusLine() as line,
    ):
        for _ in command.turns(_REDRAW):
            line.show(watched.last)
            service.turn(watched)
    watched.finish(command.returncode, heard=command.heard)
    return watched.trace


def _watch_running(arguments: argparse.Namespace, budget: int | None, service: _Service) -> Trace:
    """Watch a process or a cgroup until it ends, the time is up, or Ctrl-C."""
    end = None if arguments.seconds is None else time.monotonic() + arguments.seconds
    options = {"interval": arguments.interval, "budget": budget, "save": arguments.save}
    cgroup = cgroup_at(arguments.cgroup) if arguments.cgroup is not None else None
    cgroup = container_cgroup(arguments.container) if arguments.container is not None else cgroup
    about = "process" if cgroup is None else "cgroup"
    with watch(pid=arguments.pid, cgroup=cgroup, about=about, **options) as watched, StatusLine() as line:
        if not watched.samples and watched.errors == 0:
            raise ProcessLookupError(
                f"pid {arguments.pid}: expected a process with memory of its own, got one that has ended or "
                "belongs to the kernel. Check the number with ps."
            )
        try:
            while watched.running and (end is None or time.monotonic() < end):
                line.show(watched.last)
                service.turn(watched)
                time.sleep(_REDRAW if end is None else max(0.0, min(_REDRAW, end - time.monotonic())))
        except KeyboardInterrupt:
            pass  # enough seen: now the verdict
        gone = not watched.running
    if gone:
        watched.finish(None)
    else:
        watched.close()
    return watched.trace


def _document(trace: Trace, verdict: Verdict) -> dict[str, Any]:
    """What --json prints: everything but the samples in between, which --save keeps. The keys are always the same; what
    was not measured, or has not happened, is null."""
    held = held_dict(verdict.held) if verdict.held is not None else no_held_dict()
    return {
        "version": _VERSION,
        "held": held,
        "ended": to_dict(trace.ended) if trace.ended is not None else None,
        "verdict": to_dict(verdict) | {"held": held},
        "command": trace.command,
        "exit_code": trace.exit_code,
        "seconds": round(trace.seconds, 3),
        "samples": len(trace.samples),
        "peak": {kind: held[kind]["peak"] for kind in KINDS},
        "last": to_dict(trace.samples[-1]) if trace.samples else None,
        "machine": trace.machine,
        "missing": trace.missing,
        "cut_short": trace.cut_short,
    }
