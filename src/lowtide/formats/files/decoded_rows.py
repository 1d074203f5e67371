"""Rows that are decoded: what a maker does for compressed chunks of HDF5 and Zarr.

The decoded array is a file of rows in C order; its blocks are made from whole chunks along the first axis (a *band*:
chunks that cut rows into columns are decoded together). A band is decoded once for all its blocks, and the last few are
kept for the blocks they share with their neighbours. h5py and zarr run in the maker only: hostile bytes can end the
maker, not the program. A chunk that cannot be decoded is a ``ReadError`` naming it; rows elsewhere still read.

Costs one band at a time, at most ``KEPT_BYTES`` of them kept.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from lowtide.blocks.objects import Made, reach
from lowtide.errors import FormatError, ReadError
from lowtide.formats.layout import clip
from lowtide.storage.own_files import seal
from lowtide.units import MIB, format_size

KEPT_BYTES = 16 * MIB
MOST_BAND = 512 * MIB  # more is not decoded: it would have to be held whole

Write = Callable[[int, Any], None]


class DecodedRows:
    """Rows of an array that ``opened`` gives; bytes of them by band. ``kind``: "hdf5" or "zarr"."""

    def __init__(self, kind: str, path: str, name: str, band: int, identity: Any) -> None:
        self.path, self.name, self.identity = path, name, identity
        self._kind, self._rows_per_band = kind, band
        self._array: Any = None
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._turn = threading.Lock()

    def make(self, offset: int, length: int, write: Write) -> None:
        """The decoded bytes at ``offset``, in order, to ``write``."""
        with self._turn:
            array = self._opened()
            row = math.prod(array.shape[1:]) * array.dtype.itemsize
            size = self._rows_per_band * row
            end = offset + length
            for number in range(offset // size, -(-end // size)):
                band = self._band(array, number)
                first, last = max(offset, number * size), min(end, number * size + len(band))
                write(first, memoryview(band)[first - number * size : last - number * size])

    def covering(self, first: int, last: int) -> tuple[int, int]:
        """The bytes of all bands that these bytes touch."""
        array = self._opened()
        size = self._rows_per_band * math.prod(array.shape[1:]) * array.dtype.itemsize
        return first // size * size, min(-(-last // size) * size, math.prod(array.shape) * array.dtype.itemsize)

    def _opened(self) -> Any:
        if self._array is None:
            self._array = _OPEN[self._kind](self.path, self.name)
        return self._array

    def _band(self, array: Any, number: int) -> bytes:
        known = self._kept.pop(number, None)
        if known is None:
            first = number * self._rows_per_band
            if identity_of(self._kind, self.path) != self.identity:
                raise ReadError(
                    f"{self.path}: expected the file that was opened, got it changed meanwhile. Open it again.",
                    path=self.path,
                    offset=0,
                )
            try:
                known = np.ascontiguousarray(array[first : first + self._rows_per_band]).tobytes()
            except Exception as problem:  # of damaged bytes decoders raise what they like
                index = (number, *(0 for _ in array.shape[1:]))
                raise ReadError(
                    f"{self.path}, {clip(self.name)}: expected chunk {index} (rows {first} to "
                    f"{min(first + self._rows_per_band, array.shape[0])}) whole, got one that cannot be decoded "
                    f"({clip(str(problem))}). Copy or write the file again; other rows can be read.",
                    path=self.path,
                    offset=first,
                ) from None
        self._kept[number] = known
        while len(self._kept) > 1 and sum(map(len, self._kept.values())) > KEPT_BYTES:
            self._kept.popitem(last=False)
        return known


def decoded(kind: str, path: str, name: str, shape: tuple[int, ...], itemsize: int, band: int) -> Made:
    """What the rows of a chunked array are made of; ``band``: rows of a chunk."""
    size = math.prod(shape) * itemsize
    held = min(band, shape[0]) * math.prod(shape[1:]) * itemsize
    if held > MOST_BAND:
        raise FormatError(
            f"{path}, {clip(name)}: expected chunks whose rows are at most {format_size(MOST_BAND)}, got "
            f"{format_size(held)}. Write it again with smaller chunks."
        )
    identity = identity_of(kind, path)
    arguments = {"kind": kind, "path": path, "name": name, "band": band, "identity": identity}
    source = {"function": "lowtide.formats.files.decoded_rows:DecodedRows", "arguments": arguments}
    return Made(path, seal("decoded", [path, name, identity, size, band]), size, json.dumps(source), reach())


def identity_of(kind: str, path: str) -> list[Any]:
    """What makes a file this file: device, inode, size and times; of a Zarr directory its description's."""
    names = [path] if kind == "hdf5" else [f"{path}/{name}" for name in ("zarr.json", ".zarray", ".")]
    found = []
    for name in names:
        try:
            status = os.stat(name)  # noqa: PTH116
        except OSError:
            continue
        found.append([status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns])
    return found


def _hdf5(path: str, name: str) -> Any:
    import h5py

    _with_filters()
    return h5py.File(path, "r")[name]


def _with_filters() -> None:
    """hdf5plugin's filters, where it is installed."""
    with contextlib.suppress(ImportError):
        import hdf5plugin  # noqa: F401


def _zarr(path: str, name: str) -> Any:
    import zarr

    return zarr.open_array(f"{path}/{name}" if name else path, mode="r")


_OPEN = {"hdf5": _hdf5, "zarr": _zarr}
