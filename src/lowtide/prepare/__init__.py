"""Text in, a verified token corpus out: bounded in memory, restartable, the same bytes from every engine.

The input is cut into sections, a section is read as blocks of text, each block is encoded, and encoded blocks in input
order become shards; an engine only decides where the encoding happens. Read ``inputs/`` (files to documents),
``tokenizers/`` (documents to ids and back), then ``encoding.py`` -> ``processes.py`` or ``cluster.py`` ->
``assemble.py`` -> ``job.py``. The shards themselves are written by `lowtide.corpus`.
"""

from lowtide.corpus.request import Request
from lowtide.prepare.control import Control, kept_memmap
from lowtide.prepare.job import Prepared, prepare
from lowtide.prepare.machine_text import machine_corpus
from lowtide.prepare.resources import Resources
from lowtide.prepare.tokenizers.spelling import Decoder, decoder_of

__all__ = [
    "Control",
    "Decoder",
    "Prepared",
    "Request",
    "Resources",
    "decoder_of",
    "kept_memmap",
    "machine_corpus",
    "prepare",
]
