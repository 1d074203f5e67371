"""Checks of bytes and ids in Python, as the C core makes them: checksums, and ids compared with a vocabulary."""

from __future__ import annotations

import os
import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class IdsWithin(NamedTuple):
    """Ids of ``dtype``, ``skip`` bytes after the beginning, that must be from 0 to ``vocab - 1``."""

    dtype: np.dtype[Any]
    vocab: int
    skip: int = 0


class Checked(NamedTuple):
    """Bytes read, their checksum if it was wanted, and the first id outside of its vocabulary; -1: none."""

    got: int
    crc: int
    outside: int


def crc32(bytes: Any, crc: int) -> int:
    return zlib.crc32(bytes, crc)


def crc32_of_ids(ids: NDArray[Any], crc: int) -> int:
    """Of the ids as little-endian int64, so that ids of any type can be compared."""
    return zlib.crc32(np.ascontiguousarray(ids, "<i8").data, crc)


def first_outside(ids: NDArray[Any], vocab: int) -> int:
    """Where the first id stands that is not from 0 to ``vocab - 1``; -1: nowhere."""
    if not ids.size or (int(ids.max()) < vocab and int(ids.min()) >= 0):
        return -1
    return int(np.flatnonzero((ids >= vocab) | (ids < 0))[0])


def read_checked(fd: int, offset: int, into: memoryview, *, summed: bool, ids: IdsWithin | None) -> Checked:
    """Bytes of a file from ``offset`` on, fewer than ``into`` holds only where the file ends; their checks."""
    done = 0
    while done < len(into) and (got := os.preadv(fd, [into[done:]], offset + done)):
        done += got
    return checks_of(into[:done], summed=summed, ids=ids)


def checks_of(bytes: memoryview, *, summed: bool, ids: IdsWithin | None) -> Checked:
    """The same of bytes that were read already."""
    outside = -1
    if ids is not None:
        some = bytes[ids.skip :]
        size = ids.dtype.itemsize
        outside = first_outside(np.frombuffer(some[: len(some) // size * size], ids.dtype), ids.vocab)
    return Checked(len(bytes), zlib.crc32(bytes) if summed else 0, outside)
