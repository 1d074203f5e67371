"""How an option is given to argparse, and numbers refused with messages like all others.

Kept apart from flags.py, which knows stores and formats: ``lowtide doctor`` watches without loading NumPy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence


def whole(text: str) -> int:
    """For argparse: a whole number, refused with a message like all others."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None


def option(
    to: argparse._ActionsContainer,
    spelled: str,
    text: str,
    kind: Callable[[str], object] = str,
    default: object = None,
    choices: Sequence[str] | None = None,
    required: bool = False,
) -> None:
    """Add ``--name VALUE`` as it is spelled, such as ``--batch N``; one with choices names them itself."""
    name, _, metavar = spelled.partition(" ")
    more = {"choices": choices, "required": required}
    to.add_argument(name, type=kind, metavar=metavar or None, default=default, help=text, **more)  # type: ignore[arg-type]
