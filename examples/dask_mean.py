"""Dask: the mean and deviation of every column on worker processes, and the normalised rows written in bounded memory.

    python examples/dask_mean.py                 rows made up on the spot
    python examples/dask_mean.py features.npy    yours

The part that is Lowtide: the workers read their own blocks of the file, and the result is written as it comes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import dask
import numpy as np
from distributed import Client, LocalCluster

import lowtide
import lowtide.dask


def made_up(directory: Path, rows: int = 80_000, columns: int = 64) -> Path:
    """Rows written a chunk at a time, so that they need not fit in memory."""
    chance = np.random.default_rng(0)
    with lowtide.create(directory / "features.npy", dtype="float32", shape=(-1, columns)) as out:
        for first in range(0, rows, 10_000):
            count = min(10_000, rows - first)
            out.append((chance.standard_normal((count, columns)) * 3 + 7).astype("float32"))
    return directory / "features.npy"


def main(path: Path, target: Path) -> None:
    x = lowtide.dask.array(lowtide.open(path, budget="8MiB"))  # blocks of 8 MiB; none of them in the graph
    wide = x.astype("float64")
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
        mean, std = dask.compute(wide.mean(axis=0), wide.std(axis=0))
        print(f"{x.shape[0]} rows in {x.numblocks[0]} blocks, read by {len(cluster.workers)} worker processes")
        with lowtide.create(target, dtype="float32", shape=(-1, *x.shape[1:])) as out:
            for block in ((x - mean) / std).blocks:
                out.append(block.compute().astype("float32"))

    with lowtide.open(target) as written:
        total = sum(chunk.sum(axis=0, dtype="float64") for chunk in written.chunks())
    print(f"mean {mean.mean():.3f}, deviation {std.mean():.3f}; normalised mean {abs(total / len(written)).max():.1e}")
    loaded = np.load(path, mmap_mode="r")
    print(f"agrees with numpy: {np.allclose(mean, loaded.mean(axis=0, dtype='float64'))}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else made_up(here), here / "normalised.npy")
