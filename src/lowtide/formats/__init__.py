"""Header bytes in, a layout out: what a file holds and where, before a byte of data is read."""

from lowtide.formats.arrays import layout_of
from lowtide.formats.layout import DocumentIndex, Documents, Extent, Layout

__all__ = ["DocumentIndex", "Documents", "Extent", "Layout", "layout_of"]
