"""From a block of text to its documents: separated, checked, counted.

Bad input is refused here with file and place, or counted if the request says to go on. A pure function of the block
and the request. Costs the block and its documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from lowtide.corpus.request import Request
from lowtide.engine import engine
from lowtide.errors import FormatError
from lowtide.prepare.inputs.json_lines import bad_line, field_text
from lowtide.prepare.inputs.text_blocks import TextBlock

_LINE_END = b"\n"


@dataclass
class Tally:
    """Counts of what a run has read and left out."""

    documents: int = 0
    text_bytes: int = 0
    empty: int = 0  # documents without text, left out
    bad: int = 0  # lines of JSON left out with --skip-bad
    replaced: int = 0  # documents with invalid UTF-8, replaced
    cut: int = 0  # documents encoded in pieces
    duplicates: int = 0  # documents left out with --dedup

    def add(self, other: Tally) -> None:
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class Joined(NamedTuple):
    """All documents of a block in one text, an end after each that ends here."""

    text: bytes
    documents: int  # that end here
    empty: int
    places: bytes  # where code points of the ranges that were asked about begin, as int64


def joined_texts(block: TextBlock, request: Request, end: bytes, ranges: Any) -> Joined | None:
    """What `texts` gives, joined without making an object for each document; None: `texts` has to look at it."""
    if not block.payload or block.met:
        return None
    if isinstance(block.payload, list):
        return _joined_list(block, block.payload, end, ranges)
    key, between = None, _LINE_END
    if block.kind == "jsonl":
        key = request.field.encode("utf-8", "surrogatepass")
    elif block.kind == "separator":
        between = request.separator.encode("utf-8", "surrogateescape")
        if between == _LINE_END:  # not lines: a carriage return before it is text
            return None
    found = engine().joined_texts(block.payload, key, between, end, ranges)
    return None if found is None else Joined(*found)


def _joined_list(block: TextBlock, payload: list[bytes], end: bytes, ranges: Any) -> Joined | None:
    part = block.continues or block.opens  # of a document: it may be empty, and still counts
    filled = payload if part else [text for text in payload if text]
    text = end.join(filled if block.opens else (*filled, b""))
    places = engine().code_points(text, ranges)
    documents = len(filled) - block.opens
    return None if places is None else Joined(text, documents, len(payload) - len(filled), places)


def texts(block: TextBlock, request: Request, tally: Tally, *, utf8: bool) -> list[bytes]:
    """The documents of a block; ``utf8``: each must be valid UTF-8, which the bytes tokenizer does not need."""
    tally.bad += block.met == "bad"
    tally.replaced += block.met == "replaced"
    if block.kind == "jsonl":
        found = list(_json_texts(block, request, tally))
    else:
        found = block.payload if isinstance(block.payload, list) else _taken_apart(block, request)
        if utf8:
            found = _valid(block, request, found, tally)
    if block.continues or block.opens:
        return found  # a piece of a document may be empty, and still counts
    filled = [text for text in found if text]
    tally.empty += len(found) - len(filled)
    return filled


def _taken_apart(block: TextBlock, request: Request) -> list[bytes]:
    assert isinstance(block.payload, bytes)
    if block.kind == "lines":
        lines = block.payload.split(b"\n")
        if not lines[-1]:
            lines.pop()  # what follows the last line end is not a line
        return [line.removesuffix(b"\r") for line in lines]
    texts = block.payload.split(request.separator.encode("utf-8", "surrogateescape"))
    return texts if texts[-1] else texts[:-1]


def _json_texts(block: TextBlock, request: Request, tally: Tally) -> Iterator[bytes]:
    assert isinstance(block.payload, bytes)
    field, at = request.field, 0
    for number, line in enumerate(block.payload.split(b"\n")):
        at, begin = at + len(line) + 1, at
        if not line.strip():
            continue
        try:
            try:
                yield field_text(line, field, "strict")
            except UnicodeError:
                if request.invalid_utf8 == "refuse":
                    raise
                yield field_text(line, field, "replace")
                tally.replaced += 1
        except (ValueError, KeyError, TypeError, RecursionError) as problem:
            if not request.skip_bad:
                known = block.line + number if block.line else 0
                raise FormatError(bad_line(block.paths[0], known, block.first + begin, field, problem)) from None
            tally.bad += 1


def _valid(block: TextBlock, request: Request, texts: list[bytes], tally: Tally) -> list[bytes]:
    """The documents if all are UTF-8; invalid ones are replaced or refused."""
    try:
        for text in [block.payload] if isinstance(block.payload, bytes) else texts:
            text.decode("utf-8")
        return texts
    except UnicodeDecodeError:
        pass
    valid, at = [], block.first
    step = {"lines": 1, "separator": len(request.separator.encode("utf-8", "surrogateescape"))}.get(block.kind, 0)
    for place, text in enumerate(texts):
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as problem:
            if request.invalid_utf8 == "refuse":
                path = block.paths[min(place, len(block.paths) - 1)]
                where = f"byte {(0 if len(block.paths) > 1 else at) + problem.start}"
                if block.kind == "rows":
                    where = f"row {block.first + place}"
                raise FormatError(
                    f"{path}: expected UTF-8, got byte 0x{text[problem.start]:02x} at {where}. Use "
                    "--invalid-utf8 replace, which puts U+FFFD there and counts the document."
                ) from None
            tally.replaced += 1
            text = text.decode("utf-8", "replace").encode()
        valid.append(text)
        at += len(text) + step
    return valid
