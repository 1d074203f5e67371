"""``lowtide.create`` and ``ArrayWriter``: an array written row by row, in bounded memory and with bounded dirty pages.

Rows go to the disk while the next are made, and the file gets its name only once it is complete. The result is byte for
byte what ``np.save`` writes (``.npy``) or the bare numbers (any other name).

Numbers of another dtype are converted, a piece at a time, if the stated one is of their kind and holds them; all
else is refused before anything is written.

Costs a buffer, a copy of what has to be converted, and the pages on their way to the disk: together at most the budget.
"""

from __future__ import annotations

import math
import os
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lowtide.arguments import array_of, one_of, whole_number
from lowtide.blocks.objects import normal_address
from lowtide.errors import discreet
from lowtide.formats.files.npy import npy_header
from lowtide.formats.layout import MOST_BYTES
from lowtide.storage.writing import Output

_OTHER_FORMATS = (".npz", ".h5", ".hdf5", ".safetensors", ".parquet", ".arrow", ".zarr", ".pt", ".pth", ".csv")


def create(
    path: str | os.PathLike[str],
    *,
    dtype: DTypeLike | None = None,
    shape: int | tuple[int, ...] | None = None,
    like: Any = None,
    budget: int | str = "auto",
    cache: str = "auto",
    overwrite: bool = False,
) -> ArrayWriter:
    """A new ``.npy`` file (any other name: bare numbers), to be written with ``append`` or ``out[i:j] = rows``.

    ``shape``: a first axis of -1 grows with what is appended; (-1,) by default. ``like``: an array whose dtype and row
    shape are used if they are not stated. ``budget``: the most bytes held at once, including pages that are not yet on
    disk. ``cache="drop"`` leaves nothing in the page cache, ``"auto"`` only what fits. Raises ``FileExistsError`` if
    the name is taken (unless ``overwrite``) or another writer is at work on it.

    >>> with lowtide.create("z.npy", like=a) as out:
    ...     for chunk in a.chunks(): out.append(chunk / 255)
    """
    where = _checked_name(path)
    if like is not None:
        if not hasattr(like, "dtype") or not hasattr(like, "shape"):
            raise TypeError(f"like: expected an array, got {type(like).__name__}. Use like=lowtide.open(path).")
        dtype = like.dtype if dtype is None else dtype
        shape = (-1, *like.shape[1:]) if shape is None else shape
    one, axes = _checked_type(dtype, (-1,) if shape is None else shape)
    one_of("cache", cache, ("auto", "keep", "drop"))
    if not isinstance(overwrite, (bool, np.bool_)):
        raise TypeError(f"overwrite: expected True or False, got {type(overwrite).__name__}. Use overwrite=True.")
    width = math.prod(axes[1:]) * one.itemsize
    head = len(npy_header(one, axes)) if _is_npy(where) else 0
    length = None if axes[0] == -1 else axes[0] * width
    output = Output(where, budget=budget, cache=cache, overwrite=bool(overwrite), head=head, length=length)
    return ArrayWriter(output, one, axes)


