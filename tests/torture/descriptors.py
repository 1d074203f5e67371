"""Few descriptors: many files, several corpora at once, threads, and a small RLIMIT_NOFILE.

Everything is read and right: descriptors are kept for speed, so fewer of them may cost time but no batch. The limit
leaves room for what the interpreter itself has open.
"""

from __future__ import annotations

import random
import resource
import threading
from pathlib import Path
from typing import Any

import numpy as np
from tests.torture.data import STRATEGIES
from tests.torture.tally import Tally

import lowtide

WIDTH = 16


def write(directory: Path, files: int, first: int) -> Path:
    directory.mkdir()
    for number in range(files):
        start = (first + number) * 4 * WIDTH
        np.arange(start, start + 4 * WIDTH, dtype=np.uint32).tofile(directory / f"{number:04}.u32")
    return directory


def read_all(array: Any, first: int, files: int, seed: int) -> str:
    """A pass in order, one shuffled, one gather over all files: nothing when the rows are right."""
    rows = np.arange(first * 4 * WIDTH, (first + files) * 4 * WIDTH, dtype=np.uint32).reshape(-1, WIDTH)
    if not np.array_equal(np.concatenate([chunk.copy() for chunk in array.chunks(37)]), rows):
        return "chunks are not the files' rows"
    shuffled = np.concatenate([batch.copy() for batch in array.shuffled(64, seed=seed)])
    if not np.array_equal(np.sort(shuffled[:, 0]), rows[:, 0]):
        return "shuffled rows are not the files' rows"
    numbers = np.random.default_rng(seed).integers(0, len(rows), 200)
    return "" if np.array_equal(array[numbers], rows[numbers]) else "gathered rows are not the files' rows"


def program(rng: random.Random, directory: Path, tally: Tally, rounds: int) -> None:
    strategy = rng.choice(STRATEGIES)
    limit = rng.choice((64, 128, 256, 512, 1024))
    corpora = rng.randint(1, 6)
    sizes = [rng.choice((5, 60, 150, 300)) for _ in range(corpora)]
    firsts = [sum(sizes[:k]) for k in range(corpora)]
    places = [write(directory / f"corpus-{k}", size, firsts[k]) for k, size in enumerate(sizes)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    where = f"strategy={strategy}, {corpora} corpora of {sizes} files, {limit} descriptors"
    for _ in range(rounds):
        tally.tried += 1
        tally.fired += sum(sizes) > limit // 2
        together = rng.random() < 0.5
        problems: list[str] = []
        arrays = []
        try:
            for place in places:
                array = lowtide.open(f"{place}/*.u32", dtype="uint32", shape=(-1, WIDTH), strategy=strategy)
                arrays.append(array)
            _read(arrays, firsts, sizes, rng.randrange(99), together, problems)
        except Exception as problem:
            problems.append(f"{type(problem).__name__}: {problem}")
        for array in arrays:
            array.close()
        for words in problems[:1]:
            kind = "wrong rows" if "rows" in words else "refused"
            tally.found(kind, f"{where}{', all at once' if together else ''}: {words}"[:700])
        tally.tell_now_and_then()


def _read(
    arrays: list[Any], firsts: list[int], sizes: list[int], seed: int, together: bool, problems: list[str]
) -> None:
    def work(index: int) -> None:
        try:
            if wrong := read_all(arrays[index], firsts[index], sizes[index], seed):
                problems.append(wrong)
        except Exception as problem:
            problems.append(f"{type(problem).__name__}: {problem}")

    if not together:
        for index in range(len(arrays)):
            work(index)
        return
    running = [threading.Thread(target=work, args=(index,)) for index in range(len(arrays))]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
