"""A column of token ids in a Parquet, Arrow or Feather file, as blocks of ids. Runs in the maker only.

One row of the column is one document, and blocks of at most 262,144 ids come out whatever the file's own pieces (row
groups, record batches) hold. Costs a few pages of one column of a Parquet row group, or one record batch of an Arrow
file, which is mapped, and unpacked if it was compressed. pyarrow (extra ``parquet``) is imported only here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.errors import FormatError, LowtideError
from lowtide.formats.layout import Ends, clip
from lowtide.formats.object_bytes import Bytes, LocalBytes, bytes_of

# Ids in one block. Four times as many took three times the memory and no less time.
MOST_IDS = 1 << 18
_MOST_ROWS = 65_536
_MOST_LISTED = 20


@dataclass(frozen=True)
class IdBlock:
    """Some ids of a column, and where in them documents end."""

    piece: int  # their row group or record batch
    ids: npt.NDArray[Any]
    ends: Ends  # counted from the first id of this block


def item_type(path: str, kind: str, source: dict[str, Any] | None, column: str) -> Callable[[], str]:
    """The dtype of one id; FormatError if there is no such column or it does not hold lists of integers."""
    return partial(_item_type, IdColumn(path, kind, column, bytes_of(path, source)))


def advice(path: str, kind: str, source: dict[str, Any] | None, where: str, tokens: bool) -> Callable[[], str]:
    """What to do with the columns of such a file, in a line to paste; ``where``: the files as one types them."""
    return partial(_advice, IdColumn(path, kind, "", bytes_of(path, source)), where, tokens)


@dataclass(frozen=True)
class IdColumn:
    """Where ids are: a file, its kind ("parquet", "arrow" or "arrow stream"), and a column."""

    path: str
    kind: str
    name: str
    bytes: Bytes

    def schema(self) -> Any:
        with self._whole(), self._opened() as opened:
            found = opened.schema_arrow if self.kind == "parquet" else opened.schema
            list(found.names)  # one that is no text is found here
            return found

    def promised(self) -> list[int]:
        """How many ids each piece has at most, by the file's own tables, without decoding ids."""
        with self._decoding(), self._opened() as opened:
            if self.kind != "parquet":
                return [int(_lengths(array).sum()) for _, array in self._batches(opened, None)]
            about = opened.metadata
            groups = [about.row_group(group) for group in range(about.num_row_groups)]
            return [sum(leaf.num_values for leaf in self._leaves(group)) for group in groups]

    def blocks(self, pieces: Sequence[int]) -> Iterator[IdBlock]:
        """Every id of these pieces, which ascend, in order, in blocks of at most 262,144."""
        with self._decoding(), self._opened() as opened:
            if self.kind == "parquet":
                for group in pieces:
                    for array in self._pages(opened, group):
                        yield from self._cut(group, array)
                return
            for piece, array in self._batches(opened, pieces):
                yield from self._cut(piece, array)

    def give_back(self) -> None:
        """What pyarrow keeps of its memory for later, to the system."""
        _pyarrow(self.path).default_memory_pool().release_unused()

    @property
    def in_any_order(self) -> bool:
        """Whether a piece can be read without those before it: a stream has no index."""
        return self.kind != "arrow stream"

    def stored(self, block: IdBlock, dtype: np.dtype[Any], before: int) -> npt.NDArray[Any]:
        """The ids as they are stored; FormatError for one that does not fit; none ever wraps."""
        if block.ids.size and not np.can_cast(block.ids.dtype, dtype, "safe"):
            limits = np.iinfo(dtype)
            low, high = int(block.ids.min()), int(block.ids.max())
            if low < limits.min or high > limits.max:
                found = low if low < limits.min else high
                at = before + int(np.flatnonzero(block.ids == found)[0])
                raise FormatError(
                    f"{self.path}, column {self.name!r}: expected ids from {limits.min} to {limits.max} for "
                    f"dtype={dtype}, got {found} at token {at}. State a wider dtype=, or leave it out."
                )
        return np.ascontiguousarray(block.ids.astype(dtype, copy=False))

    def damaged(self, problem: object) -> FormatError:
        return FormatError(
            f"{self.path}: expected rows of {clip(self.name)}, got bytes that pyarrow cannot decode "
            f"({clip(str(problem))}). Copy or write it again."
        )

    @contextlib.contextmanager
    def _decoding(self) -> Iterator[None]:
        try:
            yield
        except (LowtideError, GeneratorExit):
            raise
        except Exception as problem:  # pyarrow may raise anything for hostile bytes
            if self.bytes.problem is not None:
                raise self.bytes.problem from None
            raise self.damaged(problem) from None

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        try:
            yield
        except LowtideError:
            raise
        except Exception as problem:  # such as UnicodeDecodeError
            if self.bytes.problem is not None:
                raise self.bytes.problem from None
            raise FormatError(
                f"{self.path}: expected a whole {self.kind} file, got one that pyarrow cannot read "
                f"({clip(str(problem))}). It is cut short or damaged: copy or write it again."
            ) from None

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        """By pyarrow: a Parquet file, or a reader of record batches."""
        pyarrow = _pyarrow(self.path)
        file = self.bytes.decoders_file()
        if self.kind == "parquet":
            # Unbuffered, pyarrow reads the whole column of a row group at once; buffered, page by page.
            with pyarrow.parquet.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False) as opened:
                yield opened
            return
        here = isinstance(self.bytes, LocalBytes)
        source = pyarrow.memory_map(file) if here else pyarrow.PythonFile(file, mode="r")
        with contextlib.ExitStack() as closing:
            if here:
                closing.enter_context(source)
            yield pyarrow.ipc.open_file(source) if self.kind == "arrow" else pyarrow.ipc.open_stream(source)

    def _leaves(self, group: Any) -> list[Any]:
        leaves = [group.column(k) for k in range(group.num_columns)]
        # A name may have dots itself. Of another column that begins alike it may find too many, never too few.
        return [leaf for leaf in leaves if f"{leaf.path_in_schema}.".startswith(f"{self.name}.")]

    def _pages(self, opened: Any, group: int) -> Iterator[Any]:
        about = opened.metadata.row_group(group)
        ids = sum(leaf.num_values for leaf in self._leaves(about))
        rows = max(1, min(_MOST_ROWS, MOST_IDS * about.num_rows // max(1, ids)))
        for batch in opened.iter_batches(rows, row_groups=[group], columns=[self.name], use_threads=False):
            yield _checked(batch.column(self.name))

    def _batches(self, opened: Any, pieces: Sequence[int] | None) -> Iterator[tuple[int, Any]]:
        """Record batches, all where none are named."""
        place = opened.schema.get_field_index(self.name)
        if self.in_any_order:
            for piece in range(opened.num_record_batches) if pieces is None else pieces:
                yield piece, _checked(opened.get_batch(piece).column(place))
            return
        for piece, batch in enumerate(opened):
            if pieces is not None and piece > pieces[-1]:
                return
            if pieces is None or piece in pieces:
                yield piece, _checked(batch.column(place))

    def _cut(self, piece: int, array: Any) -> Iterator[IdBlock]:
        """One array of lists in blocks; a row without a list is an empty document."""
        ends: Ends = np.cumsum(_lengths(array), dtype=np.int64)
        values = array.flatten()
        if values.null_count:
            raise FormatError(
                f"{self.path}, column {clip(self.name)}: expected an id in every place, got {values.null_count} "
                f"missing in piece {piece}. Fill or drop them and write it again."
            )
        for begin in range(0, max(1, len(values)), MOST_IDS):
            stop = min(begin + MOST_IDS, len(values))
            inside = ends[(ends > (begin or -1)) & (ends <= stop)]  # an empty first document ends at 0
            yield IdBlock(piece, values.slice(begin, stop - begin).to_numpy(zero_copy_only=False), inside - begin)


def _checked(array: Any) -> Any:
    array.validate(full=True)  # Arrow files are mapped and trusted: an offset beyond the end would crash the process
    return array


def _lengths(array: Any) -> npt.NDArray[np.int64]:
    """Ids in each row; none where the row is missing."""
    import pyarrow.compute

    lengths = pyarrow.compute.fill_null(pyarrow.compute.list_value_length(array), 0)
    found: npt.NDArray[np.int64] = lengths.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return found


def _item_type(column: IdColumn) -> str:
    path, name = column.path, column.name
    schema = column.schema()
    columns = list(schema.names)
    if name not in columns:
        names = [clip(one, 40) for one in columns[:_MOST_LISTED]]
        more = f" and {len(columns) - _MOST_LISTED} more" if len(columns) > _MOST_LISTED else ""
        raise FormatError(
            f"{path}: expected a column {clip(name)}, got {', '.join(names) or 'none'}{more}. "
            "State column= with one of these."
        )
    if columns.count(name) > 1:
        raise FormatError(f"{path}: expected one column {clip(name)}, got {columns.count(name)}. Rename all but one.")
    type = schema.field(name).type
    item = _ids_in(type)
    if item is None:
        raise FormatError(
            f"{path}, column {clip(name)}: expected a list of integers in each row, got {type}. "
            "Tokenise it first, or name the column of ids."
        )
    return str(np.dtype(item.to_pandas_dtype()).str)


def _ids_in(type: Any) -> Any:
    """The type of one id, if the column holds lists of integers."""
    from pyarrow import types

    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return type.value_type if any(is_one(type) for is_one in lists) and types.is_integer(type.value_type) else None


def _advice(column: IdColumn, where: str, tokens: bool) -> str:
    kind, schema = column.kind, column.schema()
    from pyarrow import types

    columns = {name: schema.field(at).type for at, name in enumerate(schema.names)}
    ids = [name for name, type in columns.items() if _ids_in(type) is not None]
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
    saved = f"{table}[{best!r}].to_numpy()"
    if best in lists:  # rows of equal length stay rows
        saved = f"np.{'stack' if types.is_fixed_size_list(columns[best]) else 'concatenate'}({saved})"
    return f"Save one column: np.save({best + '.npy'!r}, {saved})."


def _pyarrow(path: str) -> Any:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise FormatError(
            f"{path}: expected pyarrow to decode its columns, got none installed. "
            "Install it: pip install 'lowtide[parquet]'."
        ) from None
    return pyarrow