class ArrayWriter:
    """Rows on their way to disk. The file gets its name in ``close()``, which a ``with`` block calls unless it fails.

    Numbers become the dtype of the file where NumPy calls that "same_kind" (float64 to float32, integers to floats),
    and integers any integers that hold them. ``TypeError`` for other dtypes, ``ValueError`` for a number outside the
    range.

    ``append`` and ``out[i:j] =`` may be called from several threads; the rows of one append stay together.
    """

    def __init__(self, output: Output, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._output = output
        self.path = output.where
        self.dtype = dtype
        self._stated = None if shape[0] == -1 else shape[0]
        self._row = shape[1:]
        self._width = math.prod(self._row) * dtype.itemsize
        self._empty = 0  # rows appended, if they have no bytes to count
        self._manner = ""  # "append" or "out[i:j] =", whichever came first
        self._turn = threading.RLock()

    def __len__(self) -> int:
        """The stated number of rows; without one, the rows appended so far."""
        return self._appended if self._stated is None else self._stated

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self._row)

    @property
    def nbytes(self) -> int:
        return len(self) * self._width

    @property
    def closed(self) -> bool:
        return self._output.closed

    def __repr__(self) -> str:
        state = "closed" if self.closed else "unfinished"
        return f"<ArrayWriter {self.path} shape={self.shape} dtype={self.dtype} {state}>"

    # Rows

    def append(self, rows: Any) -> None:
        """Append rows, or one row. If it is refused or interrupted, nothing is appended."""
        array = self._checked(rows, one_row=True)
        with self._turn:
            self._begin("append")
            total = self._appended + len(array)
            if self._stated is not None and total > self._stated:
                raise ValueError(
                    f"{self.path}: expected at most {self._stated} rows, got {total}. "
                    f"Create it with shape={(-1, *self._row)} or append at most {self._stated - self._appended} more."
                )
            self._output.append(self._views(array))
            self._empty += 0 if self._width else len(array)

    def __setitem__(self, key: int | slice, rows: Any) -> None:
        """Write rows ``i`` to ``j``, exactly as many as given, or one number for all; rows never written are zeros."""
        if self._stated is None:
            raise ValueError(
                f"{self.path}: expected a stated number of rows for out[i:j] = rows, got shape={(-1, *self._row)}. "
                "Create it with the first axis stated, or use append."
            )
        first, count = self._between(key, self._stated)
        array = self._checked(rows, one_row=not isinstance(key, slice), fill=count)
        if len(array) != count:
            raise ValueError(
                f"{self.path}: expected {count} rows for out[{first}:{first + count}], got {len(array)}. "
                f"Use out[{first}:{first + len(array)}]."
            )
        with self._turn:
            self._begin("out[i:j] =")
        offset = first * self._width
        for view in self._views(array):
            self._output.put(view, offset)
            offset += len(view)

    # The end

    def close(self) -> None:
        """Put the last bytes on disk and give the file its name; if that fails, nothing is left behind."""
        with self._turn:
            if self.closed:
                return
            if self._manner == "append" and self._stated is not None and self._appended < self._stated:
                self.discard()
                raise ValueError(
                    f"{self.path}: expected {self._stated} rows, got {self._appended}; nothing was left behind. "
                    f"Append them all, or create it with shape={(-1, *self._row)}."
                )
            self._output.finish(npy_header(self.dtype, self.shape) if _is_npy(self.path) else b"")

    def discard(self) -> None:
        """Give up: the unfinished file is removed and the name stays as it was."""
        self._output.discard()

    def __enter__(self) -> ArrayWriter:
        self._output.require()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        output = getattr(self, "_output", None)
        if output is not None and not output.closed:
            if output.process == os.getpid():
                warnings.warn(
                    f"{output.where}: expected close() or a with block, got neither. No file was made.",
                    ResourceWarning,
                    source=self,
                    stacklevel=2,
                )
            output.discard()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            f"{self.path}: expected a writer to stay in its process, got one to be pickled. "
            "Write one file per process; lowtide.open takes a list of them as one array."
        )

    # How it does it

    @property
    def _appended(self) -> int:
        return self._output.appended // self._width if self._width else self._empty

    def _begin(self, manner: str) -> None:
        self._output.require()
        if self._manner not in ("", manner):
            raise ValueError(
                f"{self.path}: expected {self._manner} as before, got {manner}. Use only one of the two per file."
            )
        self._manner = manner

    def _checked(self, rows: Any, *, one_row: bool, fill: int | None = None) -> NDArray[Any]:
        """Rows of our width, in a dtype that converts to ours; one value stands for ``fill`` rows. Or an error."""
        array = array_of(self.path, rows, "Give all rows the same length")
        if array.size == 0 and isinstance(rows, (list, tuple)):
            array = np.empty(array.shape, self.dtype)  # an empty list has no dtype of its own
        if not _converts(array.dtype, self.dtype):
            way = f"Use np.asarray(rows).astype({self.dtype.str!r}), or create it with the other dtype"
            if self.dtype.kind in "iu" and array.dtype.kind == "f" and not _holds(self.dtype, array):
                way = f"Create it with dtype={array.dtype.name!r}: {self.dtype} does not hold these numbers"
            raise TypeError(f"{self.path}: expected rows of dtype {self.dtype}, got {array.dtype}. {way}.")
        if fill is not None and array.ndim == 0:
            shaped = np.broadcast_to(array, (fill, *self._row))
        elif one_row and array.shape == self._row:
            shaped = array[None]
        elif array.ndim and array.shape[1:] == self._row:
            shaped = array
        else:
            wanted = str((-1, *self._row)).replace("-1", "n")
            width, axes = math.prod(self._row), array.shape[1:] if array.ndim > 1 else array.shape
            way = f"Create it with shape={(-1, *axes)}, or make rows of {width} values"
            if width and array.size and array.size % width == 0:
                way = f"Use rows.reshape({(-1, *self._row)}), or create it with another shape"
            raise ValueError(f"{self.path}: expected rows of shape {wanted}, got {array.shape}. {way}.")
        self._require_range(array)
        return shaped

    def _require_range(self, array: NDArray[Any]) -> None:
        """ValueError for a number that our dtype does not hold: NumPy would wrap it, or make it infinite."""
        kind = self.dtype
        if array.size == 0 or np.can_cast(array.dtype, kind, "safe"):
            return
        if kind.kind in "iu":
            limits = np.iinfo(kind)
            least, most = limits.min, limits.max
            outside = [number for number in (int(array.min()), int(array.max())) if not least <= number <= most]
        else:
            most = np.finfo(kind).max.item()
            least, outside = -most, self._too_large(array)
        if outside:
            raise ValueError(
                f"{self.path}: expected numbers from {least} to {most} for {kind}, got {outside[0]}. "
                f"Create it with dtype={array.dtype.name!r}, or clip the rows."
            )

    def _too_large(self, array: NDArray[Any]) -> list[Any]:
        """A finite number that our dtype makes infinite, if there is one."""
        for some in self._pieces(array):
            with np.errstate(over="ignore"):
                lost = np.isfinite(some) & ~np.isfinite(some.astype(self.dtype))
            if lost.any():
                return [some[lost][0]]
        return []

    def _between(self, key: int | slice, rows: int) -> tuple[int, int]:
        """First row and count of ``out[key]``; a key that NumPy would silently clip is refused."""
        if isinstance(key, slice) and key.step in (None, 1):
            start = 0 if key.start is None else whole_number("out[i:j]", key.start, example="out[0:10]")
            stop = rows if key.stop is None else whole_number("out[i:j]", key.stop, example="out[0:10]")
            start, stop = start + rows * (start < 0), stop + rows * (stop < 0)
        elif isinstance(key, (int, np.integer)) and not isinstance(key, bool):
            start = int(key) + rows * (key < 0)
            stop = start + 1
        else:
            raise TypeError(f"{self.path}: expected out[i:j] or out[i], got out[{key!r}]. Write whole rows in order.")
        if not 0 <= start <= stop <= rows:
            raise IndexError(
                f"{self.path}: expected rows between 0 and {rows}, got {start} to {stop}. "
                "Write inside the shape, or create it with a longer one."
            )
        return start, stop - start

    def _views(self, array: NDArray[Any]) -> Iterator[memoryview]:
        """The rows as bytes of our dtype."""
        if array.nbytes:
            for some in self._pieces(array):
                yield np.ascontiguousarray(some, self.dtype).reshape(-1).view(np.uint8).data

    def _pieces(self, array: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """All rows if their bytes are the file's, else as many at a time as may be copied: the last copy is still held
        while the next is made.
        """
        in_order = array.flags.c_contiguous or not any(array.strides)
        if array.flags.c_contiguous and array.dtype == self.dtype:
            yield array
            return
        items = array.reshape(-1) if in_order else array
        width = self.dtype.itemsize * (items.size // len(items))
        step = max(1, self._output.piece // 2 // width)
        for first in range(0, len(items), step):
            yield items[first : first + step]


def _is_npy(path: str) -> bool:
    return Path(path).suffix == ".npy"


def _checked_name(path: str | os.PathLike[str]) -> str:
    where = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(where, str) or not where:
        raise TypeError(f"path: expected the name of a file, got {path!r}. Use 'rows.npy'.")
    if "\0" in where:
        raise ValueError(f"path: expected the name of a file, got {where!r} with a zero byte. Use 'rows.npy'.")
    if normal_address(where) is not None:
        raise ValueError(
            f"{discreet(where)}: expected a path on this machine, got an address. Write it here, then copy it."
        )
    suffix = Path(where).suffix.lower()
    if suffix in _OTHER_FORMATS or (suffix == ".npy" and not _is_npy(where)):
        raise ValueError(
            f"{where}: expected .npy, or another name for bare numbers, got {Path(where).suffix}. "
            f"Use {str(Path(where).with_suffix('.npy'))!r}."
        )
    return where


def _checked_type(dtype: DTypeLike | None, shape: int | tuple[int, ...]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """One item, and the axes, of which only the first may be -1."""
    if dtype is None:
        raise TypeError(
            "dtype: expected the dtype of the rows, got None. Use dtype='float32', or like=a for that of an array."
        )
    try:
        one = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as problem:
        raise TypeError(f"dtype: expected a dtype, got {dtype!r} ({problem}). Use dtype='float32'.") from None
    axes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    axes = tuple(whole_number("shape", axis, example="shape=(-1, 162)") for axis in axes)
    if not axes or axes[0] < -1 or any(axis < 0 for axis in axes[1:]):
        raise ValueError(
            f"shape: expected a number of rows, or -1, and then axes of 0 or more, got {shape}. Use shape=(-1, 162)."
        )
    if one.subdtype is not None:  # as np.memmap does: the axes of the item become the last axes of the array
        one, axes = one.base, axes + one.shape
    if one.hasobject or one.itemsize == 0:
        raise ValueError(
            f"dtype: expected items of plain bytes of one size, got {one}. Use numbers, or text of a size ('S16')."
        )
    if math.prod(max(axis, 1) for axis in axes) * one.itemsize > MOST_BYTES:
        raise ValueError(f"shape: expected fewer than 2**63 bytes, got {shape} of {one}. Use a smaller shape.")
    return one, axes


def _converts(kind: np.dtype[Any], ours: np.dtype[Any]) -> bool:
    """Whether rows of this dtype become ours, if we hold their numbers. Text that would be cut, and dates, do not."""
    if kind.kind in "biufc" and ours.kind in "biufc":
        return np.can_cast(kind, ours, "same_kind") or (kind.kind in "iu" and ours.kind in "iu")
    if kind.kind == ours.kind and kind.kind in "SU":
        return kind.itemsize <= ours.itemsize
    return kind.newbyteorder("=") == ours.newbyteorder("=")


def _holds(kind: np.dtype[Any], numbers: NDArray[Any]) -> bool:
    """Whether integers of this kind can hold all of these."""
    limits = np.iinfo(kind)
    with np.errstate(over="ignore"):  # the limits of 32 bits are infinite as float16
        return bool(((numbers >= limits.min) & (numbers <= limits.max) & (numbers == np.floor(numbers))).all())
