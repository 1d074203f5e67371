"""Lowtide's own corpus: a directory with a ``manifest.json`` that names its shards.

    {"lowtide": 1, "dtype": "uint16", "shards": [{"file": "train.bin", "tokens": 1000}], "eot": 50256, "vocab": 50257}

One idea: the manifest says what a headerless shard cannot - its dtype, its order, how many tokens it must have - and
nothing that could be computed. ``eot``, ``bos`` and ``vocab`` may be missing; unknown keys are left for later
versions. Costs one read of at most 16 MiB. A manifest of another program is not ours and is passed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lowtide.errors import FormatError
from lowtide.formats.header import HeaderFile, is_file
from lowtide.formats.layout import clip

NAME = "manifest.json"
_MOST_BYTES = 16 * 1024 * 1024
_DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")


@dataclass(frozen=True)
class Manifest:
    path: str
    dtype: np.dtype[Any]
    shards: tuple[tuple[str, int], ...]  # name, tokens
    eot: int | None
    vocab: int | None
    bos: int | None = None


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a corpus; ``None`` where there is none, or only another program's."""
    path = str(directory / NAME)
    if not is_file(path):
        return None
    with HeaderFile(path) as file:
        if file.size > _MOST_BYTES:
            raise FormatError(
                f"{path}: expected a manifest of at most {_MOST_BYTES} bytes, got {file.size}. Name the shards instead."
            )
        text = file.read(0, file.size)
    try:
        import json  # here: most files are not a corpus of ours, and it takes 1.5 ms

        content = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{path}: expected JSON, got {clip(str(error))}. Write it again or name the shards instead."
        ) from error
    if not isinstance(content, dict) or "lowtide" not in content:
        return None
    return _checked(content, path)


def _checked(content: dict[str, Any], path: str) -> Manifest:
    if content["lowtide"] != 1 or isinstance(content["lowtide"], bool):
        raise FormatError(f"{path}: expected manifest version 1, got {clip(content['lowtide'])}. Use a newer Lowtide.")
    if content.get("dtype") not in _DTYPES:
        raise FormatError(
            f"{path}: expected a dtype of {', '.join(_DTYPES)}, got {clip(content.get('dtype'))}. Correct it."
        )
    entries = content.get("shards")
    if not isinstance(entries, list) or not entries:
        raise FormatError(f"{path}: expected a list of shards, got {clip(entries)}. Correct it.")
    shards = tuple(_shard(entry, path) for entry in entries)
    names = [name for name, _ in shards]
    if len(set(names)) != len(names):
        raise FormatError(f"{path}: expected each shard once, got one twice. Correct it.")
    eot, vocab, bos = (_id(content, key, path) for key in ("eot", "vocab", "bos"))
    return Manifest(path, np.dtype(content["dtype"]), shards, eot, vocab, bos)


def _shard(entry: object, path: str) -> tuple[str, int]:
    name, tokens = (entry.get("file"), entry.get("tokens")) if isinstance(entry, dict) else (None, None)
    # A manifest may come from elsewhere: it must not lead out of its own directory.
    inside = isinstance(name, str) and name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0"}
    if not inside or type(tokens) is not int or tokens < 0:
        raise FormatError(
            f"{path}: expected shards as {{'file': a name in this directory, 'tokens': a count}}, got {clip(entry)}. "
            "Correct it."
        )
    return str(name), tokens


def _id(content: dict[str, Any], key: str, path: str) -> int | None:
    value = content.get(key)
    if value is not None and (type(value) is not int or value < 0):
        raise FormatError(f"{path}: expected {key} as an integer of 0 or more, got {clip(value)}. Correct it.")
    return value
