"""Text columns of Parquet files, a batch of rows at a time.

Reading can start at any row group, and ``iter_batches`` reads a group a few rows at a time; neither the file nor a
row group is ever held whole as text. Costs the footer per file, the compressed column chunk and one batch.
pyarrow is imported only here, and only if a Parquet file is named.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lowtide.errors import FormatError, LowtideError
from lowtide.machine import memory_limit
from lowtide.prepare.resources import refuse_little_memory
from lowtide.units import MIB, format_size

_MOST_ROWS = 65_536
_PYARROW = 48 * MIB  # pyarrow itself, and pages of a few MiB
_PER_BYTE = 6  # bytes held while a byte of a page is decoded, cut and encoded; measured


def row_groups(path: str, column: str, block: int) -> Iterator[tuple[int, int, int]]:
    """Neighbouring row groups whose column is about ``block`` bytes of text, as (begin, end, groups in the file)."""
    with _opened(path) as file:
        _refuse_missing(file, path, column)
        begin, size, groups = 0, 0, file.metadata.num_row_groups
        for group in range(groups):
            more = _column_bytes(file, group, column)
            if group > begin and size + more > block:
                yield begin, group, groups
                begin, size = group, 0
            size += more
        if groups > begin:
            yield begin, groups, groups


def column_texts(path: str, column: str, groups: range, block: int) -> Iterator[list[bytes]]:
    """The column of these row groups as UTF-8 bytes, about ``block`` bytes at a time; nulls are empty."""
    import pyarrow

    with _opened(path) as file:
        _refuse_missing(file, path, column)
        for group in groups:
            _refuse_large_pages(path, file.metadata.row_group(group), column)
            rows = max(1, file.metadata.row_group(group).num_rows)
            each = max(1, _column_bytes(file, group, column) // rows)
            count = max(1, min(_MOST_ROWS, block // each))
            for batch in file.iter_batches(count, row_groups=[group], columns=[column], use_threads=False):
                array = batch.column(column)
                if pyarrow.types.is_dictionary(array.type):
                    array = array.dictionary_decode()
                if not _is_text(array.type):
                    raise FormatError(
                        f"{path}: expected text in column {column!r}, got {array.type}. Name another with --column."
                    )
                yield [text or b"" for text in array.cast(pyarrow.large_binary()).to_pylist()]


def _is_text(kind: Any) -> bool:
    import pyarrow

    known = ("is_string", "is_large_string", "is_string_view", "is_binary", "is_large_binary", "is_binary_view")
    return any(getattr(pyarrow.types, name)(kind) for name in known if hasattr(pyarrow.types, name))


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    if "pyarrow" not in sys.modules:
        refuse_little_memory(path, _PYARROW)
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise LowtideError(
            f"{path}: expected pyarrow to read it, got none. Install it with: pip install 'lowtide[prepare]'"
        ) from None
    try:
        # A small buffer and no reading ahead: otherwise a whole row group of all columns may be held.
        with pyarrow.parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as problem:
        if isinstance(problem, FileNotFoundError):
            raise
        reason = " ".join(str(problem).split())[:160]
        raise FormatError(
            f"{path}: expected a whole Parquet file, got: {reason}. Download it again or leave it out."
        ) from problem


def _refuse_missing(file: Any, path: str, column: str) -> None:
    names = file.schema_arrow.names
    if column not in names:
        raise FormatError(
            f"{path}: expected a column {column!r}, got {', '.join(names[:12])}. Name one of them with --column."
        )


def _refuse_large_pages(path: str, group: Any, column: str) -> None:
    """BudgetError for a page too large to decode in the memory that is left: pyarrow decodes a page whole."""
    left = memory_limit().left
    for place in range(group.num_columns):
        one = group.column(place)
        if left is None or not _is_of(one, column) or one.total_uncompressed_size * _PER_BYTE <= left:
            continue
        begin = min(one.dictionary_page_offset or one.data_page_offset, one.data_page_offset)
        largest = _largest_page(path, begin, begin + one.total_compressed_size)
        refuse_little_memory(f"{path}, a page of {format_size(largest)}", _PER_BYTE * largest)


def _largest_page(path: str, begin: int, end: int) -> int:
    """Bytes of the largest page in a column chunk, according to the headers before its pages."""
    largest = 0
    with open(path, "rb") as file:  # noqa: PTH123
        while begin < end:
            file.seek(begin)
            size, uncompressed, compressed = _page_header(file.read(1 << 16))
            largest, begin = max(largest, uncompressed), begin + size + compressed
    return largest


def _page_header(data: bytes) -> tuple[int, int, int]:
    """(bytes of the header, of the page, of the page as stored in the file): the last two are fields 2 and 3 of a
    struct in Thrift's compact form."""
    at, field, found = 0, 0, [0, 0, 0, 0]
    while (head := data[at]) != 0:
        field += head >> 4
        at, value = _thrift(data, at + 1, head & 15)
        if field < 4:
            found[field] = (value >> 1) ^ -(value & 1)
    return at + 1, found[2], found[3]


def _thrift(data: bytes, at: int, kind: int) -> tuple[int, int]:
    """Where a value ends, and the number that it is or begins with."""
    number = shift = 0
    if kind in (3, 7):  # a byte, eight bytes
        return at + (1 if kind == 3 else 8), 0
    if kind in (4, 5, 6, 8):  # numbers; bytes after their count
        while True:
            number |= (data[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if not data[at - 1] & 128:
                return at + (number if kind == 8 else 0), number
    if kind == 12:  # a struct; in a page header, none spells out its field numbers
        while (head := data[at]) != 0:
            at, _ = _thrift(data, at + 1, head & 15)
        return at + 1, 0
    if kind not in (1, 2):
        raise ValueError(f"a value of kind {kind}")
    return at, 0


def _column_bytes(file: Any, group: int, column: str) -> int:
    one = file.metadata.row_group(group)
    sizes = [
        one.column(place).total_uncompressed_size
        for place in range(one.num_columns)
        if _is_of(one.column(place), column)
    ]
    return int(sum(sizes))


def _is_of(leaf: Any, column: str) -> bool:
    """Whether values belong to a column, whose name may have dots itself."""
    return f"{leaf.path_in_schema}.".startswith(f"{column}.")
