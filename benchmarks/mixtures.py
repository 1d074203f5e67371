"""What a mixture costs beside one corpus, warm: ``python -m benchmarks.mixtures``.

The same bytes, the same batches, once as one corpus (one file; and 16 shards) and once as a mixture of 16
corpora with unequal weights; sides take turns in short rounds and the ratio of medians is what counts. Also prints the
size of a state and the time of a seek with 16 corpora. Writes 256 MiB to a temporary directory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

import lowtide

CORPORA = 16
TOKENS = 8 << 20  # of each


def make(directory: Path) -> tuple[Path, list[Path]]:
    """One file with everything, and the same ids in 16 files."""
    whole, parts = directory / "whole.bin", []
    random = np.random.default_rng(0)
    with whole.open("wb") as file:
        for number in range(CORPORA):
            ids = random.integers(0, 50_257, TOKENS, dtype=np.uint16)
            parts.append(directory / f"part-{number:02}.bin")
            ids.tofile(parts[-1])
            ids.tofile(file)
    return whole, parts


def rate(feed: lowtide.Feed, seconds: float) -> float:
    """Rows per second of this process's own time: other programs on the machine do not count."""
    steps, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        next(feed)
        steps += 1
    return steps * feed.batch / (time.process_time() - began)


def measured(feeds: dict[str, lowtide.Feed], rounds: int, seconds: float) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in feeds}
    for _ in range(rounds + 1):
        for name, feed in feeds.items():
            found[name].append(rate(feed, seconds))
    return {name: statistics.median(values[1:]) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.2)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lowtide-mixtures-") as place:
        whole, parts = make(Path(place))
        corpora = [lowtide.open_tokens(path, dtype="uint16") for path in parts]
        weights = {f"corpus-{number:02}": (corpus, number + 1) for number, corpus in enumerate(corpora)}
        mixture = lowtide.mix(weights)
        settings = {"length": 1024, "seed": 1}
        feeds = {
            "one file": lowtide.open_tokens(whole, dtype="uint16").batches(64, **settings),
            "one corpus of 16 shards": lowtide.open_tokens(parts, dtype="uint16").batches(64, **settings),
            "mixture of 16": mixture.batches(64, **settings),
            "mixture of 2": lowtide.mix(dict(list(weights.items())[:2])).batches(64, **settings),
        }
        rates = measured(feeds, asked.rounds, asked.seconds)
        for name, value in rates.items():
            print(f"{name:<24} {value:>10,.0f} windows/s   {value / rates['one file']:.2f} of one file")
        feed = feeds["mixture of 16"]
        began = time.perf_counter()
        for step in range(100):
            feed.seek(step * 1_000_003)
            feed.where(feed.step)
        print(f"seek and where: {(time.perf_counter() - began) * 10:.2f} ms")
        print(f"state: {len(json.dumps(feed.state_dict())):,} bytes")


if __name__ == "__main__":
    main()
