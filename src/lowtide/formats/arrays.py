"""From what a caller names to the layout of one array.

A file's own header decides; what the caller states must agree with it, and is needed only if there is no header. Costs
one open and one small read per file. For corpora, see ``tokens/token_files.py``.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from lowtide.blocks.objects import normal_address
from lowtide.errors import FormatError
from lowtide.formats.files import memmap, raw, zarr
from lowtide.formats.foreign_directories import refuse_foreign_directory
from lowtide.formats.header import HeaderFile
from lowtide.formats.layout import Layout, agree, join, stated_dtype
from lowtide.formats.recognise import recognised
from lowtide.formats.refusals import refuse_foreign
from lowtide.formats.sources import Mapped, Source, named


def layout_of(
    source: Source,
    *,
    dtype: npt.DTypeLike | None = None,
    shape: SupportsIndex | Iterable[SupportsIndex] | None = None,
    offset: int = 0,
    tensor: str | None = None,
) -> Layout:
    """The layout of the array that ``source`` names: a path, an ``np.memmap``, a list of them or a glob.

    ``dtype``, ``shape`` (one axis may be -1) and ``offset`` describe headerless files; ``tensor`` names one array
    of a ``.safetensors``, ``.npz`` or HDF5 file. With several files, the first axis of ``shape`` is -1 or the sum of
    their rows.
    """
    stated = stated_dtype(dtype)
    wanted = None if shape is None else _stated_shape(shape)
    if not hasattr(offset, "__index__"):
        raise TypeError(f"offset: expected a number of bytes, got {offset!r}. Use offset=0.")
    start = operator.index(offset)
    if start < 0:
        raise ValueError(f"offset: expected 0 or more, got {start}. Count bytes from the start of the file.")
    files = named(source)
    if len(files) == 1:
        return _layout(files[0], stated, wanted, start, tensor)
    each = wanted
    if wanted is not None:
        if -1 in wanted[1:]:
            raise ValueError(
                f"shape: expected every axis but the first to be stated for {len(files)} files, got {wanted}. "
                "Use -1 for the first axis alone."
            )
        each = (-1, *wanted[1:])
    layout = join([_layout(file, stated, each, start, tensor) for file in files])
    if wanted is not None and wanted[0] not in (-1, layout.shape[0]):
        raise FormatError(
            f"{layout.extents[0].path} and {len(files) - 1} more: expected {wanted[0]} rows as shape= says, "
            f"got {layout.shape[0]}. State shape={(-1, *wanted[1:])}."
        )
    return layout


def _stated_shape(shape: SupportsIndex | Iterable[SupportsIndex]) -> tuple[int, ...]:
    if isinstance(shape, (str, bytes)):
        raise TypeError(f"shape: expected integers, got {shape!r}. Write shape=(-1, 162).")
    axes = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    if any(isinstance(axis, (bool, np.bool_)) or not hasattr(axis, "__index__") for axis in axes):
        raise TypeError(f"shape: expected integers, got {axes}. Write shape=(-1, 162).")
    whole = tuple(operator.index(axis) for axis in axes)
    if not whole or whole.count(-1) > 1 or any(axis < -1 for axis in whole):
        raise ValueError(f"shape: expected axes of 0 or more with at most one -1, got {whole}. Write shape=(-1, 162).")
    return whole


def _layout(
    item: str | Mapped, dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None, offset: int, tensor: str | None
) -> Layout:
    if isinstance(item, np.ndarray):
        if tensor is not None:
            raise ValueError(
                f"tensor: expected a .safetensors, .npz or HDF5 file for tensor={tensor!r}, got a memmap. Leave it out."
            )
        return agree(memmap.read(item), dtype, shape, offset)
    if normal_address(item) is not None and zarr.looks_like(item):
        return agree(zarr.read(item, tensor), dtype, shape, offset)
    try:
        file = HeaderFile(item)
    except IsADirectoryError:
        if zarr.looks_like(item):
            return agree(zarr.read(item, tensor), dtype, shape, offset)
        refuse_foreign_directory(os.path.abspath(item), os.listdir(item), tokens=False)  # noqa: PTH100, PTH208
        raise
    with file:
        # A caller who states dtype and offset knows a place inside an archive or an HDF5 file, as h5py can give it.
        inside = offset > 0 and dtype is not None and tensor is None
        # A headerless file that the caller describes is read as described, whatever is beside it.
        beside = dtype is None and shape is None and offset == 0
        layout = recognised(file, stated=dtype, tensor=tensor, beside=beside, tokens=False, inside=inside)
        if layout is not None:
            return agree(layout, dtype, shape, offset)
        if not inside:
            refuse_foreign(file, dtype, tokens=False)
        return raw.read(file, dtype, shape, offset)
