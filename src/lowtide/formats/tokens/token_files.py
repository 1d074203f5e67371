"""From what a caller names to the layout of one run of tokens.

A corpus is its token files in counting order, all of one format and dtype; in a directory that holds train and val it
is the train part unless another is asked for. Anything that would silently mix - files of two parts, two formats, two
dtypes - or that is not a token file is refused by name. Empty files are left out, with a note.
Costs one open and one small read per file, and one listing and one look for a manifest per directory, however many
shards of it were named. Reads no tokens, and never a pickle.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.blocks.objects import normal_address
from lowtide.errors import FormatError, ReadError
from lowtide.formats.corpus_parts import (
    ChosenPart,
    checked_part,
    chosen_part,
    part_directories,
    refuse_mixed_parts,
    refuse_part_of_file,
)
from lowtide.formats.files import memmap, raw, zarr
from lowtide.formats.foreign_directories import LoaderIndex, read_loader_index, refuse_foreign_directory
from lowtide.formats.header import HeaderFile, is_directory, is_file, names_in, size_of
from lowtide.formats.layout import HEADERLESS, Layout, agree, join, stated_ids
from lowtide.formats.recognise import recognised
from lowtide.formats.refusals import refuse_foreign
from lowtide.formats.sources import Mapped, Source, named, natural_key
from lowtide.formats.tokens.manifest import MANIFEST, Manifest, read_manifest, shard_documents

SUFFIXES = (".bin", ".npy", ".ds", ".safetensors", ".npz")
_LEFT_OUT = 3  # names of empty files that a note shows


@dataclass(frozen=True)
class _Asked:
    """What the caller stated, and what is already known of directories: a thousand shards may share one."""

    dtype: np.dtype[Any] | None
    tensor: str | None
    part: str | None = None
    manifests: dict[Path, Manifest | None] = field(default_factory=dict)
    indexes: dict[Path, LoaderIndex | None] = field(default_factory=dict)

    def manifest(self, directory: Path) -> Manifest | None:
        if directory not in self.manifests:
            self.manifests[directory] = read_manifest(directory)
        return self.manifests[directory]

    def manifest_beside(self, directory: Path) -> Manifest | None:
        """The same, of the directory of a file that was named alone; None too where it may not be looked at."""
        try:
            return self.manifest(directory)
        except ReadError as problem:
            if problem.errno != errno.EACCES:
                raise
            return None

    def loader_index(self, directory: Path) -> LoaderIndex | None:
        if directory not in self.indexes:
            self.indexes[directory] = read_loader_index(directory)
        return self.indexes[directory]


def token_layout(
    source: Source, *, dtype: npt.DTypeLike | None = None, tensor: str | None = None, part: str | None = None
) -> Layout:
    """The layout of the tokens that ``source`` names: a token file, a list, a glob, a directory; one axis of integers.

    ``tensor`` names the array of a ``.safetensors``, ``.npz`` or HDF5 file; without it, the only one that fits.
    ``part``: which part of a directory that holds several; train by default.
    """
    asked = _Asked(stated_ids(dtype), tensor, checked_part(part))
    files = _without_sidecars(named(source))
    if len(files) == 1:
        return _item(files[0], asked)
    where = source if isinstance(source, str) else f"{len(files)} files"
    refuse_mixed_parts(where, [file for file in files if isinstance(file, str)])
    kept, notes = _without_empty(files)
    layout = _noted(_one_format([_item(file, asked) for file in kept]), notes)
    refuse_mixed_parts(where, [extent.path for extent in layout.extents])  # directories give the part they hold
    return layout


def _item(item: str | Mapped, asked: _Asked) -> Layout:
    if isinstance(item, np.ndarray):
        return _tokens(agree(memmap.read(item), asked.dtype, None, 0))
    here = normal_address(item) is None
    if zarr.looks_like(item):
        return _tokens(agree(zarr.read(item, asked.tensor), asked.dtype, None, 0))
    if is_directory(item):
        return _directory(Path(item).absolute() if here else Path(item), asked)
    refuse_part_of_file(item, asked.part)
    if here and not os.path.lexists(item) and is_file(f"{item}.bin") and is_file(f"{item}.idx"):
        return _file(f"{item}.idx", asked)  # Megatron's users name the pair by its prefix
    return _file(item, asked)


def _file(path: str, asked: _Asked) -> Layout:
    with HeaderFile(path) as file:
        layout = recognised(file, stated=asked.dtype, tensor=asked.tensor, beside=True, tokens=True)
        if layout is not None:
            return _tokens(agree(layout, asked.dtype, None, 0))
        return _headerless(file, asked)


def _headerless(file: HeaderFile, asked: _Asked) -> Layout:
    """nanoGPT's, OLMo's and anyone's bytes: the dtype is stated, or a manifest beside the file states it."""
    path = Path(file.path)
    manifest = asked.manifest_beside(path.parent) if asked.dtype is None else None
    entry = manifest.by_name.get(path.name) if manifest is not None else None
    if entry is None:  # for a listed shard, the manifest decides
        refuse_foreign(file, asked.dtype, tokens=True)
        # Beside an object nobody looks for what is not needed: every look is a request.
        index = asked.loader_index(path.parent) if file.made is None else None
        if index is not None and path.name in index.files:  # its first bytes are offsets, not ids
            raise index.kind.refusal(file.path, tokens=True)
    stated = asked.dtype if manifest is None or entry is None else manifest.dtype
    format = "lowtide" if entry is not None else {".bin": "nanogpt", ".npy": "olmo"}.get(path.suffix, "raw")
    layout = raw.read(file, stated, None, 0, format)
    if manifest is None or entry is None:
        return replace(layout, notes=_notes(path) if file.made is None else ())
    _check_count(layout, entry.tokens, manifest)
    documents = shard_documents(manifest, path.parent, entry)
    return replace(layout, eot=manifest.eot, bos=manifest.bos, vocab=manifest.vocab, documents=documents)


