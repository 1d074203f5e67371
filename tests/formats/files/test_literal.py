"""The literal reader agrees with Python on what it knows and refuses the rest."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.formats.files.literal import LiteralError, parse_literal

LEAVES = st.booleans() | st.integers(-(10**18), 10**18) | st.text(max_size=12)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_a_value_comes_back_from_its_own_text(value: object) -> None:
    assert parse_literal(repr(value)) == value


@settings(max_examples=250, deadline=None)
@given(st.text(alphabet="()[]{}',:\"\\ 01-LTrueFals\n", max_size=30))
def test_what_it_accepts_python_reads_the_same(text: str) -> None:
    try:
        value = parse_literal(text)
    except LiteralError:
        return
    if "L" not in text:  # long integers of Python 2 are the one thing Python 3 does not read
        assert ast.literal_eval(text.strip()) == value


@pytest.mark.parametrize(
    "text", ["", "1 2", "(1", "[1 2]", "{'a' 1}", "{1: 2}", "01x", "1.5", "None", "'a' 'b'", "(,)", "[,]"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(LiteralError):
        parse_literal(text)
