"""A reader of the few Python literals a .npy header is made of.

A header is hostile, and ``ast.literal_eval`` builds a tree hundreds of times larger than its text, raises MemoryError
and RecursionError or warns as each Python version pleases, and lets a key given twice pass. This reader knows tuples,
lists, dicts, text, integers and booleans, nests to a fixed depth and makes nothing but the values. Costs one pass.
"""

from __future__ import annotations

import ast
import re

DEEPEST = 32  # dtypes nested deeper than this are attacks; numpy's own writer adds two levels a nesting
_MOST_DIGITS = 20  # 2**64 has 20

# Possessive (++, *+): otherwise the engine keeps 140 bytes for each character it might go back to, 8 MiB for 64 KiB.
_TOKEN = re.compile(
    r"""[ \t\r\n\f]*(?:
      (?P<text>'(?:[^'\\\n]++|\\[^\n])*+'|"(?:[^"\\\n]++|\\[^\n])*+")
    | (?P<number>-?(?:0|[1-9][0-9]*+))L?(?![0-9A-Za-z_.])   # Python 2 wrote long integers as 10L
    | (?P<name>True|False)(?![0-9A-Za-z_])
    | (?P<sign>[()\[\]{},:])
    | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class LiteralError(ValueError):
    """The text is not one of the literals this reader knows."""


def parse_literal(text: str) -> object:
    """The value ``text`` spells; LiteralError where it does not spell one."""
    reader = _Reader(text)
    value = reader.value(DEEPEST)
    if reader.kind != "end":
        raise LiteralError(f"more text after the value, at character {reader.at}")
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._next = 0
        self.at = 0
        self.kind = ""
        self.token = ""
        self._advance()

    def _advance(self) -> None:
        match = _TOKEN.match(self._text, self._next)
        if match is None or match.lastgroup is None:
            raise LiteralError(f"unexpected text at character {self._next}")
        self.kind, self.token = match.lastgroup, match[match.lastgroup]
        self.at, self._next = self._next, match.end()

    def _take(self, sign: str) -> bool:
        if self.kind == "sign" and self.token == sign:
            self._advance()
            return True
        return False

    def value(self, depth: int) -> object:
        if depth == 0:
            raise LiteralError(f"nested deeper than {DEEPEST}")
        kind, token = self.kind, self.token
        self._advance()
        if kind == "text":
            return _text(token)
        if kind == "number":
            if len(token) > _MOST_DIGITS:
                raise LiteralError(f"a number of {len(token)} digits")
            return int(token)
        if kind == "name":
            return token == "True"
        if kind == "sign" and token == "{":
            return self._dict(depth)
        if kind == "sign" and token in "([":
            return self._sequence(token, depth)
        raise LiteralError(f"unexpected {token!r}" if token else "the text ends too early")

    def _sequence(self, opening: str, depth: int) -> object:
        items: list[object] = []
        comma = False
        while not self._take(_CLOSING[opening]):
            if items and not comma:
                raise LiteralError(f"expected a comma at character {self.at}")
            items.append(self.value(depth - 1))
            comma = self._take(",")
        if opening == "[":
            return items
        if len(items) == 1 and not comma:
            return items[0]  # (1) is 1
        return tuple(items)

    def _dict(self, depth: int) -> object:
        pairs: dict[str, object] = {}
        comma = True
        while not self._take("}"):
            if not comma:
                raise LiteralError(f"expected a comma at character {self.at}")
            key = self.value(depth - 1)
            if not isinstance(key, str):
                raise LiteralError("a key that is not text")
            if key in pairs:
                raise LiteralError(f"the key {key[:40]!r} twice")
            if not self._take(":"):
                raise LiteralError(f"expected a colon at character {self.at}")
            pairs[key] = self.value(depth - 1)
            comma = self._take(",")
        return pairs


def _text(token: str) -> str:
    if "\\" not in token:
        return token[1:-1]
    try:
        value = ast.literal_eval(token)  # one text literal, already matched: only its escapes are left to read
    except (ValueError, SyntaxError) as error:
        raise LiteralError("a text with a broken escape") from error
    return str(value)
