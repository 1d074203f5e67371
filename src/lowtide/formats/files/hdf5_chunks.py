"""Where the chunks of an uncompressed HDF5 dataset lie: the bytes of each, checked, as runs. Runs in the maker only.

HDF5 keeps an index of chunks, and h5py walks it (2 microseconds per chunk, once, at opening). Chunks that hold whole
rows hold them as they are, so a row is read in place; those that follow one another in the file, as they do where a
dataset was written from its beginning to its end, become one run of bytes. Costs 8 bytes per chunk while the index is
walked, and 36 per run that is left in an open store.

The index is a stranger's: chunks twice, overlapping, or beyond the file are a ``FormatError``. Chunks that were never
written have no bytes in the file, only a fill value: a dataset with such chunks is decoded like a filtered one, unless
it has hardly any others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.errors import FormatError
from lowtide.formats.layout import clip

MOST_SPARSE = 1024  # chunks for each that was written: a shape may say anything, and tables are as long as it
DAMAGED = "Its index of chunks is damaged: copy or write it again"
NAMES = {1: "gzip", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf"}


def filters_of(dataset: Any) -> str:
    """What the chunks of a dataset went through, in words; empty where they lie in the file as they are."""
    plist = dataset.id.get_create_plist()
    numbers = [plist.get_filter(index)[0] for index in range(plist.get_nfilters())]
    return " and ".join(NAMES.get(number, f"filter {number}") for number in numbers)


def lies_as_numpy_has_it(kind: Any) -> bool:
    """Whether items of an HDF5 type have the bits of the numpy dtype that h5py gives them: numbers may use a part of
    their bytes only, and texts may end in spaces, which h5py makes anew when it reads."""
    from h5py import h5t  # here: only the maker has it

    if isinstance(kind, h5t.TypeIntegerID):
        return bool(kind.get_precision() == 8 * kind.get_size() and kind.get_offset() == 0)
    if isinstance(kind, h5t.TypeFloatID):
        return _form(kind) == _form(h5t.py_create(kind.dtype))
    if isinstance(kind, h5t.TypeStringID):
        return bool(kind.is_variable_str() or kind.get_strpad() != h5t.STR_SPACEPAD)
    if isinstance(kind, h5t.TypeCompoundID):
        return all(lies_as_numpy_has_it(kind.get_member_type(member)) for member in range(kind.get_nmembers()))
    if isinstance(kind, h5t.TypeEnumID | h5t.TypeArrayID):
        return lies_as_numpy_has_it(kind.get_super())
    return True


def _form(kind: Any) -> tuple[Any, ...]:
    """What the bits of a float mean."""
    return (
        kind.get_size(),
        kind.get_precision(),
        kind.get_offset(),
        kind.get_fields(),
        kind.get_ebias(),
        kind.get_norm(),
    )


def refuse_beyond(size: int, end: int, where: str) -> None:
    if end > size:
        raise FormatError(
            f"{where}: expected data up to byte {end}, got a file of {size}. It is cut short: copy or write it again."
        )


def chunked(
    size: int, dataset: Any, length: int, where: str, typed: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Where the runs of bytes begin in a file of ``size`` bytes, and where each ends in the dataset, whose ``length``
    is more than 0 and whose chunks hold whole rows; None where some were never written. ``typed``: the file as one
    types its name."""
    rows, per_chunk = int(dataset.shape[0]), int(dataset.chunks[0])
    chunk = length // rows * per_chunk  # bytes
    count = -(-rows // per_chunk)
    stored = int(dataset.id.get_num_chunks())
    if stored * MOST_SPARSE < count:
        raise _never_written(typed, dataset, count, f"{stored}", where)
    if stored < count:
        return None
    if count > size // chunk + 1:  # before anything as long as the index is made; the last may be cut
        refuse_beyond(size, (count - 1) * chunk, where)
    offsets = _offsets(dataset, count, per_chunk, chunk, where)
    sizes = np.full(count, chunk, np.int64)
    sizes[-1] = length - (count - 1) * chunk  # of a last chunk that is not full, the rows that count come first
    if int(offsets.min()) <= 0:
        return None
    refuse_beyond(size, int((offsets + sizes).max()), where)
    order = np.argsort(offsets, kind="stable")
    overlapping = np.flatnonzero(offsets[order][1:] < offsets[order][:-1] + sizes[order][:-1])
    if len(overlapping):
        first, second = (int(order[overlapping[0] + k]) * per_chunk for k in (0, 1))
        raise FormatError(
            f"{where}: expected chunks apart from one another, got rows {first} and {second} on the same bytes. "
            f"{DAMAGED}."
        )
    begins = np.concatenate(([True], offsets[1:] != offsets[:-1] + chunk))  # a new run of bytes
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:] * chunk, length)
    return offsets[starts], ends


def _offsets(dataset: Any, count: int, per_chunk: int, chunk: int, where: str) -> NDArray[np.int64]:
    """Where each chunk begins in the file; -1: nowhere."""
    found = np.full(count, -1, np.int64)
    walk = getattr(dataset.id, "chunk_iter", None)
    if walk is None:
        raise FormatError(
            f"{where}: expected an h5py that says where chunks lie, got one built with an old HDF5. "
            "Install a newer one: pip install -U h5py."
        )
    wrong: list[str] = []

    def note(chunk_at: Any) -> bool | None:
        row, *others = chunk_at.chunk_offset
        number = row // per_chunk
        if row % per_chunk or any(others):
            wrong.append(f"one at {clip(chunk_at.chunk_offset)}")
        elif number >= count:
            return None  # left from when the dataset was longer
        elif found[number] >= 0:
            wrong.append(f"two with row {row}")
        elif chunk_at.size != chunk or not 0 < chunk_at.byte_offset < 2**63 - chunk:
            wrong.append(f"one of {chunk_at.size} bytes at byte {chunk_at.byte_offset}")
        else:
            found[number] = chunk_at.byte_offset
        return True if wrong else None  # anything but None ends the walk

    try:
        walk(note)
    except (OSError, RuntimeError, ValueError, OverflowError) as error:
        raise FormatError(
            f"{where}: expected an index of chunks, got one that h5py cannot read ({clip(str(error))}). {DAMAGED}."
        ) from error
    if wrong:
        raise FormatError(
            f"{where}: expected chunks of {per_chunk} rows, {chunk} bytes each, got {wrong[0]}. {DAMAGED}."
        )
    return found


def _never_written(typed: str, dataset: Any, count: int, got: str, where: str) -> FormatError:
    name = f"{dataset.name.rpartition('/')[2]}.npy"
    return FormatError(
        f"{where}: expected {count} chunks, got {got}: what was never written has no bytes in the file, only a fill "
        f"value. Write it, or save the dataset: np.save({name!r}, h5py.File({typed!r})[{dataset.name!r}][:])."
    )
