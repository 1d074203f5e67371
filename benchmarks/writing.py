"""Writing: lowtide.create beside fio in a small memory cgroup, and who dirties how much memory meanwhile.

python -m benchmarks.writing                   16 GiB in a cgroup of 128 MiB
python -m benchmarks.writing --size 2GiB       shorter
python -m benchmarks.writing --picture         dirty pages over an 8 GiB write, as docs/pictures/writing.png
LOWTIDE_BENCH_DIR=/disk python ...             write on another disk
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import lowtide
from benchmarks.measure import DIRECTORY, GIB, Figure, facts, report
from lowtide import machine
from lowtide.units import MIB, format_size, parse_size

LIMIT = 128 * MIB
BUDGET = 48 * MIB
CHUNK = 8 * MIB
SLACK = 8 * MIB
RIVALS = 2 * GIB  # what np.memmap and tofile write for comparison
ROW = 4096
COLOURS = {"np.memmap w+": "#c0392b", "ndarray.tofile": "#e08e0b", "lowtide.create": "#1f77b4"}


# The ways, each in a process of its own


def write(way: str, path: Path, size: int) -> None:
    """``size`` bytes of noise, on disk when this returns."""
    rows = np.random.default_rng(0).integers(0, 256, (CHUNK // ROW, ROW), np.uint8)
    if way == "np.memmap w+":
        out = np.lib.format.open_memmap(path, "w+", "uint8", (size // ROW, ROW))
        for first in range(0, size // ROW, len(rows)):
            out[first : first + len(rows)] = rows
        out.flush()
    elif way == "ndarray.tofile":
        with path.open("wb") as file:
            for _ in range(0, size, CHUNK):
                rows.tofile(file)
            file.flush()
            os.fsync(file.fileno())
    else:
        with lowtide.create(path, dtype="uint8", shape=(-1, ROW), budget=BUDGET, cache="drop", overwrite=True) as out:
            for _ in range(0, size, CHUNK):
                out.append(rows)


@dataclass
class Run:
    """What one way did: seconds, whether it was killed, and its file's pages over time (seconds, cached, dirty)."""

    way: str
    seconds: float
    killed: bool
    samples: list[tuple[float, int, int]] = field(default_factory=list)

    @property
    def most_cached(self) -> int:
        return max((cached for _, cached, _ in self.samples), default=0)

    @property
    def most_dirty(self) -> int:
        return max((dirty for _, _, dirty in self.samples), default=0)


