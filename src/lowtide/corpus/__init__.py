"""Checking a corpus, writing it in other formats, and making its files.

``shards.py`` and ``writers.py`` are corpora in the making, ours and other projects'; ``journal.py`` is the work
directory from which a stopped run continues; ``request.py`` has the settings that fix the bytes. ``checks.py``
(`verify`) and ``conversion.py`` (`convert`) are built on them. `lowtide.prepare` writes through the same files.
"""

from lowtide.corpus.checks import Fault, Verified, verify
from lowtide.corpus.conversion import Conversion, convert
from lowtide.corpus.request import Request

__all__ = ["Conversion", "Fault", "Request", "Verified", "convert", "verify"]
