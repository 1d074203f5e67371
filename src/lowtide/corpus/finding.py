"""Where the corpora of a directory lie, and what their manifests say, taken as it stands.

A directory is a corpus, or holds one for train and one for val. `lowtide.formats.tokens.manifest` checks a manifest
before anything is read by it; what is asked here - is there one, which tokenizer does it name - must have an answer
where a manifest is damaged or of another kind too. Costs one small file per question.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from lowtide.formats.tokens.manifest import MANIFEST

CORPUS_PARTS = ("train", "val")


def stated_manifest(directory: Path) -> dict[str, Any]:
    """The JSON object in ``manifest.json``; empty where there is none, or something that is no file."""
    try:
        descriptor = os.open(directory / MANIFEST, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO would block
        with open(descriptor, "rb") as file:  # noqa: PTH123  # a descriptor
            content = json.loads(file.read()) if stat.S_ISREG(os.fstat(descriptor).st_mode) else {}
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def corpora_in(directory: Path) -> list[Path]:
    """The corpora that a directory is or holds."""
    places = (directory, *(directory / part for part in CORPUS_PARTS))
    return [place for place in places if (place / MANIFEST).is_file()]
