"""How far four shuffles mix, drawn: ``python -m benchmarks.mixing_picture`` writes docs/pictures/mixing.png.

One idea: plot where in the file each row of an epoch comes from. A full shuffle fills the square; what a shuffle does
not mix is left white. Lowtide's two are the orders themselves; the others are simulations of how we understand them,
not runs of those libraries: a shuffle buffer gives a random element of the next N rows in file order; chunk by chunk,
as litdata, shuffles the chunks, deals them to workers, and shuffles the rows of each chunk.

Prints one number per side: the mean distance of neighbouring rows of the epoch, as a share of a full shuffle's (which
is a third of the file). It does not measure training.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

from lowtide.order import LocalPermutation, Permutation

mpl.use("Agg")
from matplotlib import pyplot as plt  # the backend comes first

ROWS = 65_536 * 8  # 1 GiB of windows of 1,024 uint16 tokens
BLOCK = 32_768  # 64 MiB of them
TARGET = Path(__file__).parent.parent / "docs" / "pictures" / "mixing.png"

Order = NDArray[np.int64]


def shuffle_buffer(rows: int, size: int) -> Order:
    """Fill a buffer in file order, give a random element, put the next row in its place; in the end empty it."""
    random = np.random.default_rng(0)
    buffer = np.arange(size)
    out = np.empty(rows, np.int64)
    slots = random.integers(0, size, rows - size)
    for position, (slot, row) in enumerate(zip(slots.tolist(), range(size, rows), strict=True)):
        out[position] = buffer[slot]
        buffer[slot] = row
    out[rows - size :] = random.permutation(buffer)
    return out


def chunk_shuffle(rows: int, size: int, workers: int = 8) -> Order:
    """litdata's scheme as we understand it: chunks in random order dealt to workers, rows shuffled inside each;
    batches come from the workers in turn."""
    random = np.random.default_rng(1)
    chunks = random.permutation(rows // size)
    queues = [
        np.concatenate([chunk * size + random.permutation(size) for chunk in chunks[worker::workers]])
        for worker in range(workers)
    ]
    return np.stack([queue.reshape(-1, 64) for queue in queues], axis=1).reshape(-1)


def spread(order: Order) -> float:
    """Mean distance of neighbours in the epoch, as a share of what a full shuffle has."""
    return float(np.abs(np.diff(order)).mean() / (len(order) / 3))


def reach(order: Order, batch: int = 512) -> float:
    """The share of the file that an average batch spans, between its 10th and 90th row: 0.8 when fully mixed."""
    batches = np.sort(order[: len(order) // batch * batch].reshape(-1, batch), axis=1)
    return float((batches[:, int(batch * 0.9)] - batches[:, int(batch * 0.1)]).mean() / len(order))


def main() -> None:
    sides = {
        "full shuffle\n(locality=None)": Permutation(ROWS, seed=1).block(0, ROWS),
        'local shuffle\n(locality="64MiB")': LocalPermutation(ROWS, BLOCK, seed=1).block(0, ROWS),
        "shuffle buffer\nof 64 MiB (simulated)": shuffle_buffer(ROWS, BLOCK),
        "litdata: 64 MiB chunks,\n8 workers (simulated)": chunk_shuffle(ROWS, BLOCK),
    }
    figure, axes = plt.subplots(1, len(sides), figsize=(13, 3.9), sharey=True, layout="constrained")
    chosen = np.sort(np.random.default_rng(2).choice(ROWS, 12_000, replace=False))
    for place, (name, order) in zip(axes, sides.items(), strict=True):
        assert len(np.unique(order)) == ROWS, "every row once"
        place.plot(chosen / ROWS, order[chosen] / ROWS, ",", color="#1f4e79", alpha=0.7)
        place.set_title(name, fontsize=11)
        place.set_xlabel(f"time in the epoch\na batch of 512 spans {reach(order):.0%} of the file", fontsize=9)
        place.set_xlim(0, 1)
        place.set_ylim(0, 1)
        place.set_aspect("equal")
        plain = name.replace("\n", " ")
        print(f"{plain:<50} neighbours {spread(order):.2f} of a full shuffle, a batch spans {reach(order):.0%}")
    axes[0].set_ylabel("place in the file (1 GiB)", fontsize=9)
    figure.savefig(TARGET, dpi=110)
    print(TARGET)


if __name__ == "__main__":
    main()
