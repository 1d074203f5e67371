"""Directories that other programs keep their data in: litData, MosaicML's streaming, Zarr, mmap_ninja, columns.

Each is refused by name, with a line of code that saves its numbers in a form Lowtide reads. The line is made from the
directory - the dtype that an index names, the arrays of a group - so that it can be pasted as it is. Reads small JSON
files only.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lowtide.formats.columns.kinds import column_advice
from lowtide.formats.header import HeaderFile, is_file
from lowtide.formats.refusals import Foreign, as_typed

_MOST_INDEX = 16 * 1024 * 1024
# litData's names of dtypes: torch's by number, and NumPy's in this order.
_TORCH = dict(enumerate(["uint8", "int8", "int16", "int16", "int32", "int32", "int64", "int64"], 11)) | {20: "uint16"}
_NUMPY = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@dataclass(frozen=True)
class LoaderIndex:
    """The ``index.json`` that another loader keeps beside its files: whose it is, and the files it names."""

    kind: Foreign
    files: frozenset[str]


def read_loader_index(directory: Path) -> LoaderIndex | None:
    """Another loader's index of this directory; ``None`` if there is none. Reads at most 16 MiB."""
    content = _read_json(directory / "index.json")
    chunks, shards = content.get("chunks"), content.get("shards")
    if isinstance(chunks, list):
        names = (chunk.get("filename") for chunk in chunks if isinstance(chunk, dict))
        return LoaderIndex(_litdata(directory, content), frozenset(name for name in names if isinstance(name, str)))
    if isinstance(shards, list):
        tables = (shard.get("raw_data") for shard in shards if isinstance(shard, dict))
        names = (table.get("basename") for table in tables if isinstance(table, dict))
        return LoaderIndex(_mosaic(directory, shards), frozenset(name for name in names if isinstance(name, str)))
    return None


def refuse_foreign_directory(path: str, names: Collection[str], *, tokens: bool) -> None:
    """FormatError if the directory as a whole is in another format; ``names`` are its entries."""
    found = _directory_kind(Path(path), names, tokens=tokens)
    if found is not None:
        raise found.refusal(path, tokens=tokens)


def _litdata(directory: Path, content: dict[str, Any]) -> Foreign:
    """A chunk: u32 items n, u32[n + 1] offsets, then the ids of every item one after the other."""
    kind = Foreign("what litData writes (index.json lists its chunks)", "Read its items with litdata itself.")
    config = content.get("config")
    formats = config.get("data_format") if isinstance(config, dict) else None
    only = str(formats[0]) if isinstance(formats, list) and len(formats) == 1 else ""
    said = re.fullmatch(r"no_header_(tensor|numpy):([0-9]{1,3})", only)
    if said is None or not isinstance(config, dict) or config.get("compression"):
        return kind
    number = int(said[2])
    dtype = _TORCH.get(number) if said[1] == "tensor" else dict(enumerate(_NUMPY)).get(number)
    if dtype is None:
        return kind
    where = as_typed(str(directory))
    load = f"np.fromfile(f, '{dtype}', offset=4 * (2 + int(np.fromfile(f, '<u4', 1)[0])))"
    chunks = f"['{where}/' + c['filename'] for c in json.load(open('{where}/index.json'))['chunks']]"
    save = f"np.concatenate([{load} for f in {chunks}]).tofile('ids.bin')"
    return replace(kind, way_out=f"Save its ids: {save}. Then: lowtide.open_tokens('ids.bin', dtype='{dtype}').")


def _mosaic(directory: Path, shards: list[Any]) -> Foreign:
    name = "what MosaicML's streaming writes (index.json lists its shards)"
    kind = Foreign(name, "Read its samples with streaming itself.")
    first = shards[0] if shards and isinstance(shards[0], dict) else {}
    names, encodings = first.get("column_names"), first.get("column_encodings")
    if not isinstance(names, list) or not isinstance(encodings, list):
        return kind
    for name, encoding in zip(names, encodings, strict=False):
        said = re.fullmatch(r"ndarray:(u?int[0-9]+)(:.*)?", str(encoding))
        if said is not None:
            samples = f"streaming.StreamingDataset(local={as_typed(str(directory))!r}, shuffle=False)"
            save = f"np.concatenate([s[{name!r}] for s in {samples}]).tofile('ids.bin')"
            then = f"lowtide.open_tokens('ids.bin', dtype='{said[1]}')"
            return replace(kind, way_out=f"Save its ids: {save}. Then: {then}.")
    return kind


def _directory_kind(path: Path, names: Collection[str], *, tokens: bool) -> Foreign | None:
    if "data.ninja" in names:
        return _ninja(path)
    for ending, name in ((".arrow", "Arrow files"), (".parquet", "Parquet files"), (".feather", "Feather files")):
        inside = sorted(entry for entry in names if entry.endswith(ending))
        if inside:
            where = f"{as_typed(str(path))}/*{ending}" if len(inside) > 1 else as_typed(str(path / inside[0]))
            with HeaderFile(str(path / inside[0])) as file:
                return Foreign(f"a directory of {name}", column_advice(file, where, tokens=tokens))
    return None


def _ninja(path: Path) -> Foreign:
    """mmap_ninja writes dtype and shape as text beside the data."""
    kind = Foreign("an mmap_ninja directory", "Read it with mmap_ninja itself.")
    dtype, axes = _read_text(path / "dtype.ninja").strip(), re.findall(r"[0-9]+", _read_text(path / "shape.ninja"))
    try:
        known = np.dtype(dtype).name if dtype else ""
    except TypeError:
        known = ""
    if not known or not axes:
        return kind
    shape = f"({', '.join(axes)},)" if len(axes) == 1 else f"({', '.join(axes)})"
    return replace(kind, way_out=f"Open its data: lowtide.open('{{file}}/data.ninja', dtype='{known}', shape={shape}).")


def _read_text(path: Path) -> str:
    if not is_file(str(path)):
        return ""
    with HeaderFile(str(path)) as file:
        return file.read(0, _MOST_INDEX).decode("utf-8", "replace")


def _read_json(path: Path) -> dict[str, Any]:
    import json  # here: few directories need it, and it takes 1.5 ms

    try:
        content = json.loads(_read_text(path) or "{}")
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