def _notes(path: Path) -> tuple[str, ...]:
    notes = []
    if is_file(str(path.with_name("meta.pkl"))):
        notes.append("meta.pkl beside it is a pickle and was not read")
    if path.suffix == ".npy":
        notes.append("named .npy but without numpy's header: read as plain ids, as OLMo writes them")
        if is_file(str(path.with_suffix(".csv.gz"))):
            notes.append("a document table (.csv.gz) lies beside it and was not read")
    return tuple(notes)


def _directory(path: Path, asked: _Asked) -> Layout:
    manifest = asked.manifest(path)
    if manifest is not None:
        return _by_manifest(path, manifest, asked)
    names = sorted(names_in(str(path)), key=natural_key)
    index = asked.loader_index(path) if "index.json" in names else None
    if index is not None:
        raise index.kind.refusal(str(path), tokens=True)
    shards = [name for name in names if name.endswith(SUFFIXES) and not name.startswith(".")]
    inside = [] if shards else part_directories(path, names)
    if inside:
        chosen = chosen_part(str(path), inside, asked.part)
        if len(chosen.names) > 1:
            raise FormatError(f"{path}: expected one directory of a part, got {_few(chosen.names)}. Name one of them.")
        return _as_part(_directory(path / chosen.names[0], replace(asked, part=None)), chosen)
    if not shards:
        refuse_foreign_directory(str(path), names, tokens=True)
        raise FormatError(
            f"{path}: expected token files ({', '.join(SUFFIXES)}), got {_few(names)}. "
            "Name the directory or the files that hold the tokens."
        )
    chosen = chosen_part(str(path), shards, asked.part)
    kept, notes = _without_empty([str(path / name) for name in chosen.names])
    return _as_part(_noted(_one_format([_item(file, replace(asked, part=None)) for file in kept]), notes), chosen)


