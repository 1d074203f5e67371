"""Text in, a verified token corpus out: bounded in memory, restartable, the same bytes from every engine.

One idea: a run is one plan - input splits -> encoded pieces -> shards in input order - and an engine only decides where
the middle step happens. Read in this order: ``request.py`` (what was asked for) -> ``inputs.py`` -> ``splits.py`` ->
``blocks.py`` -> ``pieces.py`` -> ``processes.py`` or ``cluster.py`` -> ``assemble.py`` -> ``shards.py`` -> ``job.py``.
"""

from lowtide.prepare.checks import Fault, Verified, verify
from lowtide.prepare.control import Control, kept_memmap
from lowtide.prepare.conversion import Conversion, convert
from lowtide.prepare.decoding import Decoder, decoder_of
from lowtide.prepare.job import Prepared, prepare
from lowtide.prepare.machine_text import machine_corpus
from lowtide.prepare.request import Request, Resources

__all__ = [
    "Control",
    "Conversion",
    "Decoder",
    "Fault",
    "Prepared",
    "Request",
    "Resources",
    "Verified",
    "convert",
    "decoder_of",
    "kept_memmap",
    "machine_corpus",
    "prepare",
    "verify",
]
