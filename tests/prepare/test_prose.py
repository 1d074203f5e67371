"""What is read out of manual pages, modules and packages."""

from __future__ import annotations

import pytest

from lowtide.prepare import prose

MANUAL = r""".\" A comment nobody sees
.TH TIDE 1 "May 2026" "tide 1.0" "User Commands"
.de XX
.  never shown
..
.SH NAME
tide \- say when the water is \fBlow\fR
.SH SYNOPSIS
.nf
tide [\-\-place \fIharbour\fP]
     [\-\-json]
.fi
.SH DESCRIPTION
The
.B tide
command reads tables of the harbour
.RI ( tables (5))
and prints the hour. It\(aqs never early, \[lq]almost\[rq] never late.
.PP
The next paragraph begins here and goes on for some words, so that the page is long enough to be kept as one.
.TP
.BR \-\-place " harbour"
The harbour whose tables are read.
.TS
l l.
a	table
.TE
"""

MODULE = '''# A licence nobody reads
r"""Tables of the tide, and how to read them without knowing where the moon is."""

TEXT = """
not a docstring, whatever it looks like
"""

class Harbour(Place):
    """A place with water in it, at least some of the time."""

    def low(
        self, day: int,
    ) -> float:
        """The hour of low water on a day, as everybody counts the hours
        in that place.

        Longer than it has to be, because short modules are left out of the corpus that is made of them.
        """
        return """no docstring either"""

    def high(self):
        """@@@ ### 0x00 0x01 0x02 {}{}{}"""
'''


def test_a_manual_page_becomes_paragraphs_without_its_macros() -> None:
    paragraphs = prose.of_manual(MANUAL)
    assert paragraphs[:2] == ["NAME", "tide - say when the water is low"]
    assert "tide [--place harbour]" in paragraphs
    assert "     [--json]" in paragraphs  # filled by nobody
    description = paragraphs[paragraphs.index("DESCRIPTION") + 1]
    assert description == (
        "The tide command reads tables of the harbour (tables(5)) and prints the hour. "
        'It\'s never early, "almost" never late.'
    )
    assert paragraphs[-1] == "--place harbour The harbour whose tables are read."
    text = "\n".join(paragraphs)
    assert not any(mark in text for mark in ("never shown", "nobody sees", "table\n", "\\"))
    assert [found for one in paragraphs for found in prose.passages(one, set())] == [paragraphs[-2]]


def test_a_page_that_only_names_another_is_left_out() -> None:
    assert prose.of_manual(".so man1/tide.1\n") == []


def test_a_module_has_the_paragraphs_of_its_docstrings() -> None:
    found = [one for one in prose.of_module(MODULE) if one.endswith(".")]
    assert found == [
        "Tables of the tide, and how to read them without knowing where the moon is.",
        "A place with water in it, at least some of the time.",
        "The hour of low water on a day, as everybody counts the hours in that place.",
        "Longer than it has to be, because short modules are left out of the corpus that is made of them.",
    ]


@pytest.mark.parametrize("text", ["", "x = 1\n", '"""never closed'])
def test_a_module_without_docstrings_has_no_paragraphs(text: str) -> None:
    assert prose.of_module(text) == []


def test_the_readme_of_a_package_is_what_follows_its_headers() -> None:
    readme = "# Sea\n\nSea is a `package` about\nthe *tide*, and its harbours."
    assert prose.of_metadata(f"Name: sea\nVersion: 1.0\n\n{readme}") == [
        "# Sea",
        "Sea is a package about the tide, and its harbours.",
    ]


PROSE = (
    "The water is low at noon, and the boats lie on the sand until it comes back. "
    "Nobody minds, because it always does come back."
)


@pytest.mark.parametrize(
    "text",
    [
        "The water is low at noon.",  # too short to say much
        PROSE.removesuffix("."),
        PROSE.lower(),
        PROSE * 40,
        f"Returns: {PROSE}",
        f"Parameters ---------- noon : float {PROSE}",
        PROSE.replace("noon", "noon()"),
        PROSE.replace("noon", "tide(5)"),
        PROSE.replace("noon", '"noon"'),
        PROSE.replace("noon", "sea/noon"),
        PROSE.replace("noon", "noon.py"),
        PROSE.replace("noon", "lowWater"),
        PROSE.replace("at noon", "with -n"),
    ],
)
def test_what_has_not_the_form_of_plain_sentences_is_left_out(text: str) -> None:
    assert prose.passages(PROSE, set()) == [PROSE]
    assert prose.passages(text, set()) == []


def test_a_sentence_with_marks_ends_a_passage_and_the_others_stay() -> None:
    other = "Whoever walks there sees shells and worms, and now and then a boot that somebody has lost in the mud."
    assert prose.passages(f"Use --boats=none to see sand. {PROSE} See :meth:tide. {other}", set()) == [PROSE, other]


def test_a_sentence_is_taken_once() -> None:
    seen = set[int]()
    assert prose.passages(PROSE, seen) == [PROSE]
    assert prose.passages(PROSE, seen) == []
    other = "Whoever walks there sees shells and worms, and now and then a boot that somebody has lost in the mud."
    assert prose.passages(f"{PROSE} {other}", seen) == [other]


COMMON = prose.common_words([PROSE, "See and call or wait for the others of it as they have it, for it's never early."])


@pytest.mark.parametrize(
    "text",
    [
        "See --tide, --moon, --sand, --boats, --harbour and the others.",
        "Call lowWater(), highWater() or spring_tide(), and wait for it.",
        "See Rotterdam, Bremerhaven, Southampton, Portsmouth, Copenhagen and Gothenburg.",
        "See 0x3f 0x40 | 12.5 | 99 | {a: 1} and the others, as they have them.",
        "THE WATER IS LOW AT NOON, AND THE BOATS LIE ON THE SAND.",
    ],
)
def test_names_options_numbers_and_rare_words_are_no_common_ones(text: str) -> None:
    assert prose.in_common_words(PROSE, COMMON)
    assert prose.in_common_words('It\'s never early, because the "water" always comes (and comes back).', COMMON)
    assert not prose.in_common_words(text, COMMON)


def test_one_word_in_seven_may_be_rare() -> None:
    assert prose.in_common_words("The boats lie on sand until Bremerhaven comes.", COMMON)
    assert not prose.in_common_words("The boats lie until Bremerhaven comes.", COMMON)
