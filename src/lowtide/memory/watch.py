"""``with lowtide.watch() as trace:`` - samples of this process, or of another, taken beside the work.

One daemon thread asks ``TreeCounters`` at a pace that slows down when asking becomes expensive, so that watching stays
under 1 % of one core, and keeps a bounded number of samples. In its first second samples come closer together, because
a program may be over by then. An error inside the sampler is counted and reported, and sampling continues. Of peaks
shorter than the interval only the height is known, for commands: the kernel remembers it (VmHWM, wait4).
"""

from __future__ import annotations

import os
import platform
import resource
import sys
import threading
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from lowtide.errors import LowtideError
from lowtide.machine import PAGE, Cgroup, available_memory, memory_limit, total_memory
from lowtide.memory import traces
from lowtide.memory.judge.findings import Verdict, as_html, as_text
from lowtide.memory.judge.verdict import judge
from lowtide.memory.measure.cgroup_usage import killed_by_oomd, sample_cgroup
from lowtide.memory.measure.counters import TreeCounters
from lowtide.memory.measure.ending import KernelLog, Traces, how_it_ended
from lowtide.memory.measure.pace import Pace
from lowtide.memory.measure.process import command_line, no_such_process, status
from lowtide.memory.samples import Ended, Ring, Sample, Trace
from lowtide.units import parse_size

INTERVAL = 0.25  # seconds
_SHARE = 0.002  # of one core for the cheap counters
_FIRST, _FASTER = 1.0, 0.01  # seconds: how long samples come closer together, and how close at first
PROC = Path("/proc/self/status")
_MOST_ERRORS = 20  # in a row, before sampling gives up


def check_interval(interval: float) -> float:
    if not 0.01 <= interval <= 3600:
        raise ValueError(f"interval: expected 0.01 to 3600 seconds, got {interval:g}. Leave it out for {INTERVAL}.")
    return interval


