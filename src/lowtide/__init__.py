"""Lowtide reads arrays and token corpora far bigger than RAM inside a memory budget you set."""

from typing import TYPE_CHECKING, Any

from lowtide.array import Array, open
from lowtide.create import create
from lowtide.errors import BudgetError, FormatError, LowtideError, ReadError, StateError
from lowtide.feed import Feed
from lowtide.storage.release import release
from lowtide.tokens import Tokens, open_tokens

if TYPE_CHECKING:
    from lowtide.memory import watch
    from lowtide.mixture import Mixture, mix

__all__ = [
    "Array",
    "BudgetError",
    "Feed",
    "FormatError",
    "LowtideError",
    "Mixture",
    "ReadError",
    "StateError",
    "Tokens",
    "create",
    "mix",
    "open",
    "open_tokens",
    "release",
    "watch",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """``lowtide.watch`` and ``lowtide.mix`` on first use: measuring takes 25 ms to import, exact fractions 3 ms."""
    if name == "watch":
        from lowtide.memory import watch

        return watch
    if name in ("mix", "Mixture"):
        from lowtide import mixture

        return getattr(mixture, name)
    raise AttributeError(f"module 'lowtide' has no attribute {name!r}")
