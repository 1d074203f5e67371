"""What the tests of the native engine share: a file of noise, runs of it, both engines, and every way that is here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowtide import engine as _native
from lowtide.engine import Engine, Pair, Runs

PYTHON = _native.engine("python")


def native() -> Engine:
    """The native engine; a test that needs it is skipped, loudly, where it cannot be had."""
    try:
        return _native.engine("native")
    except ValueError as problem:
        pytest.skip(f"NOT TESTED: the native engine - {problem}")


def require(way: str) -> None:
    why = native().unavailable()[way]
    if why:
        pytest.skip(f"NOT TESTED: reading misses by {way} - {why}")


def noise(path: Path, size: int, *, seed: int = 0) -> bytes:
    content = np.random.default_rng(seed).bytes(size)
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # dirty pages cannot be dropped
    return content


@contextmanager
def opened(path: Path, *, direct: bool = False) -> Iterator[int]:
    try:
        fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    except OSError as problem:
        if direct:
            pytest.skip(f"NOT TESTED: O_DIRECT - {path.parent} refuses it ({problem.strerror})")
        raise
    try:
        yield fd
    finally:
        os.close(fd)


def forget(fd: int) -> None:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def int64(*numbers: int) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)


def random_runs(fd: int, size: int, count: int, length: int, *, seed: int = 1, direct: int | None = None) -> Runs:
    offsets = np.random.default_rng(seed).integers(0, size - length + 1, count)
    return Runs(fd, offsets, length, None, direct)


def expected(content: bytes, runs: Runs) -> bytes:
    lengths = np.broadcast_to(np.asarray(runs.lengths), len(runs.offsets))
    return b"".join(content[o : o + n] for o, n in zip(runs.offsets.tolist(), lengths.tolist(), strict=True))


def aligned(size: int, dtype: Any = np.uint8) -> NDArray[Any]:
    """An array of its own pages, as the library's buffers are."""
    item = np.dtype(dtype).itemsize
    raw = np.zeros(size * item + 4096, np.uint8)
    first = -raw.ctypes.data % 4096
    return raw[first : first + size * item].view(dtype)


def blank_pair(rows: int, length: int) -> Pair:
    x, y = np.zeros((2, rows, length), np.int64)
    return Pair(x, y, length, "uint16", None)
