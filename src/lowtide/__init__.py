"""Lowtide reads arrays and token corpora far bigger than RAM inside a memory budget you set."""

from typing import TYPE_CHECKING, Any

from lowtide.array import Array, open
from lowtide.create import create
from lowtide.errors import BudgetError, FormatError, LowtideError, ReadError, StateError
from lowtide.feed import Feed
from lowtide.mixture import Mixture, mix
from lowtide.storage.release import release
from lowtide.tokens import Tokens, open_tokens

if TYPE_CHECKING:
    from lowtide.memory import watch

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
    """``lowtide.watch`` on first use: measuring is a room of its own, and 25 ms that readers need not pay at import."""
    if name == "watch":
        from lowtide.memory import watch

        return watch
    raise AttributeError(f"module 'lowtide' has no attribute {name!r}")
