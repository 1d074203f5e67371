"""Documents in, ids out: bytes, gigatoken, tokenizers and SentencePiece behind one call.

``encode(texts)`` gives ids in one array with an end of text after each document, and where each ends.
gigatoken is the fast one: documents are joined with the end-of-text token, which it recognises, so that one call into
Rust serves a whole block; documents that spell that token themselves are encoded one by one without it. What it may
keep in its cache is bounded: by its own setting where it has one, else by building it anew once the process has grown
by that much.

Which one is used is settled before the first block by `choose_encoder`, on documents of the user's own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lowtide.errors import FormatError, LowtideError
from lowtide.prepare.tokenizers.vocabulary import Vocabulary, sentencepiece_processor, with_separator

Ids = NDArray[np.unsignedinteger[Any]]
Ends = NDArray[np.int64]
# Bytes of gigatoken's cache per worker: chosen to fit the budget, other sizes were not measured.
CACHE = 48 * 1024 * 1024
_LONG = 2048  # bytes of an average document from which on joining costs more than a loop


class Encoder(Protocol):
    """Ids of all documents in turn, an end of text after each, and the position behind each end of text."""

    def encode(self, texts: Sequence[bytes]) -> tuple[Ids, Ends]: ...


@dataclass(frozen=True)
class Choice:
    """Which library encodes, and what was found out on the way."""

    name: str  # "bytes", "gigatoken", "gigatoken one by one", "tokenizers", "sentencepiece"
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
        """Long documents are widened where they stand, which saves joining them."""
        ids, first = np.empty(int(ends[-1]), np.uint16), 0
        for text, end in zip(texts, ends.tolist(), strict=True):
            ids[first : end - 1] = np.frombuffer(text, np.uint8)
            ids[end - 1] = self._eot
            first = end
        return ids, ends


class Gigatoken:
    """gigatoken, a block of documents per call or one by one."""

    def __init__(self, vocabulary: Vocabulary, *, joined: bool, cache: int = CACHE) -> None:
        self._vocabulary, self._cache = vocabulary, cache
        self._separator = vocabulary.eot_text.encode()
        self._bound = _bound_cache(cache)
        self._joined = self._load(with_separator(vocabulary)) if joined else None
        self._single: Any = None
        self._grown_from = anonymous_bytes()

    def encode(self, texts: Sequence[bytes]) -> tuple[Ids, Ends]:
        if not self._bound and anonymous_bytes() - self._grown_from > self._cache:
            self._build_anew()
        if self._joined is not None:
            whole = self._separator.join((*texts, b""))
            if whole.count(self._separator) == len(texts):
                ids = self._joined.encode(whole)
                ends = np.flatnonzero(ids == self._vocabulary.eot) + 1
                if len(ends) == len(texts):
                    return ids, ends
        if self._single is None:
            self._single = self._load(self._vocabulary.plain)
        return with_ends([self._single.encode(text) for text in texts], self._vocabulary.eot)

    def _build_anew(self) -> None:
        joined = self._joined is not None
        self._joined = self._single = None
        if joined:
            self._joined = self._load(with_separator(self._vocabulary))
        self._grown_from = anonymous_bytes()

    def _load(self, text: str) -> Any:
        # Its encode() gives plain arrays; encode_batch() would bring awkward into every worker.
        from gigatoken.gigatoken_rs import load_hf_json

        return load_hf_json(text)


class Tokenizers:
    """Hugging Face's tokenizers: slower, and what decides when two disagree."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # there is a process for every processor already
        self._tokenizer = hugging_face(vocabulary)
        self._eot = vocabulary.eot

    def encode(self, texts: Sequence[bytes]) -> tuple[Ids, Ends]:
        words = [text.decode("utf-8", "replace") for text in texts]
        found = self._tokenizer.encode_batch_fast(words, add_special_tokens=False)
        return with_ends([np.array(one.ids, np.uint32) for one in found], self._eot)


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
    if name == "bytes":
        return Bytes(vocabulary)
    if name == "sentencepiece":
        return SentencePiece(vocabulary)
    if name == "tokenizers":
        return Tokenizers(vocabulary)
    return Gigatoken(vocabulary, joined=name == "gigatoken", cache=cache)


def choose_encoder(vocabulary: Vocabulary, sample: Sequence[bytes], wanted: str = "auto") -> Choice:
    """The fastest library that gives the reference's ids on every document of ``sample``."""
    if vocabulary.kind == "bytes":
        return Choice("bytes", "")
    reference = "sentencepiece" if vocabulary.kind == "model" else "tokenizers"
    judge = make_encoder(reference, vocabulary)
    settled = Choice(reference, _version(reference))
    if vocabulary.kind == "model" or wanted == reference:
        return settled
    expected = judge.encode(sample)
    why = ""
    for name in ("gigatoken", "gigatoken one by one"):
        try:
            found = make_encoder(name, vocabulary).encode(sample)
        except ModuleNotFoundError:
            note = "gigatoken is not installed: encoding with tokenizers, many times slower"
            return Choice(reference, settled.version, (note,))
        except Exception as problem:  # whatever it could not load or encode, the reference can
            why = f"gigatoken does not take this tokenizer ({' '.join(str(problem).split())[:120]})"
            continue
        difference = _difference(expected, found)
        if difference is None:
            return Choice(name, _version("gigatoken"))
        why = f"gigatoken and tokenizers differ ({difference})"
    return Choice(reference, settled.version, (f"{why}: encoding with tokenizers",))


def fitting_ids(ids: Ids, vocabulary: Vocabulary, where: str) -> Ids:
    """``ids`` in the corpus's dtype; an id that does not fit is an error and never wrapped."""
    if ids.size and int(ids.max()) >= vocabulary.size:
        raise FormatError(
            f"{where}: expected ids below {vocabulary.size}, got {int(ids.max())}. Check the tokenizer's vocabulary."
        )
    return ids.astype(vocabulary.dtype, copy=False)


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
    """tokenizers' object for a vocabulary; FormatError where it cannot load it."""
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
    """Heap of this process, in bytes; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - called for every block
            _, resident, shared, *_ = file.read().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _bound_cache(size: int) -> bool:
    """Whether gigatoken bounds its cache itself: versions after 0.10.0 do."""
    import gigatoken.gigatoken_rs as rust

    if not hasattr(rust, "set_max_cache_bytes"):
        return False
    rust.set_max_cache_bytes(size)
    return True


def _difference(expected: tuple[Ids, Ends], found: tuple[Ids, Ends]) -> str | None:
    if len(expected[1]) != len(found[1]):
        return f"{len(found[1])} documents instead of {len(expected[1])}"
    wrong = np.flatnonzero(np.diff(expected[1], prepend=0) != np.diff(found[1], prepend=0))
    if not wrong.size and not np.array_equal(expected[0], found[0]):
        at = int(np.flatnonzero(expected[0] != found[0])[0])
        wrong = np.array([np.searchsorted(expected[1], at, side="right")])
    return None if not wrong.size else f"document {int(wrong[0])} of the sample"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
