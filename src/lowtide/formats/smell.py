"""Whether the dtype a run of tokens is read with looks wrong.

One idea: look at a few blocks spread over the data and say what they resemble - as a guess, for a person; nothing is
decided by it. Costs sixteen reads of 8 KiB.
"""

from __future__ import annotations

import numpy as np

from lowtide.formats.guess import looks_narrower, looks_wider
from lowtide.formats.header import HeaderFile
from lowtide.formats.layout import Layout

_PLACES = 16
_BLOCK = 8192
_UNSIGNED = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}


def dtype_smell(layout: Layout) -> str | None:
    """One line of doubt about the dtype of one-dimensional integers; ``None`` where they look as they should."""
    if layout.dtype.kind not in "iu" or len(layout.shape) != 1 or layout.shape[0] == 0:
        return None
    itemsize = layout.dtype.itemsize
    data = b"".join(_sample(layout))
    items = np.frombuffer(data, layout.dtype).astype(layout.dtype.newbyteorder("=")).view(_UNSIGNED[itemsize])
    if itemsize < 8 and looks_wider(items):
        wide = f"uint{16 * itemsize}"
        return f"looks like {wide} read as {layout.dtype}: every second value is nearly 0. A guess; try dtype='{wide}'"
    if itemsize == 4 and looks_narrower(items):
        return (
            f"looks like uint16 read as {layout.dtype}: most values are beyond any vocabulary. "
            "A guess; try dtype='uint16'"
        )
    return None


def _sample(layout: Layout) -> list[bytes]:
    """Blocks at even places over all extents, each from an even item of its extent on and a whole number of pairs."""
    pair = 2 * layout.dtype.itemsize
    total = layout.nbytes
    blocks = []
    for k in range(_PLACES):
        at = total * k // _PLACES
        for extent in layout.extents:
            if at < extent.length:
                begin = at // pair * pair
                length = min(_BLOCK, extent.length - begin) // pair * pair
                with HeaderFile(extent.path) as file:
                    block = file.read(extent.offset + begin, length)
                blocks.append(block[: len(block) // pair * pair])
                break
            at -= extent.length
    return blocks
