"""The header of a .npy file, byte for byte as ``np.save`` writes it.

One idea: NumPy leaves room for the longest first axis in every header, so the header of an array whose length is not
known yet has the size of the final one and is written over it at the end. Does not write files.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_MAGIC = b"\x93NUMPY"
_ALIGNED = 64  # the data starts at a multiple of this
_LONGEST = 65_535 - _ALIGNED  # of a version 1 header: its length has two bytes
_DIGITS = 21  # room for the first axis, as NumPy leaves it (numpy.lib.format.GROWTH_AXIS_MAX_DIGITS)


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header of a C-ordered array; equally long for every first axis."""
    descr = np.lib.format.dtype_to_descr(dtype)
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    text += " " * (_DIGITS - len(str(shape[0])))
    try:
        body, version = text.encode("latin-1"), 1
    except UnicodeEncodeError:  # names of fields beyond latin-1
        body, version = text.encode("utf-8"), 3
    if version == 1 and len(body) > _LONGEST:
        version = 2
    width = 2 if version == 1 else 4
    start = len(_MAGIC) + 2 + width
    body += b" " * (-(start + len(body) + 1) % _ALIGNED) + b"\n"
    return _MAGIC + bytes((version, 0)) + len(body).to_bytes(width, "little") + body
