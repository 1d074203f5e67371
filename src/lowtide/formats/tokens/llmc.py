"""llm.c's token shards, as modded-nanogpt reads them too.

    int32[256]: magic, version, tokens n, then zeros | n ids, uint16 (magic 20240520) or uint32 (20240801)

Four bytes of magic also occur in real data (20240520 is a date), so a file counts as llm.c's only with the version that
belongs to the magic and an empty rest of the header. Costs one read of 1 KiB. The project's evaluation and state files
are refused by name.
"""

from __future__ import annotations

import struct

import numpy as np

from lowtide.errors import FormatError
from lowtide.formats.header import HeaderFile
from lowtide.formats.layout import Layout, one_extent

HEADER = 1024
_TOKENS = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
_OTHERS = {
    (20240522, 1): "an llm.c evaluation file (multiple-choice records, not a run of tokens)",
    (20240527, 1): "an llm.c state file (optimizer and loader state, not data)",
}
_USED_WORDS = 64  # the token magics use 3 words of the header, the state file about 40; the rest is zero in all


def looks_like(head: bytes) -> bool:
    """Whether a file that starts with these (up to 1,024) bytes is one of llm.c's."""
    if len(head) < 12 or any(head[4 * _USED_WORDS : HEADER]):
        return False
    return struct.unpack("<2i", head[:8]) in (*_TOKENS, *_OTHERS)


def read(file: HeaderFile) -> Layout:
    """The layout of a token shard; FormatError for llm.c's other files and for a size that the header contradicts."""
    head = file.read(0, HEADER)
    if len(head) < HEADER:
        raise FormatError(
            f"{file.path}: expected an llm.c header of {HEADER} bytes, got a file of {file.size}. It is cut short."
        )
    magic, version, count = struct.unpack("<3i", head[:12])
    if (magic, version) in _OTHERS:
        raise FormatError(
            f"{file.path}: expected tokens, got {_OTHERS[magic, version]}. Name the *_train_* or *_val_* shards."
        )
    if (magic, version) not in _TOKENS:
        raise FormatError(
            f"{file.path}: expected llm.c magic and version {list(_TOKENS)}, got {(magic, version)}. Write it again."
        )
    dtype = np.dtype(_TOKENS[magic, version])
    if HEADER + count * dtype.itemsize != file.size:
        raise FormatError(
            f"{file.path}: expected {HEADER + count * dtype.itemsize} bytes ({count} tokens of {dtype} as its llm.c "
            f"header says), got {file.size}. Download or write it again."
        )
    return one_extent("llm.c", dtype, (count,), file.extent(HEADER, count * dtype.itemsize))
