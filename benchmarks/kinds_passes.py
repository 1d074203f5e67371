"""One pass over a file, eight ways: a small program for kinds_pictures.py to watch from outside.

``kinds_passes.py WAY FILE`` imports what it needs, says "ready" and starts at the first line it is sent, so that
what is measured is the pass and not the imports. ``chunks_*`` read the whole file in order, ``rows_*`` rows in
shuffled order; each comes as a plain memmap, with the two known cures, and through Lowtide.
"""

from __future__ import annotations

import mmap
import sys
import time
from collections.abc import Callable, Iterable

import numpy as np

import lowtide
from lowtide.units import GIB, MIB

SIZE, CHUNK, ROW, BATCH = GIB, 16 * MIB, 4096, 64
BATCHES = 256  # of shuffled rows: 64 MiB of rows asked for
PAUSE = 0.02  # seconds of "work" a chunk, so that the course of a pass can be seen


def chunks() -> Iterable[int]:
    for start in range(0, SIZE, CHUNK):
        time.sleep(PAUSE)
        yield start


def batches() -> Iterable[np.ndarray]:
    order = np.random.default_rng(0).permutation(SIZE // ROW)
    for place in range(BATCHES):
        time.sleep(PAUSE / 2)
        yield order[place * BATCH : (place + 1) * BATCH]


def rows_of(path: str) -> np.memmap:
    return np.memmap(path, np.uint8, "r", shape=(SIZE // ROW, ROW))


def chunks_plain(path: str) -> None:
    array = np.memmap(path, np.uint8, "r")
    for start in chunks():
        array[start : start + CHUNK].max()


def chunks_recreate(path: str) -> None:
    for start in chunks():
        array = np.memmap(path, np.uint8, "r")
        array[start : start + CHUNK].max()


def chunks_madvise(path: str) -> None:
    array = np.memmap(path, np.uint8, "r")
    for start in chunks():
        array[start : start + CHUNK].max()
        array._mmap.madvise(mmap.MADV_DONTNEED)


def chunks_lowtide(path: str) -> None:
    with lowtide.open(path, dtype="uint8", budget="64MiB", cache="drop") as array:
        for chunk in array.chunks(CHUNK):
            chunk.max()
            time.sleep(PAUSE)


def rows_plain(path: str) -> None:
    array = rows_of(path)
    for rows in batches():
        array[rows].max()


def rows_recreate(path: str) -> None:
    for rows in batches():
        rows_of(path)[rows].max()


def rows_madvise(path: str) -> None:
    array = rows_of(path)
    for rows in batches():
        array[rows].max()
        array._mmap.madvise(mmap.MADV_DONTNEED)


def rows_lowtide(path: str) -> None:
    with lowtide.open(path, dtype="uint8", shape=(-1, ROW), budget="64MiB", cache="drop") as array:
        for rows, _ in zip(array.shuffled(BATCH, seed=0), range(BATCHES), strict=False):
            rows.max()
            time.sleep(PAUSE / 2)


WAYS: dict[str, Callable[[str], None]] = {
    way.__name__: way
    for way in (
        *(chunks_plain, chunks_recreate, chunks_madvise, chunks_lowtide),
        *(rows_plain, rows_recreate, rows_madvise, rows_lowtide),
    )
}

if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    WAYS[sys.argv[1]](sys.argv[2])
