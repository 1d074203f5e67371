"""Ray Data over rows on disk: ``lowtide.ray.dataset(a)``, of arrays, of several aligned ones, or of tokens.

A read task is a range of rows and the opened array itself, which travels as the name of its file. The worker
that has the task reads its own range through our reader, a bounded number of rows at a time: one block of Ray's.

Costs one block (16 MiB, or the budget where that is less) per task beside what Ray holds. The workers must see the
files under the same path. The only file that imports Ray for reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import ray.data
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from ray.data import Datasource, ReadTask
from ray.data.block import BlockAccessor, BlockMetadata

from lowtide.arguments import at_least
from lowtide.array import Array
from lowtide.reading.rows.member_rows import Column
from lowtide.together import Together
from lowtide.tokens import Tokens
from lowtide.units import MIB

__all__ = ["RowSource", "dataset"]

BLOCK_BYTES_READ = 16 * MIB  # read at a time: enough to keep a disk busy, little beside Ray's own blocks of 128 MiB

Columns = dict[str, NDArray[Any]]
Rows = Array | Tokens | Together | Mapping[str, Array]


def dataset(source: Rows, *, length: int | None = None, **options: Any) -> Any:
    """``source`` as a ``ray.data.Dataset`` whose read tasks read their own ranges of rows.

    An array becomes the column ``data`` (one column per field where its dtype has fields); a dict of arrays of equal
    length, or ``together``, a column each. Tokens need ``length`` and become the column ``tokens``: windows of
    ``length + 1`` tokens at stride ``length``. ``options`` go to ``ray.data.read_datasource``:
    ``override_num_blocks``, ``concurrency`` ...

    >>> ds = lowtide.ray.dataset({"x": lowtide.open("x.npy"), "y": lowtide.open("y.npy")})
    """
    return ray.data.read_datasource(RowSource(source, length=length), **options)


class RowSource(Datasource):
    """The Ray Data source behind ``dataset``, for those who call ``ray.data.read_datasource`` themselves."""

    def __init__(self, source: Rows, *, length: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._reader = _reader_of(source, length)

    def estimate_inmemory_data_size(self) -> int:
        return self._reader.count * self._reader.width

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """As many ranges as asked for, whose sizes differ by at most one row; Ray calls this."""
        del data_context
        count = self._reader.count
        tasks = min(max(1, parallelism), count)
        edges = [count * number // tasks for number in range(tasks + 1)] if tasks else []
        return [
            ReadTask(
                partial(self._reader.blocks, first, last),
                BlockMetadata(last - first, (last - first) * self._reader.width, None, None),
                per_task_row_limit=per_task_row_limit,
            )
            for first, last in pairwise(edges)
        ]


class _ColumnReader:
    """Arrays of equal length, one per column."""

    def __init__(self, arrays: Mapping[str, Array | Column], budget: int) -> None:
        self._arrays = arrays
        self.count = len(next(iter(arrays.values())))
        self.width = sum(array.nbytes // max(1, len(array)) for array in arrays.values())
        self._rows = max(1, min(BLOCK_BYTES_READ, budget) // max(1, self.width))

    def blocks(self, first: int, last: int) -> Iterator[Any]:
        """The range as Ray's blocks; runs in a worker."""
        for start in range(first, last, self._rows):
            stop = min(start + self._rows, last)
            columns: Columns = {}
            for name, array in self._arrays.items():
                columns |= _native_columns(name, array[start:stop])
            yield BlockAccessor.batch_to_block(columns)


class _WindowReader:
    """Windows of ``length + 1`` tokens at stride ``length``."""

    def __init__(self, tokens: Tokens, length: int) -> None:
        self._tokens = tokens
        self._length = length
        self.count = max(0, (len(tokens) - 1) // length)
        self.width = (length + 1) * tokens.dtype.itemsize
        self._rows = max(1, min(BLOCK_BYTES_READ, tokens.plan().budget) // self.width)

    def blocks(self, first: int, last: int) -> Iterator[Any]:
        """The range as Ray's blocks; runs in a worker."""
        for start in range(first, last, self._rows):
            stop = min(start + self._rows, last)
            tokens = self._tokens[start * self._length : stop * self._length + 1]
            windows = sliding_window_view(tokens, self._length + 1)[:: self._length]
            yield BlockAccessor.batch_to_block(_native_columns("tokens", windows))


def _reader_of(source: Any, length: int | None) -> _ColumnReader | _WindowReader:
    if isinstance(source, Tokens):
        if length is None:
            raise TypeError("length: expected the tokens of a window, got none. Use dataset(tokens, length=1024).")
        return _WindowReader(source, at_least("length", length, 1, example="length=1024"))
    if length is not None:
        raise TypeError(f"length: expected no length for an array (it is for tokens), got {length!r}. Leave it out.")
    if isinstance(source, Together):
        return _ColumnReader(source.columns(), source.budget.limit)
    arrays = dict(source) if isinstance(source, Mapping) else {"data": source}
    if not arrays or not all(isinstance(array, Array) for array in arrays.values()):
        kinds = sorted({type(array).__name__ for array in arrays.values()}) or ["an empty dict"]
        raise TypeError(
            f"lowtide.ray.dataset: expected what lowtide.open, together or open_tokens gives, got {', '.join(kinds)}. "
            "Use lowtide.open(path)."
        )
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"lowtide.ray.dataset: expected arrays of equal length, got {lengths}. Cut the longer ones.")
    return _ColumnReader(arrays, min(array.plan().budget for array in arrays.values()))


def _native_columns(name: str, rows: NDArray[Any]) -> Columns:
    """One column, or one per field; Arrow knows neither fields of this kind nor foreign byte orders."""
    if rows.dtype.names:
        fields = {field: rows[field] for field in rows.dtype.names}
    else:
        fields = {name: rows}
    return {column: np.ascontiguousarray(values, values.dtype.newbyteorder("=")) for column, values in fields.items()}
