"""What is done to a corpus once it exists: checked, and written in other formats; and how its files grow.

``shards.py`` and ``writers.py`` are corpora in the making, ours and other projects'; ``journal.py`` is the work
directory from which making one goes on after a stop; ``request.py`` the settings that fix its bytes. On them stand
``checks.py`` (`verify`) and ``conversion.py`` (`convert`). `lowtide.prepare` writes through the same files.
"""

from lowtide.corpus.checks import Fault, Verified, verify
from lowtide.corpus.conversion import Conversion, convert
from lowtide.corpus.request import Request

__all__ = ["Conversion", "Fault", "Request", "Verified", "convert", "verify"]
