"""Token ids of Parquet and Arrow columns, read from blocks of plain ids that a maker decodes.

A column is compressed and cannot be read in place. How many ids it holds, and where documents end, is known only when
it was decoded once: so a maker does that when the column is first opened (``survey.py``), keeps document ends and
counts in the directory of the block file, and the ids as its blocks. Blocks that ``disk=`` has no room for are decoded
again when they are needed, by row group or record batch. The key is what makes a file this file - device, inode, size
and times, or address, ETag and size - with the column and the dtype. Of several processes, one decodes and the others
wait.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.blocks.asking import MAKER
from lowtide.blocks.objects import Made, normal_address, own_place, reach
from lowtide.errors import FormatError
from lowtide.formats.columns.kinds import INSIDE, named
from lowtide.formats.corpus_parts import ChosenPart, checked_part, chosen_part, refuse_mixed_parts, refuse_part_of_file
from lowtide.formats.files.decoded_rows import from_text, identity_of
from lowtide.formats.header import HeaderFile, is_directory, names_in
from lowtide.formats.layout import DocumentIndex, Layout, join, one_extent, stated_ids
from lowtide.formats.sources import Source, natural_key
from lowtide.formats.sources import named as named_files
from lowtide.storage.own_files import seal
from lowtide.storage.watched_files import Extent

_SUFFIXES = (".parquet", ".arrow", ".feather")
_VERSION = 2


def column_layout(
    source: Source, column: str, *, dtype: npt.DTypeLike | None = None, part: str | None = None
) -> Layout:
    """The layout of the ids of ``column``, from files, a glob, or a directory of them.

    ``dtype``: what to store, if not the column's own; ids that do not fit are refused. ``part``: which part of a
    directory that holds several, as in ``token_layout``.
    """
    if not isinstance(column, str) or not column:
        raise TypeError(f"column: expected the name of a column, got {column!r}. Use column='input_ids'.")
    stated = stated_ids(dtype)
    paths, chosen = _files(source, checked_part(part))
    refuse_mixed_parts(f"{len(paths)} files", paths)
    found = [_found(path, column) for path in paths]  # all are checked before the first is decoded
    layouts = [_one(file, own if stated is None else stated, behind) for file, own, behind in found]
    kept = [layout for layout in layouts if layout.shape[0]] or layouts[:1]
    files = f"{len(paths)} file{'s' if len(paths) > 1 else ''}"
    notes = [*chosen.notes, *kept[0].notes, f"decoded once from column {column!r} of {files} while disk holds it"]
    if len(kept) < len(layouts):
        notes.append(f"{len(layouts) - len(kept)} files without ids left out")
    return replace(join(kept), notes=tuple(notes), part=chosen.part, other_parts=chosen.others)


def _files(source: Source, stated: str | None) -> tuple[list[str], ChosenPart]:
    """The files, and which part they are if a directory holds several."""
    paths: list[str] = []
    chosen = ChosenPart(None, [])
    for item in named_files(source):
        if not isinstance(item, str):
            raise TypeError("source: expected paths for column=, got a memmap. Pass the paths of the files.")
        here = normal_address(item) is None
        if not is_directory(item):
            refuse_part_of_file(item, stated)
            paths.append(str(Path(item).absolute()) if here else item)
            continue
        inside = sorted(names_in(item), key=natural_key)
        names = [name for name in inside if name.endswith(_SUFFIXES)]
        if not names:
            raise FormatError(
                f"{item}: expected files that end in {', '.join(_SUFFIXES)} for column=, got none. "
                "Name the files, or leave column= out."
            )
        chosen = chosen_part(item, names, stated)
        directory = str(Path(item).absolute()) if here else item.rstrip("/")
        paths += [f"{directory}/{name}" for name in chosen.names]
    return paths, chosen


def _found(path: str, column: str) -> tuple[dict[str, Any], np.dtype[Any], Made | None]:
    """The column as its maker knows it, the dtype of one id, and the object that holds it, if it does not lie here."""
    with HeaderFile(path) as file:
        question = {**named(file), "column": column}
        identity = None if file.made is not None else identity_of("file", file.path)
        return {**question, "identity": identity}, np.dtype(MAKER.call(f"{INSIDE}:item_type", question)), file.made


def _one(column: dict[str, Any], dtype: np.dtype[Any], behind: Made | None) -> Layout:
    reached = reach() if behind is None else behind.reach
    key = seal("column", [_VERSION, behind.key if behind else column["identity"], column["column"], dtype.str])
    root, place = own_place(key)
    about = {**column, "dtype": dtype.str, "place": place, "disk": reached.disk}
    said = MAKER.call("lowtide.formats.columns.survey:surveyed", about)
    made = Made(
        column["path"],
        key,
        said["size"],
        json.dumps({"function": "lowtide.formats.columns.survey:ColumnIds", "arguments": about}),
        reached,
    )
    pieces = from_text(said["units"])
    length = said["tokens"] * dtype.itemsize
    extent = Extent(column["path"], 0, length, said["size"], made=made)
    if len(pieces.offsets) > 1:
        extent = replace(extent, pieces=pieces)
    path = os.path.join(place, "ends.bin")  # noqa: PTH118
    documents = DocumentIndex(kind="ends", path=path, size=8 * said["documents"], offset=0, count=said["documents"])
    name = "parquet" if column["kind"] == "parquet" else "arrow"
    layout = one_extent(name, dtype, (said["tokens"],), extent, notes=(f"ids are kept in {root}",))
    return replace(layout, documents=(documents,))
