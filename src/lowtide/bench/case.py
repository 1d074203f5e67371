"""One job in a process of its own: ``python -m lowtide.bench.case JOB`` prints what it measured of that job.

Two lines of JSON on stdout: the first when everything is imported and nothing is read yet (from then on the parent
watches memory), the second with the figures. Cold comes first: after the warm part nothing would be cold. Costs two and
a half times the job's seconds, and reading the warm part once.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from lowtide.bench.jobs import Job, most_cold, useful_bytes
from lowtide.bench.ways import batches
from lowtide.machine import drop_page_cache, page_cache
from lowtide.memory.measure.process import bytes_moved, process_memory
from lowtide.units import MIB, format_size

LEAST_BATCHES = 8  # the first batch opens files and warms code: alone it would distort the figure
MOST_OVER = 4  # for at most so many times the seconds asked for
STAYS = 0.01  # share of a dropped file that may still be cached


@dataclass(frozen=True)
class Phase:
    """Reading for some time: items read and how long it took. ``whole``: it reached the end of the data."""

    items: int
    seconds: float
    whole: bool
    device: int | None = None  # bytes read from the device; None: not counted here
    left: int | None = None  # bytes in the page cache afterwards

    @property
    def rate(self) -> float:
        return self.items / self.seconds if self.seconds else 0.0


def measure(job: Job) -> dict[str, Any]:
    """Both phases, as JSON-safe values."""
    found: dict[str, Any] = {"cold": None, "warm": None, "notes": []}
    if job.cold:
        problem = made_cold(job.path)
        if problem is None:
            found["cold"] = asdict(_cold(job))
        else:
            found["notes"].append(problem)
    if job.warm_rows:
        found["warm"] = asdict(_warm(job))
    return found


def made_cold(path: str) -> str | None:
    """Evict the file from the page cache; returns why that did not work, or None."""
    try:
        drop_page_cache(path)
        cache = page_cache(path)
    except OSError as problem:
        return f"the page cache cannot be dropped here ({problem.strerror})"
    size = os.stat(path).st_size  # noqa: PTH116
    if cache.cached > max(MIB, STAYS * size):
        return f"{format_size(cache.cached)} of the file stayed in the page cache: something holds it there"
    return None


def _cold(job: Job) -> Phase:
    before = _device_bytes()
    phase = _timed(batches(job, job.shape[0], endless=False), job.seconds, most_cold(job))
    after = _device_bytes()
    device = None if before is None or after is None or after == before else after - before
    return Phase(phase.items, phase.seconds, phase.whole, device, page_cache(job.path).cached)


def _warm(job: Job) -> Phase:
    _preload(job)
    loop = batches(job, job.warm_rows, endless=True)
    _timed(loop, job.seconds / 2, None, close=False)  # page tables, buffers and branch predictors warm up too
    return _timed(loop, job.seconds, None)


def _timed(loop: Iterator[int], seconds: float, most: int | None, *, close: bool = True) -> Phase:
    items, steps, whole = 0, 0, False
    start = time.perf_counter()
    end = start + seconds
    while True:
        had = next(loop, None)
        now = time.perf_counter()
        if had is None:
            whole = True
            break
        items += had
        steps += 1
        enough = steps >= LEAST_BATCHES or now >= start + MOST_OVER * seconds
        if (now >= end and enough) or (most is not None and items >= most):
            break
    if close:
        loop.close()  # type: ignore[attr-defined]  # our loops are generators: this closes files and mappings
    return Phase(items, now - start, whole)


def _preload(job: Job) -> None:
    """Read the warm part into the page cache."""
    last = job.size if job.fortran else job.offset + job.warm_rows * _row_bytes(job)
    buffer = bytearray(MIB)
    with open(job.path, "rb", buffering=0) as file:  # noqa: PTH123 - a Path would only be unwrapped again
        file.seek(job.offset)
        for _ in range(job.offset, last, len(buffer)):
            file.readinto(buffer)


def _row_bytes(job: Job) -> int:
    return useful_bytes(job) if job.pattern != "windows" else useful_bytes(job) // (job.length + 1)


def _device_bytes() -> int | None:
    with contextlib.suppress(OSError, KeyError):
        return bytes_moved(os.getpid())[0]
    return None


def measure_and_print() -> None:
    words = json.loads(sys.argv[1])
    job = Job(**{**words, "shape": tuple(words["shape"])})
    memory = process_memory()
    print(json.dumps({"anon": memory.anon, "mapped": memory.mapped}), flush=True)
    try:
        found = measure(job)
    except Exception as problem:  # the parent reports it; a traceback would be lost
        found = {"cold": None, "warm": None, "notes": [f"{type(problem).__name__}: {problem}"]}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    measure_and_print()
