"""One array of a Zarr directory, version 2 or 3, sharded or not, here or behind an address, decoded chunk by chunk.

Its rows become blocks of a local file (``blocks/``), decoded when they are first needed and read from then on like any
other file's. Costs starting the maker, and reading the description; zarr (extra ``zarr``) is imported only there.
"""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path

import numpy as np

from lowtide.blocks.addresses import shown
from lowtide.blocks.asking import MAKER
from lowtide.blocks.objects import Made, normal_address, reach
from lowtide.errors import FormatError
from lowtide.formats.files.decoded_rows import decoded
from lowtide.formats.layout import Layout, checked_dtype, checked_nbytes, clip, one_extent
from lowtide.storage.own_files import seal


def looks_like(path: str) -> bool:
    """Whether a directory is a Zarr array or group; of an address its name tells."""
    address = normal_address(path)
    if address is not None:
        return re.search(r"\.zarr(/|$)", shown(address)) is not None
    return any((Path(path) / name).is_file() for name in ("zarr.json", ".zarray", ".zgroup"))


def read(path: str, tensor: str | None) -> Layout:
    """The layout of the array, or of the one of that name in a group."""
    address, reached = normal_address(path), reach()
    path = os.path.abspath(path) if address is None else shown(address)  # noqa: PTH100
    source = None if address is None else {"address": address, "options": json.loads(reached.options)}
    question = {"path": path, "source": source, "tensor": (tensor or "").strip("/")}
    said = MAKER.call("lowtide.formats.files.zarr_inside:described", question)
    where = path if not said["name"] else f"{path}, array {clip(said['name'])}"
    dtype = checked_dtype(np.lib.format.descr_to_dtype(ast.literal_eval(said["dtype"])), where)
    shape = tuple(said["shape"])
    checked_nbytes(shape, dtype.itemsize, where)
    if not shape:
        raise FormatError(f"{where}: expected rows, got a single value of shape (). Read it with zarr.")
    behind = None
    if source is not None:
        behind = Made(path, seal("zarr", [path, said["pinned"]]), 0, json.dumps(source), reached)
    extent, notes = decoded("zarr", path, said["name"], shape, dtype.itemsize, said["band"], behind)
    return one_extent("zarr", dtype, shape, extent, notes=notes)
