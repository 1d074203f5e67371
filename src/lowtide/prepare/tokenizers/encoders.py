"""Documents in, ids out: bytes, gigatoken, tokenizers and SentencePiece behind one call.

``encode(texts)`` gives ids in one array with an end of text after each document, and where each ends.
gigatoken is the fast one: documents are joined with the end-of-text token, which it recognises, so that one call into
Rust serves a whole block. Documents that spell that token themselves are encoded one by one without it, and the words
around a code point that it treats differently are encoded by tokenizers. Now and then a document is encoded by both,
and any difference ends the run. Its cache has no bound, so it is loaded again once the process has grown by `CACHE`.

`choose_encoder` decides before the first block which one is used, by what the tokenizer does (``features.py``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lowtide.errors import FormatError, LowtideError
from lowtide.prepare.inputs.cuts import WORDS, around, cut_after, holds_a_place
from lowtide.prepare.tokenizers.features import COMPARED, unlike_places
from lowtide.prepare.tokenizers.vocabulary import Vocabulary, sentencepiece_processor, with_separator
from lowtide.storage.release import release
from lowtide.units import MIB

Ids = NDArray[np.unsignedinteger[Any]]
Ends = NDArray[np.int64]
# Bytes by which a worker may grow after its first blocks; then it replaces gigatoken, whose tables double. 700 MB of
# source code whose words are new now and then: 3 times and 2.1 s with 64 MiB, 6 and 2.0 with 48, 10 and 2.25 with 32.
CACHE = 64 * 1024 * 1024
_GAUGED_EVERY = 4  # blocks of a worker between two looks at its memory, which cost 30 µs each
_LONG = 2048  # average bytes per document above which joining costs more than a loop
# Every so many blocks of a worker, so many bytes of one document are encoded by both: 2 % of the time.
CHECKED_EVERY = 64
_CHECKED = 8192
_PORTION = 64 * 1024  # bytes of text that tokenizers gets at once


class Encoder(Protocol):
    """Ids of all documents in turn, an end of text after each, and the position after each end of text."""

    def encode(self, texts: Sequence[bytes]) -> tuple[Ids, Ends]: ...


@dataclass(frozen=True)
class Choice:
    """Which library encodes, and notes on why."""

    name: str  # "bytes", "gigatoken", "tokenizers", "sentencepiece"
    version: str
    notes: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        return f"{self.name} {self.version}".strip()


class Bytes:
    """A byte is an id."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._eot = vocabulary.eot

    def encode(self, texts: Sequence[bytes]) -> tuple[Ids, Ends]:
        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1)
        if len(texts) and ends[-1] > _LONG * len(texts):
            return self._one_by_one(texts, ends)
        # One byte between documents makes room for the end of text: one join and one widening, however many there are.
        ids = np.frombuffer(b"\0".join((*texts, b"")), np.uint8).astype(np.uint16)
        ids[ends - 1] = self._eot
        return ids, ends

    def _one_by_one(self, texts: Sequence[bytes], ends: Ends) -> tuple[Ids, Ends]:
        """Long documents are widened in place, which saves joining them."""
        ids, first = np.empty(int(ends[-1]), np.uint16), 0
        for text, end in zip(texts, ends.tolist(), strict=True):
            ids[first : end - 1] = np.frombuffer(text, np.uint8)
            ids[end - 1] = self._eot
            first = end
        return ids, ends


