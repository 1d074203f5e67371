"""The seed picture: RSS over time of one shuffled pass, with memory-profiler as the independent witness.

    make picture                 draws docs/pictures/cures.png
    python -m benchmarks.picture --size 2GiB --out FILE

Five ways to read every row once in shuffled order - a plain memmap, a memmap recreated per batch, a memmap with
madvise(DONTNEED) behind every batch, and Lowtide with a budget of 64 MiB, keeping and dropping the page cache - each
from a cold start in a fresh process, sampled from outside by memory-profiler. RSS is all it can see; the legend adds
the page cache, which only the kernel's other counters show. ``read_ahead_kb`` is set to the usual 128 where allowed.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import lowtide
from benchmarks.measure import facts, make_file, read_ahead
from lowtide import machine
from lowtide.units import format_size, parse_size

ROW, BATCH = 2048, 1024
WAYS = (
    "plain np.memmap",
    "memmap recreated per batch",
    "memmap + madvise(DONTNEED)",
    "Lowtide, budget 64 MiB",
    "Lowtide, budget 64 MiB, cache='drop'",
)
COLOURS = ("#c0392b", "#e08e0b", "#7d6fb3", "#0b7285", "#38b2c4")


def read(way: str, path: Path) -> None:
    """One pass in shuffled order; runs in a process of its own."""
    count = path.stat().st_size // ROW
    if way in WAYS[3:]:
        cache = "drop" if way == WAYS[4] else "auto"
        with lowtide.open(path, dtype="uint8", shape=(-1, ROW), budget="64MiB", cache=cache) as array:
            for rows in array.shuffled(BATCH, seed=0):
                rows.sum()
        return
    order = np.random.default_rng(0).permutation(count)
    mapped = np.memmap(path, np.uint8, "r", shape=(count, ROW))
    for start in range(0, count, BATCH):
        if way == WAYS[1]:
            mapped = np.memmap(path, np.uint8, "r", shape=(count, ROW))
        mapped[order[start : start + BATCH]].sum()
        if way == WAYS[2]:
            mapped._mmap.madvise(mmap.MADV_DONTNEED)


def watch(way: str, path: Path) -> dict[str, object]:
    """RSS over time as memory-profiler sees it, and the page cache left at the end."""
    from memory_profiler import memory_usage  # dev extra

    machine.drop_page_cache(path)
    child = subprocess.Popen([sys.executable, "-m", "benchmarks.picture", "--read", way, str(path)], env={**os.environ})
    start = time.perf_counter()
    samples = []
    while child.poll() is None:
        usage = memory_usage(child.pid, max_usage=True, timeout=0.01, interval=0.01)
        samples.append((time.perf_counter() - start, float(usage)))
        time.sleep(0.02)
    if child.returncode:
        raise SystemExit(f"picture: {way} ended with exit code {child.returncode}")
    return {"way": way, "rss": samples, "cache": machine.page_cache(path).cached}


def draw(runs: list[dict[str, object]], size: int, out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    for run, colour in zip(runs, COLOURS, strict=True):
        seconds, rss = zip(*run["rss"], strict=True)  # type: ignore[misc]
        cache = format_size(int(run["cache"]))  # type: ignore[call-overload]
        label = f"{run['way']}: {seconds[-1]:.0f} s, peak RSS {max(rss):,.0f} MiB, page cache {cache}"
        axes.plot(seconds, rss, color=colour, lw=2, label=label)
    axes.set_xlabel("seconds")
    axes.set_ylabel("RSS, MiB (memory-profiler)")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"One shuffled pass over {format_size(size)}, rows of 2 KiB, batches of {BATCH}", loc="left")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), frameon=False, fontsize=9)
    about = facts()
    axes.text(
        0.995,
        0.98,
        f"{about['cpu']}\nLinux {about['kernel']}, {about['date']}",
        transform=axes.transAxes,
        ha="right",
        va="top",
        fontsize=7,
        alpha=0.6,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="2GiB")
    parser.add_argument("--out", default="docs/pictures/cures.png", type=Path)
    parser.add_argument("--read", nargs=2, metavar=("WAY", "PATH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        read(arguments.read[0], Path(arguments.read[1]))
        return
    size = parse_size(arguments.size)
    path = make_file("picture.bin", size)
    with read_ahead(path, 128):
        runs = [watch(way, path) for way in WAYS]
    draw(runs, size, arguments.out)
    for run in runs:
        peak = max(value for _, value in run["rss"])  # type: ignore[attr-defined]
        print(json.dumps({"way": run["way"], "peak_rss_mib": round(peak, 1), "page_cache_left": run["cache"]}))
    print(f"drew {arguments.out}")


if __name__ == "__main__":
    main()
