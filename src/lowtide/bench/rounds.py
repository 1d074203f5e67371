"""Runs every job in fresh processes, in interleaved rounds, and gathers the medians.

A round runs each way once, in turn, so that a noisy neighbour hits all of them; memory is watched from
outside while a job runs, so that watching costs the measured loop nothing. Costs about 0.2 s per job to start Python.
A job that hangs is ended, a job that is killed is reported as killed, and a job for which no time is left is named.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import lowtide
from lowtide.bench.case import Phase, made_cold
from lowtide.bench.jobs import Ask, Job, data_bytes, jobs_for, useful_bytes
from lowtide.formats import Layout
from lowtide.machine import file_kind
from lowtide.memory import process_memory

WATCH = 0.004  # seconds between samples of a job's memory: 30 microseconds each, on a core that the job leaves free
LEAST_LEFT = 1.0  # seconds: if less time than this is left, no job is started
HUNG = 20.0  # seconds a job may take beyond its own time before it is ended


@dataclass(frozen=True)
class Case:
    """Medians of one way and pattern over the rounds. Rates are items per second; None: not measured."""

    pattern: str
    way: str
    strategy: str | None
    cache: str
    item_bytes: int  # of one item: a row of a chunk, a row, a window
    cold: float | None = None
    warm: float | None = None
    device: float | None = None  # bytes from the device per useful byte, cold
    left: int | None = None  # bytes in the page cache after the cold part
    anon: int = 0  # most growth seen, both parts
    mapped: int = 0
    covered: float | None = None  # share of the file that the cold part read before time was up
    rounds: int = 0
    notes: tuple[str, ...] = ()


@dataclass
class _Runs:
    """What the rounds of one case gave so far."""

    job: Job
    cold: list[Phase] = field(default_factory=list)
    warm: list[Phase] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def case(self) -> Case:
        job, way = self.job, self.job.way_itself
        item = useful_bytes(job)
        device = [phase.device / (phase.items * item) for phase in self.cold if phase.device and phase.items]
        return Case(
            job.pattern,
            way.name,
            way.strategy,
            way.cache,
            item,
            cold=_median([phase.rate for phase in self.cold]),
            warm=_median([phase.rate for phase in self.warm]),
            device=_median(device),
            left=max((phase.left for phase in self.cold if phase.left is not None), default=None),
            anon=max((anon for anon, _ in self.memory), default=0),
            mapped=max((mapped for _, mapped in self.memory), default=0),
            covered=_median([min(1.0, phase.items * item / max(1, data_bytes(job))) for phase in self.cold]),
            rounds=max(len(self.cold), len(self.warm)),
            notes=tuple(dict.fromkeys(self.notes)),
        )


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


@dataclass(frozen=True)
class Measurements:
    """Everything measured on one file, and what could not be."""

    cases: tuple[Case, ...]
    seconds: float
    warm_only: str | None  # why there are no cold figures
    skipped: tuple[tuple[str, str], ...]  # (pattern, way) without figures because time was up
    stopped: bool = False  # by Ctrl-C
    load: float | None = None  # runnable processes when we began, if more than there are CPUs


OnJob = Callable[[int, int, str], None]  # jobs done, jobs in total, the current one


def measure_all(layout: Layout, ask: Ask, on_job: OnJob) -> Measurements:
    """Measure one file (``jobs.one_file``) every way. Ctrl-C ends it with the figures so far, if there are any."""
    began = time.monotonic()
    load = os.getloadavg()[0]
    why = _why_not_cold(layout.extents[0].path, ask)
    runs = [_Runs(job) for job in jobs_for(layout, ask, cold=why is None)]
    jobs = [(turn, one) for turn in range(ask.rounds) for one in runs]
    stopped = False
    try:
        _settle(runs, ask)
        for done, (turn, one) in enumerate(jobs):
            on_job(done, len(jobs), f"{one.job.pattern}: {one.job.way}")
            left = HUNG + 4 * ask.seconds if ask.total_seconds is None else began + ask.total_seconds - time.monotonic()
            if left > LEAST_LEFT:
                _add(one, replace(one.job, seed=turn, seconds=ask.seconds), left + LEAST_LEFT)
    except KeyboardInterrupt:
        stopped = True
    cases = tuple(one.case() for one in runs)
    skipped = tuple((case.pattern, case.way) for case in cases if not case.rounds and not case.notes)
    busy = load if load > (os.cpu_count() or 1) else None
    return Measurements(cases, time.monotonic() - began, why, skipped, stopped, busy)


def _settle(runs: Sequence[_Runs], ask: Ask) -> None:
    """One run that is not counted: on a virtual machine the host caches too, and the first way would pay for it."""
    first = next(one.job for one in runs if one.job.way_itself.ours)
    if first.cold:
        in_fresh_process(replace(first, seconds=2 * ask.seconds, warm_rows=0), HUNG)


def _why_not_cold(path: str, ask: Ask) -> str | None:
    if not ask.drop:
        return "--no-drop was asked for"
    kind = file_kind(path)
    if kind.memory:
        return f"the file lives in memory ({kind.name}): there is nothing to drop and no disk to read"
    return made_cold(path)


def _add(one: _Runs, job: Job, most: float) -> None:
    found = in_fresh_process(job, most)
    one.notes += found["notes"]
    for name, phases in (("cold", one.cold), ("warm", one.warm)):
        if found[name] is not None:
            phases.append(Phase(**found[name]))
    if found["cold"] is not None or found["warm"] is not None:
        one.memory.append((found["anon"], found["mapped"]))


def in_fresh_process(job: Job, most_seconds: float) -> dict[str, Any]:
    """The case's own answer, with the most anon and mapped bytes it grew by, measured from outside."""
    source = str(Path(lowtide.__file__).parent.parent)
    places = [source, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    # -P: keeps files of the current directory from being imported. The job is an argument, because writing to a
    # process that was killed meanwhile is an error of its own.
    words = [sys.executable, "-P", "-m", "lowtide.bench.case", json.dumps(asdict(job))]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    killed_before = _oom_kills()
    with subprocess.Popen(words, stdin=nothing, stdout=pipe, stderr=pipe, text=True, env=environment) as child:
        try:
            answer = _attend(child, time.monotonic() + most_seconds)
            if answer is not None:
                return answer
            if child.poll() is None:
                note = f"no figures within {most_seconds:.0f} s: ended"
            else:
                note = _why_ended(child, out_of_memory=_oom_kills() > killed_before)
        finally:
            child.kill()
    return {"cold": None, "warm": None, "notes": [note], "anon": 0, "mapped": 0}


def _attend(child: subprocess.Popen[str], end: float) -> dict[str, Any] | None:
    """What the child answered; None: it ended without an answer, or did not end in time."""
    assert child.stdout
    ready = child.stdout.readline()
    first = json.loads(ready) if ready else {"anon": 0, "mapped": 0}
    anon = mapped = 0
    while child.poll() is None:
        if time.monotonic() > end:
            return None
        with contextlib.suppress(OSError):
            now = process_memory(child.pid)
            anon, mapped = max(anon, now.anon - first["anon"]), max(mapped, now.mapped - first["mapped"])
        time.sleep(WATCH)
    answer = child.stdout.readline()
    return {**json.loads(answer), "anon": anon, "mapped": mapped} if answer else None


def _why_ended(child: subprocess.Popen[str], *, out_of_memory: bool) -> str:
    """A signal by its name; an exit code with the last line of stderr."""
    if child.returncode == -signal.SIGKILL:
        return "killed: out of memory" if out_of_memory else "killed from outside (SIGKILL): perhaps out of memory"
    if child.returncode < 0:
        return f"killed by {signal.Signals(-child.returncode).name}"
    lines = child.stderr.read().strip().splitlines() if child.stderr else []
    return f"ended with exit {child.returncode}: {lines[-1] if lines else 'it said nothing'}"


def _oom_kills() -> int:
    """Processes that the kernel has killed for lack of memory, in any cgroup; 0 if it does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
