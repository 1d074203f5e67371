"""Decodes the units of a chunked array (``decoded_rows.py``): what a maker does for HDF5 and Zarr. Runs there only.

HDF5 has one lock for everything it does. So the usual kinds of chunks, gzip and lzf, with or without shuffle, are read
by their offsets, unpacked by isal (where it is installed, else zlib) or the native engine and put in order by numpy,
all of which run beside each other; other filters go through h5py. A chunk that cannot be decoded is a ``ReadError``
naming it; blocks that hold nothing of it are made.

Holds one unit more than there are processors, so that none waits for a read; at most 32 MiB of them or one, and 16 MiB
of units just decoded.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.blocks.block_file import BLOCK
from lowtide.engine import engine
from lowtide.errors import LowtideError, ReadError
from lowtide.formats.files.decoded_rows import identity_of
from lowtide.formats.files.hdf5_chunks import lies_as_numpy_has_it
from lowtide.formats.files.hdf5_inside import form_of, opened_by_h5py
from lowtide.formats.files.zarr_inside import open_zarr, store_below
from lowtide.formats.layout import clip
from lowtide.formats.object_bytes import bytes_of
from lowtide.units import MIB, format_size

_zlib: Any = zlib
with suppress(ImportError):
    from isal import isal_zlib

    _zlib = isal_zlib  # the same calls, 2.4 times as fast

HELD = 32 * MIB
KEPT = 16 * MIB
MOST_CHUNKS = 1 << 20  # whose places are held, 12 bytes each
_GZIP, _SHUFFLE, _LZF = 1, 2, 32000  # HDF5's numbers of filters

Write = Callable[[int, Any], None]


@dataclass(frozen=True)
class _Unit:
    """Decoded rows, with zeros up to the next block; ``problems``: bytes that could not be decoded, and why."""

    data: NDArray[np.uint8]
    problems: list[tuple[int, int, ReadError]] = field(default_factory=list)


class DecodedRows:
    """The block file of a chunked array: ``rows`` per unit, ``region`` bytes of the file for each. ``contents`` tells
    versions of a Zarr array apart, and says when its newest file was written: makers keep what they decode for who
    opens the same again."""

    def __init__(
        self, kind: str, path: str, name: str, rows: int, region: int, identity: Any, contents: list[Any], source: Any
    ) -> None:
        self._kind, self._path, self._name, self._identity = kind, path, name, identity
        self._rows, self._region, self._newest = rows, region, int(contents[1])
        self._array: Hdf5Chunks | ZarrChunks = _CHUNKS[kind](path, name, source)
        self._many = threading.BoundedSemaphore(max(1, min((os.cpu_count() or 1) + 1, HELD // region)))
        self._kept: OrderedDict[int, _Unit] = OrderedDict()
        self._under_way: set[int] = set()
        self._turn = threading.Condition()

    def make(self, offset: int, length: int, write: Write) -> None:
        """The bytes at ``offset`` of the block file, in order, to ``write``."""
        end, failed = offset + length, None
        for number in range(offset // self._region, -(-end // self._region)):
            base, unit = number * self._region, self._unit(number)
            first, last = max(0, offset - base), min(end - base, len(unit.data))
            step = BLOCK if unit.problems else last - first
            for at in range(first, last, max(1, step)):
                stop = min(at + step, last)
                problem = next((one for start, until, one in unit.problems if start < stop and until > at), None)
                if problem is None:
                    write(base + at, unit.data[at:stop])
                failed = failed or problem
        if failed is not None:
            raise failed

    def covering(self, first: int, last: int) -> tuple[int, int]:
        """The bytes of all units that these bytes touch."""
        return first // self._region * self._region, -(-last // self._region) * self._region

    def _unit(self, number: int) -> _Unit:
        with self._turn:
            self._turn.wait_for(lambda: number not in self._under_way)
            known = self._kept.get(number)
            if known is not None:
                self._kept.move_to_end(number)
                return known
            self._under_way.add(number)
            if self._region > KEPT:
                self._kept.clear()  # two of them would be too much
        try:
            with self._many:
                found = self._decoded(number)
            with self._turn:
                self._kept[number] = found
                while len(self._kept) > 1 and sum(len(one.data) for one in self._kept.values()) > KEPT:
                    self._kept.popitem(last=False)
            return found
        finally:
            with self._turn:
                self._under_way.discard(number)
                self._turn.notify_all()

    def _decoded(self, number: int) -> _Unit:
        self._refuse_changed()
        shape, dtype = self._array.opened()
        first = number * self._rows
        last = min(first + self._rows, shape[0])
        self._refuse_newer(first, last)
        size = (last - first) * math.prod(shape[1:]) * dtype.itemsize
        unit = _Unit(np.empty(self._region if last < shape[0] else size, np.uint8))
        unit.data[size:] = 0
        rows = unit.data[:size].view(dtype).reshape(last - first, *shape[1:])
        for chunk, raw in self._array.chunks(first, last):
            begin, end = chunk[0].start - first, min(chunk[0].stop, last) - first
            try:
                self._array.decode(chunk, raw, rows[(slice(begin, end), *chunk[1:])])
            except LowtideError:
                raise
            except Exception as problem:  # of damaged bytes decoders raise what they like
                row = size // (last - first)
                unit.problems.append((begin * row, end * row, self._damaged(chunk, first + end, problem)))
        self._refuse_changed()  # while it was decoded: half of it may be of either version
        self._refuse_newer(first, last)
        return unit

    def _refuse_changed(self) -> None:
        if self._identity is not None and identity_of(self._kind, self._path, self._name) != self._identity:
            raise self._changed()

    def _refuse_newer(self, first: int, last: int) -> None:
        """Of a Zarr array here: whose chunks are files, each with its time."""
        if self._newest and isinstance(self._array, ZarrChunks) and self._array.newest(first, last) > self._newest:
            raise self._changed()

    def _changed(self) -> ReadError:
        return ReadError(
            f"{self._path}: expected the file that was opened, got it changed meanwhile. Open it again.",
            path=self._path,
            offset=0,
        )

    def _damaged(self, chunk: tuple[slice, ...], last: int, problem: Exception) -> ReadError:
        index = tuple(axis.start // (axis.stop - axis.start) for axis in chunk)
        return ReadError(
            f"{self._path}, {clip(self._name)}: expected chunk {index} (rows {chunk[0].start} to {last}) whole, got "
            f"one that cannot be decoded ({clip(str(problem))}). Copy or write the file again; rows in other blocks of "
            f"{format_size(BLOCK)} can be read.",
            path=self._path,
            offset=chunk[0].start,
        )


class Hdf5Chunks:
    """Chunks of a dataset. A slice of a chunk's place ends where the chunk does, perhaps beyond the data."""

    def __init__(self, path: str, name: str, source: Any) -> None:
        self._file, self._name = bytes_of(path, source), name
        self._turn = threading.Lock()
        self._dataset: Any = None
        self._lie: tuple[NDArray[np.int64], NDArray[np.uint32]] | None = None  # of each chunk: its byte, its length

    def opened(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        with self._turn:
            if self._dataset is None:
                self._open = ExitStack()  # as long as this process
                self._dataset = self._open.enter_context(opened_by_h5py(self._file))[self._name]
                plist = self._dataset.id.get_create_plist()
                filters = [plist.get_filter(k)[0] for k in range(plist.get_nfilters())]
                self._shuffled = filters[:1] == [_SHUFFLE]
                packed = filters[self._shuffled :]
                self._lzf = packed == [_LZF] and engine().name == "native"
                if (self._lzf or packed == [_GZIP]) and lies_as_numpy_has_it(self._dataset.id.get_type()):
                    self._lie = self._index()
            dtype, shape = form_of(self._dataset)
            return shape, dtype

    def chunks(self, first: int, last: int) -> Iterator[tuple[tuple[slice, ...], Any]]:
        """Places of chunks, and their bytes where we unpack them: those that lie together come by one read."""
        rows, *columns = self._dataset.chunks
        corners = [range(first, last, rows)]
        corners += [range(0, axis, step) for axis, step in zip(self._dataset.shape[1:], columns, strict=True)]
        places = list(itertools.product(*corners))
        known: dict[tuple[int, ...], tuple[int, int]] = {}
        if self._lie is not None:
            grid = self._grid()
            steps = np.array(places, np.int64) // self._dataset.chunks
            numbers = np.ravel_multi_index(tuple(steps.T), grid)
            found = zip(places, self._lie[0][numbers].tolist(), self._lie[1][numbers].tolist(), strict=True)
            known = {place: (offset, size) for place, offset, size in found if size}
        begin = min((offset for offset, _ in known.values()), default=0)
        length = max((offset + size for offset, size in known.values()), default=0) - begin
        together = None
        if length <= 2 * sum(size for _, size in known.values()):
            together = memoryview(self._file.at(begin, length))
        for place in places:
            raw: Any = None
            if place in known:
                offset, size = known[place]
                raw = self._file.at(offset, size) if together is None else together[offset - begin :][:size]
            yield tuple(slice(at, at + step) for at, step in zip(place, (rows, *columns), strict=True)), raw

    def _grid(self) -> tuple[int, ...]:
        """How many chunks along each axis."""
        return tuple(-(-axis // step) for axis, step in zip(self._dataset.shape, self._dataset.chunks, strict=True))

    def _index(self) -> tuple[NDArray[np.int64], NDArray[np.uint32]] | None:
        """Where each chunk lies, by one walk: asked for a single one, HDF5 walks past all others. No length for those
        that h5py has to read: never written, not through all filters, or absurdly long. None: too many for a table."""
        grid, chunks, walk = self._grid(), self._dataset.chunks, getattr(self._dataset.id, "chunk_iter", None)
        count = math.prod(grid)
        if walk is None or count > MOST_CHUNKS:
            return None
        offsets, sizes = np.zeros(count, np.int64), np.zeros(count, np.uint32)
        most = 2 * math.prod(chunks) * self._dataset.dtype.itemsize + MIB

        def note(one: Any) -> None:
            number = 0
            for at, step, many in zip(one.chunk_offset, chunks, grid, strict=True):
                if at // step >= many:
                    return  # left from when the dataset was longer
                number = number * many + at // step
            if one.filter_mask == 0 and 0 < one.size <= most and 0 < one.byte_offset < 2**63 - most:
                offsets[number], sizes[number] = one.byte_offset, one.size

        try:
            walk(note)
        except Exception:  # damaged: h5py finds what it can of it, and says which chunk it cannot
            return None
        return offsets, sizes

    def decode(self, chunk: tuple[slice, ...], raw: Any, target: NDArray[Any]) -> None:
        if raw is not None:
            self._unpack(raw, target)
            return
        with self._turn:  # filters of others, and chunks that were never written
            self._file.problem = None
            try:
                # What h5py fills must be memory of one run; a unit of whole rows is.
                target[...] = self._dataset[tuple(slice(axis.start, axis.stop) for axis in chunk)]
            except Exception:
                if self._file.problem is not None:
                    raise self._file.problem from None
                raise

    def _unpack(self, raw: Any, target: NDArray[Any]) -> None:
        item, dtype = self._dataset.dtype.itemsize, self._dataset.dtype.base
        size, shuffled = math.prod(self._dataset.chunks) * item, self._shuffled and item > 1
        shape = (*self._dataset.chunks, *self._dataset.dtype.shape)
        whole = target.shape == shape and target.flags.c_contiguous
        data: Any
        if self._lzf:
            data = target.reshape(-1).view(np.uint8) if whole and not shuffled else np.empty(size, np.uint8)
            came = engine().unpack_lzf(raw, data)
        else:
            decoder = _zlib.decompressobj()
            data = decoder.decompress(raw, size + 1)  # whatever it says, no more than this
            came = len(data)
            if came == size and not decoder.eof:
                raise ValueError("no checksum behind its bytes")
        if came != size:
            raise ValueError(f"{came} bytes instead of {size}" if came != -1 else "not what lzf writes")
        inside = tuple(slice(axis) for axis in target.shape)  # a chunk at the end may be longer than the data
        if not shuffled:
            if not (self._lzf and whole):
                target[...] = np.frombuffer(data, dtype).reshape(shape)[inside]
            return
        rows = target if whole else np.empty(shape, dtype)
        planes, items = np.frombuffer(data, np.uint8).reshape(item, -1), rows.reshape(-1).view(np.uint8)
        for place, plane in enumerate(planes):  # three times as fast as one transposed copy
            items[place::item] = plane
        if not whole:
            target[...] = rows[inside]


class ZarrChunks:
    """Chunks of a Zarr array, or its shards: whole rows of them at a time, decoded by zarr."""

    def __init__(self, path: str, name: str, source: Any) -> None:
        self._where = path, name, None if source is None else store_below(**source)
        self._array: Any = None
        self._turn = threading.Lock()

    def opened(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        with self._turn:
            if self._array is None:
                self._array = open_zarr(*self._where)
            return tuple(self._array.shape), np.dtype(self._array.dtype)

    def newest(self, first: int, last: int) -> int:
        """When the newest of the files that hold these rows was written; for one that is not there, its directory."""
        rows, *others = self._outer()
        grid = [range(first // rows, -(-last // rows))]
        grid += [range(-(-axis // step)) for axis, step in zip(self._array.shape[1:], others, strict=True)]
        return max(self._written(self._array.metadata.encode_chunk_key(place)) for place in itertools.product(*grid))

    def _written(self, key: str) -> int:
        path, name, _ = self._where
        parts = [path, name, *key.split("/")]
        for many in range(len(parts), 0, -1):
            with suppress(OSError):
                return os.stat("/".join(parts[:many])).st_ctime_ns  # noqa: PTH116
        return sys.maxsize  # nothing of it is left

    def _outer(self) -> tuple[int, ...]:
        """Rows and columns of what is one file."""
        return tuple(getattr(self._array, "shards", None) or self._array.chunks)

    def chunks(self, first: int, last: int) -> Iterator[tuple[tuple[slice, ...], Any]]:
        outer = self._outer()
        for start in range(first, last, outer[0]):
            yield (slice(start, start + outer[0]), *(slice(0, axis) for axis in self._array.shape[1:])), None

    def decode(self, chunk: tuple[slice, ...], _: Any, target: NDArray[Any]) -> None:
        target[...] = self._array[chunk[0].start : chunk[0].start + len(target)]


_CHUNKS: dict[str, Callable[..., Hdf5Chunks | ZarrChunks]] = {"hdf5": Hdf5Chunks, "zarr": ZarrChunks}
