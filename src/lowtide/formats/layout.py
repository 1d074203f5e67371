"""What a file holds and where: the values that this package returns.

A layout is dtype, shape and byte ranges, and nothing else, so that later readers need not know the format. It costs a
few hundred bytes per file, opens nothing and keeps nothing open. The checks that formats share - dtypes, sizes, the
caller's statements against the header - are here, once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lowtide.errors import FormatError
from lowtide.storage.watched_files import Extent

MOST_BYTES = 2**63 - 1  # off_t and Py_ssize_t are signed 64-bit
MOST_AXES = 64  # numpy 2's own bound
Ends: TypeAlias = "npt.NDArray[np.int64]"  # positions after the last token of each document
COMMON = ("float32", "float64", "float16", "uint8", "uint16", "uint32", "int8", "int16", "int32", "int64", "bool")
HEADERLESS = ("raw", "nanogpt", "olmo", "lowtide")  # bytes without a header, named after their writers


@dataclass(frozen=True)
class DocumentIndex:
    """Where one shard keeps its document boundaries; ``tokens/ends.py`` reads them block by block."""

    kind: str  # "megatron" | "datatrove" | "lowtide" | "ends" (all but the first: a table of ends in the same form)
    path: str  # of the index file
    size: int
    offset: int  # of the int64 boundaries
    count: int  # of boundaries
    pointers: int = 0  # Megatron: offset of the int64 byte pointers of its sequences
    sequences: int = 0  # Megatron: how many sequences
    made: Any = None  # what the index is made from, if it is not a local file


@dataclass(frozen=True)
class Layout:
    """An array on disk: rows of extent k follow the rows of extent k-1 along the first axis."""

    format: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool  # every extent holds its array in Fortran order; False if both orders are the same bytes
    extents: tuple[Extent, ...]  # paths are absolute: a pickle or a fork that changed directory reopens the same file
    rows: tuple[int, ...]
    documents: tuple[DocumentIndex, ...] | None = None  # one for each extent
    notes: tuple[str, ...] = ()
    eot: int | None = None  # the id that ends a document, if a manifest states it
    bos: int | None = None  # the id that begins one
    vocab: int | None = None  # ids are below this, if a manifest states it
    part: str | None = None  # "train" | "val" | "test", if the named directory holds several
    other_parts: tuple[str, ...] = ()  # which it also holds

    @property
    def row_nbytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return sum(extent.length for extent in self.extents)


def one_extent(
    format: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    extent: Extent,
    *,
    fortran: bool = False,
    notes: tuple[str, ...] = (),
) -> Layout:
    """The layout of one array in one file."""
    return Layout(
        format=format,
        dtype=dtype,
        shape=shape,
        fortran=fortran and _order_matters(shape),
        extents=(extent,),
        rows=(shape[0],),
        notes=notes,
    )


def stated_dtype(dtype: npt.DTypeLike | None) -> np.dtype[Any] | None:
    """What the caller wrote, as a dtype; TypeError if numpy does not know it. ``None``: nothing was stated."""
    if dtype is None:
        return None
    try:
        return np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        from difflib import get_close_matches  # here: only a mistake needs this module

        like = get_close_matches(str(dtype), COMMON, 1) or COMMON
        raise TypeError(
            f"dtype: expected a numpy dtype such as 'float32', got {dtype!r}. Use dtype={like[0]!r}."
        ) from error


def stated_ids(dtype: npt.DTypeLike | None) -> np.dtype[Any] | None:
    """What the caller wrote as the dtype of tokens, which are integers."""
    stated = stated_dtype(dtype)
    if stated is not None and stated.kind not in "iu":
        raise ValueError(f"dtype: expected integers for tokens, got {stated}. State e.g. dtype='uint16'.")
    return stated


def checked_dtype(dtype: np.dtype[Any], where: str) -> np.dtype[Any]:
    """``dtype`` if its items are plain bytes of one fixed size; FormatError otherwise."""
    if dtype.hasobject:
        raise FormatError(
            f"{where}: expected items of plain bytes, got dtype {clip(dtype)} with Python objects, which "
            "only pickle can read. Load it where you trust it and save the columns as numbers."
        )
    if dtype.itemsize == 0:
        raise FormatError(
            f"{where}: expected items of at least 1 byte, got dtype {dtype.str} of 0 bytes. State a size, e.g. 'S8'."
        )
    return dtype


def checked_nbytes(shape: Sequence[int], itemsize: int, where: str) -> int:
    """Bytes of an array of this shape; FormatError if no file could hold it."""
    if len(shape) > MOST_AXES:
        raise FormatError(
            f"{where}: expected at most {MOST_AXES} axes, got {len(shape)}. Check the header or the shape."
        )
    if any(axis < 0 for axis in shape):
        raise FormatError(
            f"{where}: expected axes of 0 or more, got shape {clip(tuple(shape))}. Check the header or the shape."
        )
    # A zero does not excuse the other axes: numpy refuses (2**40, 2**40, 0) and so do we.
    if math.prod(axis for axis in shape if axis) * itemsize > MOST_BYTES:
        raise FormatError(
            f"{where}: expected fewer than 2**63 bytes, got shape {clip(tuple(shape))} of {itemsize}-byte "
            "items. Check the header or the shape."
        )
    return math.prod(shape) * itemsize


def agree(layout: Layout, dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None, offset: int) -> Layout:
    """``layout`` if the caller's statements agree with it; the header wins, so a contradiction is an error."""
    where = layout.extents[0].path
    if dtype is not None and dtype != layout.dtype:
        raise FormatError(
            f"{where}: expected dtype {layout.dtype} as {_teller(layout)} says, got dtype={dtype}. Leave dtype= out."
        )
    if offset not in (0, layout.extents[0].offset):
        raise FormatError(
            f"{where}: expected offset={layout.extents[0].offset} as {_teller(layout)} says, "
            f"got offset={offset}. Leave offset= out."
        )
    if shape is not None and not _shape_agrees(shape, layout.shape):
        raise FormatError(
            f"{where}: expected shape {layout.shape} as {_teller(layout)} says, got shape={shape}. Leave shape= out."
        )
    return layout


