"""Checking a corpus, writing it in other formats, and making its files.

``shards.py`` and ``writers.py`` are corpora in the making, ours and other projects'; ``journal.py`` is the work
directory from which a stopped run continues; ``request.py`` has the settings that fix the bytes. ``checks.py``
(`verify`) and ``conversion.py`` (`convert`) are built on them. `lowtide.prepare` writes through the same files.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowtide.corpus.checks import Fault, Verified, verify
    from lowtide.corpus.conversion import Conversion, convert
    from lowtide.corpus.request import Request

__all__ = ["Conversion", "Fault", "Request", "Verified", "convert", "verify"]

# Imported on first use: the workers of `lowtide.prepare` need only the request.
_HOMES = {
    "Conversion": "conversion",
    "Fault": "checks",
    "Request": "request",
    "Verified": "checks",
    "convert": "conversion",
    "verify": "checks",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"lowtide.corpus.{_HOMES[name]}"), name)
