"""Where the corpora of a directory are, and what their manifests say, unchecked.

A directory is a corpus, or holds one for each part. `lowtide.formats.tokens.manifest` checks a manifest before anything
is read by it; the questions here - is there one, which tokenizer does it name - must have an answer even if a manifest
is damaged or of another kind. Costs one small file per question.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lowtide.blocks.objects import normal_address
from lowtide.errors import LowtideError
from lowtide.formats.corpus_parts import PARTS
from lowtide.formats.header import is_file
from lowtide.formats.tokens.manifest import MANIFEST, manifest_content


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
