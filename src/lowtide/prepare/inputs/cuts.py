r"""Where a long document may be cut so that the ids of its pieces, put together, are those of the whole.

With bytes: anywhere. With a tokenizer whose pattern we know (``tokenizers/features.py``), between a letter or digit and
a blank, a line end or the signs that end clauses in Chinese and Japanese: none of the known patterns joins the two,
looks ahead from the first or looks behind from the second. Letters are those that every version of Unicode has. With
any other tokenizer: nowhere; such documents are encoded whole, up to a bound.
"""

from __future__ import annotations

import re

from lowtide.engine import Engine, engine

ANYWHERE, WORDS, NOWHERE = "anywhere", "words", "nowhere"
_LETTERS = (
    rb"[A-Za-z0-9]",
    rb"[\xd0\xd1][\x80-\xbf]",  # Cyrillic, U+0400-047F
    rb"\xd7[\x90-\xaa]",  # Hebrew
    rb"\xd8[\xa7-\xba]",  # Arabic
    rb"\xd9[\x81-\x8a]",
    rb"\xe0\xa4[\x95-\xb9]",  # Devanagari
    rb"\xe0\xb8[\x81-\xae]",  # Thai
    rb"\xe3\x81[\x82-\xbf]",  # Hiragana
    rb"\xe3\x82[\xa2-\xbf]",  # Katakana
    rb"[\xe5-\xe8][\x80-\xbf][\x80-\xbf]",  # Han, U+5000-8FFF
    rb"[\xeb\xec][\x80-\xbf][\x80-\xbf]",  # Hangul, U+B000-CFFF
)
_LETTER = b"(?:" + b"|".join(b"(?<=" + one + b")" for one in _LETTERS) + b")"
_PLACE = re.compile(_LETTER + rb"(?=[ \n]|\xe3\x80\x82|\xef\xbc\x8c)")
# Also before these signs, which none of the known patterns joins to a letter before them. Apostrophes are joined, and
# ends of text often have brackets and bars.
_NEAR = re.compile(_LETTER + rb'(?=[ \n,;:.="()]|\xe3\x80\x82|\xef\xbc\x8c)')


def cut_after(
    text: bytes | bytearray, mark: int, rule: str, end: int | None = None, by: Engine | None = None
) -> int | None:
    """The first place from ``mark`` on, before ``end``, where a document may be cut; ``None`` if there is none."""
    if rule == NOWHERE:
        return None
    if rule == ANYWHERE:
        return mark if mark < len(text) else None
    end = len(text) if end is None else end
    place = (by or engine()).cut_after(text, mark, end)  # the pattern below takes a fifth of a worker's time
    if place is None:
        found = _PLACE.search(text, mark, end)
        place = -1 if found is None else found.start()
    return None if place < 0 else place


def uncut_stretch(text: bytes, rule: str, most: int) -> int | None:
    """Where a stretch of more than ``most`` bytes begins that has no place to cut; ``None`` if there is none."""
    at, by = 0, engine()  # asking for it takes longer than looking
    while len(text) - at > most:
        found = cut_after(text, at + most // 2, rule, at + most, by)
        if found is None:
            return at
        at = found
    return None


def around(text: bytes, first: int, mark: int, signs: bool) -> tuple[int, int]:
    """The last place from ``first`` on and before ``mark``, and the first one from ``mark`` on, where text may be cut
    between words, or else ``first`` and the end. ``signs``: also between a word and a sign, which is nearer."""
    pattern = _NEAR if signs else _PLACE
    after = pattern.search(text, mark)
    reach, end, begin = 64, mark, first
    while end > first and begin == first:
        low = max(first, mark - reach)
        # A pattern that is given an end looks no further, so it gets the sign after the last place too.
        begin = max((one.start() for one in pattern.finditer(text, low, end + 3) if one.start() < end), default=first)
        reach, end = 4 * reach, low
    return begin, len(text) if after is None else after.start()


def holds_a_place(token: str, *, signs: bool = False) -> bool:
    """Whether a cut could fall into this spelling."""
    return (_NEAR if signs else _PLACE).search(token.encode()) is not None
