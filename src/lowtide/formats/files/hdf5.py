"""One dataset of an HDF5 file, read where it lies.

h5py is asked once for a dataset's dtype, shape and the offset of its bytes; every row after that is read like any other
file's, without h5py and its lock. Costs opening the file with h5py (extra ``hdf5``, imported only here). Only
contiguous datasets have one offset: chunked and compressed ones are refused with the command that rewrites them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lowtide.errors import FormatError
from lowtide.formats.files.members import ArrayMember
from lowtide.formats.header import HeaderFile
from lowtide.formats.layout import Layout, checked_dtype, checked_nbytes, clip, one_extent

WHAT = "dataset"
MAGIC = b"\x89HDF\r\n\x1a\n"
SUFFIXES = (".h5", ".hdf5", ".he5", ".hdf", ".nc")
_USER_BLOCKS = [512 << k for k in range(8)]  # the signature may follow a block of the user's own


def looks_like(file: HeaderFile, head: bytes) -> bool:
    """Whether the file carries HDF5's signature, at its start or behind a user block."""
    if head.startswith(MAGIC):
        return True
    return file.path.lower().endswith(SUFFIXES) and any(file.read(at, 8) == MAGIC for at in _USER_BLOCKS)


def read(file: HeaderFile, name: str) -> Layout | None:
    """The layout of the dataset of that name; ``None`` where there is none."""
    with _opened(file) as root:
        try:
            dataset = root.get(name) if name.strip("/") else None
        except (KeyError, ValueError, OSError, RuntimeError):  # a link that leads nowhere
            return None
        if dataset is None or not _is_dataset(dataset):
            return None
        where = f"{file.path}, dataset {clip(name)}"
        why_not = _why_not(file, dataset)
        if why_not:
            raise FormatError(f"{where}: expected a contiguous dataset, got {why_not}.")
        dtype = checked_dtype(dataset.dtype, where)
        length = checked_nbytes(dataset.shape, dtype.itemsize, where)
        offset = int(dataset.id.get_offset() or 0)
        if offset + length > file.size:
            raise FormatError(
                f"{where}: expected data up to byte {offset + length}, got a file of {file.size}. "
                "It is cut short: copy or write it again."
            )
        return one_extent("hdf5", dtype, tuple(dataset.shape), file.extent(offset, length))


def members(file: HeaderFile) -> Iterator[ArrayMember]:
    """Every dataset of the file, by its path from the root."""
    found: list[ArrayMember] = []

    def look(name: str, item: Any) -> None:
        if _is_dataset(item):
            dtype = item.dtype
            shape = tuple(item.shape or ())
            found.append(ArrayMember(f"/{name}", str(dtype), shape, _why_not(file, item), dtype.kind in "iu"))

    with _opened(file) as root:
        root.visititems(look)
    return iter(found)


@contextmanager
def _opened(file: HeaderFile) -> Iterator[Any]:
    try:
        import h5py  # here, and nowhere else: Lowtide works without it
    except ImportError:
        raise FormatError(
            f"{file.path}: expected h5py to find the data of an HDF5 file, got none installed. "
            "Install it: pip install 'lowtide[hdf5]'."
        ) from None
    try:
        opened = h5py.File(file.path, "r")
    except OSError as error:
        raise FormatError(
            f"{file.path}: expected a whole HDF5 file, got one that h5py cannot open ({clip(str(error))}). "
            "It is cut short, damaged or open for writing: close its writer, or copy it again."
        ) from error
    with opened as root:
        yield root


def _is_dataset(item: Any) -> bool:
    return hasattr(item, "chunks") and hasattr(item.id, "get_offset")


def _why_not(file: HeaderFile, dataset: Any) -> str:
    """Why a dataset cannot be read in place, and what to do; empty where it can."""
    name = Path(file.path).name
    filters = "-f NONE " if dataset.compression or dataset.shuffle or dataset.fletcher32 or dataset.scaleoffset else ""
    repack = f"Rewrite it: h5repack {filters}-l CONTI {name!r} 'contiguous.h5'"
    if dataset.shape is None or dataset.shape == ():
        return "a single value. Read it with h5py"
    if dataset.dtype.hasobject:
        return "items of variable length. Read it with h5py and save it with np.save"
    if dataset.dtype.itemsize != dataset.id.get_type().get_size():
        return f"items of {dataset.id.get_type().get_size()} bytes that numpy does not have. Read it with h5py"
    if dataset.is_virtual:
        return "a view of other files. Open those files, or read it with h5py"
    if dataset.external:
        return "data kept in another file. Open that file with dtype= and shape="
    if dataset.chunks is not None:
        packed = f" and {dataset.compression}-compressed" if dataset.compression else ""
        return f"a chunked{packed} one. {repack}"
    if dataset.id.get_offset() is None and dataset.size:
        return f"one without space of its own (never written, or kept in its header). {repack}"
    return ""
