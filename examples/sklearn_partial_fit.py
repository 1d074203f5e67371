"""scikit-learn: a linear classifier and a PCA learn from rows on disk that do not fit in memory.

    python examples/sklearn_partial_fit.py               64 MiB of rows made up on the spot
    python examples/sklearn_partial_fit.py 2GiB          as many as you like; memory stays the same
    python examples/sklearn_partial_fit.py x.npy y.npy   yours: features (float32) and labels (whole numbers)

`partial_fit` wants batches, shuffled for the classifier; Lowtide reads them from disk in a few MiB.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from sklearn.decomposition import IncrementalPCA
from sklearn.linear_model import SGDClassifier

import lowtide
from lowtide.units import format_size, parse_size

COLUMNS, CLASSES, BATCH = 128, 4, 2048


def made_up(directory: Path, size: int) -> tuple[Path, Path]:
    """Four clouds of points in 128 dimensions, one after the other, as data that was never shuffled lies on disk."""
    chance = np.random.default_rng(0)
    centres = chance.standard_normal((CLASSES, COLUMNS)) * 0.3
    rows = size // (COLUMNS * 4)
    with (
        lowtide.create(directory / "x.npy", dtype="float32", shape=(-1, COLUMNS), budget="8MiB", cache="drop") as x,
        lowtide.create(directory / "y.npy", dtype="int64", budget="8MiB", cache="drop") as y,
    ):
        for first in range(0, rows, BATCH):
            label = np.full(min(BATCH, rows - first), first * CLASSES // rows)
            x.append((centres[label] + chance.standard_normal((len(label), COLUMNS))).astype("float32"))
            y.append(label)
    return directory / "x.npy", directory / "y.npy"


def pairs(x: lowtide.Array, y: lowtide.Array, **how: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The same shuffled rows of both: equal length and seed give equal order."""
    return zip(x.shuffled(BATCH, **how), y.shuffled(BATCH, **how), strict=True)


def main(features: Path, labels: Path) -> None:
    x = lowtide.open(features, budget="8MiB", cache="drop")
    y = lowtide.open(labels, budget="4MiB", cache="drop")
    print(f"{len(x)} rows, {format_size(x.nbytes)} on disk")

    pca = IncrementalPCA(n_components=8)
    for chunk in x.chunks(BATCH):  # in order: a covariance does not mind
        if len(chunk) >= pca.n_components:
            pca.partial_fit(chunk)
    print(f"PCA: 8 of {x.shape[1]} directions explain {pca.explained_variance_ratio_.sum():.3f} of the variance")

    classes = np.unique(np.concatenate([np.unique(chunk) for chunk in y.chunks()]))
    model = SGDClassifier(loss="log_loss", random_state=0)
    for rows, wanted in pairs(x, y, seed=0):  # shuffled: in order it would see one class after the other
        model.partial_fit(rows, wanted, classes=classes)
    some = islice(pairs(x, y, seed=1), 16)
    right = np.concatenate([model.predict(rows) == wanted for rows, wanted in some])
    print(f"SGDClassifier: accuracy {right.mean():.3f} on {len(right)} rows, after one shuffled pass")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(*made_up(Path(directory), parse_size(sys.argv[1] if len(sys.argv) > 1 else "64MiB")))
