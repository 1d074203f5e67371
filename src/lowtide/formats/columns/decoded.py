"""Token ids of Parquet and Arrow columns as plain ids on disk, decoded once.

    CACHE/columns/KEY/tokens.bin: ids | ends.bin: int64 document ends | done.json, or progress.json while it is made

A column is compressed and cannot be read in place, so it is decoded into a raw file that can, under a key made of the
file's own bytes (its size and a hash of sampled blocks), the column and the dtype. A copied file has the same key; a
changed one another. Costs the disk space of the ids, and about 20 MiB of memory while decoding. A decode that was
killed continues after the last complete row group; of several processes, one decodes and the others wait.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from lowtide.errors import FormatError
from lowtide.formats.columns.id_columns import IdBlock, IdColumn, blocks, find_column
from lowtide.formats.corpus_parts import ChosenPart, checked_part, chosen_part, refuse_mixed_parts, refuse_part_of_file
from lowtide.formats.header import HeaderFile
from lowtide.formats.layout import DocumentIndex, Layout, join, one_extent, stated_ids
from lowtide.formats.sources import Source, named, natural_key
from lowtide.storage.own_files import NotOursError, OwnDirectory, atomic_write, seal, user_cache, wait_for_lock

_SUFFIXES = (".parquet", ".arrow", ".feather")
_VERSION = 1
_SAMPLED, _SAMPLE = 17, 4096
_TAIL = 65_536  # a Parquet footer names every page of the file
_SAVED_EVERY = 64 * 1024 * 1024


@dataclass(frozen=True)
class DecodedSoFar:
    """How far one file is: pieces (row groups or record batches) done, and what they held."""

    pieces: int = 0
    tokens: int = 0
    documents: int = 0


def column_layout(
    source: Source,
    column: str,
    *,
    dtype: npt.DTypeLike | None = None,
    part: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Layout:
    """The layout of the decoded ids of ``column``, from files, a glob, or a directory of them.

    ``dtype``: what to store, if not the column's own; ids that do not fit are refused. ``part``: which part of a
    directory that holds several, as in ``token_layout``.
    ``cache_dir``: where; ``$XDG_CACHE_HOME/lowtide`` or ``~/.cache/lowtide`` unless stated.
    """
    if not isinstance(column, str) or not column:
        raise TypeError(f"column: expected the name of a column, got {column!r}. Use column='input_ids'.")
    stated = stated_ids(dtype)
    paths, chosen = _files(source, checked_part(part))
    refuse_mixed_parts(f"{len(paths)} files", paths)
    columns = [find_column(path, column) for path in paths]  # all are checked before the first is decoded
    root = _root(cache_dir)
    layouts = [_one(found, stated or found.dtype, root) for found in columns]
    kept = [layout for layout in layouts if layout.shape[0]] or layouts[:1]
    files = f"{len(paths)} file{'s' if len(paths) > 1 else ''}"
    notes = [*chosen.notes, f"decoded once from column {column!r} of {files} into {root}"]
    if len(kept) < len(layouts):
        notes.append(f"{len(layouts) - len(kept)} files without ids left out")
    return replace(join(kept), notes=tuple(notes), part=chosen.part, other_parts=chosen.others)


def _root(stated: str | os.PathLike[str] | None) -> Path:
    """Where decoded columns are kept: the directory stated, unless somebody else could have put files there."""
    root = (user_cache() if stated is None else Path(stated).absolute()) / "columns"
    with contextlib.suppress(NotOursError), _space(root):
        return OwnDirectory(root).path
    return OwnDirectory(user_cache() / "columns").path


def _files(source: Source, stated: str | None) -> tuple[list[str], ChosenPart]:
    """The files, and which part they are if a directory holds several."""
    paths: list[str] = []
    chosen = ChosenPart(None, [])
    for item in named(source):
        if not isinstance(item, str):
            raise TypeError("source: expected paths for column=, got a memmap. Pass the paths of the files.")
        if not Path(item).is_dir():
            refuse_part_of_file(item, stated)
            paths.append(str(Path(item).absolute()))
            continue
        inside = sorted((one.name for one in Path(item).iterdir()), key=natural_key)
        found = [name for name in inside if name.endswith(_SUFFIXES)]
        if not found:
            raise FormatError(
                f"{item}: expected files that end in {', '.join(_SUFFIXES)} for column=, got none. "
                "Name the files, or leave column= out."
            )
        chosen = chosen_part(item, found, stated)
        paths += [str(Path(item).absolute() / name) for name in chosen.names]
    return paths, chosen


def _one(column: IdColumn, dtype: np.dtype[Any], root: Path) -> Layout:
    place = root / _key(column, dtype)
    with _space(place), _alone(OwnDirectory(place)):
        layout = _done(column, dtype, place)
        if layout is None:
            _decode(column, dtype, place)
            layout = _done(column, dtype, place)
    if layout is None:
        raise FormatError(
            f"{place}: expected the ids just decoded, got others. Remove the directory and open {column.path} again."
        )
    return layout


def _key(column: IdColumn, dtype: np.dtype[Any]) -> str:
    import hashlib  # here: it brings OpenSSL, 3 ms at every import

    said = f"{_VERSION} {_sampled_hash(column.path)} {column.name!r} {dtype.str}"
    return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()


def _sampled_hash(path: str) -> str:
    """A hash of a file's size, evenly spread blocks and its tail: it identifies the file, wherever it is copied."""
    import hashlib

    with HeaderFile(path) as file:
        found = hashlib.blake2b(str(file.size).encode(), digest_size=16)
        span = max(0, file.size - _SAMPLE)
        for k in range(_SAMPLED):
            found.update(file.read(span * k // (_SAMPLED - 1), _SAMPLE))
        found.update(file.read(max(0, file.size - _TAIL), _TAIL))
    return found.hexdigest()


def _done(column: IdColumn, dtype: np.dtype[Any], place: Path) -> Layout | None:
    """The layout of decoded ids that are complete and unchanged; ``None`` if they have to be made."""
    said = _said(place / "done.json")
    ids, ends = place / "tokens.bin", place / "ends.bin"
    if said is None or not ids.is_file() or not ends.is_file():
        return None
    if said.get("tokens.bin") != _sampled_hash(str(ids)) or said.get("ends.bin") != _sampled_hash(str(ends)):
        return None
    if said.get("seal") != seal("columns", [place.name, said["tokens.bin"], said["ends.bin"]]):
        return None
    with HeaderFile(str(ids)) as file, HeaderFile(str(ends)) as index:
        count = file.size // dtype.itemsize
        documents = DocumentIndex(kind="ends", path=index.path, size=index.size, offset=0, count=index.size // 8)
        name = "parquet" if column.kind == "parquet" else "arrow"
        layout = one_extent(name, dtype, (count,), file.extent(0, file.size))
        return replace(layout, documents=(documents,))


def _decode(column: IdColumn, dtype: np.dtype[Any], place: Path) -> None:
    (place / "done.json").unlink(missing_ok=True)
    at = _resumed(dtype, place)
    with (place / "tokens.bin").open("ab") as ids, (place / "ends.bin").open("ab") as ends:
        ids.truncate(at.tokens * dtype.itemsize)
        ends.truncate(at.documents * 8)
        saved = now = at
        for block in blocks(column, at.pieces):
            if block.piece > now.pieces:
                now = replace(now, pieces=block.piece)  # every piece before this one is complete
                if (now.tokens - saved.tokens) * dtype.itemsize >= _SAVED_EVERY:
                    saved = _save(now, place, ids, ends)
            ids.write(_stored(column, block, dtype, now.tokens).tobytes())
            ends.write((block.ends + now.tokens).astype("<i8").tobytes())
            now = replace(now, tokens=now.tokens + block.ids.size, documents=now.documents + block.ends.size)
        now = replace(now, pieces=now.pieces + 1)
        _save(now, place, ids, ends)
    files = {name: _sampled_hash(str(place / name)) for name in ("tokens.bin", "ends.bin")}
    sealed = seal("columns", [place.name, *files.values()])
    about = {"source": column.path, "column": column.name, "dtype": dtype.str}
    _write(place / "done.json", {**about, **files, "seal": sealed})
    (place / "progress.json").unlink(missing_ok=True)


def _resumed(dtype: np.dtype[Any], place: Path) -> DecodedSoFar:
    """Where an earlier decode stopped, if what it wrote is still there."""
    said = _said(place / "progress.json") or {}
    numbers = [said.get(key) for key in ("pieces", "tokens", "documents")]
    counts = [number for number in numbers if type(number) is int and number >= 0]
    at = DecodedSoFar(*counts) if len(counts) == 3 else DecodedSoFar()
    wanted = {"tokens.bin": at.tokens * dtype.itemsize, "ends.bin": at.documents * 8}
    whole = all((place / name).is_file() and (place / name).stat().st_size >= size for name, size in wanted.items())
    return at if whole else DecodedSoFar()


def _stored(column: IdColumn, block: IdBlock, dtype: np.dtype[Any], before: int) -> npt.NDArray[Any]:
    """The ids as they are stored; FormatError for one that does not fit; none ever wraps."""
    if block.ids.size and not np.can_cast(block.ids.dtype, dtype, "safe"):
        limits = np.iinfo(dtype)
        low, high = int(block.ids.min()), int(block.ids.max())
        if low < limits.min or high > limits.max:
            found = low if low < limits.min else high
            at = before + int(np.flatnonzero(block.ids == found)[0])
            raise FormatError(
                f"{column.path}, column {column.name!r}: expected ids from {limits.min} to {limits.max} for "
                f"dtype={dtype}, got {found} at token {at}. State a wider dtype=, or leave it out."
            )
    return block.ids.astype(dtype, copy=False)


def _save(now: DecodedSoFar, place: Path, *files: BinaryIO) -> DecodedSoFar:
    """The ids reach the disk first, then the numbers that describe them."""
    for file in files:
        file.flush()
        os.fsync(file.fileno())
    _write(place / "progress.json", vars(now))
    return now


def _write(path: Path, content: dict[str, object]) -> None:
    import json

    with atomic_write(path) as file:
        file.write(json.dumps(content).encode())


def _said(path: Path) -> dict[str, object] | None:
    import json

    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


@contextlib.contextmanager
def _alone(place: OwnDirectory) -> Iterator[None]:
    """One process at a time; the others wait here and then find the work done. A dying process releases it."""
    with contextlib.closing(place.open("lock", os.O_RDWR | os.O_CREAT)) as file:
        wait_for_lock(file.number)
        yield


@contextlib.contextmanager
def _space(place: Path) -> Iterator[None]:
    """Errors for a full disk or a read-only directory, with what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EPERM):
            raise
        problem = type(error)(
            f"{place}: expected room for the decoded ids, got {os.strerror(error.errno).lower()}. State "
            "cache_dir= on another disk, or make room and open it again: it continues from there."
        )
        problem.errno = error.errno
        raise problem from error
