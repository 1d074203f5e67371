"""What kind of data a file holds, by its first bytes, so that a repair can be named that works for it.

One idea: look only at what is in the page cache already. A read that would go to the disk brings in a read-ahead window
and changes what is being measured, so it is refused (RWF_NOWAIT) and the name's ending decides instead.
"""

from __future__ import annotations

import os
from pathlib import PurePath

_MAGIC = {
    b"\x93NUMPY": "npy",
    b"ARROW1": "arrow",
    b"\xff\xff\xff\xff": "arrow",  # a stream, as HF datasets writes it
    b"PAR1": "parquet",
    b"\x89HDF": "hdf5",
    b"PK\x03\x04": "zip",
    b"\x1f\x8b": "gzip",
    b"SQLite format": "sqlite",
    b"\x7fELF": "program",
}
_ENDINGS = {
    ".npy": "npy",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".parquet": "parquet",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".npz": "zip",
    ".zip": "zip",
    ".pt": "zip",
    ".gz": "gzip",
    ".safetensors": "safetensors",
    ".gguf": "gguf",
    ".so": "program",
}


def format_by_name(path: str) -> str:
    """The same of a file that cannot be looked at: its name's ending decides."""
    return _ENDINGS.get(PurePath(path.removesuffix(" (deleted)")).suffix.lower(), "")


def format_of(fd: int, path: str) -> str:
    """npy, arrow, parquet, hdf5, zip, gzip, safetensors, sqlite, gguf or program; "" for bytes without a header."""
    head = bytearray(16)
    try:
        os.preadv(fd, [head], 0, getattr(os, "RWF_NOWAIT", 0))
    except OSError:
        return format_by_name(path)
    if head[8:10] == b'{"':  # a length of eight bytes, then JSON
        return "safetensors"
    known = next((word for magic, word in _MAGIC.items() if head.startswith(magic)), None)
    return known if known is not None else format_by_name(path)
