"""Lowtide's own corpus: a directory with a ``manifest.json`` that names its shards.

    {"lowtide": 1, "dtype": "uint16", "vocab": 257, "eot": 256,
     "shards": [{"file": "shard-00000.bin", "tokens": 1000, "crc32": "...", "documents": 7,
                 "ends": "shard-00000.ends", "ends_crc32": "..."}], "digest": "..."}

The manifest says what a headerless shard cannot - its dtype, its order, how many tokens it must have, where its
documents end and what its bytes must add up to - and carries a digest of itself, which `verify` checks. All but
``lowtide``, ``dtype`` and the shards' ``file`` and ``tokens`` may be missing; unknown keys are ignored. Costs one read
of at most 16 MiB. A manifest of another program is ignored. ``docs/corpus-format.md`` is the whole format.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lowtide.errors import FormatError
from lowtide.formats.header import HeaderFile
from lowtide.formats.layout import DocumentIndex, clip

MANIFEST = "manifest.json"
CHECKED = 4 * 1024 * 1024  # bytes of a shard that one CRC-32 covers
_MOST_MANIFEST = 16 * 1024 * 1024
_DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")


@dataclass(frozen=True)
class ShardEntry:
    """One shard as a manifest names it; ``None``: not stated."""

    file: str
    tokens: int
    crc32: str | None = None  # eight hexadecimal digits for each CHECKED bytes
    documents: int | None = None
    ends: str | None = None  # uint64 little-endian: the position after the last token of each document
    ends_crc32: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Manifest:
    path: str
    dtype: np.dtype[Any]
    entries: tuple[ShardEntry, ...]
    eot: int | None
    vocab: int | None
    bos: int | None = None
    by_name: dict[str, ShardEntry] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {entry.file: entry for entry in self.entries})


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a corpus; ``None`` if there is none, or only another program's."""
    content = manifest_content(directory)
    return _checked(content, str(directory / MANIFEST)) if content is not None and "lowtide" in content else None


def manifest_content(directory: Path) -> dict[str, Any] | None:
    """What ``manifest.json`` says, whoever wrote it; ``None`` if there is none or it is not a JSON object."""
    path = str(directory / MANIFEST)
    try:
        opened = HeaderFile(path)  # a FIFO in its place is refused, not waited for
    except (FileNotFoundError, IsADirectoryError):
        return None
    with opened as file:
        if file.size > _MOST_MANIFEST:
            raise FormatError(
                f"{path}: expected a manifest of at most {_MOST_MANIFEST} bytes, got {file.size}. "
                "Name the shards instead."
            )
        text = file.read(0, file.size)
    try:
        import json  # here: most files are not a corpus of ours, and it takes 1.5 ms

        content = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{path}: expected JSON, got {clip(str(error))}. Write it again or name the shards instead."
        ) from error
    return content if isinstance(content, dict) else None


def manifest_digest(content: dict[str, Any]) -> str:
    """SHA-256 of everything else in a manifest, including the order of its shards."""
    import hashlib
    import json

    others = {name: value for name, value in content.items() if name != "digest"}
    text = json.dumps(others, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def shard_documents(manifest: Manifest, directory: Path, entry: ShardEntry) -> tuple[DocumentIndex, ...] | None:
    """Where the documents of a shard end; ``None`` if the manifest does not say."""
    if entry.ends is None or entry.documents is None:
        return None
    with HeaderFile(str(directory / entry.ends)) as ends:
        if ends.size != 8 * entry.documents:
            raise FormatError(
                f"{ends.path}: expected {8 * entry.documents} bytes for {entry.documents} documents as {manifest.path} "
                f"says, got {ends.size}. Write or copy it again."
            )
        return (DocumentIndex("lowtide", ends.path, ends.size, offset=0, count=entry.documents, made=ends.made),)


def _checked(content: dict[str, object], path: str) -> Manifest:
    if content["lowtide"] != 1 or isinstance(content["lowtide"], bool):
        raise FormatError(f"{path}: expected manifest version 1, got {clip(content['lowtide'])}. Use a newer Lowtide.")
    dtype = content.get("dtype")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise FormatError(f"{path}: expected a dtype of {', '.join(_DTYPES)}, got {clip(dtype)}. Correct it.")
    entries = content.get("shards")
    if not isinstance(entries, list) or not entries:
        raise FormatError(f"{path}: expected a list of shards, got {clip(entries)}. Correct it.")
    shards = tuple(_shard(entry, path) for entry in entries)
    names = [entry.file for entry in shards]
    if len(set(names)) != len(names):
        raise FormatError(f"{path}: expected each shard once, got one twice. Correct it.")
    ids = {key: _id(content, key, path) for key in ("eot", "vocab", "bos")}
    return Manifest(path, np.dtype(dtype).newbyteorder("<"), shards, **ids)


def _shard(entry: object, path: str) -> ShardEntry:
    name, tokens = (entry.get("file"), entry.get("tokens")) if isinstance(entry, dict) else (None, None)
    if not isinstance(entry, dict) or not _inside(name) or type(tokens) is not int or tokens < 0:
        raise FormatError(
            f"{path}: expected shards as {{'file': a name in this directory, 'tokens': a count}}, got {clip(entry)}. "
            "Correct it."
        )
    found: dict[str, Any] = {"file": str(name), "tokens": tokens}
    for key, kind in (("documents", int), ("ends", str), ("crc32", str), ("ends_crc32", str)):
        value = entry.get(key)
        if value is not None and (type(value) is not kind or (key == "ends" and not _inside(value))):
            raise FormatError(f"{path}: expected {key} of {name} as {kind.__name__}, got {clip(value)}. Correct it.")
        found[key] = value
    return ShardEntry(**found)


def _inside(name: object) -> bool:
    """A manifest may come from anybody: its names must not lead out of its directory."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0"}


def _id(content: dict[str, object], key: str, path: str) -> int | None:
    value = content.get(key)
    if value is None or (type(value) is int and value >= 0):
        return value
    raise FormatError(f"{path}: expected {key} as an integer of 0 or more, got {clip(value)}. Correct it.")
