"""From text to ids and back, with the tokenizer a corpus names.

The corpus says what its ids mean. One that `lowtide prepare` wrote brings its decoder. Bytes need nothing; a
``tokenizer.json`` named by ``manifest.json`` (or given) is read by the package tokenizers; where nothing is known, ids
are written as numbers. Costs the tokenizer's file in memory. No pickle is read, so nanoGPT's ``meta.pkl`` is not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lowtide.errors import FormatError
from lowtide.prepare import decoder_of

BYTE_VOCABULARIES = (256, 257)  # bytes, and bytes with an end of text


class Words(Protocol):
    """``ids(text)`` and ``text(ids)``."""

    def ids(self, text: str) -> list[int]: ...
    def text(self, ids: Sequence[int]) -> str: ...


class ByteWords:
    """A byte is an id; ids above 255 are no text."""

    def ids(self, text: str) -> list[int]:
        return list(text.encode())

    def text(self, ids: Sequence[int]) -> str:
        return bytes(number for number in ids if number < 256).decode(errors="replace")


class NumberWords:
    """Where no tokenizer is known: ids as numbers."""

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


@dataclass(frozen=True)
class FileWords:
    """A ``tokenizer.json``."""

    library: Any

    def ids(self, text: str) -> list[int]:
        return list(self.library.encode(text, add_special_tokens=False).ids)

    def text(self, ids: Sequence[int]) -> str:
        return str(self.library.decode(list(ids), skip_special_tokens=False))


def words_of(corpus: str, vocab_size: int, tokenizer: str = "") -> Words:
    """The tokenizer given, or the one that the corpus names, or bytes where its ids can be nothing else."""
    if tokenizer and tokenizer != "bytes":
        return _from_file(Path(tokenizer))
    if corpus and not tokenizer and (decoder := _prepared(corpus)) is not None:
        return decoder
    named = None if tokenizer else _named(Path(corpus)) if corpus else None
    if named is not None:
        return _from_file(named)
    return ByteWords() if tokenizer or vocab_size in BYTE_VOCABULARIES else NumberWords()


def _prepared(corpus: str) -> Words | None:
    """The decoder of a corpus that `lowtide prepare` wrote, which checks that the tokenizer is the one it used."""
    for place in (Path(corpus), Path(corpus) / "train"):
        if isinstance(_told(place), dict) and {"kind"} <= _told(place).keys():
            return decoder_of(place)
    return None


def _told(place: Path) -> Any:
    """What the manifest there says of its tokenizer."""
    try:
        return json.loads((place / "manifest.json").read_bytes())["tokenizer"]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _named(corpus: Path) -> Path | None:
    """The tokenizer's file that the corpus's manifest names; None for bytes and where it names none."""
    for place in (corpus, corpus / "train", corpus.parent):
        told = _told(place)
        if told is None:
            continue
        file = told.get("file") if isinstance(told, dict) else told
        return place / Path(file).name if isinstance(file, str) and file != "bytes" else None
    return None


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
