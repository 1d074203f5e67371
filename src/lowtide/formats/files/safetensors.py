"""One tensor of a .safetensors file.

    header length u64 | JSON {"name": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}} | data

The header is checked as a whole - every tensor in range, none overlapping, no byte left over, no name twice - before
any of them is used. It is read and parsed whole, after its declared length was compared with the file's size and
with the 100 MB that the format itself allows. That cap bounds the memory too: a model's header takes about nine times
its size while it is parsed (a few MB), a hostile one of nothing but brackets about 30 times (3 GB at most).

numpy has no BF16 or F8: those open as the unsigned integers of their bits, with a note; dtypes smaller than a byte are
refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lowtide.errors import FormatError
from lowtide.formats.files.members import ArrayMember
from lowtide.formats.header import MOST_HEADER_BYTES, HeaderFile
from lowtide.formats.layout import Layout, checked_nbytes, clip, one_extent

WHAT = "tensor"
_NUMPY = {
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
_ITEMSIZES = {name: np.dtype(dtype).itemsize for name, dtype in {**_NUMPY, **_BITS}.items()}
_SMALLER_THAN_A_BYTE = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}  # bits


class _Tensor(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    begin: int  # counted from the end of the header
    end: int


def looks_like(head: bytes, size: int) -> bool:
    """Whether a file that starts like this may be safetensors: a header length that fits, then a JSON object."""
    length = int.from_bytes(head[:8], "little")
    return len(head) >= 10 and 2 <= length <= min(size - 8, MOST_HEADER_BYTES) and head[8:10] in (b'{"', b"{}")


def read(file: HeaderFile, name: str) -> Layout | None:
    """The layout of the tensor of that name; ``None`` if there is none."""
    start, tensors = _header(file)
    tensor = tensors.get(name)
    if tensor is None:
        return None
    where = f"{file.path}, tensor {clip(name)}"
    if not tensor.shape:
        raise FormatError(f"{where}: expected rows, got a single value of shape []. Load it with safetensors itself.")
    if tensor.dtype in _SMALLER_THAN_A_BYTE:
        raise FormatError(
            f"{where}: expected items of whole bytes, got {tensor.dtype} of {_SMALLER_THAN_A_BYTE[tensor.dtype]} bits. "
            "Convert it with the library that wrote it."
        )
    bits = _BITS.get(tensor.dtype)
    dtype = np.dtype(bits or _NUMPY[tensor.dtype])
    notes = (f"{tensor.dtype} has no numpy dtype: opened as its bits, {dtype}",) if bits else ()
    extent = file.extent(start + tensor.begin, tensor.end - tensor.begin)
    return one_extent("safetensors", dtype, tensor.shape, extent, notes=notes)


def members(file: HeaderFile) -> Iterator[ArrayMember]:
    """Every tensor of the file."""
    for name, tensor in _header(file)[1].items():
        bits = _SMALLER_THAN_A_BYTE.get(tensor.dtype)
        why_not = f"{tensor.dtype} of {bits} bits: convert it with the library that wrote it" if bits else ""
        if not tensor.shape:
            why_not = "a single value: load it with safetensors itself"
        dtype = np.dtype(_NUMPY[tensor.dtype]) if tensor.dtype in _NUMPY else None
        integers = dtype is not None and dtype.kind in "iu"
        yield ArrayMember(name, str(dtype or tensor.dtype), tensor.shape, why_not, integers)


def _header(file: HeaderFile) -> tuple[int, dict[str, _Tensor]]:
    """Where the data begins, and every tensor; each is checked, and together they must fill the file."""
    lead = file.read(0, 8)
    length = int.from_bytes(lead, "little")
    if len(lead) < 8 or not 2 <= length <= min(file.size - 8, MOST_HEADER_BYTES):
        raise FormatError(
            f"{file.path}: expected a safetensors header of 2 to {MOST_HEADER_BYTES} bytes inside the file, got "
            f"{length} in a file of {file.size}. It is cut short or not a safetensors file."
        )
    entries = _parsed(file.read_exactly(8, length), file.path)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise FormatError(f"{file.path}: expected a JSON header with text as metadata, got others. Save it again.")
    tensors = {name: _tensor(f"{file.path}, tensor {clip(name)}", entry) for name, entry in entries.items()}
    _refuse_holes(file, 8 + length, tensors)
    return 8 + length, tensors


def _parsed(text: bytes, path: str) -> dict[str, object]:
    import json  # here: most files are not safetensors, and it takes 1.5 ms

    try:
        # Decoded here, because json would also take UTF-16; writers pad with spaces, some with zeros.
        found = json.loads(text.decode("utf-8").rstrip(" \t\r\n\0"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:  # bad UTF-8, bad JSON, a number of too many digits, a key twice
        raise FormatError(f"{path}: expected a JSON header, got {clip(str(error))}. Save it again.") from error
    if not isinstance(found, dict):
        raise FormatError(f"{path}: expected a JSON header, got a {type(found).__name__}. Save it again.")
    return found


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _tensor(where: str, entry: object) -> _Tensor:
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise FormatError(f"{where}: expected dtype, shape and data_offsets, got {clip(entry)}. Save it again.")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise FormatError(f"{where}: expected a dtype such as 'F32', got {clip(dtype)}. Save it again.")
    if not _integers(shape) or not _integers(offsets) or len(offsets) != 2 or not 0 <= offsets[0] <= offsets[1] < 2**63:
        raise FormatError(
            f"{where}: expected a shape and two offsets of integers, got {clip(shape)} and {clip(offsets)}. "
            "Save it again."
        )
    if dtype in _SMALLER_THAN_A_BYTE:
        expected = checked_nbytes(shape, 1, where) * _SMALLER_THAN_A_BYTE[dtype] // 8
    elif dtype in _ITEMSIZES:
        expected = checked_nbytes(shape, _ITEMSIZES[dtype], where)
    else:
        raise FormatError(f"{where}: expected a known dtype, got {clip(dtype)}. Save it as one of {', '.join(_NUMPY)}.")
    if expected != offsets[1] - offsets[0]:
        raise FormatError(
            f"{where}: expected {expected} bytes for {dtype} of shape {clip(shape)}, got {offsets[1] - offsets[0]}. "
            "Save it again."
        )
    return _Tensor(dtype, tuple(shape), offsets[0], offsets[1])


def _integers(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int for value in values)


def _refuse_holes(file: HeaderFile, start: int, tensors: dict[str, _Tensor]) -> None:
    """FormatError unless the tensors, in order of their offsets, follow each other from the first byte to the last."""
    expected = 0
    for begin, end in sorted((tensor.begin, tensor.end) for tensor in tensors.values()):
        if begin != expected:
            raise FormatError(
                f"{file.path}: expected a tensor to begin at byte {expected}, got {begin}: a hole or an overlap. "
                "Save it again."
            )
        expected = end
    if start + expected != file.size:
        raise FormatError(
            f"{file.path}: expected {start + expected} bytes as its header says, got {file.size}. "
            "Copy or save it again."
        )
