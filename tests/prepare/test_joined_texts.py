"""Documents joined natively: the same as one by one, or left to the slower way; never something else."""

from __future__ import annotations

import json
import random

import pytest

from lowtide.corpus.request import Request
from lowtide.engine import engine
from lowtide.errors import FormatError
from lowtide.prepare.inputs.cuts import _PLACE
from lowtide.prepare.inputs.json_lines import _UNITS
from lowtide.prepare.inputs.text_blocks import TextBlock
from lowtide.prepare.inputs.texts import Joined, Tally, joined_texts, texts
from lowtide.prepare.tokenizers.features import RANGES, unlike_places

END = b"<|endoftext|>"

pytestmark = pytest.mark.skipif(
    engine().name != "native", reason="NOT TESTED: documents joined natively - the native engine is not in use"
)


def joined(kind: str, payload: bytes, request: Request) -> Joined | None:
    return joined_texts(TextBlock(0, kind, payload, ("a",)), request, END, RANGES)


def one_by_one(kind: str, payload: bytes, request: Request) -> tuple[bytes, int, int, bytes] | None:
    tally = Tally()
    try:
        found = texts(TextBlock(0, kind, payload, ("a",)), request, tally, utf8=True)
    except FormatError:
        return None
    whole = b"".join(text + END for text in found)
    return whole, len(found), tally.empty, unlike_places(whole).tobytes()


LETTERS = [
    "a",
    "Z",
    "0",
    " ",
    "\n",
    "\t",
    '"',
    "\\",
    "/",
    "\0",
    "\x1f",
    "\x7f",
    "é",
    "€",
    "中",
    "😀",
    "\u088f",
    "\ua7ce",
]
LETTERS += ["\U00010940", "\U0001095a", "\U000323b0", "b" * 9]


def some_text(rng: random.Random) -> str:
    return "".join(rng.choices(LETTERS, k=rng.randrange(20)))


def some_value(rng: random.Random, depth: int = 0) -> object:
    plain = [None, True, False, 0, -1, 1.5, 1e300, -2e-9, some_text(rng)]
    if depth < 3 and rng.random() < 0.4:
        few = [some_value(rng, depth + 1) for _ in range(rng.randrange(3))]
        return few if rng.random() < 0.5 else {some_text(rng): value for value in few}
    return rng.choice(plain)


def some_line(rng: random.Random) -> bytes:
    pairs = [(some_text(rng), some_value(rng)) for _ in range(rng.randrange(3))]
    pairs.insert(rng.randrange(len(pairs) + 1), ("text", some_text(rng)))
    spaced = rng.choice([None, (",", ":"), (" ,\t", " : ")])
    return json.dumps(dict(pairs), ensure_ascii=rng.random() < 0.5, separators=spaced).encode()


def test_lines_of_json_are_the_same_as_parsed_one_by_one() -> None:
    rng = random.Random(1)
    for _ in range(300):
        payload = b"\n".join([*(some_line(rng) for _ in range(rng.randrange(1, 6))), *([b""] * rng.randrange(2))])
        found = joined("jsonl", payload, Request())
        assert found is not None, payload
        assert found == one_by_one("jsonl", payload, Request()), payload


def test_damaged_json_is_never_taken_for_something_else() -> None:
    rng, refused = random.Random(2), 0
    for _ in range(3000):
        payload = bytearray(some_line(rng) + b"\n" + some_line(rng))
        for _ in range(rng.randrange(1, 3)):
            at = rng.randrange(len(payload))
            payload[at : at + rng.randrange(2)] = rng.choice(
                [b"", b"\xff", b'"', b"\\", b"{", b"1", b",", b"\x01", b"e"]
            )
        found = joined("jsonl", bytes(payload), Request())
        refused += found is None
        assert found is None or found == one_by_one("jsonl", bytes(payload), Request()), bytes(payload)
    assert 1000 < refused < 3000


