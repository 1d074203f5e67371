"""Header bytes in, a layout out: what a file holds and where, before a byte of data is read.

``arrays.py`` and ``tokens/token_files.py`` go from what a caller names to a layout; ``recognise.py`` tells formats
apart, and ``files/``, ``tokens/`` and ``columns/`` have one module for each. ``refusals.py`` names the formats that
none of them reads.
"""

from lowtide.formats.arrays import layout_of
from lowtide.formats.columns.decoded import column_layout
from lowtide.formats.files.members import ArrayMember
from lowtide.formats.files.raw import MissingDtypeError
from lowtide.formats.guess import dtype_smell
from lowtide.formats.layout import DocumentIndex, Layout, join
from lowtide.formats.recognise import members_of
from lowtide.formats.sources import Source
from lowtide.formats.tokens.ends import document_ends
from lowtide.formats.tokens.token_files import token_layout
from lowtide.storage.watched_files import Extent

__all__ = [
    "ArrayMember",
    "DocumentIndex",
    "Extent",
    "Layout",
    "MissingDtypeError",
    "Source",
    "column_layout",
    "document_ends",
    "dtype_smell",
    "join",
    "layout_of",
    "members_of",
    "token_layout",
]
