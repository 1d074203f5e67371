"""Which kind of file has columns, and what its maker is asked about it: pyarrow runs there only (``id_columns.py``)."""

from __future__ import annotations

import json
from typing import Any

from lowtide.blocks.asking import MAKER
from lowtide.errors import FormatError, LowtideError
from lowtide.formats.header import HeaderFile
from lowtide.formats.layout import clip

INSIDE = "lowtide.formats.columns.id_columns"


def named(file: HeaderFile) -> dict[str, Any]:
    """The file as the maker opens it; FormatError if it has no columns."""
    source = None if file.made is None else json.loads(file.made.source)
    return {"path": file.path, "kind": _kind(file), "source": source}


def column_advice(file: HeaderFile, where: str, *, tokens: bool) -> str:
    """What to do with the columns of such a file, in a line to paste; ``where``: the files as one types them."""
    try:
        said: str = MAKER.call(f"{INSIDE}:advice", {**named(file), "where": where, "tokens": tokens})
    except LowtideError as problem:  # its text says what is missing, or what is wrong with the file
        return str(problem).partition(". ")[2] or str(problem)
    return said


def _kind(file: HeaderFile) -> str:
    head = file.read(0, 8)
    if head.startswith(b"PAR1"):
        tail = file.read(max(0, file.size - 4), 4)
        if tail != b"PAR1":
            raise FormatError(
                f"{file.path}: expected 'PAR1' at the end of a Parquet file, got {clip(tail)}. It is cut short or "
                "encrypted: copy or write it again."
            )
        return "parquet"
    if head == b"ARROW1\x00\x00":
        return "arrow"
    if head.startswith(b"\xff\xff\xff\xff"):
        return "arrow stream"
    raise FormatError(
        f"{file.path}: expected a Parquet, Arrow or Feather file for column=, got bytes {clip(head)}. "
        "Leave column= out, or name the files that have columns."
    )
