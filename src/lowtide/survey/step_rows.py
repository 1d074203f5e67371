"""What a step was made of: every row's file, byte, document, ids and text.

The rows of a step are a pure function of the corpus and a few settings, so a spike in the loss can be examined long
after the run, on another machine, without a checkpoint from that moment. Reads the step's rows and, where the format
keeps document boundaries, its index up to the last of them. Prints nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lowtide.feed import Feed
from lowtide.formats import Layout, document_ends
from lowtide.prepare.tokenizers.spelling import NumberWords, Words
from lowtide.reading.places import DocumentPlace, Place
from lowtide.reading.token_range import TokenRange


@dataclass(frozen=True)
class DocumentAt:
    """The document a row begins in; documents and tokens are counted over the whole corpus, from 0."""

    number: int
    first_token: int
    tokens: int


@dataclass(frozen=True)
class PackedDocument:
    """A document of a packed row, or the piece of it in that row: where it begins and its tokens."""

    file: str
    offset: int
    tokens: int
    document: DocumentAt | None


@dataclass(frozen=True)
class StepRow:
    """One row: ``row`` counts from the beginning of the stream; ``ids`` are those of x and the last one of y; in a
    packed row, those of its documents. ``document`` is the one that a row at a stride begins in."""

    row: int
    file: str
    offset: int
    token: int
    corpus: str | None
    document: DocumentAt | None
    ends: tuple[int, ...]  # columns of x that end a document, if an end-of-text id is known
    ids: tuple[int, ...]
    text: str | None
    packed: tuple[PackedDocument, ...] = ()  # the documents of a packed row, in order
    padding: int = 0  # tokens of a packed row after its last document; they are not among the ids


Read = TokenRange | Mapping[str, TokenRange]  # what a feed reads: one corpus, or the corpora of a mixture by name


def step_rows(feed: Feed, tokens: Read, steps: Sequence[int], words: Words) -> list[StepRow]:
    """The rows of these steps, as this rank has them."""
    found = []
    for step in steps:
        x, y = feed[step][:2]
        places = feed.where(step)
        first = step * feed.batch + feed.rank * (feed.batch // feed.world)
        owners = [tokens[place.corpus or ""] if isinstance(tokens, Mapping) else tokens for place in places]
        asked = [(owner, each) for owner, place in zip(owners, places, strict=True) for each in _pieces(place)]
        numbers = [_token(owner.layout, each) for owner, each in asked]
        documents = _documents_of([owner for owner, _ in asked], numbers)
        piece = 0
        for index, (place, owner) in enumerate(zip(places, owners, strict=True)):
            known, token = documents[piece : piece + len(_pieces(place))], numbers[piece]
            piece += len(known)
            packed = tuple(
                PackedDocument(each.file, each.offset, each.tokens, document)
                for each, document in zip(place.documents, known if place.documents else (), strict=True)
            )
            used = sum(each.tokens for each in packed) or x.shape[1]
            ids = tuple(x[index, :used].tolist()) if packed else (*x[index].tolist(), int(y[index, -1]))
            ends = () if owner.eot is None else tuple(np.flatnonzero(x[index, :used] == owner.eot).tolist())
            found.append(
                StepRow(
                    row=first + index,
                    file=place.file,
                    offset=place.offset,
                    token=token,
                    corpus=place.corpus,
                    document=None if packed else known[0],
                    ends=ends,
                    ids=ids,
                    text=None if isinstance(words, NumberWords) else words.text(ids),
                    packed=packed,
                    padding=x.shape[1] - used,
                )
            )
    return found


def _pieces(place: Place) -> tuple[Place | DocumentPlace, ...]:
    """A packed row's documents; a row at a stride is one piece."""
    return place.documents or (place,)


def _token(layout: Layout, place: Place | DocumentPlace) -> int:
    """Which token of the corpus is at this place, counted over all files."""
    before = 0
    for extent, rows in zip(layout.extents, layout.rows, strict=True):
        at = extent.at(place.offset) if extent.path == place.file else None
        if at is not None:
            return before + at // layout.dtype.itemsize
        before += rows
    raise LookupError(place)  # cannot happen: every place comes from the layout


def _documents_of(owners: Sequence[TokenRange], tokens: Sequence[int]) -> list[DocumentAt | None]:
    """The documents of tokens, which may be from several corpora; one pass over the index of each."""
    found: list[DocumentAt | None] = [None] * len(tokens)
    for owner in {id(one): one for one in owners}.values():
        mine = [index for index, one in enumerate(owners) if one is owner]
        for index, document in zip(mine, _documents(owner.layout, [tokens[index] for index in mine]), strict=True):
            found[index] = document
    return found


def _documents(layout: Layout, tokens: Sequence[int]) -> list[DocumentAt | None]:
    """The documents that these tokens are in, if the format keeps boundaries; one pass over the index."""
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
