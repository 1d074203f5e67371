"""Rows that are decoded: compressed chunks of HDF5 and Zarr as a file whose blocks a maker makes (``decoding.py``).

Chunks are decoded in *units*: neighbouring chunks of at least 1 MiB together, or one that is larger; chunks that cut
rows into columns belong to the unit of their rows. Every unit begins at a block of its own, so no block needs two of
them and each is decoded once. What lies between the end of one unit and the next block is never read; where there is
such a gap, the extent has one piece per unit.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.blocks.block_file import BLOCK
from lowtide.blocks.objects import Made, reach
from lowtide.errors import FormatError
from lowtide.formats.layout import clip
from lowtide.storage.own_files import seal
from lowtide.storage.watched_files import Extent, FilePieces
from lowtide.units import MIB, format_size

LEAST_UNIT = MIB
MOST_UNIT = 512 * MIB  # more is not decoded: it would have to be held whole
_TICK = 20_000_000  # nanoseconds that a filesystem may have the same time; more than its clock takes
_LOOKS = 4  # at a directory that is being written


def decoded(
    kind: str, path: str, name: str, shape: tuple[int, ...], itemsize: int, band: int, behind: Made | None
) -> tuple[Extent, tuple[str, ...]]:
    """The extent of a chunked array, and what to say of it. ``kind``: "hdf5" or "zarr"; ``band``: rows of a chunk;
    ``behind``: the object that holds it, if it does not lie here."""
    row = math.prod(shape[1:]) * itemsize
    rows = band * max(1, LEAST_UNIT // max(1, band * row))
    rows = max(1, min(rows, shape[0]))
    if rows * row > MOST_UNIT:
        raise FormatError(
            f"{path}, {clip(name)}: expected chunks whose rows are at most {format_size(MOST_UNIT)}, got "
            f"{format_size(rows * row)}. Write it again with smaller chunks."
        )
    length, count = shape[0] * row, -(-shape[0] // rows)
    region = blocks_for(rows * row) if count > 1 else rows * row
    size = max(0, count - 1) * (region - rows * row) + length
    source = None if behind is None else json.loads(behind.source)
    identity = identity_of(kind, path, name) if behind is None else None
    contents = _contents(f"{path}/{name}") if kind == "zarr" and behind is None else ("", 0)
    arguments = {"kind": kind, "path": path, "name": name, "rows": rows, "region": region}
    function = {
        "function": "lowtide.formats.files.decoding:DecodedRows",
        "arguments": {**arguments, "identity": identity, "contents": list(contents), "source": source},
    }
    key = seal("decoded", [path, name, behind.key if behind else identity, contents[0], size, rows, region])
    made = Made(path, key, size, json.dumps(function), behind.reach if behind else reach())
    pieces = None
    if region != rows * row:
        ends = np.minimum(np.arange(1, count + 1) * (rows * row), length)
        pieces = FilePieces(np.arange(count) * region, ends)
    notes = (
        f"decoded by chunks of {band} rows, each once while disk holds it; a full shuffle begins by decoding all of "
        "them, and with less disk than data decodes them many times: state locality=",
    )
    return Extent(path, 0, length, size, pieces=pieces, made=made), notes


def blocks_for(length: int) -> int:
    """Bytes of the blocks that hold so many."""
    return -(-length // BLOCK) * BLOCK


def as_text(offsets: NDArray[np.int64], ends: NDArray[np.int64]) -> str:
    """Where runs begin in a file and end among the data, for a message: there may be a million."""
    import base64  # here: most programs need none of it

    return base64.b64encode(np.stack((offsets, ends)).tobytes()).decode()


def from_text(text: str) -> FilePieces:
    import base64

    return FilePieces(*np.frombuffer(base64.b64decode(text), np.int64).reshape(2, -1))


def identity_of(kind: str, path: str, name: str = "") -> list[Any]:
    """What makes a file this file: device, inode, size and times; of a Zarr array its description's and directory's,
    and those of the directory that was named."""
    names = [path]
    if kind == "zarr":
        names = [f"{path}/{inside}" for inside in (".", *(f"{name}/{one}" for one in ("zarr.json", ".zarray", ".")))]
    found = []
    for one in names:
        try:
            status = os.stat(one)  # noqa: PTH116
        except OSError:
            continue
        found.append([status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns])
    return found


def _contents(directory: str) -> tuple[str, int]:
    """A digest of which files a Zarr array has and when each was written, and the newest of these times: writing into a
    chunk changes nothing else. What was decoded before is not taken for it, and a file that is newer than all were at
    opening is not decoded. Some microseconds per file, once, at opening; twice where one was written just now: what
    is written next could have the same time."""
    for _ in range(_LOOKS):
        began = time.time_ns()
        digest, newest = _looked_at(directory)
        if not 0 <= began - newest < _TICK:
            break
        time.sleep(_TICK / 1e9)
    return digest, newest


def _looked_at(directory: str) -> tuple[str, int]:
    digest, newest = hashlib.blake2b(digest_size=16), 0
    left = [directory]
    while left:
        newest = max(newest, os.stat(left[-1]).st_ctime_ns)  # noqa: PTH116
        with os.scandir(left.pop()) as entries:
            for entry in sorted(entries, key=lambda one: one.name):
                if entry.is_dir(follow_symlinks=False):  # a link might lead back here
                    left.append(entry.path)
                    continue
                try:
                    found = entry.stat()
                except OSError:  # gone meanwhile, or a link to nothing
                    continue
                newest = max(newest, found.st_ctime_ns)
                about = f"{entry.path} {found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}\n"
                digest.update(about.encode("utf-8", "surrogateescape"))
    return digest.hexdigest(), newest
