"""From a block of text to its ids: what a worker process, a Ray task or this process does with it.

An encoded block is a pure function of its text and the recipe, so that any engine, retry or restart gives the same
bytes. A large document is encoded in slices, wherever it lies. Costs the block, its documents and their ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.corpus.request import Request
from lowtide.prepare.inputs.sections import LARGE_DOCUMENT, TEXT_BLOCK, InputSection
from lowtide.prepare.inputs.text_blocks import TextBlock, slice_end, text_blocks
from lowtide.prepare.inputs.texts import Tally, texts
from lowtide.prepare.tokenizers.encoders import CACHE, Encoder, fitting_ids, make_encoder
from lowtide.prepare.tokenizers.vocabulary import Vocabulary

Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class Recipe:
    """All a worker needs to know, once."""

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
    hashes: Hashes | None  # of every document that begins or goes on here, two words each; the second 0: never dropped
    continues: bool
    opens: bool
    tally: Tally
    weight: int


class BlockEncoder:
    """A recipe with its encoder: what runs in a worker process, a Ray task, or right here."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._request = recipe.request
        self._encoder: Encoder = make_encoder(recipe.encoder, recipe.vocabulary, recipe.cache)
        self._hashed = recipe.request.dedup or recipe.request.val > 0

    def blocks(self, section: InputSection, skip: int = 0) -> Iterator[EncodedBlock]:
        """Every block of a section, read and encoded here."""
        return (self.encode(block) for block in text_blocks(section, self._request, skip))

    def encode(self, block: TextBlock) -> EncodedBlock:
        """One block, encoded."""
        tally = Tally()
        documents = texts(block, self._request, tally, utf8=self._recipe.vocabulary.kind != "bytes")
        slices, closes = _slices(documents, block, tally)
        ids, ends = self._encoder.encode(slices)
        hashes = _hashes(documents, block) if self._hashed else None
        if not all(closes):
            ids, ends = _without(ids, ends, np.array(closes))
        ids = fitting_ids(ids, self._recipe.vocabulary, block.paths[0])
        tally.documents += len(ends)
        tally.text_bytes += sum(map(len, documents))
        return EncodedBlock(
            block.section, block.number, ids, ends, hashes, block.continues, block.opens, tally, block.weight
        )


def _slices(documents: list[bytes], block: TextBlock, tally: Tally) -> tuple[list[bytes], list[bool]]:
    """What is encoded at once, and whether a document ends with it: large documents come in slices."""
    if block.continues or block.opens:
        tally.cut += not block.opens
        return documents, [not block.opens]
    if all(len(text) <= LARGE_DOCUMENT for text in documents):
        return documents, [True] * len(documents)
    slices: list[bytes] = []
    closes: list[bool] = []
    for text in documents:
        if len(text) > LARGE_DOCUMENT:
            tally.cut += 1
            borders = [0, *(slice_end(text, mark) for mark in range(TEXT_BLOCK, len(text), TEXT_BLOCK)), len(text)]
            slices += [text[begin:end] for begin, end in pairwise(borders)]
            closes += [False] * (len(borders) - 2) + [True]
        else:
            slices.append(text)
            closes.append(True)
    return slices, closes


def document_hash(text: bytes) -> tuple[int, int]:
    """128 bits of a document; a large one is known by its first slice, and its second word is 0."""
    if len(text) <= LARGE_DOCUMENT:
        found = hashlib.blake2b(text, digest_size=16).digest()
        return int.from_bytes(found[:8], "little"), int.from_bytes(found[8:], "little") or 1
    return _slice_hash(text[: slice_end(text[: 2 * TEXT_BLOCK], TEXT_BLOCK)]), 0


def _slice_hash(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _hashes(documents: list[bytes], block: TextBlock) -> Hashes:
    if block.continues or block.opens:
        return np.array([(_slice_hash(documents[0]), 0)], np.uint64)
    return np.array([document_hash(text) for text in documents], np.uint64).reshape(-1, 2)


def _without(ids: NDArray[Any], ends: NDArray[np.int64], closes: NDArray[np.bool_]) -> tuple[Any, Any]:
    """Takes out the end of text behind slices after which a document goes on."""
    dropped = ends[~closes] - 1
    before = np.cumsum(~closes)
    return np.delete(ids, dropped), (ends - before)[closes]
