"""Megatron's pair of files: tokens in ``X.bin``, sequences and documents in ``X.idx``.

    "MMIDIDX\\0\\0" | version u64 = 1 | dtype code u8 | sequences S u64 | boundaries D u64 |
    int32[S] lengths | int64[S] byte pointers into .bin | int64[D] first sequence of each document, at last S | int8[S]?

The index may be larger than memory, so its three tables are located, their ends and sampled places in between are
checked, and none is loaded. Costs a few small reads. A .bin with gaps between its sequences is not a run of tokens and
is refused.

DeepSpeed writes the same files with other codes from 6 on (6 uint16, 7 uint32, 8 uint64; Megatron: float64, float32,
uint16). The byte pointers tell which item size is meant; code 7 has 4 bytes in both, and is read as tokens if the items
are small integers.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.errors import FormatError
from lowtide.formats.header import HeaderFile
from lowtide.formats.layout import DocumentIndex, Layout, checked_nbytes, one_extent

MAGIC = b"MMIDIDX\x00\x00"
HEADER = 34
_CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
_DEEPSPEED = {6: "<u2", 7: "<u4", 8: "<u8"}
_MODES = "the index has a mode for each sequence (multimodal data), which was not read"
_PLACES = 64  # blocks of the tables that are checked
_LOOKED_AT = 512  # sequences in each


def read(index: HeaderFile, data: HeaderFile, *, tokens: bool = False) -> Layout:
    """The layout of ``data`` as ``index`` describes it; ``tokens``: as integers, if the code leaves it open."""
    head = index.read(0, HEADER)
    if len(head) < HEADER or not head.startswith(MAGIC):
        raise FormatError(
            f"{index.path}: expected a Megatron index of at least {HEADER} bytes, got {index.size}. Copy it again."
        )
    version, code, sequences, boundaries = struct.unpack("<QBQQ", head[9:])
    if version != 1 or code not in _CODES:
        raise FormatError(
            f"{index.path}: expected Megatron version 1 and a dtype code of {list(_CODES)}, got version {version} and "
            f"code {code}. Write it again."
        )
    table = HEADER + 12 * sequences + 8 * boundaries
    if index.size not in (table, table + sequences):  # the longer one has a mode for each sequence (multimodal)
        raise FormatError(
            f"{index.path}: expected {table} bytes for {sequences} sequences and {boundaries} boundaries, got "
            f"{index.size}. Copy it again."
        )
    if sequences == 0 or boundaries < 2:
        raise FormatError(
            f"{index.path}: expected documents, got {sequences} sequences and {boundaries} boundaries. "
            "Write it again or leave it out."
        )
    documents = DocumentIndex(
        kind="megatron",
        path=index.path,
        size=index.size,
        offset=HEADER + 12 * sequences,
        count=boundaries,
        pointers=HEADER + 4 * sequences,
        sequences=sequences,
        made=index.made,
    )
    dtype, count = _dtype_and_count(index, data, documents, code, tokens=tokens)
    extent = data.extent(0, checked_nbytes((count,), dtype.itemsize, data.path))
    notes = [_MODES] if index.size != table else []
    if dtype != _CODES[code]:
        notes.append(f"dtype code {code} is {dtype} as DeepSpeed writes it, not Megatron's {np.dtype(_CODES[code])}")
    layout = one_extent("megatron", dtype, (count,), extent, notes=tuple(notes))
    return replace(layout, documents=(documents,))


def _dtype_and_count(
    index: HeaderFile, data: HeaderFile, tables: DocumentIndex, code: int, *, tokens: bool
) -> tuple[np.dtype[Any], int]:
    """What the code means - Megatron's dtype, or DeepSpeed's if only that fits the pointers - and how many items."""
    dtypes = [np.dtype(_CODES[code])]
    if code in _DEEPSPEED:
        dtypes.append(np.dtype(_DEEPSPEED[code]))
    if tokens and code == 7 and _like_ids(data):
        dtypes.reverse()
    problem: FormatError | None = None
    for dtype in dtypes:
        try:
            return dtype, _checked_tables(index, data, tables, dtype.itemsize)
        except FormatError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _like_ids(data: HeaderFile) -> bool:
    """Whether the first 4-byte items are ids: floats other than 0, read as integers, are around a thousand million."""
    block = data.read(0, _LOOKED_AT * 4)
    return bool(np.max(np.frombuffer(block[: len(block) // 4 * 4], "<u4"), initial=0) < 2**24)


def _checked_tables(index: HeaderFile, data: HeaderFile, tables: DocumentIndex, itemsize: int) -> int:
    """How many tokens the tables give, after checks at their ends and at places in between."""
    last = tables.sequences - 1
    places = dict.fromkeys([*range(0, last + 1, max(last // _PLACES, _LOOKED_AT)), last])
    for first in places:
        count, reach = min(_LOOKED_AT, last + 1 - first), min(_LOOKED_AT + 1, last + 1 - first)
        lengths = np.frombuffer(index.read_exactly(HEADER + 4 * first, 4 * count), "<i4")
        pointers = np.frombuffer(index.read_exactly(tables.pointers + 8 * first, 8 * reach), "<i8")
        _refuse_gaps(index.path, first, lengths.astype(np.int64) * itemsize, pointers)
        if first == 0 and pointers[0] != 0:
            raise FormatError(
                f"{index.path}: expected the first sequence at byte 0, got {pointers[0]}. Write it again."
            )
    end = int(pointers[lengths.size - 1]) + int(lengths[-1]) * itemsize
    if end != data.size:
        raise FormatError(
            f"{data.path}: expected {end} bytes as {index.path} says, got {data.size}. Copy or write the pair again."
        )
    ends = [_boundary(index, tables, k) for k in (0, tables.count - 1)]
    if ends != [0, tables.sequences]:
        raise FormatError(
            f"{index.path}: expected document boundaries from 0 to {tables.sequences}, got {ends[0]} to {ends[1]}. "
            "Write it again."
        )
    return end // itemsize


def _refuse_gaps(path: str, first: int, sizes: npt.NDArray[np.int64], pointers: npt.NDArray[np.int64]) -> None:
    """FormatError unless each sequence ends where the next begins."""
    inner = pointers.size - 1
    wrong = np.flatnonzero(pointers[:inner] + sizes[:inner] != pointers[1:])
    if (sizes < 0).any() or (pointers < 0).any():
        raise FormatError(f"{path}: expected lengths and pointers of 0 or more, got a negative one. Write it again.")
    if wrong.size:
        at = int(wrong[0])
        raise FormatError(
            f"{path}: expected sequence {first + at + 1} at byte {int(pointers[at]) + int(sizes[at])}, "
            f"got {pointers[at + 1]}: "
            "sequences with gaps or out of order are not a run of tokens. Write the pair again."
        )


def _boundary(index: HeaderFile, tables: DocumentIndex, k: int) -> int:
    return int.from_bytes(index.read_exactly(tables.offset + 8 * k, 8), "little", signed=True)
