"""``with lowtide.watch() as trace:`` - samples of this process, or of another, taken beside the work.

One idea: one daemon thread asks ``Counters`` at a steady pace that slows down when asking becomes
expensive, so that watching stays under 1 % of one core. After the block ``trace.samples`` and
``trace.verdict`` are complete. Cost of the block: that thread, and its turns at the interpreter lock. It
does not see peaks shorter than its interval.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

from lowtide.machine import PAGE, available_memory, memory_limit, total_memory
from lowtide.memory import traces
from lowtide.memory.counters import Counters, Pace
from lowtide.memory.elsewhere import PlainCounters
from lowtide.memory.model import Sample, Trace, Verdict
from lowtide.memory.verdict import judge
from lowtide.units import parse_size

INTERVAL = 0.25  # seconds
_SHARE = 0.002  # of one core for the cheap counters


class watch:  # noqa: N801  # used as a statement: with lowtide.watch() as trace
    """Watches a process (this one by default) and its children from entering the block to leaving it.

    ``budget`` is the most that anon + mapped + shmem + tables may come to; the verdict says whether that
    held.
    """

    def __init__(
        self,
        *,
        interval: float = INTERVAL,
        pid: int | None = None,
        budget: int | str | None = None,
        children: bool = True,
        launched: bool = False,
        command: str | None = None,
    ) -> None:
        if not 0.01 <= interval <= 3600:
            raise ValueError(f"interval: expected 0.01 to 3600 seconds, got {interval}. Leave it out for {INTERVAL}.")
        self.interval = interval
        self.pid = os.getpid() if pid is None else pid
        self.budget = None if budget is None else parse_size(budget, what="budget")
        self.exit_code: int | None = None
        self._children, self._launched = children, launched
        self._command = command
        self._samples: list[Sample] = []
        self._missing: dict[str, str] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._started = 0.0
        self._machine: dict[str, str] = {}
        self._judged: tuple[int, Verdict] | None = None

    def __enter__(self) -> watch:
        if self._thread is not None:
            raise RuntimeError("watch: expected a new object for each block, got one used before. Call watch() again.")
        counters = self._counters()
        self._command = self._command or command_line(self.pid)
        self._started = time.time()
        self._machine = machine_facts(self.pid)
        self._take(counters)
        self._thread = threading.Thread(target=self._run, args=(counters,), name="lowtide watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def samples(self) -> tuple[Sample, ...]:
        return tuple(self._samples)

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
            exit_code=self.exit_code,
        )

    @property
    def verdict(self) -> Verdict:
        if self._judged is None or self._judged[0] != len(self._samples):
            self._judged = (len(self._samples), judge(self.trace))
        return self._judged[1]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as JSON lines; ``lowtide doctor --trace FILE`` reads it."""
        traces.save(self.trace, path)

    def _counters(self) -> Counters | PlainCounters:
        if Path("/proc/self/status").exists():
            if not Path(f"/proc/{self.pid}").exists():
                raise ProcessLookupError(
                    f"pid {self.pid}: expected a running process, got none. Check the number with ps."
                )
            return Counters(self.pid, children=self._children, launched=self._launched, every=self.interval)
        return PlainCounters(self.pid, children=self._children)

    def _run(self, counters: Counters | PlainCounters) -> None:
        pace = Pace(
            _SHARE * INTERVAL / min(INTERVAL, self.interval), self.interval
        )  # a shorter interval is a wish to pay
        while not self._stop.wait(pace.rest):
            begin, paced, now = time.thread_time(), counters.paced, time.monotonic()
            if not self._take(counters):
                return
            pace.paid(now, time.thread_time() - begin - (counters.paced - paced))
        self._take(counters, last=True)

    def _take(self, counters: Counters | PlainCounters, *, last: bool = False) -> bool:
        sample = counters.sample(last=last)
        self._missing = counters.missing
        if sample is None:
            return False
        self._samples.append(sample)
        return True


def machine_facts(pid: int | None = None) -> dict[str, str]:
    """What a reader of the numbers will want to know about the machine; sizes in bytes."""
    limit = memory_limit(pid)
    return {
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "cpus": str(os.cpu_count() or 1),
        "page": str(PAGE),
        "memory": str(total_memory()),
        "available": str(available_memory()),
        "limit": str(limit.limit or 0),
        "limit set by": limit.source,
    }


def command_line(pid: int) -> str:
    """How a process was started, as one line; its own when asked about this process."""
    if pid == os.getpid():
        return " ".join([Path(sys.executable).name, *sys.argv])
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return f"pid {pid}"
    return b" ".join(words).decode(errors="replace").strip() or f"pid {pid}"
