"""One tensor of a .safetensors file.

    header length u64 | JSON {"name": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}} | data

One idea: the header is checked as a whole - every tensor in range, none overlapping, no byte left over - before one
of them is believed. Costs the header's own size, which the format bounds at 100 MB. numpy has no BF16 or F8: those
open as the unsigned integers of their bits, with a note; dtypes smaller than a byte are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from lowtide.errors import FormatError
from lowtide.formats.header import MOST_HEADER_BYTES, HeaderFile
from lowtide.formats.layout import Layout, checked_nbytes, clip, one_extent

_DTYPES = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "C64": "<c8",
}
_BITS = {"BF16": "<u2", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E4M3FNUZ": "u1", "F8_E5M2FNUZ": "u1", "F8_E8M0": "u1"}
_INTEGERS = {"U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"}
_SMALLER_THAN_A_BYTE = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}  # bits
_MOST_LISTED = 20


class Tensor(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    begin: int  # counted from the end of the header
    end: int


def looks_like(head: bytes, size: int) -> bool:
    """Whether a file that starts so may be safetensors: a header length that fits, then a JSON object."""
    length = int.from_bytes(head[:8], "little")
    return len(head) >= 10 and 2 <= length <= min(size - 8, MOST_HEADER_BYTES) and head[8:10] in (b'{"', b"{}")


def read(file: HeaderFile, tensor: str | None) -> Layout:
    """The layout of the tensor of that name; without a name the file must hold exactly one."""
    start, tensors = _tensors(file)
    if tensor is None and len(tensors) == 1:
        (tensor,) = tensors
    if tensor not in tensors:
        wanted = "the name of one tensor" if tensor is None else f"a tensor {clip(tensor)}"
        raise FormatError(
            f"{file.path}: expected {wanted}, got {len(tensors)} tensors: {_listed(tensors)}. State tensor='...'."
        )
    return _layout(file, start, tensor, tensors[tensor])


def read_tokens(file: HeaderFile) -> Layout:
    """The layout of the only one-dimensional integer tensor in the file."""
    start, tensors = _tensors(file)
    fitting = {name: t for name, t in tensors.items() if t.dtype in _INTEGERS and len(t.shape) == 1}
    if len(fitting) != 1:
        raise FormatError(
            f"{file.path}: expected one tensor of integers with one axis, got {len(fitting)} among {len(tensors)}: "
            f"{_listed(fitting or tensors)}. Save the tokens in a file of their own."
        )
    ((name, tensor),) = fitting.items()
    return _layout(file, start, name, tensor)


def _layout(file: HeaderFile, start: int, name: str, tensor: Tensor) -> Layout:
    where = f"{file.path}, tensor {clip(name)}"
    if not tensor.shape:
        raise FormatError(f"{where}: expected rows, got a single value of shape []. Load it with safetensors itself.")
    if tensor.dtype in _SMALLER_THAN_A_BYTE:
        raise FormatError(
            f"{where}: expected items of whole bytes, got {tensor.dtype} of {_SMALLER_THAN_A_BYTE[tensor.dtype]} bits. "
            "Convert it with the library that wrote it."
        )
    bits = _BITS.get(tensor.dtype)
    dtype = np.dtype(bits or _DTYPES[tensor.dtype])
    notes = (f"{tensor.dtype} has no numpy dtype: opened as the bits, {dtype}",) if bits else ()
    extent = file.extent(start + tensor.begin, tensor.end - tensor.begin)
    return one_extent("safetensors", dtype, tensor.shape, extent, notes=notes)


def _tensors(file: HeaderFile) -> tuple[int, dict[str, Tensor]]:
    """Where the data starts, and every tensor, checked."""
    lead = file.read(0, 8)
    length = int.from_bytes(lead, "little")
    if len(lead) < 8 or not 2 <= length <= min(file.size - 8, MOST_HEADER_BYTES):
        raise FormatError(
            f"{file.path}: expected a safetensors header of 2 to {MOST_HEADER_BYTES} bytes inside the file, got "
            f"{length} in a file of {file.size}. It is cut short or no safetensors file."
        )
    header = _json(file.read(8, length), file.path)
    tensors = {name: _tensor(name, entry, file.path) for name, entry in header.items() if name != "__metadata__"}
    at = 0
    for tensor in sorted(tensors.values(), key=lambda t: (t.begin, t.end)):
        if tensor.begin != at:
            raise FormatError(
                f"{file.path}: expected a tensor to begin at byte {at}, got {tensor.begin}: a hole or an overlap. "
                "Save it again."
            )
        at = tensor.end
    if at != file.size - 8 - length:
        raise FormatError(
            f"{file.path}: expected {8 + length + at} bytes as its header says, got {file.size}. Copy or save it again."
        )
    return 8 + length, tensors


def _json(text: bytes, where: str) -> Mapping[str, object]:
    try:
        import json  # here: most files are not safetensors, and it takes 1.5 ms

        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:  # bad UTF-8, bad JSON, a number of too many digits, a key twice
        raise FormatError(f"{where}: expected a JSON header, got {clip(str(error))}. Save it again.") from error
    if not isinstance(header, dict):
        raise FormatError(f"{where}: expected a JSON object as header, got {type(header).__name__}. Save it again.")
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _tensor(name: str, entry: object, path: str) -> Tensor:
    where = f"{path}, tensor {clip(name)}"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise FormatError(f"{where}: expected dtype, shape and data_offsets, got {clip(entry)}. Save it again.")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise FormatError(f"{where}: expected a dtype such as 'F32', got {clip(dtype)}. Save it again.")
    if not _integers(shape) or not _integers(offsets) or len(offsets) != 2 or not 0 <= offsets[0] <= offsets[1]:
        raise FormatError(
            f"{where}: expected a shape and two offsets of integers, got {clip(shape)} and {clip(offsets)}. "
            "Save it again."
        )
    count = checked_nbytes(shape, 1, where)
    if dtype in _SMALLER_THAN_A_BYTE:
        expected = count * _SMALLER_THAN_A_BYTE[dtype] // 8
    else:
        known = _DTYPES.get(dtype) or _BITS.get(dtype)
        if known is None:
            raise FormatError(f"{where}: expected a known dtype, got {clip(dtype)}. Convert it first.")
        expected = checked_nbytes(shape, np.dtype(known).itemsize, where)
    if expected != offsets[1] - offsets[0]:
        raise FormatError(
            f"{where}: expected {expected} bytes for {dtype} of shape {clip(shape)}, got {offsets[1] - offsets[0]}. "
            "Save it again."
        )
    return Tensor(dtype, tuple(shape), offsets[0], offsets[1])


def _integers(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int for value in values)


def _listed(tensors: Mapping[str, Tensor]) -> str:
    names = [clip(name, 40) for name in list(tensors)[:_MOST_LISTED]]
    return ", ".join(names) + (f" and {len(tensors) - _MOST_LISTED} more" if len(tensors) > _MOST_LISTED else "")
