"""One tensor of a .safetensors file.

    header length u64 | JSON {"name": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}} | data

One idea: the header is checked as a whole - every tensor in range, none overlapping, no byte left over - before one
of them is believed. Costs one pass over the header, which ``safetensors_header.py`` reads as a stream. numpy has no
BF16 or F8: those open as the unsigned integers of their bits, with a note; dtypes smaller than a byte are refused.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lowtide.errors import FormatError
from lowtide.formats.header import HeaderFile
from lowtide.formats.layout import Layout, clip, one_extent
from lowtide.formats.members import ArrayMember
from lowtide.formats.safetensors_header import (
    BITS,
    DTYPES,
    MOST_BYTES,
    SMALLER_THAN_A_BYTE,
    Tensor,
    data_start,
    tensors,
)

WHAT = "tensor"


def looks_like(head: bytes, size: int) -> bool:
    """Whether a file that starts so may be safetensors: a header length that fits, then a JSON object."""
    length = int.from_bytes(head[:8], "little")
    return len(head) >= 10 and 2 <= length <= min(size - 8, MOST_BYTES) and head[8:10] in (b'{"', b"{}")


def read(file: HeaderFile, name: str) -> Layout | None:
    """The layout of the tensor of that name; ``None`` where there is none."""
    found = None
    for other, tensor in tensors(file):  # to the end, which checks the whole
        if other == name:
            found = tensor
    return None if found is None else _layout(file, name, found)


def members(file: HeaderFile) -> Iterator[ArrayMember]:
    """Every tensor of the file."""
    for name, tensor in tensors(file):
        bits = SMALLER_THAN_A_BYTE.get(tensor.dtype)
        why_not = f"{tensor.dtype} of {bits} bits: convert it with the library that wrote it" if bits else ""
        if not tensor.shape:
            why_not = "a single value: load it with safetensors itself"
        known = DTYPES.get(tensor.dtype)
        dtype = np.dtype(known) if known else None
        integers = dtype is not None and dtype.kind in "iu"
        yield ArrayMember(name, str(dtype) if dtype is not None else tensor.dtype, tensor.shape, why_not, integers)


def _layout(file: HeaderFile, name: str, tensor: Tensor) -> Layout:
    where = f"{file.path}, tensor {clip(name)}"
    if not tensor.shape:
        raise FormatError(f"{where}: expected rows, got a single value of shape []. Load it with safetensors itself.")
    if tensor.dtype in SMALLER_THAN_A_BYTE:
        raise FormatError(
            f"{where}: expected items of whole bytes, got {tensor.dtype} of {SMALLER_THAN_A_BYTE[tensor.dtype]} bits. "
            "Convert it with the library that wrote it."
        )
    bits = BITS.get(tensor.dtype)
    dtype = np.dtype(bits or DTYPES[tensor.dtype])
    notes = (f"{tensor.dtype} has no numpy dtype: opened as the bits, {dtype}",) if bits else ()
    extent = file.extent(data_start(file) + tensor.begin, tensor.end - tensor.begin)
    return one_extent("safetensors", dtype, tensor.shape, extent, notes=notes)
