"""One dataset of an HDF5 file, read where it lies, or decoded by chunk.

h5py is asked once for a dataset's dtype, shape and the offset of its bytes, or of each of its chunks; after that,
rows are read as from any other file, without h5py and its lock. Costs opening the file with h5py (extra ``hdf5``) and 2
microseconds per chunk. Chunks that went through filters or cut rows into columns become blocks of a local file, decoded
when they are first needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from lowtide.errors import FormatError, LowtideError
from lowtide.formats.files.decoded_rows import decoded
from lowtide.formats.files.hdf5_chunks import chunked, filters_of, refuse_beyond
from lowtide.formats.files.members import ArrayMember
from lowtide.formats.header import HeaderFile
from lowtide.formats.layout import Layout, checked_dtype, checked_nbytes, clip, one_extent
from lowtide.formats.refusals import as_typed
from lowtide.storage.watched_files import Extent

WHAT = "dataset"
MAGIC = b"\x89HDF\r\n\x1a\n"
SUFFIXES = (".h5", ".hdf5", ".he5", ".hdf", ".nc")
_MOST_LINKS = 32  # on the way to one dataset; more must be a circle
_USER_BLOCKS = [512 << k for k in range(8)]  # the signature may follow a block of the user's own


def looks_like(file: HeaderFile, head: bytes) -> bool:
    """Whether the file carries HDF5's signature, at its start or after a user block."""
    if head.startswith(MAGIC):
        return True
    return file.path.lower().endswith(SUFFIXES) and any(file.read(at, 8) == MAGIC for at in _USER_BLOCKS)


def read(file: HeaderFile, name: str) -> Layout | None:
    """The layout of the dataset of that name; ``None`` where there is none."""
    with ExitStack() as opened:
        found = _followed(file, name, opened)
        if found is None or not _is_dataset(found[1]):
            return None
        holder, dataset = found
        where = f"{file.path}, dataset {clip(name)}"
        why_not = _why_not(holder, dataset)
        if why_not:
            raise FormatError(f"{where}: expected a dataset whose rows lie in the file as they are, got {why_not}.")
        dtype = checked_dtype(dataset.dtype, where)
        length = checked_nbytes(dataset.shape, dtype.itemsize, where)
        notes: tuple[str, ...] = ()
        if holder is not file:
            notes = (f"a link leads to {holder.path}, which is read instead",)
        if dataset.chunks is not None and length:
            if filters_of(dataset) or tuple(dataset.chunks[1:]) != tuple(dataset.shape[1:]):
                return _decoded(holder, dataset, dtype, length, notes)
            extent = chunked(holder, dataset, length, where)
            pieces = 1 if extent.pieces is None else len(extent.pieces.offsets)
            runs = "run" if pieces == 1 else "runs"
            notes += (f"chunks of {dataset.chunks[0]:,} rows, read where they lie: {pieces:,} {runs} of bytes",)
        else:
            extent = holder.extent(int(dataset.id.get_offset() or 0), length)
            refuse_beyond(holder, extent.offset + length, where)
        return one_extent("hdf5", dtype, tuple(dataset.shape), extent, notes=notes)


def _decoded(holder: HeaderFile, dataset: Any, dtype: np.dtype[Any], length: int, notes: tuple[str, ...]) -> Layout:
    """The layout of a chunked dataset: its rows are decoded into blocks of a local file."""
    shape, rows = tuple(dataset.shape), int(dataset.chunks[0])
    made = decoded("hdf5", holder.path, dataset.name, shape, dtype.itemsize, rows)
    notes += (f"decoded by chunks of {rows} rows, each once; a full shuffle begins by decoding all of them",)
    return one_extent("hdf5", dtype, shape, Extent(holder.path, 0, length, length, made=made), notes=notes)


def _followed(file: HeaderFile, name: str, opened: ExitStack) -> tuple[HeaderFile, Any] | None:
    """What the name leads to and the file that holds it; ``None`` if it leads nowhere.

    Links are followed here, step by step, and never by HDF5 itself: it would open whatever file a link names. A link
    may lead to another file in this one's directory or below; to read one elsewhere, name that file.
    """
    holder, rest, links = file, name.split("/"), 0
    item = root = opened.enter_context(_opened(file))
    while rest:
        part = rest.pop(0)
        if part in ("", "."):
            continue
        try:
            link = item.get(part, getlink=True)
            kind = type(link).__name__
            if kind == "HardLink":
                item = item[part]
                continue
            target = link.path.split("/")
        except (AttributeError, KeyError, ValueError, TypeError, OSError, RuntimeError):
            return None  # nothing of that name, or something that HDF5 itself cannot follow
        links += 1
        if links > _MOST_LINKS:
            return None
        rest = [*target, *rest]
        if kind == "ExternalLink":
            path = _linked(file, holder, link.filename, "/".join(rest))
            holder = opened.enter_context(HeaderFile(path))
            item = root = opened.enter_context(_opened(holder))
        elif link.path.startswith("/"):
            item = root
    return holder, item


def _linked(file: HeaderFile, holder: HeaderFile, name: str, dataset: str) -> str:
    """The file that a link in ``holder`` names, if it may lead there."""
    allowed = os.path.realpath(os.path.dirname(file.path))  # noqa: PTH120
    path = os.path.realpath(os.path.join(os.path.dirname(holder.path), name))  # noqa: PTH118, PTH120
    if os.path.commonpath([allowed, path]) != allowed:
        raise FormatError(
            f"{file.path}: expected links to files in its own directory, got one to {path}. If you trust it, open that "
            f"file: lowtide.open({path!r}, tensor={dataset!r})."
        )
    if not os.path.exists(path):  # noqa: PTH110
        raise FormatError(f"{file.path}: expected the file its link names, {path}, got no such file. Copy it too.")
    return path


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
        try:
            yield root
        except (LowtideError, FileNotFoundError, PermissionError, IsADirectoryError):
            raise
        except (OSError, RuntimeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise FormatError(
                f"{file.path}: expected a whole HDF5 file, got one that h5py cannot read ({clip(str(error))}). "
                "It is damaged, or holds what numpy does not have: copy it again, or read it with h5py."
            ) from error


def _is_dataset(item: Any) -> bool:
    return hasattr(item, "chunks") and hasattr(item.id, "get_offset")


def _why_not(file: HeaderFile, dataset: Any) -> str:
    """Why a dataset cannot be read in place, and what to do; empty if it can."""
    source = f"h5py.File({as_typed(file.path)!r})[{dataset.name!r}]"
    output = f"{dataset.name.rpartition('/')[2]}.npy"
    save = f"Save it: np.save({output!r}, {source}[:])"
    if dataset.shape is None or dataset.shape == ():
        return "a single value. Read it with h5py"
    if dataset.dtype.hasobject:
        return "items of variable length. Read it with h5py"
    if dataset.dtype.itemsize != dataset.id.get_type().get_size():
        return f"items of {dataset.id.get_type().get_size()} bytes that numpy does not have. Read it with h5py"
    if dataset.is_virtual:
        return "a view of other files. Open those files, or read it with h5py"
    if dataset.external:
        return "data kept in another file. Open that file with dtype= and shape="
    if dataset.chunks is not None:
        return ""
    if dataset.id.get_offset() is None and dataset.size:
        return f"one without space of its own (never written, or kept in its header). {save}"
    return ""
