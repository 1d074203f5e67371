"""From what a caller names to the layout of one run of tokens.

One idea: a corpus is its token files in counting order, all of one format and dtype; anything that would silently
mix - train with val, two formats, two dtypes - is refused by name. Costs one open and one small read a file, and one
listing for a directory. Does not read tokens, and never a pickle.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.errors import FormatError
from lowtide.formats import memmap, raw, safetensors
from lowtide.formats.arrays import stated_dtype
from lowtide.formats.header import HeaderFile, is_file
from lowtide.formats.layout import HEADERLESS, Layout, agree, join
from lowtide.formats.manifest import NAME, Manifest, read_manifest, shard_documents
from lowtide.formats.recognise import by_header, is_safetensors
from lowtide.formats.sources import Source, named, natural_key

_SUFFIXES = (".bin", ".npy", ".ds", ".safetensors")
_TRAIN = {"train", "training"}
_HELD_OUT = {"val", "valid", "validation", "dev", "test", "eval"}
_WORD = re.compile(r"[a-z]+")


def token_layout(source: Source, *, dtype: npt.DTypeLike | None = None) -> Layout:
    """Where the tokens behind ``source`` lie: a token file, a list, a glob, or a directory; one axis of integers."""
    stated = None if dtype is None else stated_dtype(dtype)
    if stated is not None and stated.kind not in "iu":
        raise ValueError(f"dtype: expected integers for tokens, got {stated}. State e.g. dtype='uint16'.")
    files = _without_sidecars(named(source))
    return _one_format([_item(file, stated) for file in files])


def _item(item: str | npt.NDArray[Any], stated: np.dtype[Any] | None) -> Layout:
    if isinstance(item, np.ndarray):
        return _tokens(agree(memmap.read(item), stated, None, 0))
    if Path(item).is_dir():
        return _directory(Path(item).absolute(), stated)
    if not os.path.lexists(item) and is_file(f"{item}.bin") and is_file(f"{item}.idx"):
        return _file(f"{item}.idx", stated)  # Megatron's users name the pair by its prefix
    return _file(item, stated)


def _file(path: str, stated: np.dtype[Any] | None) -> Layout:
    with HeaderFile(path) as file:
        if is_safetensors(file, stated=stated is not None):
            return agree(safetensors.read_tokens(file), stated, None, 0)
        layout = by_header(file, beside=True)
        if layout is not None:
            return _tokens(agree(layout, stated, None, 0))
        return _headerless(file, stated)


def _headerless(file: HeaderFile, stated: np.dtype[Any] | None) -> Layout:
    """nanoGPT's, OLMo's and anyone's bytes: the dtype is stated, or a manifest beside the file states it."""
    path = Path(file.path)
    manifest = read_manifest(path.parent) if stated is None else None
    listed = dict(manifest.shards) if manifest is not None else {}
    if manifest is not None and path.name in listed:
        stated = manifest.dtype
    format = {".bin": "nanogpt", ".npy": "olmo"}.get(path.suffix, "raw")
    layout = raw.read(file, stated, None, 0, format)
    if manifest is None or path.name not in listed:
        return replace(layout, notes=_notes(path))
    _check_count(layout, listed[path.name], manifest)
    documents = shard_documents(manifest, path.parent, path.name)
    return replace(layout, eot=manifest.eot, vocab=manifest.vocab, documents=documents)


def _notes(path: Path) -> tuple[str, ...]:
    notes = []
    if is_file(str(path.with_name("meta.pkl"))):
        notes.append("meta.pkl beside it is a pickle and was not read")
    if path.suffix == ".npy":
        notes.append("named .npy but without numpy's header: read as plain ids, as OLMo writes them")
        if is_file(str(path.with_suffix(".csv.gz"))):
            notes.append("a document table (.csv.gz) lies beside it and was not read")
    return tuple(notes)