def join(layouts: Sequence[Layout]) -> Layout:
    """Several arrays as one, along the first axis; FormatError names two files that do not fit together."""
    first = layouts[0]
    if len(layouts) == 1:
        return first
    for other in layouts[1:]:
        _same(first, other, "dtype", first.dtype, other.dtype, "Convert one of them or open them apart")
        _same(first, other, "row shape", first.shape[1:], other.shape[1:], "Open them apart")
    ordered = [layout for layout in layouts if _order_matters(layout.shape)]
    for other in ordered[1:]:
        orders = ("C order", "Fortran order")
        advice = "Save one of them again with np.asfortranarray or np.ascontiguousarray, or open them apart"
        _same(ordered[0], other, "memory order", orders[ordered[0].fortran], orders[other.fortran], advice)
    total = sum(layout.shape[0] for layout in layouts)
    checked_nbytes((total, *first.shape[1:]), first.dtype.itemsize, first.extents[0].path)
    shards = [layout.documents for layout in layouts]
    known = [documents for documents in shards if documents is not None]
    return Layout(
        format=_common_format(layouts),
        dtype=first.dtype,
        shape=(total, *first.shape[1:]),
        fortran=any(layout.fortran for layout in layouts),
        extents=tuple(extent for layout in layouts for extent in layout.extents),
        rows=tuple(rows for layout in layouts for rows in layout.rows),
        documents=tuple(shard for shards in known for shard in shards) if len(known) == len(layouts) else None,
        notes=tuple(dict.fromkeys(note for layout in layouts for note in layout.notes)),
        eot=first.eot,
        bos=first.bos,
        vocab=first.vocab,
        part=first.part if all(layout.part == first.part for layout in layouts) else None,
        other_parts=first.other_parts if all(layout.other_parts == first.other_parts for layout in layouts) else (),
    )


def clip(value: object, most: int = 120) -> str:
    """A value from a hostile header, short enough for one line and without control characters."""
    try:
        text = repr(value)
    except RecursionError:  # JSON nests deeper than repr may be able to follow
        text = f"a {type(value).__name__} nested too deeply to show"
    return text if len(text) <= most else f"{text[:most]}..."


def _teller(layout: Layout) -> str:
    other = {
        "memmap": "the memmap",
        "megatron": "its .idx",
        "datatrove": "what lies beside it",
        "hdf5": "the HDF5 file",
        "npz": "the member's .npy header",
    }
    return other.get(layout.format, f"its {layout.format} header")


def _order_matters(shape: tuple[int, ...]) -> bool:
    """Whether C and Fortran order put different bytes into a file."""
    return sum(axis != 1 for axis in shape) > 1 and 0 not in shape


def _same(first: Layout, other: Layout, what: str, wanted: object, got: object, advice: str) -> None:
    if wanted != got:
        one, two = first.extents[0].path, other.extents[0].path
        raise FormatError(f"{two}: expected {what} {wanted} as in {one}, got {got}. {advice}.")


def _common_format(layouts: Sequence[Layout]) -> str:
    names = list(dict.fromkeys(layout.format for layout in layouts))
    if len(names) > 1 and all(name in HEADERLESS for name in names):
        return "raw"
    return " + ".join(names)


def _shape_agrees(stated: tuple[int, ...], actual: tuple[int, ...]) -> bool:
    return len(stated) == len(actual) and all(s in (-1, a) for s, a in zip(stated, actual, strict=True))
