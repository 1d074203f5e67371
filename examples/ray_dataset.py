"""Ray Data: rows and labels from disk through a cluster, and windows of tokens, read by the tasks that need them.

    python examples/ray_dataset.py     data made up on the spot; a cluster of this machine, or the one of RAY_ADDRESS

The part that is Lowtide is `lowtide.ray.dataset`: no file is read by the driver, and no task reads more than a piece.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import ray

import lowtide
import lowtide.ray


def made_up(directory: Path, rows: int = 100_000) -> None:
    """Features with a centre per label, labels, and tokens."""
    chance = np.random.default_rng(0)
    with (
        lowtide.create(directory / "x.npy", dtype="float32", shape=(-1, 16)) as x,
        lowtide.create(directory / "y.npy", dtype="int64") as y,
    ):
        for _ in range(0, rows, 10_000):
            labels = chance.integers(0, 4, 10_000)
            x.append((chance.standard_normal((10_000, 16)) + labels[:, None]).astype("float32"))
            y.append(labels)
    np.arange(100_001, dtype="uint32").tofile(directory / "tokens.bin")


def sums(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Per label of this batch: how many rows, and their sum."""
    labels = np.arange(4)
    mine = batch["y"] == labels[:, None]
    return {"label": labels, "rows": mine.sum(axis=1), "total": (mine @ batch["x"].astype("float64")).sum(axis=1)}


def main(directory: Path) -> None:
    ray.init(include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False

    pairs = lowtide.ray.dataset({"x": lowtide.open(directory / "x.npy"), "y": lowtide.open(directory / "y.npy")})
    parts = list(pairs.map_batches(sums).iter_batches())  # a few numbers per batch; the rows stay on the workers
    label, rows, total = (np.concatenate([part[name] for part in parts]) for name in ("label", "rows", "total"))
    means = np.bincount(label, total) / np.bincount(label, rows) / 16
    print("mean per label:", " ".join(f"{mean:.3f}" for mean in means))
    x, y = np.load(directory / "x.npy"), np.load(directory / "y.npy")
    print(f"agrees with numpy: {np.allclose(means, [x[y == label].mean(dtype='float64') for label in range(4)])}")

    tokens = lowtide.open_tokens(directory / "tokens.bin", dtype="uint32")
    windows = lowtide.ray.dataset(tokens, length=100)  # rows of 101 tokens: x is [:, :-1], y is [:, 1:]
    seen = np.sort(np.concatenate([batch["tokens"][:, :-1].ravel() for batch in windows.iter_batches()]))
    print(f"{windows.count()} windows, every token once: {np.array_equal(seen, np.arange(100_000))}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        made_up(Path(directory))
        main(Path(directory))
