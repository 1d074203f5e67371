"""From a block of text to an encoded piece: documents told apart, checked, encoded, counted.

One idea: a piece is a pure function of its block and the recipe, so that any engine, retry or restart gives the same
bytes. Bad input stops here with file and place, or is counted where the request says to go on. Costs the block, its
documents and their ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import orjson
except ModuleNotFoundError:
    orjson = None  # type: ignore[assignment,unused-ignore]

from lowtide.errors import FormatError
from lowtide.prepare.blocks import Raw, part_end, raw_blocks
from lowtide.prepare.encoders import CACHE, Encoder, checked, make_encoder
from lowtide.prepare.request import Request
from lowtide.prepare.splits import BLOCK, LARGE_DOCUMENT, Split
from lowtide.prepare.tokenizer import Vocabulary

Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class Recipe:
    """All a worker needs to know, once."""

    request: Request
    vocabulary: Vocabulary
    encoder: str
    cache: int = CACHE


@dataclass
class Tally:
    """What was met on the way."""

    documents: int = 0
    text_bytes: int = 0
    empty: int = 0  # documents without text, left out
    bad: int = 0  # lines of JSON left out with --skip-bad
    replaced: int = 0  # documents with invalid UTF-8, replaced
    cut: int = 0  # documents encoded in parts
    duplicates: int = 0  # documents left out with --dedup

    def add(self, other: Tally) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass
class Piece:
    """Encoded documents in order. ``ends`` has one entry for each document that ends here."""

    split: int
    number: int
    ids: NDArray[Any]
    ends: NDArray[np.int64]
    hashes: Hashes | None  # of every document that begins or goes on here, two words each; the second 0: never dropped
    continues: bool
    opens: bool
    tally: Tally
    weight: int


class Worker:
    """A recipe with its encoder: what runs in a worker process, a Ray task, or right here."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._request = recipe.request
        self._encoder: Encoder = make_encoder(recipe.encoder, recipe.vocabulary, recipe.cache)
        self._hashed = recipe.request.dedup or recipe.request.val > 0

    def pieces(self, split: Split, skip: int = 0) -> Iterator[Piece]:
        """Every piece of a split, read and encoded here."""
        return (self.encode(raw) for raw in raw_blocks(split, self._request, skip))

    def encode(self, raw: Raw) -> Piece:
        """One block, encoded."""
        tally = Tally()
        texts = self.texts(raw, tally)
        parts, closes = self._parts(texts, raw, tally)
        ids, ends = self._encoder.encode(parts)
        hashes = _hashes(texts, raw) if self._hashed else None
        if not all(closes):
            ids, ends = _without(ids, ends, np.array(closes))
        ids = checked(ids, self._recipe.vocabulary, raw.paths[0])
        tally.documents += len(ends)
        tally.text_bytes += sum(map(len, texts))
        return Piece(raw.split, raw.piece, ids, ends, hashes, raw.continues, raw.opens, tally, raw.weight)

    def texts(self, raw: Raw, tally: Tally) -> list[bytes]:
        """The documents of a block, as valid UTF-8 unless ids are bytes."""
        if raw.kind == "jsonl":
            texts = list(self._json(raw, tally))
        else:
            texts = raw.payload if isinstance(raw.payload, list) else self._taken_apart(raw)
            if self._recipe.vocabulary.kind != "bytes":
                texts = self._valid(raw, texts, tally)
        if raw.continues or raw.opens:
            return texts  # a part of a document may be empty, and counts
        kept = [text for text in texts if text]
        tally.empty += len(texts) - len(kept)
        return kept

    def _taken_apart(self, raw: Raw) -> list[bytes]:
        assert isinstance(raw.payload, bytes)
        if raw.kind == "lines":
            lines = raw.payload.split(b"\n")
            if not lines[-1]:
                lines.pop()  # what follows the last line end is no line
            return [line.removesuffix(b"\r") for line in lines]
        texts = raw.payload.split(self._request.separator.encode("utf-8", "surrogateescape"))
        return texts if texts[-1] else texts[:-1]

    def _json(self, raw: Raw, tally: Tally) -> Iterator[bytes]:
        assert isinstance(raw.payload, bytes)
        field, at = self._request.field, 0
        for number, line in enumerate(raw.payload.split(b"\n")):
            at, begin = at + len(line) + 1, at
            if not line.strip():
                continue
            try:
                content = _parsed(line)
                if not isinstance(content, dict):
                    raise ValueError(f"a {type(content).__name__}")
                text = content[field]
                if not isinstance(text, str):
                    raise TypeError(f"{type(text).__name__} in field {field!r}")
            except (ValueError, KeyError, TypeError, RecursionError) as problem:
                if self._request.skip_bad:
                    tally.bad += 1
                    continue
                if isinstance(problem, UnicodeDecodeError) and self._request.invalid_utf8 == "replace":
                    text = _replaced_field(line, field)
                    if text is not None:
                        tally.replaced += 1
                        yield text
                        continue
                raise FormatError(_bad_line(raw, number, begin, field, problem)) from None
            try:
                yield text.encode("utf-8")
            except UnicodeEncodeError as problem:  # half of a surrogate pair, written as an escape
                if self._request.invalid_utf8 == "refuse":
                    raise FormatError(_bad_line(raw, number, begin, field, problem)) from None
                tally.replaced += 1
                yield text.encode("utf-8", "replace")

    def _valid(self, raw: Raw, texts: list[bytes], tally: Tally) -> list[bytes]:
        """The documents, where all are UTF-8; replaced or refused where not."""
        try:
            if isinstance(raw.payload, bytes):
                raw.payload.decode("utf-8")
            else:
                for text in texts:
                    text.decode("utf-8")
            return texts
        except UnicodeDecodeError:
            pass
        valid, at = [], raw.first
        step = len(_separator_of_kind(raw.kind, self._request))
        for place, text in enumerate(texts):
            try:
                text.decode("utf-8")
            except UnicodeDecodeError as problem:
                if self._request.invalid_utf8 == "refuse":
                    path = raw.paths[min(place, len(raw.paths) - 1)]
                    where = f"byte {(0 if len(raw.paths) > 1 else at) + problem.start}"
                    if raw.kind == "documents" and len(raw.paths) == 1 and len(texts) > 1:
                        where = f"row {raw.first + place}"
                    raise FormatError(
                        f"{path}: expected UTF-8, got byte 0x{text[problem.start]:02x} at {where}. Go on with "
                        "--invalid-utf8 replace, which puts U+FFFD there and counts the document."
                    ) from None
                tally.replaced += 1
                text = text.decode("utf-8", "replace").encode()
            valid.append(text)
            at += len(text) + step
        return valid

    def _parts(self, texts: list[bytes], raw: Raw, tally: Tally) -> tuple[list[bytes], list[bool]]:
        """What is encoded at once, and whether a document ends with it: large documents come in parts."""
        if raw.continues or raw.opens:
            tally.cut += not raw.opens
            return texts, [not raw.opens]
        if all(len(text) <= LARGE_DOCUMENT for text in texts):
            return texts, [True] * len(texts)
        parts: list[bytes] = []
        closes: list[bool] = []
        for text in texts:
            if len(text) > LARGE_DOCUMENT:
                tally.cut += 1
                borders = [0, *(part_end(text, mark) for mark in range(BLOCK, len(text), BLOCK)), len(text)]
                parts += [text[begin:end] for begin, end in pairwise(borders)]
                closes += [False] * (len(borders) - 2) + [True]
            else:
                parts.append(text)
                closes.append(True)
        return parts, closes


