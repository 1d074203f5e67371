"""How inputs are cut into sections that can be read and encoded separately, in any order, on any machine.

A section is named by numbers alone - files, and a range of bytes or row groups in one - so that planning reads no text
and every engine cuts the same way. Plain text is cut every `TEXT_BLOCK` bytes wherever that falls: the reader of a
section takes the documents that begin inside it. Small files share a section. Input that cannot be read from the middle
- compressed files, separators that may overlap themselves, one document that may not be cut - is one *streamed*
section, read from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lowtide.corpus.request import Request
from lowtide.prepare.inputs.cuts import NOWHERE
from lowtide.prepare.inputs.listing import Input
from lowtide.prepare.inputs.parquet_text import row_groups

# Bytes of text encoded at a time: enough to hide the cost of a message, few enough for a cgroup of 128 MiB.
TEXT_BLOCK = 1024 * 1024
# A document longer than this is encoded in pieces of about TEXT_BLOCK, so that memory stays flat.
LARGE_DOCUMENT = 4 * 1024 * 1024
MOST_FILES_SHARING = 4096  # in one section


@dataclass(frozen=True)
class InputSection:
    """Some of the input. ``begin`` and ``end``: bytes of a plain file, or row groups of a Parquet file."""

    number: int
    inputs: tuple[Input, ...]
    begin: int
    end: int
    streamed: bool = False
    weight: int = 0  # bytes of input this stands for, for progress
    cut: str = NOWHERE  # where a long document may be cut

    @property
    def source(self) -> Input:
        return self.inputs[0]


def separator_of(one: Input, request: Request) -> bytes:
    """The bytes between two documents of this input; empty if the whole file is one document."""
    if one.kind in ("lines", "jsonl"):
        return b"\n"
    return request.separator.encode("utf-8", "surrogateescape") if one.kind == "separator" else b""


def sections_of(inputs: Sequence[Input], request: Request, cut: str) -> Iterator[InputSection]:
    """Every section, in input order. Opens Parquet files for their footers, and nothing else."""
    small: list[Input] = []
    number = size = 0
    for one in inputs:
        whole = one.kind == "text" and not one.compression and one.size <= LARGE_DOCUMENT
        if small and (not whole or size + one.size > TEXT_BLOCK or len(small) == MOST_FILES_SHARING):
            yield InputSection(number, tuple(small), 0, 0)
            number, small, size = number + 1, [], 0
        if whole:
            small.append(one)
            size += one.size
            continue
        for numbers in _ranges(one, request, cut):
            yield InputSection(number, (one,), *numbers, cut)
            number += 1
    if small:
        yield InputSection(number, tuple(small), 0, 0)


def _ranges(one: Input, request: Request, cut: str) -> Iterator[tuple[int, int, bool, int]]:
    """(begin, end, streamed, weight) of every section of one input."""
    separator = separator_of(one, request)
    if one.kind == "parquet":
        for begin, end, groups in row_groups(one.path, request.column, TEXT_BLOCK):
            yield begin, end, False, one.size * (end - begin) // groups
    elif one.compression or overlaps_itself(separator) or (not separator and cut == NOWHERE):
        yield 0, one.size, True, one.size
    else:
        for begin in range(0, one.size, TEXT_BLOCK):
            end = min(begin + TEXT_BLOCK, one.size)
            yield begin, end, False, end - begin


def overlaps_itself(separator: bytes) -> bool:
    """Whether two occurrences can share bytes; if so, where one begins depends on all the text before it."""
    return any(separator[:size] == separator[-size:] for size in range(1, len(separator)))
