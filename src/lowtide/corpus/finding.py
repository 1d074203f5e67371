"""Where the corpora of a directory are, and what their manifests say, unchecked.

A directory is a corpus, or holds one for each part. `lowtide.formats.tokens.manifest` checks a manifest before anything
is read by it; the questions here - is there one, which tokenizer does it name - must have an answer even if a manifest
is damaged or of another kind. Costs one small file per question.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lowtide.blocks.objects import normal_address
from lowtide.corpus.journal import WORK
from lowtide.errors import LowtideError
from lowtide.formats.corpus_parts import PARTS
from lowtide.formats.header import is_file
from lowtide.formats.tokens.manifest import MANIFEST, manifest_content, read_manifest
from lowtide.formats.tokens.token_files import SUFFIXES

MEGATRONS = tuple(f"{part}_text_document" for part in PARTS)  # what our writer calls tokens with an index beside them


def stated_manifest(directory: Path) -> dict[str, Any]:
    """What ``manifest.json`` says; empty if there is none or it cannot be read."""
    try:
        return manifest_content(directory) or {}
    except (LowtideError, OSError):
        return {}


def corpora_in(directory: Path) -> list[Path]:
    """The corpora that a directory is or holds. Of a signed address none: no name can follow its query."""
    if normal_address(str(directory)) is not None and "?" in str(directory):
        return []
    places = (directory, *(directory / part for part in PARTS))
    return [place for place in places if is_file(str(place / MANIFEST))]


def corpora_of(path: Path, part: str | None) -> list[tuple[Path, str]]:
    """The corpora of ours that a directory is or holds, finished or not, and which part each is."""
    found = [(place, "" if place == path else place.name) for place in corpora_in(path) if _has_ours(place)]
    if part is not None and any(name for _, name in found):
        return [(place, name) for place, name in found if name == part]
    return found or ([(path, "")] if (path / WORK).is_dir() else [])


def parts_without_manifest(directory: Path, part: str | None) -> list[Path]:
    """Parts of a directory, or this one of them, that hold shards and have lost their manifest."""
    if str(directory).startswith("http") or _has_ours(directory):
        return []  # one manifest for all; a web server does not say what it has
    places = [directory / name for name in PARTS if part in (None, name)]
    lost = [place for place in places if place.is_dir() and not _has_ours(place)]
    return [place for place in lost if any(one.suffix in SUFFIXES for one in place.iterdir())]


def _has_ours(directory: Path) -> bool:
    """Whether the manifest there is ours, and not another program's of the same name, beside which nothing would be
    checked. One that cannot be read counts: that is a fault to be told."""
    try:
        return read_manifest(directory) is not None
    except (LowtideError, OSError):
        return True
