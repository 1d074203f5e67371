"""Checks of bytes and ids in Python, as the C core makes them: checksums, and ids held against a vocabulary."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
