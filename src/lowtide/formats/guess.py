"""Which dtype a block of bytes looks like: always a guess, never acted on.

Token ids are small, so the upper half of an item that is too wide holds another token, and every second item of one
that is too narrow is nearly zero. ``guess_dtype`` looks at one block of a file without a header, ``dtype_smell`` at
sixteen blocks of 8 KiB spread over a layout, to doubt the dtype it is read with.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lowtide.formats.header import HeaderFile
from lowtide.formats.layout import Layout

_TINY = 16  # upper halves of 32-bit ids stay below this: a million ids are more than any vocabulary in use
_MOST_ID = _TINY * 65_536
_FEWEST = 64  # items; below this anything looks like anything
_PLACES = 16
_SAMPLED_BYTES = 8192  # bytes at each place


def guess_dtype(block: bytes, fitting: Sequence[str]) -> str | None:
    """The most likely of the dtype names in ``fitting``, or ``None`` where nothing stands out."""
    block = block[: len(block) // 8 * 8]
    if len(block) < 8 * _FEWEST:
        return None
    for name in ("float64", "float32"):
        if name in fitting and _like_floats(np.frombuffer(block, name)):
            return name
    if "int64" in fitting and _looks_wider(np.frombuffer(block, "<u4")):
        return "int64"
    if "uint32" in fitting and _looks_wider(np.frombuffer(block, "<u2")):
        return "uint32"
    if "uint8" in fitting and _like_text(np.frombuffer(block, "<u1")):
        return "uint8"
    return "uint16" if "uint16" in fitting else None


def dtype_smell(layout: Layout) -> str | None:
    """One line of doubt about the dtype of one-dimensional integers; ``None`` where they look as they should."""
    if layout.dtype.kind not in "iu" or len(layout.shape) != 1 or layout.shape[0] == 0:
        return None
    itemsize = layout.dtype.itemsize
    data = b"".join(_sample(layout))
    items = np.frombuffer(data, layout.dtype).astype(layout.dtype.newbyteorder("=")).view(f"u{itemsize}")
    if itemsize < 8 and _looks_wider(items):
        wide = f"uint{16 * itemsize}"
        return f"looks like {wide} read as {layout.dtype}: every second value is nearly 0. A guess; try dtype='{wide}'"
    if itemsize == 4 and _looks_narrower(items):
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
                length = min(_SAMPLED_BYTES, extent.length - begin) // pair * pair
                with HeaderFile(extent.path) as file:
                    block = file.read(extent.offset + begin, length)
                blocks.append(block[: len(block) // pair * pair])
                break
            at -= extent.length
    return blocks


def _looks_wider(items: npt.NDArray[np.unsignedinteger]) -> bool:
    """Whether items taken from an even position look like halves of items twice as wide."""
    if items.size < _FEWEST:
        return False
    lower, upper = items[0::2], items[1::2]
    return bool(np.mean(upper <= _TINY) > 0.99 and np.mean(lower <= _TINY) < 0.9)


def _looks_narrower(items: npt.NDArray[np.unsignedinteger]) -> bool:
    """Whether most items are beyond any vocabulary, as two narrow ids read as one are."""
    if items.size < _FEWEST or np.mean(items >= _MOST_ID) <= 0.5:
        return False
    # Two ids read as one have upper and lower halves of the same kind; dates and counters do not.
    halves = items.view(f"u{items.itemsize // 2}").reshape(-1, 2)
    kinds = [np.unique(halves[:, k]).size for k in (0, 1)]
    return max(kinds) <= 2 * min(kinds)


def _like_floats(items: npt.NDArray[np.floating]) -> bool:
    """Measured numbers lie within a few powers of ten of 1, and ids read as floats almost never do."""
    size = np.abs(items[items != 0])  # comparing NaN or infinity warns about nothing: they are simply not inside
    if size.size < _FEWEST // 2:
        return False
    return bool(np.mean((size > 1e-8) & (size < 1e8)) > 0.95)


def _like_text(items: npt.NDArray[np.uint8]) -> bool:
    printable = (items >= 32) & (items < 127) | (items == 10) | (items == 9) | (items == 13)
    return bool(np.mean(printable) > 0.95)
