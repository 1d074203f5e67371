"""One array of a Zarr directory, version 2 or 3, sharded or not, decoded chunk by chunk.

Its rows become blocks of a local file (``blocks/``), decoded when they are first needed and read from then on like any
other file's. Costs starting the maker, and reading the description; zarr (extra ``zarr``) is imported only there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from lowtide.blocks.asking import MAKER
from lowtide.errors import FormatError
from lowtide.formats.files.decoded_rows import decoded
from lowtide.formats.layout import Layout, checked_dtype, checked_nbytes, clip, one_extent
from lowtide.storage.watched_files import Extent

_MOST_LISTED = 20


def looks_like(path: str) -> bool:
    """Whether a directory is a Zarr array or group."""
    return any((Path(path) / name).is_file() for name in ("zarr.json", ".zarray", ".zgroup"))


def read(path: str, tensor: str | None) -> Layout:
    """The layout of the array, or of the one of that name in a group."""
    path = os.path.abspath(path)  # noqa: PTH100
    said = MAKER.call("lowtide.formats.files.zarr:described", {"path": path, "tensor": (tensor or "").strip("/")})
    where = path if not said["name"] else f"{path}, array {clip(said['name'])}"
    dtype, shape = checked_dtype(np.dtype(said["dtype"]), where), tuple(said["shape"])
    length = checked_nbytes(shape, dtype.itemsize, where)
    if not shape:
        raise FormatError(f"{where}: expected rows, got a single value of shape (). Read it with zarr.")
    if length == 0:
        raise FormatError(f"{where}: expected data, got shape {shape} without any. Leave it out.")
    made = decoded("zarr", path, said["name"], shape, dtype.itemsize, said["band"])
    notes = (f"decoded by chunks of {said['band']} rows, each once; a full shuffle begins by decoding all of them",)
    return one_extent("zarr", dtype, shape, Extent(path, 0, length, length, made=made), notes=notes)


def described(path: str, tensor: str) -> dict[str, Any]:
    """What zarr says of an array; runs in the maker."""
    try:
        import zarr
    except ImportError:
        raise FormatError(
            f"{path}: expected zarr to decode a Zarr array, got none installed. Install it: pip install "
            "'lowtide[zarr]'."
        ) from None
    try:
        opened: Any = zarr.open(path, mode="r")
        if isinstance(opened, zarr.Group):
            names = sorted(name for name, item in opened.members(max_depth=None) if isinstance(item, zarr.Array))
            name = tensor or (names[0] if len(names) == 1 else "")
            if name not in names:
                listed = ", ".join(clip(one, 40) for one in names[:_MOST_LISTED]) or "none"
                expected = f"an array {clip(tensor)}" if tensor else "the name of one array"
                advice = f"State tensor={names[0]!r}" if names else "Name another directory"
                raise FormatError(f"{path}: expected {expected}, got {len(names)} arrays: {listed}. {advice}.")
            opened = opened[name]
        elif tensor:
            raise FormatError(f"{path}: expected a group for tensor={tensor!r}, got one array. Leave tensor= out.")
        else:
            name = ""
        dtype = np.dtype(opened.dtype)
        outer = getattr(opened, "shards", None) or opened.chunks
        band = int(outer[0]) if opened.shape else 1
        return {"name": name, "dtype": dtype.str, "shape": list(opened.shape), "band": max(1, band)}
    except FormatError:
        raise
    except Exception as problem:  # of hostile descriptions zarr raises what it likes
        raise FormatError(
            f"{path}: expected a Zarr array, got one that zarr cannot open ({clip(str(problem))}). Copy it again."
        ) from None
