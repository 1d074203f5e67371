"""The ``np.memmap`` someone already has: its file, offset, dtype, shape and order.

A slice of a memmap keeps the ``offset`` of the whole, so the true one is computed from where its data is in the
mapping. Costs a stat; touches no page of the data. Later reads see the file, not the map, so a copy-on-write map, whose
changes never reach the file, is refused.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.errors import FormatError
from lowtide.formats.header import HeaderFile
from lowtide.formats.layout import Layout, checked_dtype, checked_nbytes, one_extent

_UNSAVED = "the memmap is writable: Lowtide reads what is on disk, so flush() it first"


def read(array: npt.NDArray[Any]) -> Layout:
    """The layout of the file bytes that ``array`` shows: a memmap, or any view of one."""
    whole = _owner(array)
    mapping = None if whole is None else getattr(whole, "_mmap", None)
    if whole is None or mapping is None or whole.filename is None:
        if not isinstance(array, np.memmap):
            raise TypeError(
                "source: expected a path or np.memmap, got an array that is in memory already. Use it as it is."
            )
        raise FormatError(
            "memmap: expected a memmap of a named file, got one without a file (a copy, or a temporary one). "
            "Pass the path of the file."
        )
    path = os.fspath(whole.filename)
    if whole.mode == "c":
        raise ValueError(
            f"{path}: expected a memmap of mode 'r' or 'r+', got mode 'c' (copy on write), whose changes are in memory "
            "only while Lowtide reads the file. Open it with mode='r', or save the changed array with np.save first."
        )
    checked_dtype(array.dtype, path)
    if array.ndim == 0:
        raise FormatError(f"{path}: expected rows, got a memmap of shape (). Pass one with at least one axis.")
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise FormatError(
            f"{path}: expected a memmap of consecutive bytes, got a strided view (strides {array.strides}). "
            "Open the whole memmap and index what lowtide.open returns."
        )
    length = checked_nbytes(array.shape, array.dtype.itemsize, path)
    offset = int(whole.offset) if length == 0 else _file_offset(array, whole, mapping, path)
    with HeaderFile(path) as file:
        _same_file(file, mapping, offset + length)
        writable = whole.mode in ("r+", "w+")
        notes = (_UNSAVED,) if writable else ()
        fortran = not array.flags.c_contiguous
        extent = replace(file.extent(offset, length), may_change=writable)  # its owner may write to it while we read
        return one_extent("memmap", array.dtype, array.shape, extent, fortran=fortran, notes=notes)


def _owner(array: npt.NDArray[Any]) -> np.memmap[Any, Any] | None:
    """The memmap that ``array`` is or is a view of; np.asarray and empty slices hide it behind a plain array."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        if isinstance(owner, np.memmap) and isinstance(getattr(owner, "_mmap", None), mmap.mmap):
            return owner
        owner = owner.base
    return None


def _file_offset(array: npt.NDArray[Any], whole: np.memmap[Any, Any], mapping: mmap.mmap, path: str) -> int:
    try:
        first_byte = np.frombuffer(mapping, dtype=np.uint8)
    except ValueError as error:
        raise FormatError(f"{path}: expected an open memmap, got a closed one. Pass the path of the file.") from error
    inside = int(array.__array_interface__["data"][0]) - int(first_byte.__array_interface__["data"][0])
    if not 0 <= inside <= inside + array.nbytes <= first_byte.size:
        raise FormatError(f"{path}: expected data inside its own mapping, got a view of other memory. Pass the path.")
    # np.memmap maps from the page below the offset it was given, and every view of it keeps that offset.
    return int(whole.offset) // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY + inside


def _same_file(file: HeaderFile, mapping: mmap.mmap, end: int) -> None:
    """FormatError if the name no longer leads to the file that was mapped, as far as sizes can tell."""
    try:
        mapped = mapping.size()
    except (OSError, ValueError):  # the mapping's own descriptor is gone: then only the end can be checked
        mapped = file.size
    if file.size != mapped or file.size < end:
        raise FormatError(
            f"{file.path}: expected the {max(mapped, end)} bytes the memmap was made from, got a file of "
            f"{file.size}. It was replaced or cut: make the memmap again."
        )
