"""A corpus that every machine with Python already has: the standard library's own source, as byte tokens.

One idea: no download. The ``.py`` files of the standard library (about 11 MB without tests and installed
packages), put in a fixed order that only their names decide, become ``train/train.bin`` and
``val/val.bin``; every twentieth file is val, so the val loss is about files the model never saw. Each part
has a manifest beside it, written last: a part with a manifest is whole.

Made once for each Python version under ``$LOWTIDE_CACHE``, ``$XDG_CACHE_HOME/lowtide`` or
``~/.cache/lowtide``, in about a second; one source file is in memory at a time. It does not tokenise: a
byte is a token.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lowtide.atomic import atomic_write

VAL_EVERY = 20
# Installed packages are not the standard library; tests are half its bytes and read like nothing else.
SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3"})
SMALLEST = 100_000  # bytes; some systems ship the library as bytecode or in a zip file


@dataclass(frozen=True)
class StdlibCorpus:
    """Where the two parts lie, and what was in them."""

    train: Path
    val: Path
    made: bool  # False: it was there already


def cache_directory() -> Path:
    """Where Lowtide may keep what it can make again."""
    if chosen := os.environ.get("LOWTIDE_CACHE"):
        return Path(chosen)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "lowtide"
    return Path.home() / ".cache" / "lowtide"


def stdlib_corpus(directory: Path | None = None, library: Path | None = None) -> StdlibCorpus:
    """The corpus of this Python's own library, made now unless both parts are whole."""
    library = Path(sysconfig.get_path("stdlib")) if library is None else library
    root = (cache_directory() if directory is None else directory) / f"corpus-stdlib-{platform.python_version()}"
    train, val = root / "train", root / "val"
    if _is_whole(train, "train.bin") and _is_whole(val, "val.bin"):
        return StdlibCorpus(train, val, made=False)
    files = source_files(library)
    _write(val, "val.bin", files[::VAL_EVERY])
    _write(train, "train.bin", [file for place, file in enumerate(files) if place % VAL_EVERY])
    return StdlibCorpus(train, val, made=True)


def source_files(library: Path) -> list[Path]:
    """Every source file, in an order that only names decide; FileNotFoundError when there is too little."""
    files = [path for path in library.rglob("*.py") if not SKIPPED.intersection(path.relative_to(library).parts)]
    size = sum(path.stat().st_size for path in files)
    if size < SMALLEST:
        raise FileNotFoundError(
            f"{library}: expected the standard library's source, {SMALLEST:,} bytes or more, got {size:,}. "
            "Name token files of your own with --data."
        )
    return sorted(files, key=lambda path: hashlib.sha256(path.relative_to(library).as_posix().encode()).digest())


def _write(directory: Path, name: str, files: Iterable[Path]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    tokens = 0
    with atomic_write(directory / name) as output:
        for file in files:
            tokens += output.write(file.read_bytes())
    manifest = {"lowtide": 1, "dtype": "uint8", "vocab": 256, "shards": [{"file": name, "tokens": tokens}]}
    with atomic_write(directory / "manifest.json") as output:
        output.write(json.dumps(manifest, indent=1).encode() + b"\n")


def _is_whole(directory: Path, name: str) -> bool:
    try:
        manifest = json.loads((directory / "manifest.json").read_bytes())
        return bool((directory / name).stat().st_size == manifest["shards"][0]["tokens"])
    except (OSError, ValueError, LookupError, TypeError):
        return False
