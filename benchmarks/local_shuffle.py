"""A local shuffle cold, beside the sequential feed and a full shuffle: ``python -m benchmarks.local_shuffle``.

One idea: each side gets a freshly dropped page cache and reads the same number of windows from its beginning; sides
take turns, and medians are compared within the run. ``cache="drop"`` is what a corpus larger than memory gets. Writes
1 GiB to a temporary directory on the disk under test (``--place``).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import lowtide
from lowtide.machine import drop_page_cache
from lowtide.units import MIB

SIDES: dict[str, dict[str, Any]] = {
    "sequential feed": {"order": "sequential"},
    "local shuffle, 64 MiB": {"locality": "64MiB"},
    "local shuffle, 16 MiB": {"locality": "16MiB"},
    "full shuffle": {},
}


def write(path: Path, size: int) -> None:
    random = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(size // (16 * MIB)):
            random.integers(0, 50_257, 8 * MIB, dtype=np.uint16).tofile(file)


def rate(path: Path, cache: str, windows: int, options: dict[str, Any]) -> float:
    """Windows per second from a cold start."""
    drop_page_cache(path)
    with lowtide.open_tokens(path, dtype="uint16", cache=cache) as tokens:
        feed = tokens.batches(64, length=1024, seed=1, **options)
        began = time.perf_counter()
        for _ in range(windows // 64):
            next(feed)
        return windows / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--place", default=None, help="directory on the disk to measure")
    parser.add_argument("--size", type=int, default=1024, help="MiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--windows", type=int, default=131_072)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lowtide-local-", dir=asked.place) as place:
        path = Path(place) / "corpus.bin"
        write(path, asked.size * MIB)
        for cache in ("drop", "keep"):
            found: dict[str, list[float]] = {name: [] for name in SIDES}
            for _ in range(asked.rounds):
                for name, options in SIDES.items():
                    found[name].append(rate(path, cache, asked.windows, options))
            medians = {name: statistics.median(values) for name, values in found.items()}
            print(f"cache={cache}")
            for name, value in medians.items():
                against = f"{value / medians['sequential feed']:.2f} of sequential"
                print(f"  {name:<24} {value:>10,.0f} windows/s  {against}  {value / medians['full shuffle']:.1f}x full")


if __name__ == "__main__":
    main()
