"""Checks of what callers pass, each worded once.

The same mistake reads the same everywhere - which argument, what was expected, what was given, what to write
instead. Wrong types are TypeError, wrong values ValueError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def whole_number(name: str, value: Any, *, example: str = "") -> int:
    """``value`` as an int; TypeError for anything but a whole number. ``example``: what to write instead."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}: expected a whole number, got {type(value).__name__}. Use {example or f'{name}=0'}.")
    return int(value)


def at_least(name: str, value: Any, least: int, *, example: str = "") -> int:
    """``value`` as an int of ``least`` or more."""
    example = example or f"{name}={max(least, 64)}"
    number = whole_number(name, value, example=example)
    if number < least:
        raise ValueError(f"{name}: expected {least} or more, got {number}. Use {example}.")
    return number


def one_of(name: str, value: Any, allowed: Sequence[str]) -> str:
    """``value`` if it is one of the ``allowed`` words; the error suggests the most similar one, or else the first."""
    if value not in allowed:
        from difflib import get_close_matches  # here: only a mistake needs this module

        like = get_close_matches(str(value), allowed, 1) or allowed
        raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}. Use {name}={like[0]!r}.")
    return str(value)


def array_of(where: str, value: Any, way: str) -> NDArray[Any]:
    """``value`` as an array; ValueError where its parts differ in length. ``way``: what to do about it.

    A masked array is refused: without its mask, numbers that are not there would look as if they were.
    """
    if hasattr(value, "mask") and hasattr(value, "filled"):
        raise TypeError(f"{where}: expected an array without a mask, got a masked one. Use value.filled(0), say.")
    try:
        return np.asarray(value)
    except ValueError:
        raise ValueError(f"{where}: expected an array, got parts of different lengths. {way}.") from None
