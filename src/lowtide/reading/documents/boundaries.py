"""Where documents end, by offsets of the corpus's format or by an id at their ends or beginnings.

A boundary is the position after a document's last token. Offsets come from the format's own table; ids are
found by reading every token once, in chunks from the budget, at about the speed of the disk. Both give ascending
positions in blocks of bounded size. Stores nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.engine import Numbers
from lowtide.errors import FormatError
from lowtide.formats import document_ends
from lowtide.reading.token_range import TokenRange
from lowtide.units import MIB

CHUNK = 2 * MIB  # bytes read at a time: long enough for the disk, short enough for the CPU's cache


@dataclass(frozen=True)
class Marks:
    """How documents are known: ``by`` offsets, eot or bos; ``id``: of the last two."""

    by: str
    id: int | None = None

    def __str__(self) -> str:
        return self.by if self.id is None else f"{self.by}={self.id}"


def marks_of(tokens: TokenRange) -> Marks | None:
    """How the documents of these tokens are known; the format's own table wins. None: they are not."""
    if tokens.layout.documents is not None:
        return Marks("offsets")
    if tokens.eot is not None:
        return Marks("eot", tokens.eot)
    return None if tokens.bos is None else Marks("bos", tokens.bos)


def required_marks(tokens: TokenRange) -> Marks:
    marks = marks_of(tokens)
    if marks is None:
        raise FormatError(
            f"{tokens.store.where}: expected a way to tell documents apart, got neither offsets in the format "
            "nor an id. Open with eot= (the id that ends a document) or bos= (the one that begins it)."
        )
    return marks


def padding_id(tokens: TokenRange) -> int:
    """The id that fills a row where it has no tokens."""
    if tokens.eot is not None:
        return tokens.eot
    return 0 if tokens.bos is None else tokens.bos


Scanned = tuple[int, Numbers]  # a token, and more ends, ascending: together with earlier ones, all up to that token


def scan(tokens: TokenRange, marks: Marks, first: int, last: int) -> Iterator[Scanned]:
    """Document ends in ``(first, last]``, counted from the corpus's first token, some at a time."""
    return _by_offsets(tokens, first, last) if marks.by == "offsets" else _by_id(tokens, marks, first, last)


def ends_by_id(tokens: TokenRange, marks: Marks) -> Iterator[Numbers]:
    """Where documents of the range end, counted from its first token. As in formats with offsets, the last is
    the end of the corpus, but not the end of a split that cuts a document."""
    reached = tokens.first
    for _, ends in _by_id(tokens, marks, tokens.first, tokens.last):
        if len(ends):
            reached = int(ends[-1])
            yield ends - tokens.first
    if reached < tokens.last == tokens.layout.shape[0]:
        yield np.array([tokens.last - tokens.first], np.int64)


def _by_offsets(tokens: TokenRange, first: int, last: int) -> Iterator[Scanned]:
    reached = first
    for block in document_ends(tokens.layout) or ():
        inside = block[(block > reached) & (block <= last)]
        if len(inside):
            ends = inside[np.concatenate(([True], inside[1:] > inside[:-1]))]  # an empty document has no tokens
            yield int(ends[-1]), ends
            reached = int(ends[-1])
    if reached < last:
        yield last, np.empty(0, np.int64)


def _by_id(tokens: TokenRange, marks: Marks, first: int, last: int) -> Iterator[Scanned]:
    if marks.id is None or marks.id > np.iinfo(tokens.dtype).max:  # no token can have that id
        yield last, np.empty(0, np.int64)
        return
    store, item = tokens.store, tokens.dtype.itemsize
    step = max(1, min(CHUNK, store.budget.limit // 4) // item)
    after = int(marks.by == "eot")  # an eot is the last token of its document, a bos the first of the next
    into = np.empty(min(step, last - first), np.int64)  # memory only as far as ids are found
    scratch = store.pool.take(len(into) * item)
    for start in range(first, last, step):
        count = min(step, last - start)
        store.run(start * item, count * item, scratch[: count * item])
        narrow: NDArray[Any] = np.ndarray(count, tokens.dtype, scratch)
        found = into[: store.engine.find_ids(narrow, marks.id, into)[0]] + (start + after)
        # With bos, only the next chunk tells whether a document ends with this chunk's last token.
        reached = start + count - 1 + after if start + count < last else last
        yield reached, found[found > first] if start == first else found
