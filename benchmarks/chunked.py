"""Compressed arrays and columns beside their own libraries: ``python -m benchmarks.chunked``.

A gzip HDF5 dataset and a Parquet column of ids are read shuffled with locality - the first epoch from nothing: maker
started, every chunk decoded, its blocks kept; the second from local blocks - beside a bare loop of h5py over chunks,
and of pyarrow over batches, in file order, and beside h5py's own fancy indexing of the same batches. Sides take turns
within the run; medians of ``--rounds``. Writes about twice ``--size`` MiB (384) below ``--place``; needs h5py and
pyarrow.
"""

from __future__ import annotations

import argparse
import compileall
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import lowtide
from benchmarks.measure import Figure, report
from lowtide.blocks.asking import MAKER
from lowtide.units import MIB

ROW, CHUNK, BATCH = 128, 1024, 256  # numbers of a row, rows of a chunk (512 KiB), rows of a batch
LOCALITY = "64MiB"
FANCY = 12  # batches that h5py indexes itself: an epoch would take too long


def write_hdf5(path: Path, size: int, **filters: object) -> None:
    random = np.random.default_rng(0)
    rows = size // (4 * ROW) // CHUNK * CHUNK
    with h5py.File(path, "w") as file:
        made = file.create_dataset("X", (rows, ROW), "f4", chunks=(CHUNK, ROW), **filters)
        for first in range(0, rows, CHUNK):
            chunk = np.floor(random.gamma(0.5, 40, (CHUNK, ROW))).astype("f4")  # counts, as of cells
            chunk[:, 0] = np.arange(first, first + CHUNK)  # which row it is
            made[first : first + CHUNK] = chunk


def write_parquet(path: Path, size: int) -> None:
    random = np.random.default_rng(1)
    schema = pa.schema([("input_ids", pa.list_(pa.int32()))])
    with pq.ParquetWriter(path, schema) as out:
        for _ in range(max(1, size // (8 * MIB))):
            lengths = random.integers(200, 1800, 2100)
            ids = (50_000 * random.random(int(lengths.sum())) ** 3).astype("i4")
            lists = pa.ListArray.from_arrays(pa.array(np.concatenate(([0], lengths.cumsum())).astype("i4")), ids)
            out.write_table(pa.table([lists], schema=schema))


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def bare_chunks(path: Path) -> None:
    with h5py.File(path) as file:
        data = file["X"]
        for first in range(0, len(data), CHUNK):
            data[first : first + CHUNK]


def fancy(path: Path, batches: list[np.ndarray]) -> None:
    with h5py.File(path) as file:
        for rows in batches:
            file["X"][rows]


def bare_batches(path: Path) -> None:
    with pq.ParquetFile(path) as file:
        for _ in file.iter_batches(columns=["input_ids"]):
            pass


def epoch_of_rows(path: Path, cache: Path) -> None:
    with lowtide.open(path, tensor="X", cache_dir=cache) as array:
        for _ in array.shuffled(BATCH, seed=1, locality=LOCALITY):
            pass


def epoch_of_ids(path: Path, cache: Path) -> None:
    with lowtide.open_tokens(path, column="input_ids", cache_dir=cache) as tokens:
        feed = tokens.batches(64, length=1024, seed=1, locality=LOCALITY)
        for _ in range((len(tokens) - 1) // 1024 // 64):
            next(feed)


def rates(size: int, rounds: int, cache: Path, bare: Callable[[], None], epoch: Callable[[], None]) -> list[float]:
    """MiB per second of the bare loop, the first epoch and the second; each round decodes anew."""
    found: list[list[float]] = [[], [], []]
    for _ in range(rounds):
        MAKER.close()
        shutil.rmtree(cache, ignore_errors=True)
        for side, work in zip(found, (bare, epoch, epoch), strict=True):
            side.append(size / MIB / seconds(work))
    return [statistics.median(side) for side in found]


def hdf5_figures(name: str, path: Path, size: int, rounds: int, cache: Path) -> list[Figure]:
    bare, first, second = rates(size, rounds, cache, lambda: bare_chunks(path), lambda: epoch_of_rows(path, cache))
    with lowtide.open(path, tensor="X", cache_dir=cache) as array:
        epoch = array.shuffled(BATCH, seed=1, locality=LOCALITY)
        batches = [np.sort(next(epoch)[:, 0].astype(np.int64)) for _ in range(FANCY)]
    indexed = FANCY * BATCH * ROW * 4 / MIB / seconds(lambda: fancy(path, batches))
    return [
        Figure(f"HDF5, {name}, first epoch / h5py's chunks in file order", first, bare, "MiB/s", 0.8),
        Figure(f"HDF5, {name}, first epoch / h5py's fancy indexing", first, indexed, "MiB/s", 10),
        Figure(f"HDF5, {name}, second epoch / h5py's chunks in file order", second, bare, "MiB/s", None),
    ]


def column_figures(path: Path, rounds: int, cache: Path) -> list[Figure]:
    about = pq.ParquetFile(path).metadata
    size = 4 * sum(about.row_group(group).column(0).num_values for group in range(about.num_row_groups))
    bare, first, second = rates(size, rounds, cache, lambda: bare_batches(path), lambda: epoch_of_ids(path, cache))
    return [
        Figure("Parquet ids, first epoch / pyarrow's batches in file order", first, bare, "MiB/s", 0.8),
        Figure("Parquet ids, second epoch / the same", second, bare, "MiB/s", None),
    ]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--place", default=None)
    parser.add_argument("--size", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    # As an installer does: else every maker compiles our sources where Python may not keep what it compiled.
    compileall.compile_dir(Path(lowtide.__file__).parent, quiet=1)
    place = Path(tempfile.mkdtemp(prefix="lowtide-chunked-", dir=asked.place))
    cache, figures = place / "cache", []
    try:
        for name, filters in (("gzip", {}), ("shuffle and gzip", {"shuffle": True}), ("lzf", {"compression": "lzf"})):
            write_hdf5(place / "x.h5", asked.size * MIB, **{"compression": "gzip", **filters})
            figures += hdf5_figures(name, place / "x.h5", asked.size * MIB, asked.rounds, cache)
        write_parquet(place / "t.parquet", asked.size * MIB)
        figures += column_figures(place / "t.parquet", asked.rounds, cache)
    finally:
        MAKER.close()
        shutil.rmtree(place, ignore_errors=True)
    return report("Chunked: compressed arrays and columns, shuffled with locality", figures)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
