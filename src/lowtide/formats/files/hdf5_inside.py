"""What h5py says of an HDF5 file: its datasets, where one lies, and why another cannot be read. Runs in the maker only.

Answers are plain values; offsets of chunks, of which there may be a million, go as bytes. Links are followed here, step
by step, and never by HDF5 itself: it would open whatever file a link names.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np

from lowtide.errors import FormatError, LowtideError
from lowtide.formats.files.decoded_rows import as_text
from lowtide.formats.files.hdf5_chunks import chunked, filters_of, lies_as_numpy_has_it, refuse_beyond
from lowtide.formats.header import HeaderFile
from lowtide.formats.layout import checked_dtype, checked_nbytes, clip
from lowtide.formats.object_bytes import Bytes, LocalBytes, bytes_of

_MOST_LINKS = 32  # on the way to one dataset; more must be a circle


def dataset(path: str, typed: str, source: dict[str, Any] | None, name: str) -> Callable[[], dict[str, Any] | None]:
    """Where the dataset of that name lies; None where there is none."""
    return partial(_dataset, bytes_of(path, source), typed, name)


def datasets(path: str, typed: str, source: dict[str, Any] | None) -> Callable[[], list[Any]]:
    """Name, dtype, shape, why it cannot be read, and whether it holds integers: of every dataset."""
    return partial(_datasets, bytes_of(path, source), typed)


def _dataset(file: Bytes, typed: str, name: str) -> dict[str, Any] | None:
    with ExitStack() as opened:
        found = _followed(file, name, opened)
        if found is None or not _is_dataset(found[1]):
            return None
        holder, dataset = found
        where = f"{file.path}, dataset {clip(name)}"
        typed = typed if holder is file else holder.path
        why_not = _why_not(typed, dataset)
        if why_not:
            raise FormatError(f"{where}: expected a dataset whose rows lie in the file as they are, got {why_not}.")
        dtype, shape = form_of(dataset)
        dtype = checked_dtype(dtype, where)
        length = checked_nbytes(shape, dtype.itemsize, where)
        said = {
            "path": holder.path,
            "name": dataset.name,
            "dtype": repr(np.lib.format.dtype_to_descr(dtype)),
            "shape": [int(axis) for axis in shape],
            "band": 0,  # rows of a chunk that has to be decoded
            "offset": 0,
            "runs": None,
        }
        if dataset.chunks is None or not length:
            offset = int(dataset.id.get_offset() or 0)
            refuse_beyond(holder.size, offset + length, where)
            return {**said, "offset": offset}
        rows = int(dataset.chunks[0])
        in_place = not filters_of(dataset) and lies_as_numpy_has_it(dataset.id.get_type())
        if not in_place or tuple(dataset.chunks[1:]) != tuple(dataset.shape[1:]):
            return {**said, "band": rows}
        runs = chunked(holder.size, dataset, length, where, typed)
        if runs is None:
            return {**said, "band": rows}
        offsets, ends = runs
        return {**said, "offset": int(offsets[0]), "runs": as_text(offsets, ends), "rows": rows}


def form_of(dataset: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """dtype and shape of the rows: items that are arrays themselves give more axes, as they do when h5py reads them.
    Without h5py's notes, of enums and texts."""
    dtype = np.lib.format.drop_metadata(dataset.dtype)
    return dtype.base, (*(dataset.shape or ()), *dtype.shape)


def _datasets(file: Bytes, typed: str) -> list[Any]:
    found: list[Any] = []

    def look(name: str, item: Any) -> None:
        if _is_dataset(item):
            dtype, shape = form_of(item)
            axes = [int(axis) for axis in shape]
            found.append((f"/{name}", str(dtype), axes, _why_not(typed, item), dtype.kind in "iu"))

    with opened_by_h5py(file) as root:
        root.visititems(look)
    return found


