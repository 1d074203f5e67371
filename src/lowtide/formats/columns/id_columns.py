"""A column of token ids in a Parquet, Arrow or Feather file, as blocks of ids.

One row of the column is one document, and blocks of at most 262,144 ids come out whatever the file's own pieces (row
groups, record batches) hold. Costs a few pages of one column of a Parquet row group, or one record batch of an Arrow
file, which is mapped, and unpacked if it was compressed. pyarrow (extra ``parquet``) is imported only here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.errors import FormatError
from lowtide.formats.header import HeaderFile
from lowtide.formats.layout import Ends, clip

# Ids in one block. Four times as many took three times the memory and no less time.
MOST_IDS = 1 << 18
_MOST_ROWS = 65_536
_MOST_LISTED = 20


@dataclass(frozen=True)
class IdColumn:
    """Where ids are: a file, its kind, a column, and what pyarrow calls the type of one id."""

    path: str
    kind: str  # "parquet" | "arrow" | "arrow stream"
    name: str
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class IdBlock:
    """Some ids of a column, and where in them documents end."""

    piece: int  # their row group or record batch
    ids: npt.NDArray[Any]
    ends: Ends  # counted from the first id of this block


def find_column(path: str, column: str) -> IdColumn:
    """The column of that name; FormatError if the file has none or it does not hold lists of integers."""
    kind = _kind(path)
    pyarrow = _pyarrow(path)
    try:
        schema = _schema(pyarrow, path, kind)
        columns = list(schema.names)
    except Exception as error:  # pyarrow may raise anything for hostile bytes, such as UnicodeDecodeError
        raise FormatError(
            f"{path}: expected a whole {kind} file, got one that pyarrow cannot read ({clip(str(error))}). "
            "It is cut short or damaged: copy or write it again."
        ) from error
    if column not in columns:
        names = [clip(name, 40) for name in columns[:_MOST_LISTED]]
        more = f" and {len(columns) - _MOST_LISTED} more" if len(columns) > _MOST_LISTED else ""
        raise FormatError(
            f"{path}: expected a column {clip(column)}, got {', '.join(names) or 'none'}{more}. "
            "State column= with one of these."
        )
    if columns.count(column) > 1:
        raise FormatError(
            f"{path}: expected one column {clip(column)}, got {columns.count(column)}. Rename all but one."
        )
    type = schema.field(column).type
    item = _item_type(pyarrow, type)
    if item is None:
        raise FormatError(
            f"{path}, column {clip(column)}: expected a list of integers in each row, got {type}. "
            "Tokenise it first, or name the column of ids."
        )
    return IdColumn(path, kind, column, np.dtype(item.to_pandas_dtype()))


def column_advice(path: str, where: str, *, tokens: bool) -> str:
    """What to do with the columns of such a file, in a line to paste; ``where``: the files as one types them."""
    try:
        kind, pyarrow = _kind(path), _pyarrow(path)
        schema = _schema(pyarrow, path, kind)
    except FormatError as problem:  # its text says what is missing, or what is wrong with the file
        return str(problem).partition(". ")[2] or str(problem)
    except Exception as problem:  # pyarrow may raise anything for hostile bytes
        return f"It is damaged ({clip(str(problem))}): copy or write it again."
    types = pyarrow.types
    columns = {name: schema.field(at).type for at, name in enumerate(schema.names)}
    ids = [name for name, type in columns.items() if _item_type(pyarrow, type) is not None]
    text = [name for name, type in columns.items() if types.is_string(type) or types.is_large_string(type)]
    numbers = [name for name, type in columns.items() if types.is_integer(type) or types.is_floating(type)]
    lists = [name for name, type in columns.items() if types.is_list(type) or types.is_fixed_size_list(type)]
    if ids and (tokens or not numbers):
        best = "input_ids" if "input_ids" in ids else ids[0]
        return f"Open its column of ids: lowtide.open_tokens({where!r}, column={best!r})."
    if text and (tokens or not numbers + lists) and kind == "parquet":
        best = "text" if "text" in text else text[0]
        return f"Turn its text into ids: lowtide prepare '{where}' -o corpus/ --column {best}."
    if not numbers + lists:
        return "It has no column of numbers: name the files that hold them."
    best = (numbers + lists)[0]
    table = f"pyarrow.dataset.dataset({where!r}, format={kind.split()[0]!r}).to_table()"
    if "*" in where:
        table = f"pyarrow.dataset.dataset(sorted(glob.glob({where!r})), format={kind.split()[0]!r}).to_table()"
    if kind == "arrow stream":
        table = f"pyarrow.ipc.open_stream({where!r}).read_all()"
    column = f"{table}[{best!r}].to_numpy()"
    if best in lists:  # rows of equal length stay rows
        column = f"np.{'stack' if types.is_fixed_size_list(columns[best]) else 'concatenate'}({column})"
    return f"Save one column: np.save({best + '.npy'!r}, {column})."


def blocks(column: IdColumn, first: int = 0) -> Iterator[IdBlock]:
    """Every id from piece ``first`` on, in order, in blocks of at most 262,144."""
    pyarrow = _pyarrow(column.path)
    source = _parquet if column.kind == "parquet" else _arrow
    try:
        for piece, array in source(pyarrow, column, first):
            yield from _cut(pyarrow, column, piece, array)
    except FormatError:
        raise
    except Exception as error:  # pyarrow may raise anything for hostile bytes
        raise FormatError(
            f"{column.path}: expected rows of {clip(column.name)}, got bytes that pyarrow cannot decode "
            f"({clip(str(error))}). Copy or write it again."
        ) from error


def _kind(path: str) -> str:
    with HeaderFile(path) as file:
        head = file.read(0, 8)
        tail = file.read(max(0, file.size - 4), 4)
    if head.startswith(b"PAR1"):
        if tail != b"PAR1":
            raise FormatError(
                f"{path}: expected 'PAR1' at the end of a Parquet file, got {clip(tail)}. It is cut short or "
                "encrypted: copy or write it again."
            )
        return "parquet"
    if head == b"ARROW1\x00\x00":
        return "arrow"
    if head.startswith(b"\xff\xff\xff\xff"):
        return "arrow stream"
    raise FormatError(
        f"{path}: expected a Parquet, Arrow or Feather file for column=, got bytes {clip(head)}. "
        "Leave column= out, or name the files that have columns."
    )


def _pyarrow(path: str) -> Any:
    try:
        import pyarrow  # here, and nowhere else: Lowtide works without it
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise FormatError(
            f"{path}: expected pyarrow to decode its columns, got none installed. "
            "Install it: pip install 'lowtide[parquet]'."
        ) from None
    return pyarrow


def _schema(pyarrow: Any, path: str, kind: str) -> Any:
    if kind == "parquet":
        with pyarrow.parquet.ParquetFile(path) as file:
            return file.schema_arrow
    with pyarrow.memory_map(path) as source:
        opened = pyarrow.ipc.open_file(source) if kind == "arrow" else pyarrow.ipc.open_stream(source)
        return opened.schema


def _item_type(pyarrow: Any, type: Any) -> Any:
    """The type of one id, if the column holds lists of integers."""
    lists = (pyarrow.types.is_list, pyarrow.types.is_large_list, pyarrow.types.is_fixed_size_list)
    if any(is_one(type) for is_one in lists) and pyarrow.types.is_integer(type.value_type):
        return type.value_type
    return None


def _parquet(pyarrow: Any, column: IdColumn, first: int) -> Iterator[tuple[int, Any]]:
    # Unbuffered, pyarrow reads the whole column of a row group at once; buffered, page by page.
    with pyarrow.parquet.ParquetFile(column.path, buffer_size=1 << 20, pre_buffer=False) as file:
        for group in range(first, file.metadata.num_row_groups):
            about = file.metadata.row_group(group)
            leaves = [about.column(k) for k in range(about.num_columns)]
            ids = sum(leaf.num_values for leaf in leaves if leaf.path_in_schema.split(".")[0] == column.name)
            rows = max(1, min(_MOST_ROWS, MOST_IDS * about.num_rows // max(1, ids)))
            for batch in file.iter_batches(rows, row_groups=[group], columns=[column.name], use_threads=False):
                yield group, batch.column(0)


def _arrow(pyarrow: Any, column: IdColumn, first: int) -> Iterator[tuple[int, Any]]:
    with pyarrow.memory_map(column.path) as source:
        opened = pyarrow.ipc.open_file(source) if column.kind == "arrow" else pyarrow.ipc.open_stream(source)
        place = opened.schema.get_field_index(column.name)
        if column.kind == "arrow":
            for piece in range(first, opened.num_record_batches):
                yield piece, opened.get_batch(piece).column(place)
            return
        for piece, batch in enumerate(opened):  # a stream has no index: pieces already done are read past
            if piece >= first:
                yield piece, batch.column(place)


def _cut(pyarrow: Any, column: IdColumn, piece: int, array: Any) -> Iterator[IdBlock]:
    """One array of lists in blocks; a row without a list is an empty document."""
    array.validate(full=True)  # Arrow files are mapped and trusted: an offset beyond the end would crash the process
    lengths = pyarrow.compute.fill_null(pyarrow.compute.list_value_length(array), 0)
    ends: Ends = np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)
    values = array.flatten()
    if values.null_count:
        raise FormatError(
            f"{column.path}, column {clip(column.name)}: expected an id in every place, got {values.null_count} "
            f"missing in piece {piece}. Fill or drop them and write it again."
        )
    for begin in range(0, max(1, len(values)), MOST_IDS):
        stop = min(begin + MOST_IDS, len(values))
        inside = ends[(ends > (begin or -1)) & (ends <= stop)]  # an empty first document ends at 0
        yield IdBlock(piece, values.slice(begin, stop - begin).to_numpy(zero_copy_only=False), inside - begin)