class Gigatoken:
    """gigatoken, a block of documents per call, checked against tokenizers."""

    def __init__(self, vocabulary: Vocabulary, cache: int = CACHE) -> None:
        self._vocabulary, self._cache = vocabulary, cache
        self._separator = vocabulary.eot_text.encode()
        self._joined = _Library(with_separator(vocabulary))
        self._single: _Library | None = None
        self._reference: Tokenizers | None = None
        self._blocks = self._looks = 0
        self._most: int | None = None  # bytes of heap at which the library is loaded again

    def encode(self, texts: Sequence[bytes]) -> tuple[Ids, Ends]:
        whole = self._separator.join((*texts, b""))
        found = None
        if whole.count(self._separator) == len(texts):
            found = self.encode_joined(whole, len(texts), unlike_places(whole))
        if found is not None:
            return found
        # A document that spells the separator is encoded by itself, those between two such documents as before.
        runs = list[tuple[Ids, Ends]]()
        for spelled, run in groupby(texts, lambda text: self._separator in text):
            some = list(run)
            runs.append(self._one_by_one(some) if spelled or len(some) == len(texts) else self.encode(some))
        lengths = np.cumsum([0, *(len(ids) for ids, _ in runs)])
        ends = [ends + length for (_, ends), length in zip(runs, lengths, strict=False)]
        return np.concatenate([ids for ids, _ in runs]), np.concatenate(ends)

    def _one_by_one(self, texts: Sequence[bytes]) -> tuple[Ids, Ends]:
        self._gauge()
        self._single = self._single or _Library(self._vocabulary.plain)
        return with_ends([self._ids(text, unlike_places(text)) for text in texts], self._vocabulary.eot)

    def encode_joined(self, whole: bytes, documents: int, unlike: NDArray[np.int64]) -> tuple[Ids, Ends] | None:
        """So many documents with the separator after each, code points of `UNLIKE` where they were found; None: one of
        the documents spells the separator."""
        self._gauge()
        if self._blocks % CHECKED_EVERY == 0:
            at = self._blocks * _CHECKED % max(1, len(whole) - _CHECKED)
            self._check(max(whole[at : at + _CHECKED].split(self._separator), key=len))
        self._blocks += 1
        ids = self._ids(whole, unlike, self._separator)
        ends = np.flatnonzero(ids == self._vocabulary.eot) + 1
        return (ids, ends) if len(ends) == documents else None

    def _gauge(self) -> None:
        """Load the library again, without its cache, once that has grown. The old one goes first, and what it held back
        to the system. The bound stays where the first look put it, while half a cache fits below: bounds counted anew
        each time would rise by the 5 to 10 MiB of every 5 GB that stay behind in half-used pages."""
        self._looks += 1
        if self._looks % _GAUGED_EVERY:
            return
        held = anonymous_bytes()
        if self._most is None:
            self._most = held + self._cache
        if held <= self._most:
            return
        del self._joined
        self._single = None
        release()
        self._joined = _Library(with_separator(self._vocabulary))
        self._most = max(self._most, anonymous_bytes() + self._cache // 2)

    def _ids(self, whole: bytes, unlike: NDArray[np.int64], separator: bytes = b"") -> Ids:
        """tokenizers for the stretches that gigatoken would cut differently, gigatoken for the rest."""
        library = self._joined if separator or self._single is None else self._single
        if not len(unlike):
            return library.encode(whole)
        stretches = list(self._stretches(whole, unlike, separator))
        slow, ends = self._by_reference([whole[begin:end] for begin, end in stretches])
        parts, at = list[Ids](), 0
        for (begin, end), ids in zip(stretches, np.split(slow, ends[:-1]), strict=True):
            parts += [library.encode(whole[at:begin]), ids[:-1]]
            at = end
        return np.concatenate([*parts, library.encode(whole[at:])])

    def _stretches(self, whole: bytes, unlike: NDArray[np.int64], separator: bytes) -> Iterator[tuple[int, int]]:
        """(begin, end) around these code points, from one place where a document may be cut to the next."""
        features, spelled = self._vocabulary.features, self._vocabulary.eot_text
        words = features.cut == WORDS and not holds_a_place(spelled)
        signs = words and features.signs and not holds_a_place(spelled, signs=True)
        end = 0
        for place in unlike.tolist():
            if place < end:
                continue
            begin, end = around(whole, end, place, signs) if words else (end, len(whole))
            if separator:  # neither end may lie in another document
                before = whole.rfind(separator, begin, place)
                after = whole.find(separator, place, end + len(separator) - 1)
                begin = begin if before < 0 else before + len(separator)
                end = end if after < 0 else after
            yield begin, end

    def _by_reference(self, texts: Sequence[bytes]) -> tuple[Ids, Ends]:
        self._reference = self._reference or Tokenizers(self._vocabulary)
        return self._reference.encode(texts)

    def _check(self, text: bytes) -> None:
        """Both libraries on some of a document."""
        short = text.decode("utf-8", "ignore").encode()
        if len(unlike_places(short)):
            return
        fast = self._joined.encode(short + self._separator)
        slow, _ = self._by_reference([short])
        if not np.array_equal(fast, slow):
            raise FormatError(
                f"gigatoken: expected the {len(slow)} ids of tokenizers for text that begins "
                f"{short[:40].decode('utf-8', 'ignore')!r}, got {len(fast)} others. "
                "Start again in an empty directory with --tokenizer-engine tokenizers."
            )


class _Library:
    """gigatoken itself. Its ``encode`` keeps the GIL, so no other thread could read meanwhile, and ``encode_batch``
    imports the package awkward; one buffer, padded to its own length, has neither fault and the same speed."""

    def __init__(self, text: str) -> None:
        from gigatoken.gigatoken_rs import BytesSource, PadTruncate, load_hf_json

        self._tokenizer, self._source, self._options = load_hf_json(text), BytesSource, PadTruncate(0)

    def encode(self, text: bytes) -> Ids:
        rows, _ = self._tokenizer.encode_batch_padded(self._source(text), self._options, parallel=False)
        ids: Ids = rows.reshape(-1)  # no row if there is no text
        return ids


class Tokenizers:
    """Hugging Face's tokenizers: slower, and the reference when two disagree."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # there is a process for every processor already
        self._tokenizer = hugging_face(vocabulary)
        self._eot, self._cut, self._dtype = vocabulary.eot, vocabulary.features.cut, vocabulary.dtype

    def encode(self, texts: Sequence[bytes]) -> tuple[Ids, Ends]:
        """In portions: its result for a text takes 40 times the text's bytes until the ids are taken out."""
        found: list[Ids] = []
        ends: list[int] = []
        words: list[str | None] = []  # None: the end of a document
        length = size = 0
        for text in texts:
            for portion in self._portions(text):
                words.append(portion.decode("utf-8", "replace"))
                size += len(portion)
                if size >= _PORTION:
                    length += self._take(words, length, found, ends)
                    words, size = [], 0
            words.append(None)
        self._take(words, length, found, ends)
        return np.concatenate(found) if found else np.empty(0, self._dtype), np.array(ends, np.int64)

    def _portions(self, text: bytes) -> Iterator[bytes]:
        at = 0
        while len(text) - at > 2 * _PORTION and (end := cut_after(text, at + _PORTION, self._cut)) is not None:
            yield text[at:end]
            at = end
        yield text[at:] if at else text

    def _take(self, words: Sequence[str | None], length: int, found: list[Ids], ends: list[int]) -> int:
        """Encode ``words`` after the first ``length`` ids; returns how many were added."""
        before = length
        texts = [word for word in words if word is not None]
        encoded = iter(self._tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        for word in words:
            found.append(np.array([self._eot] if word is None else next(encoded).ids, self._dtype))
            length += len(found[-1])
            if word is None:
                ends.append(length)
        return length - before


class SentencePiece:
    """A .model file by its own library."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._processor = sentencepiece_processor(vocabulary.content)
        self._eot = vocabulary.eot

    def encode(self, texts: Sequence[bytes]) -> tuple[Ids, Ends]:
        ids = [np.array(self._processor.encode(text.decode("utf-8", "replace")), np.uint32) for text in texts]
        return with_ends(ids, self._eot)


def make_encoder(name: str, vocabulary: Vocabulary, cache: int = CACHE) -> Encoder:
    """The encoder of a `Choice`."""
    if name == "gigatoken":
        return Gigatoken(vocabulary, cache)
    if name == "tokenizers":
        return Tokenizers(vocabulary)
    return SentencePiece(vocabulary) if name == "sentencepiece" else Bytes(vocabulary)


def choose_encoder(vocabulary: Vocabulary, wanted: str = "auto", room: int | None = None) -> Choice:
    """The fastest library that gives the same ids as the tokenizer's own and fits in ``room`` bytes."""
    if vocabulary.kind == "bytes":
        return Choice("bytes", "")
    if vocabulary.kind == "model":
        return Choice("sentencepiece", _version("sentencepiece"))
    hugging_face(vocabulary)  # refuses what cannot be loaded
    settled = Choice("tokenizers", _version("tokenizers"))
    if wanted == "tokenizers":
        return settled
    try:
        found, why = _version("gigatoken"), vocabulary.features.unusual
        if found not in COMPARED:
            why = f"gigatoken {found} was not compared with tokenizers (gigatoken {', '.join(COMPARED)} was)"
        if not why and room is not None and room < needed_memory("gigatoken", vocabulary):
            why = "there is too little memory for gigatoken"
        if not why:
            _Library(with_separator(vocabulary))
            return Choice("gigatoken", found)
    except ModuleNotFoundError:
        why = "gigatoken is not installed"
    except Exception as problem:  # the reference loads whatever it could not
        why = f"gigatoken does not take this tokenizer ({' '.join(str(problem).split())[:120]})"
    return replace(settled, notes=(f"{why}: encoding with tokenizers, many times slower",))


def needed_memory(name: str, vocabulary: Vocabulary) -> int:
    """Bytes a process needs to encode with it, beside Python, NumPy and the vocabulary; measured, with a margin."""
    if name == "bytes":
        return 24 * MIB
    factor, least = {"gigatoken": (32, 60), "tokenizers": (8, 48), "sentencepiece": (16, 48)}[name]
    return least * MIB + factor * max(len(vocabulary.plain), len(vocabulary.content))


Room = Callable[[str, int], Ids | None]


def no_room(_dtype: str, _count: int) -> None:
    """No memory for so many ids of this dtype: they get some of their own."""


def fitting_ids(ids: Ids, vocabulary: Vocabulary, where: str, room: Room = no_room) -> Ids:
    """``ids`` in the corpus's dtype, in memory of ``room``; an id that does not fit is an error; it never wraps."""
    if ids.size and int(ids.max()) >= vocabulary.size:
        raise FormatError(
            f"{where}: expected ids below {vocabulary.size}, got {int(ids.max())}. Check the tokenizer's vocabulary."
        )
    place = room(vocabulary.dtype, len(ids))
    if place is None:
        return ids.astype(vocabulary.dtype, copy=False)
    place[:] = ids
    return place


def with_ends(documents: Sequence[Ids], eot: int) -> tuple[Ids, Ends]:
    """Documents in one array, an end of text after each."""
    ends = np.cumsum([len(ids) + 1 for ids in documents], dtype=np.int64)
    whole = np.empty(int(ends[-1]) if len(ends) else 0, np.uint32)
    first = 0
    for ids, end in zip(documents, ends.tolist(), strict=True):
        whole[first : end - 1] = ids
        whole[end - 1] = eot
        first = end
    return whole, ends


def hugging_face(vocabulary: Vocabulary) -> Any:
    """tokenizers' object for a vocabulary; FormatError if it cannot be loaded."""
    try:
        import tokenizers
    except ModuleNotFoundError:
        raise LowtideError(
            "prepare: expected the tokenizers library, got none. Install it with: pip install 'lowtide[prepare]'"
        ) from None
    try:
        return tokenizers.Tokenizer.from_str(vocabulary.plain)
    except Exception as problem:  # the library raises plain Exception
        reason = " ".join(str(problem).split())[:160]
        raise FormatError(
            f"{vocabulary.file}: expected a tokenizer that tokenizers can load, got: {reason}. Check the file."
        ) from None


def anonymous_bytes() -> int:
    """Heap of this process, in bytes; 0 if the system does not say."""
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - called for every block
            _, resident, shared, *_ = file.read().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # only here: 8 ms, which workers need not pay

    try:
        return version(package)
    except PackageNotFoundError:
        raise ModuleNotFoundError(package) from None