def _as_part(layout: Layout, chosen: ChosenPart) -> Layout:
    if chosen.part is None:
        return layout
    return replace(layout, part=chosen.part, other_parts=chosen.others, notes=(*chosen.notes, *layout.notes))


def _by_manifest(path: Path, manifest: Manifest, asked: _Asked) -> Layout:
    if asked.dtype is not None and asked.dtype != manifest.dtype:
        raise FormatError(
            f"{path}: expected dtype {manifest.dtype} as its {MANIFEST} says, got dtype={asked.dtype}. "
            "Leave dtype= out."
        )
    chosen = chosen_part(str(path), [entry.file for entry in manifest.entries], asked.part)
    layouts = []
    for entry in [manifest.by_name[name] for name in chosen.names]:
        shard = str(path / entry.file)
        if entry.tokens == 0 and _is_empty(shard):
            continue
        layout = _file(shard, replace(asked, dtype=manifest.dtype, part=None))
        _check_count(layout, entry.tokens, manifest)
        documents = shard_documents(manifest, path, entry) or layout.documents
        format = "lowtide" if layout.format in HEADERLESS else layout.format
        layouts.append(replace(layout, documents=documents, format=format))
    if not layouts:
        raise FormatError(f"{path}: expected tokens, got {len(manifest.entries)} empty shards. Write it again.")
    layout = replace(_one_format(layouts), eot=manifest.eot, bos=manifest.bos, vocab=manifest.vocab)
    return _as_part(layout, chosen)


def _check_count(layout: Layout, tokens: int, manifest: Manifest) -> None:
    if layout.shape[0] != tokens:
        raise FormatError(
            f"{layout.extents[0].path}: expected {tokens} tokens as {manifest.path} says, got {layout.shape[0]}. "
            "Write or copy it again."
        )


def _without_empty(files: Sequence[str | Mapped]) -> tuple[list[str | Mapped], tuple[str, ...]]:
    """The files that have bytes, and a note on those that have none: datatrove's workers leave empty ones."""
    empty = [file for file in files if isinstance(file, str) and _is_empty(file)]
    if not empty or len(empty) == len(files):
        return list(files), ()
    gone = set(empty)
    names = _few([os.path.basename(file) for file in empty], _LEFT_OUT)  # noqa: PTH119
    count = f"{len(empty)} empty file{'s' if len(empty) > 1 else ''}"
    kept = [file for file in files if not isinstance(file, str) or file not in gone]
    return kept, (f"{count} left out: {names}",)


def _is_empty(path: str) -> bool:
    return size_of(path) == 0


def _noted(layout: Layout, notes: tuple[str, ...]) -> Layout:
    return replace(layout, notes=(*layout.notes, *notes)) if notes else layout


def _one_format(layouts: Sequence[Layout]) -> Layout:
    first = layouts[0]
    for other in layouts[1:]:
        if first.format != other.format and not {first.format, other.format} <= set(HEADERLESS):
            raise FormatError(
                f"{other.extents[0].path}: expected {first.format} as {first.extents[0].path} is, got {other.format}. "
                "Open each format separately, or name the files of one with a glob."
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


def _without_sidecars(files: list[str | Mapped]) -> list[str | Mapped]:
    """Drops files that belong to another named file, so that ``corpus/*`` means the corpus once."""
    if len(files) < 2:
        return files
    texts = {file for file in files if isinstance(file, str)}

    def is_sidecar(file: str) -> bool:
        stem, _, ending = file.rpartition(".")
        if ending == "idx":
            return f"{stem}.bin" in texts
        if file.endswith(".csv.gz"):
            return f"{file[: -len('.csv.gz')]}.npy" in texts
        if ending in ("index", "metadata", "loss"):
            return stem.endswith(".ds") and stem in texts
        return os.path.basename(file) in (MANIFEST, "meta.pkl")  # noqa: PTH119

    return [file for file in files if not (isinstance(file, str) and is_sidecar(file))]


def _few(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(names[:most]) or "nothing"
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
