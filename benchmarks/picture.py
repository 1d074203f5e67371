"""The picture of the question this began with: what a shuffled pass holds, four ways, first cold and then cached.

    make picture                 draws docs/pictures/shuffled.png
    python -m benchmarks.picture --size 2GiB --out FILE

A plain memmap, a memmap recreated per batch, a memmap with madvise(DONTNEED) behind every batch, and Lowtide with a
budget of 64 MiB: each reads random rows in batches of 8 MiB, in a fresh process. What is drawn is the file pages each
process has mapped plus its heap, above what it had before the pass, read every 2 ms; its highest is the kernel's own
mark (VmHWM), which no peak inside a batch escapes. ``read_ahead_kb`` is set to the usual 128 for the cold passes where
allowed. Sizes are what is compared here, not speed.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import lowtide
from benchmarks.measure import facts, make_file, read_ahead, warm
from lowtide import machine
from lowtide.units import MIB, format_size, parse_size

ROW, BATCH, BATCHES = 2048, 4096, 48
PAGE = os.sysconf("SC_PAGE_SIZE")
WAYS = {
    "np.memmap, kept open": "#c0392b",
    "np.memmap recreated per batch": "#e08e0b",
    "np.memmap + madvise(DONTNEED) per batch": "#7d6fb3",
    "Lowtide, budget 64 MiB": "#0b7285",
}
PLAIN, RECREATED, ADVISED, OURS = WAYS


@dataclass(frozen=True)
class Pass:
    """One pass: bytes above the beginning over time, and the kernel's highest."""

    way: str
    samples: list[tuple[float, int]]
    highest: int
    cached: int  # of the file, in the page cache afterwards


def read(way: str, path: Path) -> None:
    """The pass itself, in a process of its own: says "ready", waits for a line, and ends by saying its highest."""
    count = path.stat().st_size // ROW
    array = lowtide.open(path, dtype="uint8", shape=(-1, ROW), budget="64MiB")
    # What a first batch loads for ever (code, tables of the allocator) belongs to no way.
    np.ones((BATCH, ROW), np.uint8)[np.arange(0, BATCH, 2)].sum()
    Path("/proc/self/clear_refs").write_text("5")  # begin the highest mark anew
    before = _resident("VmRSS")
    print("ready", flush=True)
    sys.stdin.readline()
    if way == OURS:
        for _, rows in zip(range(BATCHES), array.shuffled(BATCH, seed=0), strict=False):
            rows.sum()
    else:
        order = np.random.default_rng(0).integers(0, count, BATCH * BATCHES)
        mapped = np.memmap(path, np.uint8, "r", shape=(count, ROW))
        for start in range(0, len(order), BATCH):
            if way == RECREATED:
                mapped = np.memmap(path, np.uint8, "r", shape=(count, ROW))
            mapped[order[start : start + BATCH]].sum()
            if way == ADVISED:
                mapped._mmap.madvise(mmap.MADV_DONTNEED)
    print(_resident("VmHWM") - before, flush=True)


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def watch(way: str, path: Path) -> Pass:
    words = [sys.executable, "-m", "benchmarks.picture", "--read", way, str(path)]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdout.readline()
    statm = Path(f"/proc/{child.pid}/statm")
    first = _held(statm)
    child.stdin.write("\n")
    child.stdin.flush()
    began = time.perf_counter()
    samples = []
    while child.poll() is None:
        held = _held(statm)
        if held:
            samples.append((time.perf_counter() - began, max(0, held - first)))
        time.sleep(0.002)
    if child.returncode:
        raise SystemExit(f"picture: {way} ended with exit code {child.returncode}")
    return Pass(way, samples, int(child.stdout.readline()), machine.page_cache(path).cached)


def _held(statm: Path) -> int:
    try:
        return int(statm.read_text().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def draw(cold: list[Pass], cached: list[Pass], size: int, out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(10.5, 4.6), layout="constrained", sharey=True)
    titles = ("first pass: the file is not cached", "later passes: the file is in the page cache")
    top = max(one.highest for one in (*cold, *cached)) / MIB
    for axes, passes, title in zip(panels, (cold, cached), titles, strict=True):
        for one in passes:
            seconds, held = zip(*one.samples, strict=True)
            label = f"{one.way}: highest {one.highest / MIB:,.0f} MiB"
            axes.plot(
                np.array(seconds) / seconds[-1],
                np.array(held) / MIB,
                color=WAYS[one.way],
                lw=1.6,
                alpha=0.85,
                label=label,
            )
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel("share of the pass")
        axes.set_ylim(0, 1.04 * top)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False, fontsize=9)
    panels[0].set_ylabel("resident memory above the start, MiB")
    about = facts()
    figure.suptitle(
        f"Random rows of {format_size(size)} in batches of {format_size(ROW * BATCH)}   "
        f"({about['cpu']}, Linux {about['kernel']}, {about['date']})",
        fontsize=10,
        x=0.01,
        ha="left",
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="4GiB")
    parser.add_argument("--out", default="docs/pictures/shuffled.png", type=Path)
    parser.add_argument("--read", nargs=2, metavar=("WAY", "PATH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        read(arguments.read[0], Path(arguments.read[1]))
        return
    size = parse_size(arguments.size)
    path = make_file("picture.bin", size)
    cold = []
    with read_ahead(path, 128):
        for way in WAYS:
            machine.drop_page_cache(path)
            cold.append(watch(way, path))
    machine.drop_page_cache(path)
    warm(path)  # in order, as the epoch before left it: the kernel then keeps it in large folios
    cached = [watch(way, path) for way in WAYS]
    draw(cold, cached, size, arguments.out)
    for name, passes in (("cold", cold), ("cached", cached)):
        for one in passes:
            found = {"pass": name, "way": one.way, "highest_mib": round(one.highest / MIB, 1)}
            print(json.dumps(found | {"page_cache_mib": round(one.cached / MIB, 1)}))
    print(f"drew {arguments.out}")


if __name__ == "__main__":
    main()
