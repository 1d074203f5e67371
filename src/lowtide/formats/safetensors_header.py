"""The JSON header of a .safetensors file, read as a stream.

    {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {"key": "value", ...}}

One idea: a header may be 100 MB and hostile, so it is never loaded as a whole: one entry is taken at a time, at most
64 KiB long, and of all entries only their offsets and a hash of their names stay, to find holes, overlaps and names
given twice. Costs at most 2 MiB and 60 bytes per tensor, whatever the header holds. Metadata is stepped over.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from lowtide.errors import FormatError
from lowtide.formats.header import HeaderFile
from lowtide.formats.layout import MOST_AXES, checked_nbytes, clip

MOST_BYTES = 100_000_000  # the format's own bound on a header
_MOST_ENTRY = 65_536  # a name, a dtype, at most 64 axes and two offsets
_BLOCK = 262_144

DTYPES = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "C64": "<c8",
}
BITS = {"BF16": "<u2", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E4M3FNUZ": "u1", "F8_E5M2FNUZ": "u1", "F8_E8M0": "u1"}
_ITEMSIZES = {name: np.dtype(dtype).itemsize for name, dtype in {**DTYPES, **BITS}.items()}
SMALLER_THAN_A_BYTE = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}  # bits

_NAME = re.compile(rb'[ \t\r\n]*+"((?:[^"\\\x00-\x1f]++|\\.)*+)"[ \t\r\n]*+:[ \t\r\n]*+')
# One object without objects in it: what an entry is. Its text goes to the JSON parser, 64 KiB at most.
_OBJECT = re.compile(rb'\{(?:[^{}"]++|"(?:[^"\\]++|\\.)*+")*+\}')
# As the format's own library writes it; anything else takes the longer way through the JSON parser.
_NUMBER = rb"(?:0|[1-9][0-9]{0,17})"  # below 10**18: such numbers and their sums fit in 64 bits
_USUAL = re.compile(
    rb'\{"dtype":"([A-Z0-9_]+)","shape":\[((?:N(?:,N)*)?)\],"data_offsets":\[(N),(N)\]\}'.replace(b"N", _NUMBER)
)
_SIGN = re.compile(rb"[ \t\r\n]*+([{},:])")
_QUOTE = re.compile(rb'[ \t\r\n]*+"')
_TEXT = re.compile(rb'(?:[^"\\\x00-\x1f]++|\\.)*+')


class Tensor(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    begin: int  # counted from the end of the header
    end: int


def data_start(file: HeaderFile) -> int:
    """Where the data begins, behind a header of a size that can be."""
    lead = file.read(0, 8)
    length = int.from_bytes(lead, "little")
    if len(lead) < 8 or not 2 <= length <= min(file.size - 8, MOST_BYTES):
        raise FormatError(
            f"{file.path}: expected a safetensors header of 2 to {MOST_BYTES} bytes inside the file, got "
            f"{length} in a file of {file.size}. It is cut short or no safetensors file."
        )
    return 8 + length


def tensors(file: HeaderFile) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in the header's order, each checked; the last step checks that together they fill the file."""
    start = data_start(file)
    text = _Stream(file, 8, start)
    begins, ends, hashes = array("q"), array("q"), array("q")
    for name in _names(text):
        hashes.append(hash(name))
        if name == "__metadata__":
            _skip_metadata(text)
            continue
        tensor = _entry(text, name, file.path)
        begins.append(tensor.begin)
        ends.append(tensor.end)
        yield name, tensor
    # Python's text hash is keyed anew in each process and 64 bits wide: two names that differ do not meet.
    ordered = np.sort(np.frombuffer(hashes, np.int64))
    if (ordered[1:] == ordered[:-1]).any():
        raise FormatError(f"{file.path}: expected every name once, got a key twice. Save it again.")
    _refuse_holes(file, begins, ends, file.size - start)


def _names(text: _Stream) -> Iterator[str]:
    """The keys of the outer object; the caller takes each value before the next key is asked for."""
    text.sign(b"{")
    if text.sign(b"}", optional=True):
        text.finish()
        return
    while True:
        yield _decoded(text, text.take(_NAME, "a name and a colon")[1])
        if text.sign(b"}", optional=True):
            break
        text.sign(b",")
    text.finish()


def _entry(text: _Stream, name: str, path: str) -> Tensor:
    found = text.take(_OBJECT, "dtype, shape and data_offsets")[0]
    usual = _USUAL.fullmatch(found)
    if usual is not None:
        dtype, begin, end = usual[1].decode(), int(usual[3]), int(usual[4])
        shape = tuple(map(int, usual[2].split(b","))) if usual[2] else ()
        if dtype in _ITEMSIZES and 0 < math.prod(shape) * _ITEMSIZES[dtype] == end - begin and len(shape) <= MOST_AXES:
            return Tensor(dtype, shape, begin, end)
    import json  # here: most files are not safetensors, and it takes 1.5 ms

    try:
        entry = dict(json.loads(found, object_pairs_hook=_once))
    except (ValueError, RecursionError) as error:  # bad UTF-8, bad JSON, a number of too many digits, a key twice
        raise text.error(f"{clip(str(error))}") from error
    return _tensor(name, entry, path)


