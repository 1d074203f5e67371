"""NumPy's own files, versions 1 to 3, with a header parser of our own.

    "\\x93NUMPY" | major, minor u8 | header length u16 (v1) or u32 (v2, v3), little-endian |
    {'descr': ..., 'fortran_order': ..., 'shape': ...} as Python text, latin-1 (v1, v2) or UTF-8 (v3) | data

Reading: the header goes into a bounded buffer and is checked, also against the file's size, before anything else
happens. Costs one read of at most 64 KiB. Never unpickles; object dtypes are refused. Writing: ``npy_header`` makes the
bytes that ``np.save`` would write. NumPy leaves room for the longest first axis in every header, so the header of an
array whose length is not known yet has the size of the final one, which is written over it at the end.
"""

from __future__ import annotations

import ast
import re
from itertools import accumulate
from typing import Any, cast

import numpy as np

from lowtide.errors import FormatError
from lowtide.formats.header import FilePart, HeaderFile
from lowtide.formats.layout import Layout, checked_dtype, checked_nbytes, clip, one_extent

MAGIC = b"\x93NUMPY"
_MOST_HEADER = 65_536  # numpy's own reader stops at 10,000 unless told to trust; 64 KiB holds 2,500 columns
_KEYS = {"descr", "fortran_order", "shape"}
# What numpy's writer puts into a descr: byte order, kind, size, time unit. Writers never emit the other spellings
# that np.dtype accepts ("f4,f4", "float32", aliases it warns about).
_TYPE = re.compile(r"[<>|=]?[?bBhHiIlLqQefduOSUVMmc][0-9]{0,10}(\[[0-9A-Za-z/]{1,16}\])?")

# A header may be hostile, and Python's literal parser accepts far more than a writer emits. It is given only text,
# numbers, True and False in brackets. Possessive (*+), so that the pattern never backtracks.
_TEXT = re.compile(
    r"""'(?:[^'\\\n]|\\[\\'"nrtxuU])*+'|"(?:[^"\\\n]|\\[\\'"nrtxuU])*+\""""
)  # escapes as repr writes them
_LONG = re.compile(rf"({_TEXT.pattern})|(?<=[0-9])L\b")  # Python 2 wrote long integers as 10L
_PLAIN = re.compile(r"(?:[ \t\r\n\f()\[\]{},:]|-?[0-9]{1,20}(?![0-9])L?|True|False)*+")
_DEEPEST = 32  # brackets; dtypes nested deeper are attacks: numpy's own writer adds two levels per nesting

_ALIGNED = 64  # the data starts at a multiple of this
_LONGEST = 65_535 - _ALIGNED  # of a version 1 header: its length has two bytes
_DIGITS = 21  # room for the first axis, as NumPy leaves it (numpy.lib.format.GROWTH_AXIS_MAX_DIGITS)


