"""A local shuffle cold, beside the sequential feed and a full shuffle: ``python -m benchmarks.local_shuffle``.

Each side gets a freshly dropped page cache and reads the same number of windows or rows from its beginning; sides take
turns, and medians are compared within the run. ``cache="drop"`` is what a corpus larger than memory gets. Writes 1 GiB
to a temporary directory on the disk under test (``--place``).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import lowtide
from benchmarks.measure import Figure, report
from lowtide.machine import drop_page_cache
from lowtide.units import MIB

SIDES: dict[str, dict[str, Any]] = {
    "sequential": {"order": "sequential"},
    "64 MiB": {"locality": "64MiB"},
    "64 MiB, budget 64 MiB": {"locality": "64MiB", "budget": "64MiB"},  # small rows: two sweeps per window
    "16 MiB of 256 KiB": {"locality": ("16MiB", "256KiB")},
    "full shuffle": {},
}
ROW = 162  # float32 features: 648 bytes


def write(path: Path, size: int) -> None:
    random = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(size // (16 * MIB)):
            random.integers(0, 50_257, 8 * MIB, dtype=np.uint16).tofile(file)


def parted(options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The budget, and what fixes the order."""
    return options.get("budget", "auto"), {name: value for name, value in options.items() if name != "budget"}


def windows_per_second(path: Path, cache: str, rows: int, options: dict[str, Any]) -> float:
    """Windows of 1,024 tokens, from a cold start."""
    drop_page_cache(path)
    budget, order = parted(options)
    with lowtide.open_tokens(path, dtype="uint16", cache=cache, budget=budget) as tokens:
        feed = tokens.batches(64, length=1024, seed=1, **order)
        began = time.perf_counter()
        for _ in range(rows // 64):
            next(feed)
        return rows / (time.perf_counter() - began)


def rows_per_second(path: Path, cache: str, rows: int, options: dict[str, Any]) -> float:
    """Rows of 162 features, from a cold start: eight times as many, which are about as many bytes."""
    drop_page_cache(path)
    size = path.stat().st_size // (4 * ROW) * 4 * ROW
    budget, order = parted(options)
    with lowtide.open(path, dtype="float32", shape=(size // (4 * ROW), ROW), cache=cache, budget=budget) as array:
        in_order = order.get("order") == "sequential"
        batches = array.chunks(4096) if in_order else array.shuffled(4096, seed=1, **order)
        wanted = 8 * rows if options else rows  # a full shuffle of small rows has no end
        began, done = time.perf_counter(), 0
        for batch in batches:
            done += len(batch)
            if done >= wanted:
                break
        return done / (time.perf_counter() - began)


def figures(path: Path, caches: list[str], rounds: int, rows: int) -> list[Figure]:
    found = []
    for what, measure in (("windows of 2 KiB", windows_per_second), ("rows of 648 bytes", rows_per_second)):
        for cache in caches:
            small = measure is rows_per_second  # only those are read in sweeps, which a budget is for
            sides = {name: options for name, options in SIDES.items() if small or "budget" not in options}
            rates: dict[str, list[float]] = {name: [] for name in sides}
            for _ in range(rounds):
                for name, options in sides.items():
                    rates[name].append(measure(path, cache, rows, options))
            medians = {name: statistics.median(values) for name, values in rates.items()}
            # What is asked is asked of files larger than memory, with the budget that is taken where none is stated.
            asked: dict[str, float | None] = {"sequential": 0.6, "full shuffle": 3} if cache == "drop" else {}
            found += [
                Figure(
                    f"{what}, {cache}, {name} / {other}",
                    medians[name],
                    medians[other],
                    "per s",
                    None if "budget" in sides[name] else asked.get(other),
                )
                for name in sides
                if "locality" in sides[name]
                for other in ("sequential", "full shuffle")
            ]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--place", default=None, help="directory on the disk to measure")
    parser.add_argument("--size", type=int, default=1024, help="MiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=131_072)
    parser.add_argument("--cache", default="drop,keep")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lowtide-local-", dir=asked.place) as place:
        path = Path(place) / "corpus.bin"
        write(path, asked.size * MIB)
        found = figures(path, asked.cache.split(","), asked.rounds, asked.rows)
    return report("Local shuffle: cold, beside a sequential pass and a full shuffle", found)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
