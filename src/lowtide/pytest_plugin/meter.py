"""Growth of this process by kind while a test runs.

A thread reads /proc/self/status every 10 ms for growth by kind, and the kernel's own
high-water mark of RSS, set back when the test starts, tells whether memory rose and fell between two
samples. Costs about 2 % of one core. Memory of child processes is not counted.
The page cache of files is read once, when the test ends: asking takes milliseconds per GiB.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from lowtide.machine import page_cache
from lowtide.memory.measure.process import process_memory, status
from lowtide.pytest_plugin.budgets import Measured

_SAMPLE_EVERY = 0.01  # seconds; half of it cost 3 % of a core on a busy machine
_SAMPLED = ("anon", "mapped", "shmem", "tables")


class Meter:
    """Measures from ``start`` to ``stop``. In a test it is the fixture ``memory_growth``.

    ``anon``, ``mapped``, ``shmem``, ``tables`` and ``rss`` are bytes grown by now; ``peak`` has the most so
    far of each kind.
    """

    def __init__(self, files: Iterable[str | os.PathLike[str]] = ()) -> None:
        self._files = {os.fspath(path): 0 for path in files}
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._set_base()

    @property
    def anon(self) -> int:
        return self._growth()["anon"]

    @property
    def mapped(self) -> int:
        return self._growth()["mapped"]

    @property
    def shmem(self) -> int:
        return self._growth()["shmem"]

    @property
    def tables(self) -> int:
        return self._growth()["tables"]

    @property
    def rss(self) -> int:
        growth = self._growth()
        return growth["anon"] + growth["mapped"] + growth["shmem"]

    @property
    def cache(self) -> int:
        """Growth of the page cache of the counted files, minus the growth of what this process maps."""
        cached = sum(_cached(path) - before for path, before in self._files.items())
        return max(0, cached - max(0, self.mapped))

    @property
    def peak(self) -> dict[str, int]:
        """The most each kind has grown by so far."""
        return dict(self.measured().peak)

    def count(self, path: str | os.PathLike[str]) -> None:
        """Count the page cache of this file from now on as ``cache``."""
        self._files[os.fspath(path)] = _cached(os.fspath(path))

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(self._files)

    def restart(self) -> None:
        """Measure from here on: what came before (imports, warm-up) no longer counts."""
        gc.collect()  # garbage that is freed later would hide growth of the same size
        with self._lock:
            self._set_base()

    def start(self) -> None:
        self.restart()
        self._stop.clear()  # a plugin that repeats failed tests starts the same meter again
        self._thread = threading.Thread(target=self._run, name="lowtide memory_budget", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def measured(self) -> Measured:
        """What was measured so far."""
        with self._lock:
            self._take()
            high_water = status(os.getpid())["VmHWM"] if self._exact else 0
            rss_peak = max(self._rss_peak, high_water - self._rss_base)
            peak = dict(self._peak) | {"rss": rss_peak, "cache": self.cache}
            unseen, seconds = rss_peak - self._rss_peak, time.monotonic() - self._begin
            return Measured(peak, dict(self._when), unseen, seconds, self._samples)

    def _set_base(self) -> None:
        self._exact = _reset_high_water()
        self._base = process_memory()
        self._rss_base = self._base.anon + self._base.mapped + self._base.shmem
        self._begin = time.monotonic()
        self._peak, self._when = dict.fromkeys(_SAMPLED, 0), dict.fromkeys(_SAMPLED, 0.0)
        self._rss_peak = self._samples = 0
        self._files = {path: _cached(path) for path in self._files}

    def _run(self) -> None:
        while not self._stop.wait(_SAMPLE_EVERY):
            with self._lock:
                self._take()

    def _take(self) -> None:
        self._growth()
        self._samples += 1

    def _growth(self) -> dict[str, int]:
        """Growth by now. Every reading counts for the peaks, also one that a test asks for between two samples."""
        with self._lock:
            now = process_memory()
            growth = {kind: getattr(now, kind) - getattr(self._base, kind) for kind in _SAMPLED}
            for kind, size in growth.items():
                if size > self._peak[kind]:
                    self._peak[kind], self._when[kind] = size, time.monotonic() - self._begin
            self._rss_peak = max(self._rss_peak, growth["anon"] + growth["mapped"] + growth["shmem"])
            return growth


def _reset_high_water() -> bool:
    """Set the kernel's high-water mark of RSS back to now (5 in proc(5)); False if that is not allowed."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _cached(path: str) -> int:
    try:
        return page_cache(path).cached
    except FileNotFoundError:
        return 0  # not there yet: all its pages will be growth
