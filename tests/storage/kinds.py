"""Every kind of file an array can be opened from, each with the same rows as an ordinary NumPy array to compare with.

The rows are made of distinct values, so that a row out of place, doubled or torn cannot go unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAPPED = ("remap", "advise", "map")
CACHES = ("keep", "drop")

RECORD = np.dtype([("id", "<u4"), ("x", ">f4", (3,)), ("tag", "S5")])  # 21 bytes: nothing is aligned in it


@dataclass(frozen=True)
class Made:
    """What to pass to ``lowtide.open``, and the rows it must show."""

    source: Any
    rows: NDArray[Any]
    keywords: dict[str, Any] = field(default_factory=dict)


def numbered(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Distinct values, as far as the dtype has that many."""
    dtype = np.dtype(dtype)
    if dtype.fields is not None:
        rows = np.zeros(shape, dtype)
        flat = rows.reshape(-1)
        flat["id"] = np.arange(len(flat))
        flat["x"] = np.arange(3 * len(flat)).reshape(-1, 3)
        flat["tag"] = [b"%d" % number for number in range(len(flat))]
        return rows
    return np.arange(int(np.prod(shape))).astype(dtype).reshape(shape)


def npy_c(directory: Path, count: int) -> Made:
    rows = numbered((count, 6), "<f4")
    np.save(directory / "c.npy", rows)
    return Made(directory / "c.npy", rows)


def npy_fortran(directory: Path, count: int) -> Made:
    rows = numbered((count, 5, 3), "<f8")
    np.save(directory / "f.npy", np.asfortranarray(rows))
    return Made(str(directory / "f.npy"), rows)


def raw_offset(directory: Path, count: int) -> Made:
    rows = numbered((count, 7), "<u2")
    (directory / "x.u16").write_bytes(b"thirteen byte" + rows.tobytes())
    return Made(directory / "x.u16", rows, {"dtype": "uint16", "shape": (-1, 7), "offset": 13})


def big_endian(directory: Path, count: int) -> Made:
    rows = numbered((count,), ">i4")
    np.save(directory / "big.npy", rows)
    return Made(directory / "big.npy", rows)


def structured(directory: Path, count: int) -> Made:
    rows = numbered((count,), RECORD)
    np.save(directory / "records.npy", rows)
    return Made(directory / "records.npy", rows)


def many_files(directory: Path, count: int) -> Made:
    """Unequal files, one of them a single row and one without any, so that batches and chunks reach over their ends."""
    rows = numbered((count, 4), "<i8")
    cuts = [0, count // 7, count // 7 + 1, count // 7 + 1, count // 2, count]
    paths = []
    for number, (first, last) in enumerate(pairwise(cuts)):
        paths.append(directory / f"part{number}.npy")
        np.save(paths[-1], rows[first:last])
    return Made(paths, rows)


def fortran_files(directory: Path, count: int) -> Made:
    rows = numbered((count, 3, 2), "<i4")
    paths = [directory / "f0.npy", directory / "f1.npy"]
    np.save(paths[0], np.asfortranarray(rows[: count // 3]))
    np.save(paths[1], np.asfortranarray(rows[count // 3 :]))
    return Made(paths, rows)


def memmap(directory: Path, count: int) -> Made:
    """A slice of a memmap that itself begins in the middle of a page."""
    rows = numbered((count + 20, 3), "<i4")
    (directory / "m.bin").write_bytes(b"x" * 4099 + rows.tobytes())
    whole = np.memmap(directory / "m.bin", np.int32, "r", 4099, (count + 20, 3))
    return Made(whole[15 : 15 + count], rows[15 : 15 + count])


KINDS: dict[str, Callable[[Path, int], Made]] = {
    "npy C": npy_c,
    "npy Fortran": npy_fortran,
    "raw with offset": raw_offset,
    "big-endian": big_endian,
    "structured": structured,
    "list of files": many_files,
    "list of Fortran files": fortran_files,
    "memmap": memmap,
}
