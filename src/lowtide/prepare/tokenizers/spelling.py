"""From ids back to text, and from a prompt to ids, with the tokenizer that a corpus names.

A corpus that Lowtide prepared contains its tokenizer; another may name a ``tokenizer.json`` in its manifest, or the
user names one. Bytes need nothing; if nothing is known, ids are written as numbers. Costs the tokenizer's file in
memory. Pickles are never read, so neither is nanoGPT's ``meta.pkl``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lowtide.corpus.finding import stated_manifest
from lowtide.errors import FormatError
from lowtide.prepare.tokenizers.encoders import Encoder, hugging_face, make_encoder
from lowtide.prepare.tokenizers.vocabulary import BYTES, Vocabulary, load_vocabulary, sentencepiece_processor

BYTE_VOCABULARIES = (256, 257)  # bytes, and bytes with an end of text


class Words(Protocol):
    """``ids(text)`` and ``text(ids)``."""

    def ids(self, text: str) -> list[int]: ...
    def text(self, ids: Sequence[int]) -> str: ...


class Decoder:
    """``text(ids)`` and ``ids(text)`` for one vocabulary; an id that ends a text becomes a line of its own."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._library: Any = None
        self._encoder: Encoder | None = None

    def text(self, ids: Iterable[int]) -> str:
        """The text of these ids, invalid UTF-8 replaced; an end of text becomes an empty line."""
        documents: list[list[int]] = [[]]
        for number in ids:
            if int(number) == self.vocabulary.eot:
                documents.append([])
            else:
                documents[-1].append(int(number))
        return "\n\n".join(self._document(one) for one in documents)

    def ids(self, text: str) -> list[int]:
        """The ids of a text, without an end of text."""
        if self._encoder is None:
            reference = {"bytes": "bytes", "model": "sentencepiece"}.get(self.vocabulary.kind, "tokenizers")
            self._encoder = make_encoder(reference, self.vocabulary)
        found, _ = self._encoder.encode([text.encode()])
        return [int(number) for number in found[:-1]]

    def _document(self, ids: Sequence[int]) -> str:
        if self.vocabulary.kind == "bytes":
            return bytes(number for number in ids if number < 256).decode("utf-8", "replace")
        if self._library is None:
            model = self.vocabulary.kind == "model"
            self._library = sentencepiece_processor(self.vocabulary.content) if model else hugging_face(self.vocabulary)
        return str(self._library.decode(list(ids)))


@dataclass(frozen=True)
class FileWords:
    """A ``tokenizer.json`` that need not have an end of text."""

    library: Any

    def ids(self, text: str) -> list[int]:
        return list(self.library.encode(text, add_special_tokens=False).ids)

    def text(self, ids: Sequence[int]) -> str:
        return str(self.library.decode(list(ids), skip_special_tokens=False))


class NumberWords:
    """Ids as numbers, for want of a tokenizer."""

    def ids(self, text: str) -> list[int]:
        try:
            return [int(word) for word in text.split()]
        except ValueError:
            raise ValueError(
                f"--prompt: expected ids such as '15 262 3290', because no tokenizer is known, got {text[:40]!r}. "
                "Name the tokenizer with --tokenizer."
            ) from None

    def text(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


def words_of(corpus: str, vocab_size: int, tokenizer: str = "") -> Words:
    """The tokenizer given, or the one that the corpus names, or bytes if its ids can be nothing else."""
    if tokenizer and tokenizer != "bytes":
        return _from_file(Path(tokenizer))
    path = Path(corpus)
    if corpus and not tokenizer and (stated := _stated((path, path / "train", path.parent))) is not None:
        place, told = stated
        if isinstance(told, dict) and "kind" in told:
            return Decoder(_vocabulary(place, told))
        file = told.get("file") if isinstance(told, dict) else told
        if isinstance(file, str) and file != "bytes":
            return _from_file(place / Path(file).name)
    return Decoder(BYTES) if tokenizer or vocab_size in BYTE_VOCABULARIES else NumberWords()


def decoder_of(corpus: str | Path) -> Decoder | None:
    """The decoder of a prepared corpus, of its ``train`` or ``val`` part, or of one of its shards; ``None`` if no
    manifest names a tokenizer."""
    path = Path(corpus)
    stated = _stated((path, path / "train") if path.is_dir() else (path.parent,))
    if stated is None or not isinstance(stated[1], dict):
        return None
    return Decoder(_vocabulary(stated[0], stated[1]))


def _stated(places: Iterable[Path]) -> tuple[Path, object] | None:
    """The first of these places whose manifest names a tokenizer, and what the manifest says of it."""
    for place in places:
        told = stated_manifest(place).get("tokenizer")
        if told is not None:
            return place, told
    return None


def _vocabulary(place: Path, told: dict[str, Any]) -> Vocabulary:
    if told.get("kind") == "bytes":
        return BYTES
    file = place / Path(str(told.get("file"))).name
    vocabulary = load_vocabulary(str(file), str(told.get("eot") or ""))
    if vocabulary.fingerprint != told.get("sha256"):
        raise FormatError(
            f"{file}: expected the tokenizer this corpus was made with (sha256 {str(told.get('sha256'))[:12]}...), got "
            f"{vocabulary.fingerprint[:12]}... Copy it again."
        )
    return vocabulary


def _from_file(path: Path) -> FileWords:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise FormatError(
            f"{path}: expected the package tokenizers to read it, got none. Install it with: pip install tokenizers"
        ) from None
    if not path.is_file():
        raise FileNotFoundError(f"{path}: expected a tokenizer.json, got no such file. Name another with --tokenizer.")
    try:
        return FileWords(Tokenizer.from_file(str(path)))
    except Exception as problem:  # the library raises bare Exception
        raise FormatError(
            f"{path}: expected a tokenizer.json, got {str(problem)[:80]!r}. Name another with --tokenizer."
        ) from problem
