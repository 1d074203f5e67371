"""Bytes without a header: dtype, shape and offset are what the caller states.

Nothing is assumed. If the dtype is missing, the error says what the size and the first block suggest; if the size does
not fit, it names the nearest that would. If every axis is stated, bytes after the data are left alone, with a note.
Costs one stat, and one read of 64 KiB only for an error.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lowtide.errors import FormatError
from lowtide.formats.guess import guess_dtype, named_dtype
from lowtide.formats.header import HeaderFile, refuse_empty
from lowtide.formats.layout import Layout, checked_dtype, checked_nbytes, one_extent
from lowtide.formats.refusals import may_be


class MissingDtypeError(FormatError):
    """Nothing in the file says its dtype. ``guess``: what its name says or its first block suggests, if anything."""

    def __init__(self, message: str, guess: str | None = None) -> None:
        super().__init__(message)
        self.guess = guess


_COMMON = ("uint8", "uint16", "uint32", "int64", "float16", "float32", "float64")
_FIRST_BLOCK = 65_536


def read(
    file: HeaderFile, dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None, offset: int, format: str = "raw"
) -> Layout:
    """The layout of a headerless file; one axis of ``shape`` may be -1, and ``None`` means ``(-1,)``."""
    refuse_empty(file)
    if dtype is None:
        raise _missing_dtype(file, offset)
    shape = (-1,) if shape is None else shape
    if dtype.subdtype is not None:  # as np.memmap does: the axes of the item become the last axes of the array
        dtype, shape = dtype.base, shape + dtype.shape
    dtype = checked_dtype(dtype, file.path)
    if offset >= file.size:
        raise FormatError(
            f"{file.path}: expected data after offset {offset}, got a file of {file.size} bytes. Lower offset=."
        )
    shape = _whole_shape(file, dtype, shape, offset)
    length = checked_nbytes(shape, dtype.itemsize, file.path)
    behind = file.size - offset - length
    if behind < 0:
        raise FormatError(
            f"{file.path}: expected {offset + length} bytes (offset {offset}, shape {shape} of {dtype}), "
            f"got {file.size}. {_rows_hint(shape, dtype, file.size - offset)}"
        )
    notes = (f"{behind} bytes after the data were left alone, as shape= says",) if behind else ()
    return one_extent(format, dtype, shape, file.extent(offset, length), notes=notes)


def _whole_shape(file: HeaderFile, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> tuple[int, ...]:
    """``shape`` with its -1 computed from the file's size."""
    if -1 not in shape:
        return shape
    unit = checked_nbytes([axis for axis in shape if axis != -1], dtype.itemsize, file.path)
    if unit == 0:
        raise ValueError(f"{file.path}: expected the axes beside -1 above 0, got shape={shape}. State every axis.")
    count, over = divmod(file.size - offset, unit)
    if over:
        raise FormatError(
            f"{file.path}: expected a multiple of {unit} bytes ({dtype}, shape {shape}) after offset "
            f"{offset}, got {file.size - offset}; nearest are {count * unit} and {(count + 1) * unit}. "
            f"{_divisors_hint(file.size - offset, dtype)}"
        )
    return tuple(count if axis == -1 else axis for axis in shape)


def _rows_hint(shape: tuple[int, ...], dtype: np.dtype[Any], available: int) -> str:
    row = math.prod(shape[1:]) * dtype.itemsize
    if row and available % row == 0:
        return f"State shape={(available // row, *shape[1:])}."
    return "State the shape the file was written with, or the offset its data starts at."


def _divisors_hint(size: int, dtype: np.dtype[Any]) -> str:
    fitting = [name for name in _COMMON if size % np.dtype(name).itemsize == 0 and np.dtype(name) != dtype]
    return f"The file is cut short, or dtype or shape is wrong (the size fits {', '.join(fitting)})."


def _missing_dtype(file: HeaderFile, offset: int) -> FormatError:
    """What to state, from the name, the size and a look at the first block."""
    size = file.size - offset
    fitting = [name for name in _COMMON if size % np.dtype(name).itemsize == 0]
    said = named_dtype(file.path)
    guess = said if said is not None and size % np.dtype(said).itemsize == 0 else None
    if guess is not None:
        advice = f"As its name says: dtype={guess!r}"
    elif (guess := guess_dtype(file.read(offset, _FIRST_BLOCK), fitting)) is not None:
        advice = f"A guess from its first block: dtype={guess!r}"
    else:
        advice = "State the dtype it was written with, which its first block does not tell"
    other = may_be(file.read(0, 16))
    doubt = f" Its first bytes also fit {other}: then unpack or load it first." if other else ""
    return MissingDtypeError(
        f"{file.path}: expected dtype= for a file without a header, got none. "
        f"{advice} ({size} bytes are whole items of {', '.join(fitting)}).{doubt}",
        guess,
    )
