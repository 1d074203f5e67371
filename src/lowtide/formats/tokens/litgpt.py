"""lit-gpt's and TinyLlama's packed files.

    "LITPKDS" | version u64 = 1 | dtype code u8 | chunk size u64, in tokens | tokens

The codes are Megatron's with 6 and 7 swapped (6 is float32 here), so there are two tables. Costs one read of 24 bytes.
The tail is padded with the separator token; where it begins is not recorded.
"""

from __future__ import annotations

import struct

import numpy as np

from lowtide.errors import FormatError
from lowtide.formats.header import HeaderFile
from lowtide.formats.layout import Layout, checked_nbytes, one_extent

MAGIC = b"LITPKDS"
HEADER = 24
_PADDED = "lit-gpt fills the end of its last file with the separator id; the padding is read as tokens"
_CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f4", 7: "<f8", 8: "<u2"}


def read(file: HeaderFile) -> Layout:
    """The layout of a packed file; FormatError if header and size disagree."""
    head = file.read(0, HEADER)
    if len(head) < HEADER:
        raise FormatError(
            f"{file.path}: expected a lit-gpt header of {HEADER} bytes, got a file of {file.size}. It is cut short."
        )
    version, code, count = struct.unpack("<QBQ", head[7:])
    if version != 1 or code not in _CODES:
        raise FormatError(
            f"{file.path}: expected lit-gpt version 1 and a dtype code of {list(_CODES)}, got version {version} and "
            f"code {code}. Write it again."
        )
    dtype = np.dtype(_CODES[code])
    length = checked_nbytes((count,), dtype.itemsize, file.path)
    if HEADER + length != file.size:
        raise FormatError(
            f"{file.path}: expected {HEADER + length} bytes ({count} tokens of {dtype} as its lit-gpt header says), "
            f"got {file.size}. Copy or write it again."
        )
    return one_extent("lit-gpt", dtype, (count,), file.extent(HEADER, length), notes=(_PADDED,))
