"""Which dtype a block of bytes looks like: always a guess, never acted on.

One idea: token ids are small, so the upper half of an item that is too wide holds another token, and every
second item of one that is too narrow is nearly zero. Costs a few passes over a block of at most 64 KiB.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

TINY = 16  # upper halves of 32-bit ids stay below this: a million ids are more than any vocabulary in use
_MOST_ID = TINY * 65_536
_FEWEST = 64  # items; below this anything looks like anything


def looks_wider(items: npt.NDArray[np.unsignedinteger]) -> bool:
    """Whether items taken from an even position look like halves of items twice as wide."""
    if items.size < _FEWEST:
        return False
    lower, upper = items[0::2], items[1::2]
    return bool(np.mean(upper <= TINY) > 0.99 and np.mean(lower <= TINY) < 0.9)


def looks_narrower(items: npt.NDArray[np.unsignedinteger]) -> bool:
    """Whether most items are beyond any vocabulary, as two narrow ids read as one are."""
    if items.size < _FEWEST or np.mean(items >= _MOST_ID) <= 0.5:
        return False
    # Two ids read as one have upper and lower halves of the same kind; dates and counters do not.
    halves = items.view(f"u{items.itemsize // 2}").reshape(-1, 2)
    kinds = [np.unique(halves[:, k]).size for k in (0, 1)]
    return max(kinds) <= 2 * min(kinds)


def guess_dtype(block: bytes, fitting: Sequence[str]) -> str | None:
    """The most likely of the dtype names in ``fitting``, or ``None`` where nothing stands out."""
    block = block[: len(block) // 8 * 8]
    if len(block) < 8 * _FEWEST:
        return None
    for name in ("float64", "float32"):
        if name in fitting and _like_floats(np.frombuffer(block, name)):
            return name
    if "int64" in fitting and looks_wider(np.frombuffer(block, "<u4")):
        return "int64"
    if "uint32" in fitting and looks_wider(np.frombuffer(block, "<u2")):
        return "uint32"
    if "uint8" in fitting and _like_text(np.frombuffer(block, "<u1")):
        return "uint8"
    return "uint16" if "uint16" in fitting else None


def _like_floats(items: npt.NDArray[np.floating]) -> bool:
    """Measured numbers lie within a few powers of ten of 1, and ids read as floats almost never do."""
    size = np.abs(items[items != 0])  # comparing NaN or infinity warns about nothing: they are simply not inside
    if size.size < _FEWEST // 2:
        return False
    return bool(np.mean((size > 1e-8) & (size < 1e8)) > 0.95)


def _like_text(items: npt.NDArray[np.uint8]) -> bool:
    printable = (items >= 32) & (items < 127) | (items == 10) | (items == 9) | (items == 13)
    return bool(np.mean(printable) > 0.95)