def _skip_metadata(text: _Stream) -> None:
    """Texts by name, of any length: none is kept."""
    text.sign(b"{")
    if text.sign(b"}", optional=True):
        return
    while True:
        text.skip_text()
        text.sign(b":")
        text.skip_text()
        if text.sign(b"}", optional=True):
            return
        text.sign(b",")


class _Stream:
    """The header's bytes from left to right, a block at a time."""

    def __init__(self, file: HeaderFile, start: int, stop: int) -> None:
        self._file = file
        self._next, self._stop = start, stop  # what is still in the file
        self._held = b""
        self._at = 0

    def _ahead(self) -> None:
        """Hold the next 64 KiB, or all that is left."""
        if len(self._held) - self._at < _MOST_ENTRY and self._next < self._stop:
            more = self._file.read_exactly(self._next, min(_BLOCK, self._stop - self._next))
            self._held = self._held[self._at :] + more
            self._at = 0
            self._next += len(more)

    def take(self, pattern: re.Pattern[bytes], what: str) -> re.Match[bytes]:
        self._ahead()
        match = pattern.match(self._held, self._at, self._at + _MOST_ENTRY)
        if match is None:
            raise self.error(f"{clip(self._held[self._at : self._at + 40])} for {what} (64 KiB at most)")
        self._at = match.end()
        return match

    def sign(self, sign: bytes, *, optional: bool = False) -> bool:
        self._ahead()
        match = _SIGN.match(self._held, self._at)
        if match is not None and match[1] == sign:
            self._at = match.end()
            return True
        if not optional:
            raise self.error(f"{clip(self._held[self._at : self._at + 40])} for {sign.decode()!r}")
        return False

    def skip_text(self) -> None:
        self.take(_QUOTE, "a text")
        while True:
            self._ahead()
            match = _TEXT.match(self._held, self._at)
            at = match.end() if match else self._at
            if self._held[at : at + 1] == b'"':
                self._at = at + 1
                return
            if at == self._at:
                raise self.error(f"{clip(self._held[at : at + 40])} inside a text")
            self._at = at

    def finish(self) -> None:
        """Only white space may follow: writers pad the header with it."""
        while True:
            self._ahead()
            rest = self._held[self._at :]
            if rest.strip(b" \t\r\n\x00"):
                raise self.error(f"{clip(rest[:40])} behind its last bracket")
            self._held, self._at = b"", 0
            if self._next >= self._stop:
                return

    def error(self, got: str) -> FormatError:
        return FormatError(f"{self._file.path}: expected a JSON header, got {got}. Save it again.")


def _decoded(text: _Stream, name: bytes) -> str:
    import json

    try:
        return str(json.loads(b'"' + name + b'"')) if b"\\" in name else name.decode("utf-8")
    except ValueError as error:
        raise text.error(clip(str(error))) from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _refuse_holes(file: HeaderFile, begins: array[int], ends: array[int], size: int) -> None:
    """FormatError unless the tensors, in order of their offsets, follow each other from the first byte to the last."""
    first, last = np.frombuffer(begins, np.int64), np.frombuffer(ends, np.int64)
    order = np.lexsort((last, first))
    first, last = first[order], last[order]
    expected = np.concatenate([[0], last[:-1]]) if last.size else last
    wrong = np.flatnonzero(first != expected)
    if wrong.size:
        at = int(wrong[0])
        raise FormatError(
            f"{file.path}: expected a tensor to begin at byte {expected[at]}, got {first[at]}: a hole or an overlap. "
            "Save it again."
        )
    total = int(last[-1]) if last.size else 0
    if total != size:
        raise FormatError(
            f"{file.path}: expected {file.size - size + total} bytes as its header says, got {file.size}. "
            "Copy or save it again."
        )


def _tensor(name: str, entry: dict[str, Any], path: str) -> Tensor:
    where = f"{path}, tensor {clip(name)}"
    if not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise FormatError(f"{where}: expected dtype, shape and data_offsets, got {clip(entry)}. Save it again.")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise FormatError(f"{where}: expected a dtype such as 'F32', got {clip(dtype)}. Save it again.")
    if not _integers(shape) or not _integers(offsets) or len(offsets) != 2 or not 0 <= offsets[0] <= offsets[1] < 2**63:
        raise FormatError(
            f"{where}: expected a shape and two offsets of integers, got {clip(shape)} and {clip(offsets)}. "
            "Save it again."
        )
    count = checked_nbytes(shape, 1, where)
    if dtype in SMALLER_THAN_A_BYTE:
        expected = count * SMALLER_THAN_A_BYTE[dtype] // 8
    else:
        known = DTYPES.get(dtype) or BITS.get(dtype)
        if known is None:
            raise FormatError(
                f"{where}: expected a known dtype, got {clip(dtype)}. Save it as one of {', '.join(DTYPES)}."
            )
        expected = checked_nbytes(shape, np.dtype(known).itemsize, where)
    if expected != offsets[1] - offsets[0]:
        raise FormatError(
            f"{where}: expected {expected} bytes for {dtype} of shape {clip(shape)}, got {offsets[1] - offsets[0]}. "
            "Save it again."
        )
    return Tensor(dtype, tuple(shape), offsets[0], offsets[1])


def _integers(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int for value in values)