def _parsed(line: bytes) -> Any:
    """One line of JSON: by orjson where it can, twice as fast; what it refuses is judged by the standard library."""
    if orjson is not None:
        try:
            return orjson.loads(line)
        except ValueError:
            pass
    return json.loads(line)


def _separator_of_kind(kind: str, request: Request) -> bytes:
    return {"lines": b"\n", "separator": request.separator.encode("utf-8", "surrogateescape")}.get(kind, b"")


def document_hash(text: bytes) -> tuple[int, int]:
    """128 bits of a document; a large one is known by its first part, and its second word is 0."""
    if len(text) <= LARGE_DOCUMENT:
        found = hashlib.blake2b(text, digest_size=16).digest()
        return int.from_bytes(found[:8], "little"), int.from_bytes(found[8:], "little") or 1
    return _part_hash(text[: part_end(text[: 2 * BLOCK], BLOCK)]), 0


def _part_hash(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _hashes(texts: list[bytes], raw: Raw) -> Hashes:
    if raw.continues or raw.opens:
        return np.array([(_part_hash(texts[0]), 0)], np.uint64)
    return np.array([document_hash(text) for text in texts], np.uint64).reshape(-1, 2)


def _without(ids: NDArray[Any], ends: NDArray[np.int64], closes: NDArray[np.bool_]) -> tuple[Any, Any]:
    """Takes out the end of text behind parts after which a document goes on."""
    dropped = ends[~closes] - 1
    before = np.cumsum(~closes)
    return np.delete(ids, dropped), (ends - before)[closes]


def _replaced_field(line: bytes, field: str) -> bytes | None:
    try:
        text = json.loads(line.decode("utf-8", "replace"))[field]
        return text.encode("utf-8", "replace") if isinstance(text, str) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _bad_line(raw: Raw, number: int, begin: int, field: str, problem: Exception) -> str:
    line = raw.line + number if raw.line else _line_number(raw.paths[0], raw.first + begin)
    where = f"{raw.paths[0]}, line {line}"
    if isinstance(problem, (UnicodeDecodeError, UnicodeEncodeError)):
        return f"{where}: expected UTF-8, got {problem.reason}. Go on with --invalid-utf8 replace or --skip-bad."
    if isinstance(problem, KeyError):
        return f"{where}: expected a field {field!r}, got none. Name another with --field, or use --skip-bad."
    if isinstance(problem, TypeError):
        return f"{where}: expected text in field {field!r}, got {problem}. Pass over such lines with --skip-bad."
    return f"{where}: expected a JSON object, got: {problem}. Correct it, or pass over such lines with --skip-bad."


def _line_number(path: str, offset: int) -> int:
    """Lines before a byte of a plain file, plus one: only an error pays for counting them."""
    count = 1
    with open(path, "rb") as file:  # noqa: PTH123
        while offset > 0 and (block := file.read(min(offset, 1 << 20))):
            count += block.count(b"\n")
            offset -= len(block)
    return count