def read(file: HeaderFile | FilePart) -> Layout:
    """The layout of a .npy file, or of one inside an archive; FormatError if its bytes contradict each other."""
    start, text = _header_text(file)
    dtype, fortran, shape = _fields(text, file.path)
    length = checked_nbytes(shape, dtype.itemsize, file.path)
    if not shape:
        raise FormatError(f"{file.path}: expected rows, got a single value of shape (). Read it with np.load.")
    if start + length != file.size:
        why = "It is cut short" if file.size < start + length else "Something was written after the array"
        raise FormatError(
            f"{file.path}: expected {start + length} bytes ({start} of header, shape {clip(shape)} of "
            f"{dtype.itemsize}-byte items), got {file.size}. {why}: write it again."
        )
    return one_extent("npy", dtype, shape, file.extent(start, length), fortran=fortran)


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header of a C-ordered array; equally long for every first axis."""
    descr = np.lib.format.dtype_to_descr(dtype)
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    text += " " * (_DIGITS - len(str(shape[0])))
    try:
        body, version = text.encode("latin-1"), 1
    except UnicodeEncodeError:  # field names beyond latin-1
        body, version = text.encode("utf-8"), 3
    if version == 1 and len(body) > _LONGEST:
        version = 2
    width = 2 if version == 1 else 4
    start = len(MAGIC) + 2 + width
    body += b" " * (-(start + len(body) + 1) % _ALIGNED) + b"\n"
    return MAGIC + bytes((version, 0)) + len(body).to_bytes(width, "little") + body


def _header_text(file: HeaderFile | FilePart) -> tuple[int, str]:
    """Where the data starts, and the header as text."""
    lead = file.read(0, 12)
    if not lead.startswith(MAGIC) or len(lead) < 10:
        raise FormatError(f"{file.path}: expected a .npy header, got {len(lead)} bytes {clip(lead)}. It is cut short.")
    version = (lead[6], lead[7])
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise FormatError(
            f"{file.path}: expected .npy version 1.0, 2.0 or 3.0, got {version[0]}.{version[1]}. Save it with np.save."
        )
    width = 2 if version == (1, 0) else 4
    start = 8 + width
    length = int.from_bytes(lead[8:start], "little")
    if length > _MOST_HEADER:
        raise FormatError(
            f"{file.path}: expected a .npy header of at most {_MOST_HEADER} bytes, got {length}. "
            f"If you trust it, open it through lowtide.open(np.load(path, mmap_mode='r', max_header_size={length}))."
        )
    header = file.read(start, length)
    if len(lead) < start or len(header) < length:
        raise FormatError(
            f"{file.path}: expected a .npy header of {start + length} bytes, got a file of {file.size}. "
            "It is cut short: write it again."
        )
    try:
        return start + length, header.decode("utf-8" if version == (3, 0) else "latin-1")
    except UnicodeDecodeError as error:
        raise FormatError(f"{file.path}: expected a UTF-8 .npy header, got {error.reason}. Write it again.") from error


def _fields(text: str, where: str) -> tuple[np.dtype[Any], bool, tuple[int, ...]]:
    header = _literal(text, where)
    if not isinstance(header, dict) or set(header) != _KEYS:
        got = list(header) if isinstance(header, dict) else type(header).__name__
        raise FormatError(f"{where}: expected .npy header keys {sorted(_KEYS)}, got {clip(got)}. Write it again.")
    fortran, shape = header["fortran_order"], header["shape"]
    if not isinstance(fortran, bool):
        raise FormatError(f"{where}: expected fortran_order True or False, got {clip(fortran)}. Write it again.")
    if not isinstance(shape, tuple) or any(type(axis) is not int for axis in shape):
        raise FormatError(f"{where}: expected a shape of integers, got {clip(shape)}. Write it again.")
    return checked_dtype(_dtype(header["descr"], where), where), fortran, shape


def _literal(text: str, where: str) -> object:
    """What the header spells."""
    outside = _TEXT.sub("", text)
    depth = max(accumulate((c in "([{") - (c in ")]}") for c in outside), default=0)
    try:
        # A colon follows each of the three keys and nothing else: more of them mean a key twice, or a dict inside.
        if _PLAIN.fullmatch(outside) is None or depth > _DEEPEST or outside.count(":") > len(_KEYS):
            raise ValueError("other text than its three fields")
        return ast.literal_eval(_LONG.sub(lambda found: found[1] or "", text))
    except (ValueError, TypeError, SyntaxError) as error:
        raise FormatError(
            f"{where}: expected a .npy header as numpy writes it, got {clip(str(error))}. Write it again."
        ) from error


def _dtype(descr: object, where: str) -> np.dtype[Any]:
    _refuse_odd_types(descr, where)
    try:
        dtype = np.lib.format.descr_to_dtype(cast(Any, descr))
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise FormatError(
            f"{where}: expected a dtype, got descr {clip(descr)} ({clip(str(error))}). Write it again."
        ) from error
    if not isinstance(dtype, np.dtype) or dtype.subdtype is not None:
        raise FormatError(f"{where}: expected the dtype of one item, got descr {clip(descr)}. Write it again.")
    return dtype


def _refuse_odd_types(descr: object, where: str) -> None:
    """FormatError for type names no writer emits; ``_DEEPEST`` bounds the depth of this recursion."""
    if isinstance(descr, str):
        if descr and _TYPE.fullmatch(descr) is None:
            raise FormatError(f"{where}: expected a dtype such as '<f4', got descr {clip(descr)}. Write it again.")
    elif isinstance(descr, list):
        for field in descr:
            # A bare 1 as shape makes numpy warn that its meaning will change; writers emit a tuple.
            sound = isinstance(field, tuple) and (len(field) == 2 or (len(field) == 3 and isinstance(field[2], tuple)))
            if not sound:
                raise FormatError(f"{where}: expected (name, dtype) in descr, got {clip(field)}. Write it again.")
            _refuse_odd_types(field[1], where)
    elif isinstance(descr, tuple) and len(descr) == 2 and isinstance(descr[1], tuple):
        _refuse_odd_types(descr[0], where)
    else:
        raise FormatError(f"{where}: expected a dtype such as '<f4', got descr {clip(descr)}. Write it again.")
