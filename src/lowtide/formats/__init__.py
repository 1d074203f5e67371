"""Header bytes in, a layout out: what a file holds and where, before a byte of data is read."""

from lowtide.formats.arrays import layout_of
from lowtide.formats.containers import members_of
from lowtide.formats.decoded import column_layout
from lowtide.formats.documents import document_ends
from lowtide.formats.layout import DocumentIndex, Documents, Layout
from lowtide.formats.members import ArrayMember
from lowtide.formats.raw import MissingDtypeError
from lowtide.formats.smell import dtype_smell
from lowtide.formats.token_files import token_layout
from lowtide.storage import Extent

__all__ = [
    "ArrayMember",
    "DocumentIndex",
    "Documents",
    "Extent",
    "Layout",
    "MissingDtypeError",
    "column_layout",
    "document_ends",
    "dtype_smell",
    "layout_of",
    "members_of",
    "token_layout",
]
