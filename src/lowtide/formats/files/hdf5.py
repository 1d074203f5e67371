"""One dataset of an HDF5 file, read where it lies, or decoded by chunk.

h5py is asked once for a dataset's dtype, shape and the offset of its bytes, or of each of its chunks, by the maker
(``hdf5_inside.py``): hostile bytes can end that process, not the program. After that, rows are read as from any other
file, without h5py and its lock. Costs starting the maker, which opens the file with h5py (extra ``hdf5``), and 3
microseconds per chunk. Chunks that went through filters or cut rows into columns become blocks of a local file, decoded
when they are first needed. Behind an address the same holds of the object's own blocks.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from lowtide.blocks.asking import MAKER
from lowtide.formats.files.decoded_rows import decoded, from_text
from lowtide.formats.files.members import ArrayMember
from lowtide.formats.header import HeaderFile
from lowtide.formats.layout import Layout, checked_dtype, checked_nbytes, clip, one_extent
from lowtide.formats.refusals import as_typed

WHAT = "dataset"
MAGIC = b"\x89HDF\r\n\x1a\n"
SUFFIXES = (".h5", ".hdf5", ".he5", ".hdf", ".nc")
_USER_BLOCKS = [512 << k for k in range(8)]  # the signature may follow a block of the user's own
_INSIDE = "lowtide.formats.files.hdf5_inside"


def looks_like(file: HeaderFile, head: bytes) -> bool:
    """Whether the file carries HDF5's signature, at its start or after a user block."""
    if head.startswith(MAGIC):
        return True
    return file.path.lower().endswith(SUFFIXES) and any(file.read(at, 8) == MAGIC for at in _USER_BLOCKS)


def read(file: HeaderFile, name: str) -> Layout | None:
    """The layout of the dataset of that name; ``None`` where there is none."""
    said = MAKER.call(f"{_INSIDE}:dataset", {**_named(file), "name": name})
    if said is None:
        return None
    where = f"{file.path}, dataset {clip(name)}"
    dtype = checked_dtype(np.lib.format.descr_to_dtype(ast.literal_eval(said["dtype"])), where)
    shape = tuple(said["shape"])
    length = checked_nbytes(shape, dtype.itemsize, where)
    if said["path"] == file.path:
        return _placed(file, said, dtype, shape, length, ())
    with HeaderFile(said["path"]) as holder:
        notes = (f"a link leads to {holder.path}, which is read instead",)
        return _placed(holder, said, dtype, shape, length, notes)


def members(file: HeaderFile) -> Iterator[ArrayMember]:
    """Every dataset of the file, by its path from the root."""
    for name, dtype, shape, why_not, integers in MAKER.call(f"{_INSIDE}:datasets", _named(file)):
        yield ArrayMember(name, dtype, tuple(shape), why_not, integers)


def _placed(
    file: HeaderFile, said: dict[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...], length: int, notes: Any
) -> Layout:
    """The layout of what lies in ``file`` as h5py said."""
    if said["band"]:
        made, notes_of = decoded("hdf5", file.path, said["name"], shape, dtype.itemsize, said["band"], file.made)
        return one_extent("hdf5", dtype, shape, made, notes=(*notes, *notes_of))
    extent = file.extent(said["offset"], length)
    if said["runs"] is not None:
        pieces = from_text(said["runs"])
        count = len(pieces.offsets)
        if count > 1:
            extent = replace(extent, pieces=pieces)
        runs = "run" if count == 1 else "runs"
        notes = (*notes, f"chunks of {said['rows']:,} rows, read where they lie: {count:,} {runs} of bytes")
    return one_extent("hdf5", dtype, shape, extent, notes=notes)


def _named(file: HeaderFile) -> dict[str, Any]:
    """The file as the maker opens it."""
    source = None if file.made is None else json.loads(file.made.source)
    return {"path": file.path, "typed": file.path if source else as_typed(file.path), "source": source}
