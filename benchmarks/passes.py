"""Whole passes: statistics, checks, conversion and a masked subset, each beside a plain pass over the same bytes.

python -m benchmarks.passes            about 2 minutes, 1 GiB of files
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import lowtide
from benchmarks.measure import DIRECTORY, GIB, Figure, drop, interleaved, make_file, report, warm
from benchmarks.native_engine import aligned, bare
from lowtide.corpus import convert, verify
from lowtide.corpus.conversion import Stated

COLUMNS = 162
CHUNK = 8 * 1024**2
SIZE = GIB // 2


def rows_file(name: str, dtype: str, nan: float = 0.0) -> Path:
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    path = DIRECTORY / name
    if not path.exists():
        rows = SIZE // COLUMNS // np.dtype(dtype).itemsize
        random = np.random.default_rng(0)
        values = (100 * random.standard_normal((rows, COLUMNS), dtype=np.float32)).astype(dtype)
        if nan:
            values[random.random(values.shape) < nan] = np.nan
        np.save(path, values)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    return path


# Statistics


def summed(path: Path) -> float:
    total: object = 0
    with lowtide.open(path, cache="keep") as array:
        for chunk in array.chunks():
            total = total + chunk.sum(axis=0)  # type: ignore[operator]
        return array.nbytes / GIB


def described(path: Path) -> float:
    with lowtide.open(path, cache="keep") as array:
        array.stats()
        return array.nbytes / GIB


def stats_figures() -> list[Figure]:
    figures = []
    for label, dtype, nan in (
        ("float32", "f4", 0.0),
        ("float32, 5 % NaN", "f4", 0.05),
        ("float64", "f8", 0.0),
        ("int16", "i2", 0.0),
    ):
        path = rows_file(f"rows_{dtype}_{nan:g}.npy", dtype, nan)
        warm(path)
        rates = interleaved(
            {"sum": lambda p=path: summed(p), "stats": lambda p=path: described(p)}, rounds=5, discard=1
        )
        figures.append(Figure(f"stats(), {label} / chunks + sum", rates["stats"], rates["sum"], "GiB/s", 0.9))
        if label == "float32":
            ways = {"sum": lambda p=path: summed(p), "stats": lambda p=path: described(p)}
            rates = interleaved(ways, rounds=3, discard=1, before=lambda p=path: drop(p))
            figures.append(Figure("stats(), float32, cold / the same", rates["stats"], rates["sum"], "GiB/s", 0.9))
        path.unlink()
    return figures


# Corpora


def read_through(files: list[Path]) -> float:
    view, done = memoryview(aligned((CHUNK,), np.uint8)), 0
    for path in files:
        number, at = os.open(path, os.O_RDONLY), 0
        while got := os.preadv(number, [view], at):
            at += got
        os.close(number)
        done += at
    return done / GIB


def copied(source: Path, target: Path) -> float:
    """Read, written and on disk, as convert leaves its files."""
    with source.open("rb") as old, target.open("wb") as new:
        shutil.copyfileobj(old, new, CHUNK)
        new.flush()
        os.fsync(new.fileno())
    size = target.stat().st_size
    target.unlink()
    return size / GIB


def converted(source: Path, target: Path, to: str) -> float:
    shutil.rmtree(target, ignore_errors=True)
    convert(source, target, to, Stated(dtype="uint16", eot=50_256, vocab=50_257), shard_tokens=SIZE // 8)
    return source.stat().st_size / GIB


def corpus_figures() -> list[Figure]:
    source, target = make_file("passes.bin", SIZE), DIRECTORY / "passes_corpus"
    with source.open("r+b") as file:  # the last document ends too
        file.seek(-2, os.SEEK_END)
        file.write((50_256).to_bytes(2, "little"))
        os.fsync(file.fileno())
    figures = []
    for to in ("lowtide", "megatron", "nanogpt"):
        warm(source)
        ways = {
            "copy": lambda: copied(source, DIRECTORY / "passes_copy.bin"),
            "convert": lambda to=to: converted(source, target, to),
        }
        rates = interleaved(ways, rounds=3, discard=1)
        figures.append(
            Figure(f"convert --to {to}, warm / copy and fsync", rates["convert"], rates["copy"], "GiB/s", 0.8)
        )
    converted(source, target, "lowtide")
    files = sorted(path for path in target.iterdir() if path.suffix in (".bin", ".ends"))

    def checked() -> float:
        found = verify([target])
        assert not found.faults, found.faults
        return found.bytes / GIB

    rates = interleaved({"read": lambda: read_through(files), "verify": checked}, rounds=5, discard=1)
    figures.append(Figure("verify, warm / sequential read", rates["verify"], rates["read"], "GiB/s", 0.85))

    ways = {"read": lambda: read_through(files), "verify": checked}
    rates = interleaved(ways, rounds=5, discard=1, before=lambda: [drop(path) for path in files])
    figures.append(Figure("verify, cold / sequential read", rates["verify"], rates["read"], "GiB/s", 0.85))
    shutil.rmtree(target)
    return figures


# A subset by a mask


def bare_runs(path: Path, mask: NDArray[np.bool_], width: int) -> list[Callable[[], float]]:
    """What the machine allows: the runs of a mask and nothing else, each by one pread or copied from a kept mapping."""
    loop, edges = bare().bare_runs, np.flatnonzero(np.diff(mask, prepend=False, append=False))
    offsets, lengths = edges[::2] * width, (edges[1::2] - edges[::2]) * width
    mapping, into = np.memmap(path, np.uint8, "r"), aligned((CHUNK,), np.uint8)
    assert lengths.max() <= CHUNK
    int(mapping[::4096].sum())

    def through(base: int | None) -> float:
        with path.open("rb") as file:
            came = loop(
                file.fileno(),
                ctypes.c_void_p(base),
                *(ctypes.c_void_p(numbers.ctypes.data) for numbers in (offsets, lengths)),
                ctypes.c_int64(len(offsets)),
                ctypes.c_void_p(into.ctypes.data),
                ctypes.c_int64(CHUNK),
            )
        assert came == int(mask.sum()) * width
        return came / GIB

    return [lambda: through(None), lambda: through(mapping.ctypes.data)]


def subset_figures() -> list[Figure]:
    figures = []
    path = make_file("passes.bin", SIZE)
    warm(path)
    random = np.random.default_rng(0)
    for width, mean_run in ((2048, 1), (256, 1), (2048, 64), (256, 64)):
        with lowtide.open(path, dtype="uint8", shape=(-1, width), cache="keep") as array:
            rows = len(array)
            # Half of the rows: single ones by chance, or runs of this mean length.
            mask = np.repeat(random.random(rows // mean_run + 1) < 0.5, mean_run)[:rows]
            part = array.subset(mask)
            whole = array.subset(slice(0, len(part)))

            def through(what: lowtide.Array, width: int = width) -> float:
                for _ in what.chunks(CHUNK // width):
                    pass
                return what.nbytes / GIB

            reads, copies = bare_runs(path, mask, width)
            ways = {"all": partial(through, whole), "some": partial(through, part), "file": partial(through, array)}
            rates = interleaved({**ways, "reads": reads, "copies": copies}, rounds=5, discard=1)
            what = f"subset by mask, rows of {width} B, runs of {mean_run}"
            figures.append(Figure(f"{what} / chunks", rates["some"], rates["all"], "GiB/s", 0.8))
            limit = max(rates["reads"], rates["copies"])
            figures.append(
                Figure("  in bare C, read or copied from a mapping / chunks", limit, rates["all"], "GiB/s", None)
            )
            figures.append(Figure("  ours / bare C", rates["some"], limit, "GiB/s", None))
            # Of single rows, half of what is copied out of the page cache is not wanted: useful bytes cannot pass half
            # of chunks. So the bytes passed over are shown too.
            if mean_run == 1:
                passed = rates["some"] * array.nbytes / part.nbytes
                figures.append(
                    Figure("  the rows passed over / chunks of the whole file", passed, rates["file"], "GiB/s", 0.8)
                )
    return figures


def main() -> int:
    figures = [*stats_figures(), *corpus_figures(), *subset_figures()]
    (DIRECTORY / "passes.bin").unlink()
    return report("Whole passes: each beside a plain pass", figures)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
