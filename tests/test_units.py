"""Sizes as people write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.units import format_duration, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("512", 512),
        ("4096 B", 4096),
        ("64MiB", 64 * 1024**2),
        (" 64 MiB ", 64 * 1024**2),
        ("64mib", 64 * 1024**2),
        ("64M", 64 * 1024**2),
        ("64MB", 64_000_000),
        ("1.5GB", 1_500_000_000),
        ("1.5GiB", 3 * 2**29),
        (".5K", 512),
        ("2T", 2 * 1024**4),
        ("1PiB", 1024**5),
        (7, 7),
        (np.int64(7), 7),
        (np.uint16(7), 7),
    ],
)
def test_a_size_is_what_its_text_says(text: Any, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "64 apples", "64iB", "-1", "1e6", "1,000", "0x10", "64MiBs", "½GB"])
def test_what_is_not_a_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"budget: expected .*64MiB"):
        parse_size(text, what="budget")


@pytest.mark.parametrize("size", [1.5, None, True, b"64MiB", [64]])
def test_other_types_are_type_errors(size: Any) -> None:
    with pytest.raises(TypeError, match="budget: expected an int of bytes"):
        parse_size(size, what="budget")


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="got -1"):
        parse_size(-1)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (10 * 1024, "10.0 KiB"),
        (200 * 1024**2, "200 MiB"),
        (-2048, "-2.00 KiB"),
        (5000 * 1024**4, "5,000 TiB"),
    ],
)
def test_a_size_is_written_with_three_figures(size: int, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(0, 2**60))
def test_what_is_written_reads_back_within_its_three_figures(size: int) -> None:
    back = parse_size(format_size(size).replace(",", ""))
    assert abs(back - size) <= max(1, size * 0.006)


@given(st.integers(0, 2**53))
def test_whole_bytes_are_exact_as_text(size: int) -> None:
    assert parse_size(str(size)) == size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0004, "0.4 ms"),
        (0.05, "50 ms"),
        (0.4, "0.4 s"),
        (9.96, "10 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (90_000, "1 day 1 h"),
        (360_000, "4 days 4 h"),
    ],
)
def test_a_duration_is_written_in_one_or_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
