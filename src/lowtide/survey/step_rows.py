"""What a step was made of: every row's file, byte, document, ids and text.

The rows of a step are a pure function of the corpus and a few settings, so a spike in the loss can be looked at long
after the run, on another machine, without a checkpoint of that moment. Reads the step's rows and, where the format
keeps document boundaries, its index up to the last of them. Prints nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.feed import Feed
from lowtide.formats import Layout, document_ends
from lowtide.prepare.tokenizers.spelling import NumberWords, Words
from lowtide.reading.places import Place
from lowtide.reading.token_range import TokenRange


@dataclass(frozen=True)
class DocumentAt:
    """The document a row begins in; documents and tokens are counted over the whole corpus, from 0."""

    number: int
    first_token: int
    tokens: int


@dataclass(frozen=True)
class StepRow:
    """One row: ``row`` counts from the beginning of the stream; ``ids`` are those of x and the last one of y."""

    row: int
    file: str
    offset: int
    token: int
    corpus: str | None
    document: DocumentAt | None
    ends: tuple[int, ...]  # columns of x that end a document, where an end-of-text id is known
    ids: tuple[int, ...]
    text: str | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


Read = TokenRange | Mapping[str, TokenRange]  # what a feed reads: one corpus, or those of a mixture by name


def step_rows(feed: Feed, tokens: Read, steps: Sequence[int], words: Words) -> list[StepRow]:
    """The rows of these steps, as this rank has them."""
    found = []
    for step in steps:
        x, y = feed[step][:2]
        places = feed.where(step)
        first = step * feed.batch + feed.rank * (feed.batch // feed.world)
        owners = [tokens[place.corpus or ""] if isinstance(tokens, Mapping) else tokens for place in places]
        numbers = [_token(owner.layout, place) for owner, place in zip(owners, places, strict=True)]
        documents = _documents_of(owners, numbers)
        for index, place in enumerate(places):
            ids = (*x[index].tolist(), int(y[index, -1]))
            eot = owners[index].eot
            ends = tuple(np.flatnonzero(x[index] == eot).tolist()) if eot is not None else ()
            text = None if isinstance(words, NumberWords) else words.text(ids)
            found.append(
                StepRow(
                    row=first + index,
                    file=place.file,
                    offset=place.offset,
                    token=numbers[index],
                    corpus=place.corpus,
                    document=documents[index],
                    ends=ends,
                    ids=ids,
                    text=text,
                )
            )
    return found


def _token(layout: Layout, place: Place) -> int:
    """Which token of the corpus stands there, counted over all files."""
    before = 0
    for extent, rows in zip(layout.extents, layout.rows, strict=True):
        if extent.path == place.file and extent.offset <= place.offset < extent.offset + extent.length:
            return before + (place.offset - extent.offset) // layout.dtype.itemsize
        before += rows
    raise LookupError(place)  # a place always is one of the layout's own


def _documents_of(owners: Sequence[TokenRange], tokens: Sequence[int]) -> list[DocumentAt | None]:
    """The documents of tokens that may be of several corpora; one pass over the index of each."""
    found: list[DocumentAt | None] = [None] * len(tokens)
    for owner in {id(one): one for one in owners}.values():
        mine = [index for index, one in enumerate(owners) if one is owner]
        for index, document in zip(mine, _documents(owner.layout, [tokens[index] for index in mine]), strict=True):
            found[index] = document
    return found


def _documents(layout: Layout, tokens: Sequence[int]) -> list[DocumentAt | None]:
    """The documents these tokens stand in, where the format keeps boundaries; one pass over the index."""
    blocks = document_ends(layout)
    if blocks is None or not tokens:
        return [None] * len(tokens)
    wanted: NDArray[np.int64] = np.array(tokens, np.int64)
    found: list[DocumentAt | None] = [None] * len(tokens)
    before, last = 0, 0  # documents, and where the last one ended
    for ends in blocks:
        inside = np.flatnonzero((wanted >= last) & (wanted < ends[-1]))
        for index in inside.tolist():
            at = int(np.searchsorted(ends, wanted[index], side="right"))
            first = int(ends[at - 1]) if at else last
            found[index] = DocumentAt(before + at, first, int(ends[at]) - first)
        before, last = before + len(ends), int(ends[-1])
        if last > wanted.max():
            break
    return found
