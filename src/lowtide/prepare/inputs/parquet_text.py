"""Text columns of Parquet files, a batch of rows at a time.

A row group is where a Parquet file can be entered, and ``iter_batches`` reads one a few rows at a time; neither the
file nor a row group is ever held whole as text. Costs the footer per file, the compressed column chunk and one batch.
pyarrow is imported here alone, and only when a Parquet file is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lowtide.errors import FormatError, LowtideError

_MOST_ROWS = 65_536


def row_groups(path: str, column: str, block: int) -> Iterator[tuple[int, int, int]]:
    """Neighbouring row groups whose column is about ``block`` bytes of text, as (begin, end, groups of the file)."""
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
            rows = max(1, file.metadata.row_group(group).num_rows)
            each = max(1, _column_bytes(file, group, column) // rows)
            count = max(1, min(_MOST_ROWS, block // each))
            for batch in file.iter_batches(count, row_groups=[group], columns=[column], use_threads=False):
                array = batch.column(0)
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


def _column_bytes(file: Any, group: int, column: str) -> int:
    one = file.metadata.row_group(group)
    sizes = [
        one.column(place).total_uncompressed_size
        for place in range(one.num_columns)
        if one.column(place).path_in_schema.split(".")[0] == column
    ]
    return int(sum(sizes))
