"""Which dtype a block of bytes looks like: always a guess, never acted on.

Token ids are small, so the upper half of an item that is too wide holds another token, and every second item of one
that is too narrow is nearly zero. ``named_dtype`` trusts a file's suffix; ``guess_dtype`` looks at one block of a
file without a header and says nothing if it is not sure; ``dtype_smell`` looks at sixteen blocks of 8 KiB spread over
a layout, for signs that its dtype is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from lowtide.formats.header import HeaderFile
from lowtide.formats.layout import Layout

_TINY = 16  # upper halves of 32-bit ids stay below this: a million ids are more than any vocabulary in use
_MOST_ID = _TINY * 65_536
_FEWEST = 64  # items; below this anything looks like anything
_PLACES = 16
_SAMPLED_BYTES = 8192  # bytes at each place
_NAMED = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")


def named_dtype(path: str) -> str | None:
    """The dtype that a file's suffix names, as ``.f32`` and ``.uint16`` do."""
    suffix = path.rpartition(".")[2].lower()
    short = re.fullmatch(r"([fui])(8|16|32|64)", suffix)
    name = {"f": "float", "u": "uint", "i": "int"}[short[1]] + short[2] if short else suffix
    return name if name in _NAMED else None


def guess_dtype(block: bytes, fitting: Sequence[str]) -> str | None:
    """The dtype among ``fitting`` that the block looks like; ``None`` if that is not sure.

    uint8, int16 and float16 look like each other and like uint16 too often to be told apart by a block, unless it is
    text or ids.
    """
    block = block[: len(block) // 8 * 8]
    if len(block) < 8 * _FEWEST:
        return None
    found = next((name for name, looks in _LOOKS.items() if looks(block)), None)
    return found if found in fitting else None


def dtype_smell(layout: Layout) -> str | None:
    """One line of doubt about the dtype of one-dimensional integers; ``None`` if they look right."""
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
    """Evenly spread blocks over all extents, each a whole number of pairs from an even item of its extent."""
    pair = 2 * layout.dtype.itemsize
    total = layout.nbytes
    blocks = []
    for k in range(_PLACES):
        at = total * k // _PLACES
        for extent in layout.extents:
            if at < extent.length:
                begin = at // pair * pair
                length = min(_SAMPLED_BYTES, extent.length - begin) // pair * pair
                with HeaderFile(extent.path, extent.made) as file:
                    block = b"".join(file.read(*run) for run in extent.runs(begin, length))
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
    """Whether most items are beyond any vocabulary, as happens when two narrow ids are read as one."""
    if items.size < _FEWEST or np.mean(items >= _MOST_ID) <= 0.5:
        return False
    # Two ids read as one have upper and lower halves of the same kind; dates and counters do not.
    halves = items.view(f"u{items.itemsize // 2}").reshape(-1, 2)
    kinds = [np.unique(halves[:, k]).size for k in (0, 1)]
    return max(kinds) <= 2 * min(kinds)


def _like_float32(block: bytes) -> bool:
    """Both halves of a float64 look like such floats only if the lower one is zero: then they are not float32."""
    items = np.frombuffer(block, "<f4")
    return _like_floats(items) and bool(np.mean(items[0::2] == 0) < 0.5)


def _like_floats(items: npt.NDArray[np.floating]) -> bool:
    """Measured numbers lie within a few powers of ten of 1, and ids read as floats almost never do."""
    size = np.abs(items[items != 0])  # NaN and infinity compare without a warning: they are simply outside
    if size.size < _FEWEST // 2:
        return False
    return bool(np.mean((size > 1e-8) & (size < 1e8)) > 0.95)


def _like_text(block: bytes) -> bool:
    items = np.frombuffer(block, "u1")
    printable = (items >= 32) & (items < 127) | (items == 10) | (items == 9) | (items == 13)
    return bool(np.mean(printable) > 0.95)


def _like_ids(block: bytes) -> bool:
    """Whether these are uint16 ids: upper and lower bytes are distributed differently, hardly any is near 65,536, where
    small negative numbers would be, and they are not float16 within three powers of ten of 1."""
    pairs = np.frombuffer(block, "u1").reshape(-1, 2)
    lower, upper = (np.bincount(pairs[:, k], minlength=256) / len(pairs) for k in (0, 1))
    apart = float(np.abs(lower - upper).sum()) / 2
    chance = 0.7 * float(np.sqrt(256 / len(pairs)))  # how far apart two samples of the same bytes are
    halves = np.abs(np.frombuffer(block, "<f2").astype("f4"))
    like_halves = np.mean((halves > 1e-3) & (halves < 1e3)) > 0.9
    return apart > 0.08 + chance and bool(np.mean(pairs[:, 1] >= 0xF0) < 0.01) and not like_halves


# In this order: what matches an earlier kind may also match a later one.
_LOOKS: dict[str, Callable[[bytes], bool]] = {
    "float32": _like_float32,
    "float64": lambda block: _like_floats(np.frombuffer(block, "<f8")),
    "int64": lambda block: _looks_wider(np.frombuffer(block, "<u4")),
    "uint32": lambda block: _looks_wider(np.frombuffer(block, "<u2")),
    "uint8": _like_text,
    "uint16": _like_ids,
}
