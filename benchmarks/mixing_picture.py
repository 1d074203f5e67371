"""How far five shuffles mix, drawn: ``python -m benchmarks.mixing_picture`` writes docs/pictures/mixing.png.

Above, where in the file each row of an epoch comes from: a full shuffle fills the square, and what a shuffle does not
mix is left white. Below, a file sorted by ten classes: the share of the most frequent class in each batch of 256.
Lowtide's are the orders themselves; the others are simulations of how we understand them, not runs of those libraries:
a shuffle buffer gives a random element of the next N rows in file order; chunk by chunk, as litdata, shuffles the
chunks, deals them to workers, and shuffles the rows of each chunk.

Prints two numbers per side, and how the mean share falls with the blocks of a window. It does not measure training.
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
BLOCK = 512  # 1 MiB of them
WINDOW = 64 * BLOCK
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


def largest_class(order: Order, batch: int = 256, classes: int = 10) -> NDArray[np.float64]:
    """Of a file sorted by class: the share of the most frequent one in each batch."""
    labels = (order[: len(order) // batch * batch] * classes // len(order)).reshape(-1, batch)
    found: NDArray[np.float64] = np.max([(labels == one).sum(axis=1) for one in range(classes)], axis=0) / batch
    return found


def reach(order: Order, batch: int = 512) -> float:
    """The share of the file that an average batch spans, between its 10th and 90th row: 0.8 when fully mixed."""
    batches = np.sort(order[: len(order) // batch * batch].reshape(-1, batch), axis=1)
    return float((batches[:, int(batch * 0.9)] - batches[:, int(batch * 0.1)]).mean() / len(order))


def main() -> None:
    sides = {
        "full shuffle\n(locality=None)": Permutation(ROWS, seed=1).block(0, ROWS),
        'local shuffle\n(locality="64MiB")': LocalPermutation(ROWS, BLOCK, 64, seed=1).block(0, ROWS),
        'one block per window\n(locality=("64MiB", "64MiB"))': LocalPermutation(ROWS, WINDOW, 1, seed=1).block(0, ROWS),
        "shuffle buffer\nof 64 MiB (simulated)": shuffle_buffer(ROWS, WINDOW),
        "litdata: 64 MiB chunks,\n8 workers (simulated)": chunk_shuffle(ROWS, WINDOW),
    }
    figure, axes = plt.subplots(
        2, len(sides), figsize=(15, 5.6), sharey="row", layout="constrained", height_ratios=(3, 1.4)
    )
    chosen = np.sort(np.random.default_rng(2).choice(ROWS, 12_000, replace=False))
    for (above, below), (name, order) in zip(axes.T, sides.items(), strict=True):
        assert len(np.unique(order)) == ROWS, "every row once"
        shares = largest_class(order)
        above.plot(chosen / ROWS, order[chosen] / ROWS, ",", color="#1f4e79", alpha=0.7)
        above.set_title(name, fontsize=11)
        above.set_xlabel(f"a batch of 512 spans {reach(order):.0%} of the file", fontsize=9)
        above.set(xlim=(0, 1), ylim=(0, 1), xticks=[])
        above.set_box_aspect(1)
        below.plot(np.linspace(0, 1, len(shares)), shares, ",", color="#b03a2e")
        below.set(xlim=(0, 1), ylim=(0, 1.03))
        below.set_xlabel(f"time in the epoch (on average {shares.mean():.2f})", fontsize=9)
        plain = name.replace("\n", " ")
        print(f"{plain:<55} a batch spans {reach(order):.0%}, largest class {shares.mean():.3f}")
    axes[0][0].set_ylabel("place in the file (1 GiB)", fontsize=9)
    axes[1][0].set_ylabel("largest class of a\nbatch of 256, sorted\nby 10 classes", fontsize=9)
    figure.savefig(TARGET, dpi=110)
    print(TARGET)
    for blocks in (1, 2, 4, 8, 16, 32, 64, 128):
        shares = largest_class(LocalPermutation(ROWS, BLOCK, blocks, seed=1).block(0, ROWS))
        most = np.quantile(shares, 0.99)
        print(f"{blocks:>4} blocks per window: largest class {shares.mean():.3f}, 99 % of batches {most:.3f}")


if __name__ == "__main__":
    main()