def test_long_strings_full_of_escapes_are_the_same_wherever_an_escape_falls() -> None:
    """64 bytes are read at a time where the processor allows it, so escapes must meet every border between them."""
    rng, met = random.Random(7), {True: 0, False: 0}
    fine = [b"a", b"bc", b"d" * 31, b"\\n", b"\\\\", b"\\\\\\\\", b'\\"', b"\\/", b"\\t", b"\\u00e9", "é中😀".encode()]
    bad = [b"\\x", b"\\\n", b"\x01", b'"', b"\\\xc3\xae", b"\\u12", b"\xff", b"\\\x80"]
    for turn in range(6000):
        parts = rng.choices(fine, k=rng.randrange(200))
        if turn % 2:
            parts[len(parts) // 2 : len(parts) // 2] = [rng.choice(bad)]
        line = b'{"text": "' + b"".join(parts) + b'"}'
        found = joined("jsonl", line, Request())
        assert found is None or found == one_by_one("jsonl", line, Request()), line
        met[found is None] += 1
        assert turn % 2 or found is not None, line
    assert min(met.values()) > 2500


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": "a", "text": "b"}',
        b'{"other": "a"}',
        b'{"text": 1}',
        b'{"text": "\\ud800"}',
        b'{"text": "\\udc00\\ud800"}',
        b'{"text": "a"} {}',
        b'{"text": "a", "n": 01}',
        b'{"text": "a", "n": NaN}',
        b'{"text": "a", }',
        b'{"text": "a',
        b'["text"]',
        b'\xef\xbb\xbf{"text": "a"}',
        b'{"text": "a", "deep": ' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"text": "\xed\xa0\x80"}',
        b'{"text": "a", "other": "\xff"}',
    ],
)
def test_what_is_not_plainly_right_is_left_to_the_parser(line: bytes) -> None:
    assert joined("jsonl", line, Request()) is None


@pytest.mark.parametrize(("kind", "separator"), [("lines", ""), ("separator", "--"), ("separator", "é\n")])
def test_lines_and_separated_documents_are_the_same_as_one_by_one(kind: str, separator: str) -> None:
    rng, request, between = random.Random(3), Request(separator=separator), separator or "\n"
    for _ in range(500):
        text = "".join(rng.choices([*LETTERS, between, between, "\r\n", "-"], k=rng.randrange(1, 40)))
        payload = text.encode() + rng.choice([b"", b"", b"\xe4", b"\xf0\x9f"])
        assert joined(kind, payload, request) == one_by_one(kind, payload, request), payload


def test_places_to_cut_are_those_of_the_pattern() -> None:
    rng, signs = random.Random(5), [b" ", b"\n", "。".encode(), "，".encode(), b"\xe3", b"\xef\xbc", b"\x80", b"\x82"]
    letters = [
        one.encode()
        for one in ("a", "Z", "7", "_", "[", "`", "ж", "א", "م", "ع", "क", "ก", "あ", "ア", "中", "한", "é", "ߐ")
    ]
    met = {"none": 0, "one": 0}
    for _ in range(6000):
        text = b"".join(rng.choices([*letters, *signs], k=rng.randrange(12)))
        mark = rng.randrange(len(text) // 2 + 1)
        end = rng.randrange(mark, len(text) + 2)
        found = _PLACE.search(text, mark, end)
        expected = -1 if found is None else found.start()
        assert engine().cut_after(text, mark, end) == expected, (text, mark, end)
        met["none" if expected < 0 else "one"] += 1
    assert min(met.values()) > 500


def test_units_of_strings_end_where_the_pattern_says() -> None:
    rng, parts = random.Random(6), [b"a", b"\n", "ж".encode(), b"\\", b"\\u", b"u", b"1", b"F", b"g", b'"', b"\\ud83d"]
    met = set()
    for _ in range(6000):
        text = b"".join(rng.choices(parts, k=rng.randrange(14)))
        first = rng.randrange(len(text) + 1)
        found = _UNITS.match(text, first)
        assert found is not None
        assert engine("native").string_units(text, first) == found.end(), (text, first)
        met.add(text[found.end() : found.end() + 2])
    assert {b"", b"\\", b"\\u", b'"'} <= met


def test_every_two_and_three_bytes_before_a_blank_are_a_letter_or_not_as_in_the_pattern() -> None:
    for lead in range(0x80, 0x100):
        for last in range(0x80, 0x100):
            for text in (bytes([lead, last, 32]), *(bytes([first, lead, last, 32]) for first in range(0xE0, 0xF0))):
                found = _PLACE.search(text)
                assert engine().cut_after(text, 0, len(text)) == (-1 if found is None else found.start()), text


def test_a_separator_of_one_line_end_keeps_carriage_returns() -> None:
    assert joined("separator", b"a\r\nb", Request(separator="\n")) is None