def _followed(file: Bytes, name: str, opened: ExitStack) -> tuple[Bytes, Any] | None:
    """What the name leads to and the file that holds it; ``None`` if it leads nowhere.

    A link may lead to another file in this one's directory or below; to read one elsewhere, name that file.
    """
    holder, rest, links = file, name.split("/"), 0
    item = root = opened.enter_context(opened_by_h5py(file))
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
            if holder.problem is not None:
                raise holder.problem from None
            return None  # nothing of that name, or something that HDF5 itself cannot follow
        links += 1
        if links > _MOST_LINKS:
            return None
        rest = [*target, *rest]
        if kind == "ExternalLink":
            path = _linked(file, holder, link.filename, "/".join(rest))
            holder = LocalBytes(path)
            item = root = opened.enter_context(opened_by_h5py(holder))
        elif link.path.startswith("/"):
            item = root
    return holder, item


def _linked(file: Bytes, holder: Bytes, name: str, dataset: str) -> str:
    """The file that a link in ``holder`` names, if it may lead there."""
    if not isinstance(file, LocalBytes):
        raise FormatError(
            f"{file.path}: expected a dataset in this object, got a link to {clip(name)}. Open the address of that "
            f"file with tensor={dataset!r}."
        )
    allowed = os.path.realpath(os.path.dirname(file.path))  # noqa: PTH120
    path = os.path.realpath(os.path.join(os.path.dirname(holder.path), name))  # noqa: PTH118, PTH120
    if os.path.commonpath([allowed, path]) != allowed:
        raise FormatError(
            f"{file.path}: expected links to files in its own directory, got one to {path}. If you trust it, open that "
            f"file: lowtide.open({path!r}, tensor={dataset!r})."
        )
    if not os.path.exists(path):  # noqa: PTH110
        raise FormatError(f"{file.path}: expected the file its link names, {path}, got no such file. Copy it too.")
    with HeaderFile(path):  # a FIFO or a device is refused before h5py waits for it
        return path


@contextmanager
def opened_by_h5py(file: Bytes) -> Iterator[Any]:
    """The file as h5py has it, without HDF5's lock: whoever decodes has it open for long, and others may rewrite it
    meanwhile, which is noticed."""
    try:
        import h5py
    except ImportError:
        raise FormatError(
            f"{file.path}: expected h5py to find the data of an HDF5 file, got none installed. "
            "Install it: pip install 'lowtide[hdf5]'."
        ) from None
    with contextlib.suppress(ImportError):
        import hdf5plugin  # noqa: F401 - its filters, where it is installed
    try:
        _refuse_written(file)
        # Not by its path: HDF5 shares what it knows of a file among all who have it open, by device and inode. Opened
        # again after it was changed in place, it would have the chunks and the shape it had before.
        local = isinstance(file, LocalBytes)
        opened = h5py.File(open(file.path, "rb", buffering=0) if local else file.decoders_file(), "r", locking=False)  # noqa: PTH123, SIM115
    except OSError as error:
        if file.problem is not None:
            raise file.problem from None
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
            if file.problem is not None:
                raise file.problem from None
            raise FormatError(
                f"{file.path}: expected a whole HDF5 file, got one that h5py cannot read ({clip(str(error))}). "
                "It is damaged, or holds what numpy does not have: copy it again, or read it with h5py."
            ) from error


def _refuse_written(file: Bytes) -> None:
    """BlockingIOError if some process has the file open for writing, by the lock that HDF5 takes."""
    if isinstance(file, LocalBytes):
        with open(file.path, "rb") as opened:  # noqa: PTH123
            try:
                fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise
            except OSError:
                pass  # a filesystem without locks


def _is_dataset(item: Any) -> bool:
    return hasattr(item, "chunks") and hasattr(item.id, "get_offset")


def _why_not(typed: str, dataset: Any) -> str:
    """Why a dataset cannot be read in place, and what to do; empty if it can."""
    source = f"h5py.File({typed!r})[{dataset.name!r}]"
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
    if not lies_as_numpy_has_it(dataset.id.get_type()):
        return f"items that only h5py turns into numpy's (a part of their bytes, or texts that end in spaces). {save}"
    return ""
