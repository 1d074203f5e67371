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
    lines = prose.of_manual(MANUAL).splitlines()
    assert lines[:2] == ["NAME", "tide - say when the water is low"]
    assert "tide [--place harbour]" in lines
    assert "     [--json]" in lines  # filled by nobody
    description = lines[lines.index("DESCRIPTION") + 1]
    assert description == (
        "The tide command reads tables of the harbour (tables(5)) and prints the hour. "
        'It\'s never early, "almost" never late.'
    )
    assert lines[-1] == "--place harbour The harbour whose tables are read."
    assert not any(mark in prose.of_manual(MANUAL) for mark in ("never shown", "nobody sees", "table\n", "\\"))


def test_a_page_that_only_names_another_is_left_out() -> None:
    assert prose.of_manual(".so man1/tide.1\n") == ""


def test_a_module_becomes_what_pydoc_prints_of_it() -> None:
    text = prose.of_module(MODULE, "sea.tide")
    assert text.startswith("Help on module sea.tide:\n\nTables of the tide, and how")
    assert "\n\nclass Harbour(Place)\nA place with water" in text
    assert "\n\ndef low( self, day: int, ) -> float\nThe hour of low water" in text
    assert "\nin that place.\n" in text  # the docstring's own indentation is gone
    assert not any(words in text for words in ("licence", "whatever it looks", "no docstring either", "0x00"))


@pytest.mark.parametrize("text", ["", "x = 1\n", '"""Short."""\n', '"""never closed'])
def test_a_module_with_little_to_read_is_left_out(text: str) -> None:
    assert prose.of_module(text, "m") == ""


def test_the_readme_of_a_package_is_what_follows_its_headers() -> None:
    readme = "Sea is a package about the tide. " * 10
    assert prose.of_metadata(f"Name: sea\nVersion: 1.0\n\n{readme}") == readme.strip()
    assert prose.of_metadata("Name: sea\nVersion: 1.0\n") == ""


def test_tables_and_numbers_do_not_read_well_and_prose_does() -> None:
    assert prose.reads_well("The water is low at noon, and the boats lie on the sand.")
    assert not prose.reads_well("0x3f 0x40 | 12.5 | 99 | {a: 1}\n" * 5)
    assert prose.of_page("0x3f 0x40 | 12.5 | 99 | {a: 1}\n" * 50) == ""