def watched(way: str, size: int, cgroup: Path | None = None) -> Run:
    """Run a way in a fresh process, in ``cgroup`` if one is given, and look at its file's pages every 10 ms."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    path = DIRECTORY / "written.npy"
    unfinished = path.with_name(".written.npy.unfinished")
    path.unlink(missing_ok=True)
    words = [sys.executable, "-m", "benchmarks.writing", "--write", way, str(path), "--size", str(size)]
    words += ["--cgroup", str(cgroup)] if cgroup else []
    start = time.perf_counter()
    run = Run(way, 0.0, False)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        while child.poll() is None:
            for place in (unfinished, path):
                with contextlib.suppress(FileNotFoundError):
                    seen = machine.page_cache(place)
                    run.samples.append((time.perf_counter() - start, seen.cached, seen.dirty + seen.writeback))
                    break
            time.sleep(0.01)
        said = child.communicate()[0]
    run.killed = child.returncode != 0
    run.seconds = float(said or "inf")
    path.unlink(missing_ok=True)
    unfinished.unlink(missing_ok=True)
    return run


@contextlib.contextmanager
def small_cgroup() -> Iterator[Path | None]:
    """A memory cgroup of 128 MiB; None, with a note, where none can be made."""
    one = Path("/sys/fs/cgroup/memory")
    root, name = (one, "memory.limit_in_bytes") if one.exists() else (one.parent, "memory.max")
    directory = root / f"lowtide-{uuid.uuid4().hex[:8]}"
    try:
        directory.mkdir()
        (directory / name).write_text(str(LIMIT))
    except OSError as problem:
        print(f"NOT MEASURED: writing inside a memory cgroup ({problem})", file=sys.stderr)
        yield None
        return
    try:
        yield directory
    finally:
        directory.rmdir()


def fio_rate(size: int, cgroup: Path | None) -> float | None:
    """GiB/s that fio writes in order through the page cache, in the same cgroup, with its own clock, fsync included."""
    if shutil.which("fio") is None:
        print("NOT MEASURED: writing against fio - fio is not installed", file=sys.stderr)
        return None
    path = DIRECTORY / "fio.bin"
    words = f"fio --name=w --filename={path} --size={size} --rw=write --bs=1M --ioengine=psync --direct=0 --end_fsync=1"
    enter = f'echo $$ > {cgroup}/cgroup.procs && exec "$@"' if cgroup else 'exec "$@"'
    whole = ["sh", "-c", enter, "sh", *words.split(), "--output-format=json"]
    text = subprocess.run(whole, capture_output=True, check=True, text=True).stdout
    path.unlink()
    return float(json.loads(text[text.index("{") :])["jobs"][0]["write"]["bw_bytes"]) / GIB


# The figures


def figures(size: int, rounds: int) -> list[Figure]:
    fio, ours, runs = [], [], []
    with small_cgroup() as cgroup:
        for _ in range(rounds):  # in turn, so that a noisy neighbour hits both
            rate = fio_rate(size, cgroup)
            runs.append(watched("lowtide.create", size, cgroup))
            ours.append(size / GIB / runs[-1].seconds)
            if rate is not None:
                fio.append(rate)
        rivals = [watched(way, min(size, RIVALS), cgroup) for way in COLOURS if way != "lowtide.create"]
    where = f"a {format_size(LIMIT)} cgroup" if cgroup else "no cgroup"
    most = (BUDGET + SLACK) / MIB
    made = []
    if fio:
        rates = statistics.median(ours), statistics.median(fio)
        made.append(Figure(f"create / fio, buffered, {format_size(size)} in {where}", *rates, "GiB/s", 0.9))
    cached, dirty = max(run.most_cached for run in runs) / MIB, max(run.most_dirty for run in runs) / MIB
    made.append(Figure("most page cache of the file, create", cached, 1, "MiB", most, at_most=True))
    made.append(Figure("most dirty and in write-out, create", dirty, 1, "MiB", most, at_most=True))
    for run in rivals:
        rate = statistics.median(ours), 0.0 if run.killed else min(size, RIVALS) / GIB / run.seconds
        name = f"{run.way}, killed" if run.killed else run.way
        made.append(Figure(f"create / {name}, in {where}", *rate, "GiB/s", None))
        made.append(Figure(f"most page cache of the file, {name}", run.most_cached / MIB, 1, "MiB", None, at_most=True))
        made.append(Figure(f"most dirty and in write-out, {name}", run.most_dirty / MIB, 1, "MiB", None, at_most=True))
    return made


# The picture


def draw(runs: list[Run], size: int, out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained", sharex=True)
    for panel, column, title in (
        (panels[0], 2, "Dirty or being written out"),
        (panels[1], 1, "In the page cache"),
    ):
        for run in runs:
            seconds = [sample[0] for sample in run.samples]
            values = [sample[column] / MIB for sample in run.samples]
            label = f"{run.way}: {run.seconds:.0f} s, most {max(values):,.0f} MiB"
            panel.plot(seconds, values, color=COLOURS[run.way], lw=1.8, label=label)
        panel.set_title(title, loc="left", fontsize=11)
        panel.set_xlabel("seconds")
        panel.set_ylabel("MiB of the file")
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False, fontsize=9)
    about = facts()
    figure.suptitle(
        f"Writing {format_size(size)}, budget {format_size(BUDGET)}   ({about['cpu']}, Linux {about['kernel']}, "
        f"{about['date']})",
        fontsize=9,
        x=0.01,
        ha="left",
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=130)
    print(f"drew {out}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=parse_size)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--picture", action="store_true")
    parser.add_argument("--out", default="docs/pictures/writing.png", type=Path)
    parser.add_argument("--write", nargs=2, metavar=("WAY", "PATH"), help=argparse.SUPPRESS)
    parser.add_argument("--cgroup", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        if arguments.cgroup:
            (arguments.cgroup / "cgroup.procs").write_text(str(os.getpid()))
        start = time.perf_counter()
        write(arguments.write[0], Path(arguments.write[1]), arguments.size)
        print(time.perf_counter() - start)
        return 0
    if arguments.picture:
        size = arguments.size or 8 * GIB
        runs = [watched(way, size) for way in COLOURS]
        for run in runs:
            print(
                json.dumps(
                    {
                        "way": run.way,
                        "seconds": round(run.seconds, 1),
                        "most_dirty_mib": run.most_dirty >> 20,
                        "most_cached_mib": run.most_cached >> 20,
                    }
                )
            )
        draw(runs, size, arguments.out)
        return 0
    return report("Writing: inside a budget", figures(arguments.size or 16 * GIB, arguments.rounds))


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
