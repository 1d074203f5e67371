"""One field of a line of JSON: the line is parsed whole or, if it is too long to hold, read as a stream of bytes.

A short line is read by orjson if it is installed, which is twice as fast; lines that it refuses are tried again with
the standard library. In a long line only the wanted string is decoded, chunk by chunk; other values are skipped by
counting brackets and strings, without further checks. Costs a chunk.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from lowtide.engine import engine

try:
    import orjson
except ModuleNotFoundError:
    orjson = None  # type: ignore[assignment,unused-ignore]

_SURROGATE = re.compile("[\ud800-\udfff]")
_UNITS = re.compile(rb'(?:[^"\\]++|\\u[0-9a-fA-F]{4}|\\[^u])*+')  # whole units of a string: no escape is cut in half
_HALF_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_SCALAR = re.compile(rb'[^\s,:"\[\]{}]*+')
_BLANK = re.compile(rb"\s*+")
_LONGEST_KEY = 1 << 20


def field_text(line: bytes, field: str, errors: str) -> bytes:
    """The field's text as UTF-8, ``errors`` as in `bytes.decode`; ValueError, KeyError or TypeError if it has none."""
    content = _parsed(line, errors)
    if not isinstance(content, dict):
        raise ValueError(f"a {type(content).__name__}")
    text = content[field]
    if not isinstance(text, str):
        raise TypeError(f"{type(text).__name__} in field {field!r}")
    return as_utf8(text, errors)


def as_utf8(text: str, errors: str) -> bytes:
    """``text`` as bytes; half of a surrogate pair, which only an escape can spell, becomes U+FFFD if allowed."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        if errors == "strict":
            raise
        return _SURROGATE.sub("\ufffd", text).encode()


def _parsed(line: bytes, errors: str) -> object:
    if orjson is not None:
        try:
            return orjson.loads(line)
        except ValueError:
            pass
    return json.loads(line.decode("utf-8-sig", errors))


def units_end(text: bytes, first: int) -> int:
    """Where whole units of a string end, which begin at ``first``."""
    end = engine().string_units(text, first)  # the pattern below takes 5 ms/MB
    if end is None:
        found = _UNITS.match(text, first)
        assert found is not None
        end = found.end()
    return end


class LongLine:
    """A line of JSON that comes in chunks."""

    def __init__(self, chunks: Iterator[bytes], field: str, errors: str) -> None:
        self._chunks, self._field, self._errors = chunks, field, errors
        self._kept, self._at = b"", 0
        self.replaced = False

    def texts(self) -> Iterator[bytes]:
        """The field's text, some at a time; raises as `field_text` does if the line cannot be used."""
        found = False
        if self._next() != b"{":
            raise ValueError("something else")
        self._at += 1
        closed = self._next() == b"}"
        while not closed:
            key = self._key()
            self._take(b":")
            if key != self._field:
                self._pass_over()
            elif found or self._next() != b'"':
                raise TypeError(f"{'two values' if found else 'no string'} in field {key!r}")
            else:
                found = True
                yield from map(self._decoded, self._string())
            closed = self._next() == b"}"
            if not closed:
                self._take(b",")
        self._at += 1
        if self._next(end_allowed=True):
            raise ValueError("more after its end")
        if not found:
            raise KeyError(self._field)

    def _more(self) -> bool:
        chunk = next(self._chunks, b"")
        self._kept, self._at = self._kept[self._at :] + chunk, 0
        return bool(chunk)

    def _next(self, *, end_allowed: bool = False) -> bytes:
        """The next byte that is not blank, without consuming it."""
        while True:
            found = _BLANK.match(self._kept, self._at)
            assert found is not None
            self._at = found.end()
            if self._at < len(self._kept):
                return self._kept[self._at : self._at + 1]
            if not self._more():
                if end_allowed:
                    return b""
                raise ValueError("an object without an end")

    def _take(self, wanted: bytes) -> None:
        if (found := self._next()) != wanted:
            raise ValueError(f"{found.decode('latin-1')!r} where {wanted.decode()!r} was expected")
        self._at += 1

    def _key(self) -> str:
        raw = b""
        for piece in self._string():
            raw += piece
            if len(raw) > _LONGEST_KEY:
                raise ValueError(f"a key of more than {_LONGEST_KEY} bytes")
        return str(json.loads(f'"{raw.decode("utf-8", self._errors)}"'))

    def _string(self) -> Iterator[bytes]:
        """The bytes between two quotes, cut between characters and between escapes."""
        self._take(b'"')
        while True:
            end = units_end(self._kept, self._at)
            if self._kept[end : end + 1] == b'"':
                raw, self._at = self._kept[self._at : end], end + 1
                yield raw
                return
            if len(self._kept) - end >= 6:
                raise ValueError("an escape that JSON does not know")
            raw = self._kept[self._at : end]
            for _ in range(3):  # the last character may continue in the next chunk
                raw = raw[:-1] if raw and raw[-1] & 0xC0 == 0x80 else raw
            raw = raw[:-1] if raw and raw[-1] >= 0xC0 else raw
            if pair := _HALF_PAIR.search(raw[-6:]):
                raw = raw[: len(raw) - 6 + pair.start()]
            self._at += len(raw)
            if not self._more():
                raise ValueError("a string without an end")
            yield raw

    def _decoded(self, raw: bytes) -> bytes:
        try:
            return as_utf8(json.loads(f'"{raw.decode()}"'), "strict")
        except UnicodeError:
            if self._errors == "strict":
                raise
            self.replaced = True
            return as_utf8(json.loads(f'"{raw.decode("utf-8", "replace")}"'), "replace")

    def _pass_over(self) -> None:
        depth = 0
        while True:
            sign = self._next()
            if sign == b'"':
                for _ in self._string():
                    pass
            elif sign in b"[]{},:":
                depth += (sign in b"[{") - (sign in b"]}")
                if depth < 0 or (sign in b",:" and depth == 0):
                    raise ValueError("no value where one was expected")
                self._at += 1
            else:
                self._pass_scalar()
            if depth == 0:
                return

    def _pass_scalar(self) -> None:
        while True:
            found = _SCALAR.match(self._kept, self._at)
            assert found is not None
            self._at = found.end()
            if self._at < len(self._kept) or not self._more():
                return


def bad_line(path: str, line: int, offset: int, field: str, problem: Exception) -> str:
    """What is wrong with the line at byte ``offset``; ``line``: its number if known, else 0."""
    where = f"{path}, line {line or _line_number(path, offset)}"
    if isinstance(problem, UnicodeError):
        reason = getattr(problem, "reason", "something else")
        return f"{where}: expected UTF-8, got {reason}. Use --invalid-utf8 replace or --skip-bad."
    if isinstance(problem, KeyError):
        return f"{where}: expected a field {field!r}, got none. Name another with --field, or use --skip-bad."
    if isinstance(problem, TypeError):
        return f"{where}: expected text in field {field!r}, got {problem}. Skip such lines with --skip-bad."
    return f"{where}: expected a JSON object, got: {problem}. Correct it, or skip such lines with --skip-bad."


def _line_number(path: str, offset: int) -> int:
    """The number of the line at a byte of a plain file; lines are counted only for an error."""
    count = 1
    with open(path, "rb") as file:  # noqa: PTH123
        while offset > 0 and (block := file.read(min(offset, 1 << 20))):
            count += block.count(b"\n")
            offset -= len(block)
    return count
