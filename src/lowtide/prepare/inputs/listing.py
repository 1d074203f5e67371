"""Which files are read, in which order, and what each is.

Files keep the order they were named in; a directory stands for its text files, walked in sorted order. The name
decides the kind, and a name that tells nothing is refused rather than guessed. Standard input is first copied to a
file, so that a killed run can continue. Costs one stat and about 300 bytes of memory per file. Reads no text.
"""

from __future__ import annotations

import glob
import hashlib
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from lowtide.corpus.request import Request
from lowtide.errors import FormatError
from lowtide.formats.sources import natural_key

STDIN = "-"
_KINDS = {".txt": "text", ".text": "text", ".md": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_OTHER_COMPRESSIONS = (
    ".bz2",
    ".xz",
    ".lz4",
    ".lzma",
    ".br",
    ".zip",
    ".7z",
    ".rar",
)  # no text, whatever is said of them
_ENDINGS = f"{', '.join(_KINDS)} (the text kinds also {' and '.join(_COMPRESSIONS)})"
_COPIED = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Input:
    """One file: where it is, what it holds, and what it looked like when it was listed."""

    path: str
    name: str  # how it is recorded: without this machine's directories
    kind: str  # "text" (one document), "lines", "separator", "jsonl", "parquet"
    compression: str  # "", "gzip", "zstd"
    size: int
    modified: int  # nanoseconds; recorded only in the work directory


def list_inputs(named: Sequence[str], request: Request, spool: Path | None = None) -> list[Input]:
    """Every file behind ``named``; ``spool``: the file that holds standard input."""
    found: list[Input] = []
    for item in named:
        if item == STDIN:
            assert spool is not None
            found.append(_input(str(spool), "stdin", "jsonl" if _is_jsonl(spool) else "text", request))
            continue
        for path, name in _files(item, request):
            kind = kind_of(path, request)
            if kind is None:
                _status(path)  # a missing file is reported as missing, not for its ending
                way = _way_out(os.path.splitext(path)[1])  # noqa: PTH122
                raise FormatError(f"{path}: expected {_ENDINGS}, got another ending. {way}.")
            found.append(_input(path, name, kind, request))
    if not found:
        others, most = _others(named, request)
        if not others:
            raise FormatError(f"{', '.join(named)}: expected files of text, got none. Name another directory.")
        raise FormatError(f"{', '.join(named)}: expected {_ENDINGS}, got {others}. {_way_out(most)}.")
    return found


def left_out(named: Sequence[str], request: Request) -> tuple[str, ...]:
    """A note about files of directories that are not read, where there are any."""
    others, _ = _others(named, request)
    return (f"left out: {others}",) if others else ()


def _others(named: Sequence[str], request: Request) -> tuple[str, str]:
    """How many files of directories have another ending, in words, and the most frequent one."""
    endings: dict[str, int] = {}
    for item in named:
        for _, name in _walked(item):
            if kind_of(name, request) is None:
                ending = os.path.splitext(name)[1]  # noqa: PTH122
                endings[ending] = endings.get(ending, 0) + 1
    count, most = sum(endings.values()), max(endings, key=lambda ending: endings[ending], default="")
    told = f"{count} file{'s' * (count != 1)} with other endings"
    return (f"{told}, {endings[most]} of them {most or 'without one'}" if count else ""), most


def _way_out(ending: str) -> str:
    if ending.lower() in _OTHER_COMPRESSIONS:
        return "Unpack it first, or pack it with gzip or zstd"
    return (
        f"Add --endings {ending} if it is text" if ending else "Give the names an ending, such as .txt, if it is text"
    )


def kind_of(path: str, request: Request) -> str | None:
    """The kind that a name tells: "text", "jsonl" or "parquet"; ``None`` if it tells none."""
    kinds = _KINDS | dict.fromkeys((f".{one.strip().lstrip('.')}" for one in request.endings.split(",") if one), "text")
    stem, ending = os.path.splitext(path.lower())  # noqa: PTH122 - a Path per file costs more than the stat
    if ending in _COMPRESSIONS:
        ending = os.path.splitext(stem)[1]  # noqa: PTH122
        return None if ending == ".parquet" else kinds.get(ending)
    return kinds.get(ending)


def inputs_digest(inputs: Sequence[Input]) -> str:
    """A hash of names and sizes in order, which the manifest records as their origin. No times, no directories."""
    whole = hashlib.sha256()
    for one in inputs:
        whole.update(f"{one.name}\0{one.size}\n".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def copy_stdin(target: Path, stream: BinaryIO | None = None) -> None:
    """Standard input as a file, which gets its final name only when it is complete."""
    temporary = target.with_name(target.name + ".part")
    stream = sys.stdin.buffer if stream is None else stream
    with temporary.open("wb") as file:
        while block := stream.read(_COPIED):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(target)


def _files(item: str, request: Request) -> Iterator[tuple[str, str]]:
    """(path, recorded name) of every file an argument stands for."""
    if os.path.isdir(item):  # noqa: PTH112
        yield from _known(item, request)
    elif glob.has_magic(item) and not os.path.lexists(item):
        matches = sorted(glob.glob(item, recursive=True), key=natural_key)
        if not matches:
            raise FileNotFoundError(f"{item}: expected files that match this pattern, got none. Check it with ls.")
        for match in matches:
            if os.path.isdir(match):  # noqa: PTH112
                yield from _known(match, request)
            else:
                yield match, os.path.basename(match)  # noqa: PTH119
    else:
        yield item, os.path.basename(item)  # noqa: PTH119


def _known(top: str, request: Request) -> Iterator[tuple[str, str]]:
    """Every file with a known ending below a directory."""
    return ((path, name) for path, name in _walked(top) if kind_of(name, request) is not None)


def _walked(top: str) -> Iterator[tuple[str, str]]:
    """(path, path below ``top``) of every file, directories and files in sorted order; hidden ones left out."""
    for directory, inner, files in os.walk(top):
        inner[:] = sorted((name for name in inner if not name.startswith(".")), key=natural_key)
        for name in sorted(files, key=natural_key):
            if not name.startswith("."):
                path = os.path.join(directory, name)  # noqa: PTH118
                yield path, os.path.relpath(path, top)


def _input(path: str, name: str, kind: str, request: Request) -> Input:
    status = _status(path)
    if not stat.S_ISREG(status.st_mode):
        raise FormatError(f"{path}: expected a regular file, got another kind. Pipe it in and name it as '-'.")
    ending = os.path.splitext(path.lower())[1]  # noqa: PTH122
    compression = _COMPRESSIONS.get(ending, "")
    if kind == "text" and (request.lines or request.separator):
        kind = "lines" if request.lines else "separator"
    return Input(os.path.abspath(path), name, kind, compression, status.st_size, status.st_mtime_ns)  # noqa: PTH100


def _status(path: str) -> os.stat_result:
    try:
        return os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path}: expected a file or a directory, got nothing of that name. Check the path."
        ) from None


def _is_jsonl(path: Path) -> bool:
    """Standard input has no name: text that begins like a JSON object is read as lines of JSON."""
    with path.open("rb") as file:
        return file.read(4096).lstrip().startswith(b"{")