class watch:  # noqa: N801  # used as a statement: with lowtide.watch() as trace
    """Watches a process (this one by default) and its children from entering the block to leaving it.

    ``budget`` is the most that anon + mapped + shmem + tables may come to; the verdict says whether that held. ``save``
    names a file that gets every sample as it is taken: what is in it survives a SIGKILL. Costs under 1 % of one core.

    >>> with lowtide.watch() as trace: total = sum(range(1000))
    >>> trace.verdict.grew
    """

    def __init__(
        self,
        *,
        interval: float = INTERVAL,
        pid: int | None = None,
        budget: int | str | None = None,
        children: bool = True,
        save: str | os.PathLike[str] | None = None,
        about: str | None = None,
        command: str | None = None,
        cgroup: Cgroup | None = None,
    ) -> None:
        self.interval = check_interval(interval)
        self.pid = None if cgroup is not None else os.getpid() if pid is None else pid
        self.budget = None if budget is None else parse_size(budget, what="budget")
        self.ended: Ended | None = None
        self._children, self._cgroup = children, cgroup
        self._about = about or ("cgroup" if cgroup is not None else "block")
        self._command = command
        self._save_to = save
        self._writer: traces.TraceWriter | None = None
        self._ring = Ring()
        self._missing: dict[str, str] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._counters: TreeCounters | None = None
        self._log = KernelLog()
        self._peak_rss = 0
        self._children_peak = 0
        self._oomd_before = 0
        self._started = 0.0
        self._kept_at = time.monotonic()
        self._machine: dict[str, str] = {}
        self._judged: tuple[object, Verdict] | None = None
        self.errors = self._in_a_row = 0  # in the sampler, so far

    def __enter__(self) -> watch:
        if self._thread is not None:
            raise RuntimeError("watch: expected a new object for each block, got one used before. Call watch() again.")
        self._counters = counters = self._new_counters()
        if self._command is None:
            self._command = f"cgroup {self._cgroup.path}" if self._cgroup is not None else command_line(self.pid or 0)
        self._started = time.time()
        self._machine = machine_facts(self.pid)
        self._children_peak = _highest_of_children()
        self._oomd_before = killed_by_oomd(counters.cgroup) if counters.cgroup is not None else 0
        if self._save_to is not None:
            self._writer = traces.TraceWriter(self._save_to, self.trace)
        self._take(counters)
        self._thread = threading.Thread(target=self._run, args=(counters,), name="lowtide watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._writer is not None and self._about in ("block", "cgroup"):
            self.close()

    def close(self) -> None:
        """Write the last line of a saved trace. The block does it, unless a command's end is still to be told."""
        if self._writer is not None:
            try:
                self._writer.end(self.trace)
            except OSError as problem:
                self._missing["saved trace"] = f"{os.fspath(self._save_to or '')}: {problem.strerror}"
            self._writer = None
        self._log.close()

    def finish(self, returned: int | None, *, heard: Collection[int] = ()) -> None:
        """The watched program has ended, with Popen's return code where that is known: find out how. ``heard`` are
        signals that whoever watches was sent, and passed on."""
        counters = self._counters
        self.ended = how_it_ended(
            returned,
            self.samples,
            replace(self._traces_left(), heard=frozenset(heard)),
            pid=self.pid,
            pids=counters.tree.pids | {self.pid or 0} if counters is not None else (),
            machine_memory=int(self._machine.get("memory", "0")),
        )
        if self._about == "command" and returned is not None:
            self._peak_rss = self._highest_rss()
        self.close()

    @property
    def samples(self) -> tuple[Sample, ...]:
        return self._ring.samples()

    @property
    def last(self) -> Sample | None:
        return self._ring.last()

    @property
    def age(self) -> float:
        """Seconds since the last sample was kept."""
        return time.monotonic() - self._kept_at

    @property
    def running(self) -> bool:
        """Whether samples are still being taken: false once the block or the watched process has ended."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def trace(self) -> Trace:
        """All of it as one plain value, so far while the block runs."""
        return Trace(
            command=self._command or "",
            started=self._started,
            interval=self.interval,
            machine=dict(self._machine),
            samples=self.samples,
            missing=dict(self._missing),
            budget=self.budget,
            exit_code=self.ended.code if self.ended is not None else None,
            about=self._about,
            ended=self.ended,
            peak_rss=self._peak_rss,
        )

    @property
    def verdict(self) -> Verdict:
        now = (self._ring.taken, self.ended, len(self._missing))
        if self._judged is None or self._judged[0] != now:
            self._judged = (now, judge(self.trace))
        return self._judged[1]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as JSON lines; ``lowtide doctor --trace FILE`` reads it."""
        traces.save(self.trace, path)

    def __str__(self) -> str:
        return as_text(self.verdict)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython prints at a terminal."""
        printer.text("watch(...)" if cycle else str(self))

    def _repr_html_(self) -> str:
        return as_html(self.verdict, self.trace)

    def _traces_left(self) -> Traces:
        """What killers left: in the kernel's log, in the cgroup's counts since the process was first seen in it and
        since it was last seen alive, on the cgroup's directory."""
        kills, readable = tuple(self._log.kills()), self._log.names_ours
        counters = self._counters
        if counters is None or counters.cgroup is None:
            return Traces(kills, readable)
        now = sample_cgroup(counters.cgroup, own=self._cgroup is not None)
        seen = (sample.cgroup for sample in self.samples if sample.cgroup is not None)
        first = next((cgroup for cgroup in seen if cgroup.path == now.path), now)
        counted, at_end = now.oom_kills - first.oom_kills, now.oom_kills - counters.kills_alive
        by_oomd = killed_by_oomd(counters.cgroup) - self._oomd_before
        return Traces(kills, readable, max(0, counted), max(0, at_end), max(0, by_oomd))

    def _highest_rss(self) -> int:
        """What the kernel remembers of the command's processes that were waited for; 0 where that says nothing: it
        counts children waited for before, and our own pages until the command took our place."""
        peak = _highest_of_children()
        known = max(self._children_peak, status(os.getpid())["VmHWM"])
        return peak if peak > known else 0

    def _new_counters(self) -> TreeCounters:
        if not PROC.exists():
            raise LowtideError(
                f"watch: expected Linux with /proc mounted, got {sys.platform} without it. "
                "Watch the program on Linux; a trace saved there is judged anywhere."
            )
        if self.pid is not None and not Path(f"/proc/{self.pid}").exists():
            raise no_such_process(self.pid)
        launched = self._about == "command"
        return TreeCounters(
            self.pid, children=self._children, launched=launched, every=self.interval, cgroup=self._cgroup
        )

    def _run(self, counters: TreeCounters) -> None:
        # A shorter interval than the default is a wish to pay.
        pace = Pace(_SHARE * INTERVAL / min(INTERVAL, self.interval), self.interval)
        begun, rest = time.monotonic(), min(_FASTER, self.interval)
        while not self._stop.wait(rest):
            begin, paced, now = time.thread_time(), counters.paced, time.monotonic()
            if not self._take(counters):
                self._take_last(counters)
                return
            pace.paid(now, time.thread_time() - begin - (counters.paced - paced))
            self._follow(counters)
            early = self._about == "command" and now - begun < _FIRST
            rest = min(pace.rest, max(_FASTER, (now - begun) / 8)) if early else pace.rest
        if not self._take(counters, last=True):
            self._take_last(counters)

    def _take(self, counters: TreeCounters, *, last: bool = False) -> bool:
        """Whether there was something to sample, or may be again."""
        try:
            sample = counters.sample(last=last)
            self._missing = {**self._missing, **counters.missing}
            if sample is None:
                return False
            self._keep(sample)
            self._in_a_row = 0
        except Exception as problem:  # whatever it is, the verdict tells it and the samples go on
            return self._note(problem)
        return True

    def _follow(self, counters: TreeCounters) -> None:
        """The limit of the cgroup it was moved into."""
        if counters.moved and counters.cgroup is not None:
            counters.moved = False
            self._oomd_before = killed_by_oomd(counters.cgroup)
            last = self._ring.last()
            largest = max(last.processes, key=lambda each: each.rss_anon + each.rss_shmem) if last else None
            self._machine |= limit_facts(largest.pid if largest is not None and largest.pid else self.pid)

    def _take_last(self, counters: TreeCounters) -> None:
        try:
            sample = counters.finish()
            if sample is not None:
                self._keep(sample)
        except Exception as problem:
            self._note(problem)

    def _keep(self, sample: Sample) -> None:
        self._ring.add(sample)
        self._kept_at = time.monotonic()
        if self._writer is not None:
            try:
                self._writer.add(sample)
            except OSError as problem:  # a full disk ends the file, not the watching
                self._missing["saved trace"] = f"{os.fspath(self._save_to or '')}: {problem.strerror}"
                self._writer = None

    def _note(self, problem: Exception) -> bool:
        self.errors += 1
        self._in_a_row += 1
        goes_on = self._in_a_row < _MOST_ERRORS
        after = "sampling went on" if goes_on else "sampling stopped"
        self._missing["sampling"] = (
            f"{self.errors} error(s) in the sampler, the last one {type(problem).__name__}: {problem}; {after}"
        )
        return goes_on


def machine_facts(pid: int | None) -> dict[str, str]:
    """What a reader of the numbers will want to know about the machine; sizes in bytes."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "cpus": str(os.cpu_count() or 1),
        "page": str(PAGE),
        "memory": str(total_memory()),
        "available": str(available_memory()),
        **limit_facts(pid),
    }


def limit_facts(pid: int | None) -> dict[str, str]:
    limit = memory_limit(pid)
    return {"limit": str(limit.limit or 0), "limit set by": limit.source}


def _highest_of_children() -> int:
    """The highest RSS of any child that was waited for, its own such children included."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1024 if sys.platform == "linux" else 1)
