"""From a block of text to its documents: told apart, checked, counted.

Bad input stops here with file and place, or is counted where the request says to go on. A pure function of the block
and the request. Costs the block and its documents. JSON is read by orjson where it is installed, twice as fast.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields

try:
    import orjson
except ModuleNotFoundError:
    orjson = None  # type: ignore[assignment,unused-ignore]

from lowtide.corpus.request import Request
from lowtide.errors import FormatError
from lowtide.prepare.inputs.text_blocks import TextBlock


@dataclass
class Tally:
    """What was met on the way."""

    documents: int = 0
    text_bytes: int = 0
    empty: int = 0  # documents without text, left out
    bad: int = 0  # lines of JSON left out with --skip-bad
    replaced: int = 0  # documents with invalid UTF-8, replaced
    cut: int = 0  # documents encoded in slices
    duplicates: int = 0  # documents left out with --dedup

    def add(self, other: Tally) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def texts(block: TextBlock, request: Request, tally: Tally, *, utf8: bool) -> list[bytes]:
    """The documents of a block; ``utf8``: each of them valid UTF-8, which ids that are bytes do not need."""
    if block.kind == "jsonl":
        found = list(_json_texts(block, request, tally))
    else:
        found = block.payload if isinstance(block.payload, list) else _taken_apart(block, request)
        if utf8:
            found = _valid(block, request, found, tally)
    if block.continues or block.opens:
        return found  # a slice of a document may be empty, and counts
    filled = [text for text in found if text]
    tally.empty += len(found) - len(filled)
    return filled


def _taken_apart(block: TextBlock, request: Request) -> list[bytes]:
    assert isinstance(block.payload, bytes)
    if block.kind == "lines":
        lines = block.payload.split(b"\n")
        if not lines[-1]:
            lines.pop()  # what follows the last line end is no line
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
            content = _parsed(line)
            if not isinstance(content, dict):
                raise ValueError(f"a {type(content).__name__}")
            text = content[field]
            if not isinstance(text, str):
                raise TypeError(f"{type(text).__name__} in field {field!r}")
        except (ValueError, KeyError, TypeError, RecursionError) as problem:
            if request.skip_bad:
                tally.bad += 1
                continue
            if isinstance(problem, UnicodeDecodeError) and request.invalid_utf8 == "replace":
                text = _replaced_field(line, field)
                if text is not None:
                    tally.replaced += 1
                    yield text
                    continue
            raise FormatError(_bad_line(block, number, begin, field, problem)) from None
        try:
            yield text.encode("utf-8")
        except UnicodeEncodeError as problem:  # half of a surrogate pair, written as an escape
            if request.invalid_utf8 == "refuse":
                raise FormatError(_bad_line(block, number, begin, field, problem)) from None
            tally.replaced += 1
            yield text.encode("utf-8", "replace")


def _valid(block: TextBlock, request: Request, texts: list[bytes], tally: Tally) -> list[bytes]:
    """The documents, where all are UTF-8; replaced or refused where not."""
    try:
        if isinstance(block.payload, bytes):
            block.payload.decode("utf-8")
        else:
            for text in texts:
                text.decode("utf-8")
        return texts
    except UnicodeDecodeError:
        pass
    valid, at = [], block.first
    step = len(_separator_of_kind(block.kind, request))
    for place, text in enumerate(texts):
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as problem:
            if request.invalid_utf8 == "refuse":
                path = block.paths[min(place, len(block.paths) - 1)]
                where = f"byte {(0 if len(block.paths) > 1 else at) + problem.start}"
                if block.kind == "documents" and len(block.paths) == 1 and len(texts) > 1:
                    where = f"row {block.first + place}"
                raise FormatError(
                    f"{path}: expected UTF-8, got byte 0x{text[problem.start]:02x} at {where}. Go on with "
                    "--invalid-utf8 replace, which puts U+FFFD there and counts the document."
                ) from None
            tally.replaced += 1
            text = text.decode("utf-8", "replace").encode()
        valid.append(text)
        at += len(text) + step
    return valid


def _parsed(line: bytes) -> object:
    """One line of JSON: by orjson where it can, twice as fast; what it refuses is judged by the standard library."""
    if orjson is not None:
        try:
            return orjson.loads(line)
        except ValueError:
            pass
    return json.loads(line)


def _separator_of_kind(kind: str, request: Request) -> bytes:
    return {"lines": b"\n", "separator": request.separator.encode("utf-8", "surrogateescape")}.get(kind, b"")


def _replaced_field(line: bytes, field: str) -> bytes | None:
    try:
        text = json.loads(line.decode("utf-8", "replace"))[field]
        return text.encode("utf-8", "replace") if isinstance(text, str) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _bad_line(block: TextBlock, number: int, begin: int, field: str, problem: Exception) -> str:
    line = block.line + number if block.line else _line_number(block.paths[0], block.first + begin)
    where = f"{block.paths[0]}, line {line}"
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
