"""From a block of text to its ids, the same in a worker process, a Ray task or this process.

An encoded block is a pure function of its text and the recipe, so that any engine, retry or restart gives the same
bytes. Costs the block, its documents and their ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.corpus.request import Request
from lowtide.machine import memory_limit
from lowtide.prepare.inputs.cuts import uncut_stretch
from lowtide.prepare.inputs.sections import LARGE_DOCUMENT, InputSection
from lowtide.prepare.inputs.text_blocks import TextBlock, text_blocks
from lowtide.prepare.inputs.texts import Joined, Tally, joined_texts, texts
from lowtide.prepare.resources import refuse_little_memory
from lowtide.prepare.tokenizers.encoders import (
    CACHE,
    Encoder,
    Ends,
    Gigatoken,
    Ids,
    Room,
    fitting_ids,
    make_encoder,
    no_room,
)
from lowtide.prepare.tokenizers.features import RANGES
from lowtide.prepare.tokenizers.vocabulary import Vocabulary
from lowtide.units import format_size

_PER_BYTE, _SHORT_WORD = 160, 64 * 1024
_BEGINNING = 64 * 1024  # bytes by which a large document is known before it has been read to its end


@dataclass(frozen=True)
class Recipe:
    """All that a worker needs to know, sent to it once."""

    request: Request
    vocabulary: Vocabulary
    encoder: str
    cache: int = CACHE


@dataclass
class EncodedBlock:
    """Encoded documents in order. ``ends`` has one entry for each document that ends here."""

    section: int
    number: int
    ids: NDArray[Any]
    ends: NDArray[np.int64]
    hashes: (
        NDArray[np.uint64] | None
    )  # two words for every document that begins or continues here; a second word of 0: never dropped
    continues: bool
    opens: bool
    tally: Tally
    weight: int


class BlockEncoder:
    """A recipe with its encoder: what runs in a worker process, a Ray task, or right here."""

    def __init__(self, recipe: Recipe, room: Room = no_room) -> None:
        """``room``: memory for the ids of the block at hand."""
        self._recipe, self._room = recipe, room
        self._request = recipe.request
        self._encoder: Encoder = make_encoder(recipe.encoder, recipe.vocabulary, recipe.cache)
        self._cut = recipe.vocabulary.features.cut
        self._end = recipe.vocabulary.eot_text.encode()
        self._hashed = recipe.request.dedup or recipe.request.val + recipe.request.test > 0

    def blocks(self, section: InputSection, skip: int = 0) -> Iterator[EncodedBlock]:
        """Every block of a section, read and encoded here."""
        return (self.encode(*self.read(block)) for block in text_blocks(section, self._request, skip))

    def read(self, block: TextBlock) -> tuple[TextBlock, Joined | None]:
        """The block and, where that is possible, its documents as one text. Mostly without the GIL, so that a thread
        can do this while another encodes."""
        if not isinstance(self._encoder, Gigatoken):
            return block, None
        joined = joined_texts(block, self._request, self._end, RANGES)
        if joined is not None and _long_word(joined.text, self._cut) is not None:
            joined = None
        return block, joined

    def encode(self, block: TextBlock, joined: Joined | None = None) -> EncodedBlock:
        """One block, encoded."""
        found = None
        if joined is not None and isinstance(self._encoder, Gigatoken):
            places = np.frombuffer(joined.places, np.int64)
            found = self._encoder.encode_joined(joined.text, joined.documents, places)
        if joined is None or found is None:
            return self._encoded_one_by_one(block)
        tally = Tally(text_bytes=len(joined.text) - joined.documents * len(self._end), empty=joined.empty)
        tally.cut += block.continues and not block.opens
        documents = joined.text.split(self._end) if self._hashed else []
        return self._made(block, *found, documents if block.opens else documents[:-1], tally)

    def _encoded_one_by_one(self, block: TextBlock) -> EncodedBlock:
        tally = Tally()
        documents = texts(block, self._request, tally, utf8=self._recipe.vocabulary.kind != "bytes")
        if self._recipe.encoder != "bytes":
            refuse_long_words(documents, self._cut, block.paths[0])
        ids, ends = self._encoder.encode(documents)
        if block.opens:  # the document goes on: no end of text yet
            ids, ends = ids[:-1], ends[:-1]
        tally.cut += block.continues and not block.opens
        tally.text_bytes += sum(map(len, documents))
        return self._made(block, ids, ends, documents, tally)

    def _made(self, block: TextBlock, ids: Ids, ends: Ends, documents: Sequence[bytes], tally: Tally) -> EncodedBlock:
        hashes = None
        if self._hashed:
            found = [document_hash(text, whole=not (block.continues or block.opens)) for text in documents]
            hashes = np.array(found, np.uint64).reshape(-1, 2)
        tally.documents += len(ends)
        ids = fitting_ids(ids, self._recipe.vocabulary, block.paths[0], self._room)
        return EncodedBlock(
            block.section, block.number, ids, ends, hashes, block.continues, block.opens, tally, block.weight
        )


def refuse_long_words(documents: Sequence[bytes], cut: str, path: str) -> None:
    """BudgetError for a word whose merges need more memory than there is: `_PER_BYTE` for each of its bytes."""
    for text in documents:
        if len(text) > _SHORT_WORD and (at := _long_word(text, cut)) is not None:
            size = _longest_word()
            refuse_little_memory(f"{path}, a word of {format_size(size)} or more", _PER_BYTE * (len(text) - at))


def _long_word(text: bytes, cut: str) -> int | None:
    """Where a word begins that is too long for the memory there is; asks for the memory only if one may be."""
    if uncut_stretch(text, cut, _SHORT_WORD) is None:
        return None
    return uncut_stretch(text, cut, _longest_word())


def _longest_word() -> int:
    left = memory_limit().left
    return LARGE_DOCUMENT if left is None else max(_SHORT_WORD, left // _PER_BYTE)


def document_hash(text: bytes, *, whole: bool = True) -> tuple[int, int]:
    """128 bits of a document; a large one is known by its beginning, and its second word is 0."""
    if whole and len(text) <= LARGE_DOCUMENT:
        found = hashlib.blake2b(text, digest_size=16).digest()
        return int.from_bytes(found[:8], "little"), int.from_bytes(found[8:], "little") or 1
    return int.from_bytes(hashlib.blake2b(text[:_BEGINNING], digest_size=8).digest(), "little"), 0
