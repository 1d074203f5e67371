"""What every benchmark shares: files to read, interleaved rounds, medians, and a table of ratios.

Timings are ratios within one run: each round runs every way once, in turn, so that a noisy neighbour hits all of them;
figures are medians over rounds. Nothing here is imported by the library.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from lowtide import machine

GIB = 1024**3
DIRECTORY = Path(os.environ.get("LOWTIDE_BENCH_DIR", "out/bench"))
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Figure:
    """One line of a table: ours beside its baseline, and the ratio we ask of ourselves (None: shown for comparison)."""

    what: str
    ours: float
    baseline: float
    unit: str
    wanted: float | None
    at_most: bool = False  # the figure is a bound from above (memory, milliseconds), not a speed

    @property
    def ratio(self) -> float:
        return self.ours / self.baseline if self.baseline else float("inf")

    @property
    def met(self) -> bool:
        if self.wanted is None:
            return True
        return self.ours <= self.wanted if self.at_most else self.ratio >= self.wanted


def make_file(name: str, size: int) -> Path:
    """``size`` bytes of noise, made once and kept between runs; on disk before anything is timed."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    path = DIRECTORY / name
    if path.exists() and path.stat().st_size == size:
        return path
    block = np.random.default_rng(0).integers(0, 50_257, 32 * 1024**2, dtype=np.uint16).tobytes()
    with path.open("wb") as file:
        for start in range(0, size, len(block)):
            file.write(block[: size - start])
        file.flush()
        os.fsync(file.fileno())
    return path


def warm(path: Path) -> None:
    """The whole file into the page cache."""
    buffer = bytearray(8 * 1024**2)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def interleaved(
    ways: dict[str, Callable[[], float]],
    rounds: int = 3,
    discard: int = 0,
    before: Callable[[], object] = lambda: None,
) -> dict[str, float]:
    """Each way returns work done (rows, bytes ...); the result is work a second, median over rounds. ``before`` runs
    before each of them and is not timed: dropping what the way before left in the page cache is not this one's work."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + discard):
        for name, way in ways.items():
            before()
            start = time.perf_counter()
            work = way()
            seconds = time.perf_counter() - start
            if turn >= discard:
                rates[name].append(work / seconds)
    return {name: statistics.median(values) for name, values in rates.items()}


@contextlib.contextmanager
def read_ahead(path: Path, kib: int) -> Iterator[bool]:
    """Set the device's read_ahead_kb, which is taken over when a file is opened; False where that is not allowed."""
    device = path.stat().st_dev
    setting = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    turn = (DIRECTORY / "read_ahead.lock").open("w")
    fcntl.flock(turn, fcntl.LOCK_EX)  # two benchmarks at once would restore each other's setting
    try:
        before = setting.read_text()
        setting.write_text(str(kib))
    except OSError:
        print("note: cannot set read_ahead_kb (needs root); cold figures use this machine's own", file=sys.stderr)
        yield False
        return
    try:
        yield True
    finally:
        setting.write_text(before)
        turn.close()


def drop(path: Path) -> None:
    machine.drop_page_cache(path)
    left = machine.page_cache(path).cached
    if left > 16 * 1024**2:
        print(f"note: {left >> 20} MiB of {path.name} would not leave the page cache", file=sys.stderr)


def facts() -> dict[str, str]:
    model = "unknown"
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": f"{os.cpu_count()} x {model}",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def report(title: str, figures: list[Figure]) -> int:
    """Print the table, keep it under benchmarks/results/, and say how many figures missed what we ask of ourselves."""
    print(f"\n{title}")
    print(f"{'':54s} {'ours':>13s} {'baseline':>13s} {'ratio':>7s}   asked")
    for figure in figures:
        asked = (
            "" if figure.wanted is None else (f"<= {figure.wanted:g}" if figure.at_most else f">= {figure.wanted:g}")
        )
        mark = "" if figure.met else "   MISSED"
        baseline = f"{figure.baseline:>13,.4g}" if not figure.at_most else f"{'':>13s}"
        ratio = f"{figure.ratio:>6.2f}x" if not figure.at_most else f"{'':>7s}"
        print(f"{figure.what:54s} {figure.ours:>13,.4g} {baseline} {ratio}   {asked} {figure.unit}{mark}")
    RESULTS.mkdir(exist_ok=True)
    name = title.split(":")[0].lower().replace(" ", "-")
    document = {"title": title, **facts(), "figures": [{**asdict(f), "ratio": round(f.ratio, 3)} for f in figures]}
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    return sum(not figure.met for figure in figures)