def _directory(path: Path, stated: np.dtype[Any] | None) -> Layout:
    manifest = read_manifest(path)
    if manifest is not None:
        return _by_manifest(path, manifest, stated)
    names = sorted((entry.name for entry in path.iterdir()), key=natural_key)
    if "index.json" in names:
        raise FormatError(
            f"{path}: expected token files, got an index.json as litData and MDS write it. Convert it first."
        )
    shards = [name for name in names if name.endswith(_SUFFIXES) and not name.startswith(".")]
    if not shards:
        raise FormatError(
            f"{path}: expected token files ({', '.join(_SUFFIXES)}), got {_few(names)}. "
            "Name the directory or the files that hold the tokens."
        )
    _refuse_train_with_val(path, shards)
    return _one_format([_file(str(path / name), stated) for name in shards])


def _by_manifest(path: Path, manifest: Manifest, stated: np.dtype[Any] | None) -> Layout:
    if stated is not None and stated != manifest.dtype:
        raise FormatError(
            f"{path}: expected dtype {manifest.dtype} as its {NAME} says, got dtype={stated}. Leave dtype= out."
        )
    _refuse_train_with_val(path, [name for name, _ in manifest.shards])
    layouts = []
    for name, tokens in manifest.shards:
        layout = _file(str(path / name), manifest.dtype)
        _check_count(layout, tokens, manifest)
        layouts.append(replace(layout, documents=shard_documents(manifest, path, name) or layout.documents))
    return replace(_one_format(layouts), eot=manifest.eot, vocab=manifest.vocab)


def _check_count(layout: Layout, tokens: int, manifest: Manifest) -> None:
    if layout.shape[0] != tokens:
        raise FormatError(
            f"{layout.extents[0].path}: expected {tokens} tokens as {manifest.path} says, got {layout.shape[0]}. "
            "Write or copy it again."
        )


def _refuse_train_with_val(path: Path, names: Sequence[str]) -> None:
    train = [name for name in names if _TRAIN & set(_WORD.findall(name.lower()))]
    held_out = [name for name in names if _HELD_OUT & set(_WORD.findall(name.lower()))]
    if train and held_out:
        pattern = path / (train[0] if len(train) == 1 else f"*train*{Path(train[0]).suffix}")
        raise FormatError(
            f"{path}: expected one corpus, got train and val files together ({train[0]} and {held_out[0]}). "
            f"Pass {pattern} or {path / held_out[0]}."
        )


def _one_format(layouts: Sequence[Layout]) -> Layout:
    first = layouts[0]
    for other in layouts[1:]:
        if first.format != other.format and not {first.format, other.format} <= set(HEADERLESS):
            raise FormatError(
                f"{other.extents[0].path}: expected {first.format} as {first.extents[0].path} is, got {other.format}. "
                "Open the formats apart, or name the files of one with a glob."
            )
    return join(layouts)


def _tokens(layout: Layout) -> Layout:
    """``layout`` if it is one axis of integers."""
    where = layout.extents[0].path
    if len(layout.shape) != 1:
        raise FormatError(
            f"{where}: expected tokens along one axis, got shape {layout.shape}. Save it again as array.reshape(-1), "
            "or read it with lowtide.open."
        )
    if layout.dtype.kind not in "iu":
        raise FormatError(f"{where}: expected integers as tokens, got {layout.dtype}. Read it with lowtide.open.")
    return layout


def _without_sidecars(files: list[str | npt.NDArray[Any]]) -> list[str | npt.NDArray[Any]]:
    """Drops an index whose data is named too, so that ``corpus/*`` means the corpus once."""
    texts = {file for file in files if isinstance(file, str)}

    def is_sidecar(file: str) -> bool:
        stem, _, ending = file.rpartition(".")
        if ending == "idx":
            return f"{stem}.bin" in texts
        return ending in ("index", "metadata", "loss") and stem.endswith(".ds") and stem in texts

    return [file for file in files if not (isinstance(file, str) and is_sidecar(file))]


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5]) or "nothing"
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown
