"""Where documents end, by offsets of the corpus's format or by an id at their ends or beginnings.

A boundary is the position after a document's last token. Offsets come from the format's own table; ids are
found by reading every token once, at about the speed of the disk: the engine's threads keep no tokens, only where the
id occurs. Both give ascending positions in blocks of bounded size. Stores nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.engine import SOURCES, Numbers
from lowtide.errors import FormatError
from lowtide.formats import document_ends
from lowtide.reading.token_range import TokenRange
from lowtide.storage.read import SEQUENTIAL
from lowtide.storage.store import StartedReads
from lowtide.units import MIB

CHUNK = 2 * MIB  # bytes read as one
TOGETHER = 16  # of them per call of the engine: two streams far apart keep their own read-ahead
THREADS = 2  # calls under way
SHARE = 8  # room for an id that is one token in so many; where there are more, they are looked for in a copy


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
    step = max(1, min(CHUNK, tokens.store.budget.limit // 4) // tokens.dtype.itemsize)
    after = int(marks.by == "eot")  # an eot is the last token of its document, a bos the first of the next
    width = TOGETHER * step
    rooms = [np.empty(1 + width // SHARE, np.int64) for _ in range(THREADS)]  # memory only as far as ids are found
    spans = [range(start, min(start + width, last)) for start in range(first, last, width)]
    began = deque(_begin(tokens, marks.id, *some, step) for some in zip(spans, rooms, strict=False))
    for number, span in enumerate(spans):
        found = _noted(began.popleft(), rooms[number % THREADS])
        if found is None:
            found = np.concatenate(
                [_looked_for(tokens, marks.id, span[at : at + step]) + at for at in range(0, len(span), step)]
            )
        found = found + (span.start + after)
        if number + THREADS < len(spans):
            began.append(_begin(tokens, marks.id, spans[number + THREADS], rooms[number % THREADS], step))
        # With bos, only the next tokens tell whether a document ends with the last of these.
        reached = span.stop - 1 + after if span.stop < last else last
        yield reached, found[found > first] if number == 0 else found


def _begin(tokens: TokenRange, id: int, span: range, room: Numbers, step: int) -> StartedReads | None:
    """Let the engine note where the id occurs, while tokens are in the CPU's cache and, if nothing is dropped behind
    them, in a thread of its own; None: it does not know their type."""
    store, item = tokens.store, tokens.dtype.itemsize
    if tokens.dtype.name not in SOURCES or not tokens.dtype.isnative:
        return None
    starts = np.arange(span.start, span.stop, step, dtype=np.int64)
    target = None, None, 1, tokens.dtype.name, None, room, id
    early = store.prepares and not store.drop
    return store.start(starts, item, np.minimum(step, span.stop - starts) * item, target, SEQUENTIAL, early)


def _noted(reads: StartedReads | None, room: Numbers) -> Numbers | None:
    """Where it occurs, from the span's beginning on; None: too often, or in too many files."""
    if reads is None:
        return None
    reads.finish()
    many = int(room[0])
    if not 0 <= many < len(room):
        return None
    found = room[1 : 1 + many]
    return found if (found[1:] > found[:-1]).all() else np.unique(found)  # what was cached comes first


def _looked_for(tokens: TokenRange, id: int, span: range) -> Numbers:
    """The same in a copy of the tokens."""
    item, count = tokens.dtype.itemsize, len(span)
    scratch = tokens.store.pool.take(count * item)
    tokens.store.run(span.start * item, count * item, scratch[: count * item])
    narrow: NDArray[Any] = np.ndarray(count, tokens.dtype, scratch)
    return np.flatnonzero(narrow == id)
