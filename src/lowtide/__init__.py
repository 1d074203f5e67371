"""Lowtide reads arrays and token corpora far bigger than RAM inside a memory budget you set."""

from lowtide.array import Array, open
from lowtide.errors import BudgetError, FormatError, LowtideError, ReadError, StateError
from lowtide.feed import Feed
from lowtide.memory import watch
from lowtide.storage.release import release
from lowtide.tokens import Tokens, open_tokens

__all__ = [
    "Array",
    "BudgetError",
    "Feed",
    "FormatError",
    "LowtideError",
    "ReadError",
    "StateError",
    "Tokens",
    "open",
    "open_tokens",
    "release",
    "watch",
]

__version__ = "0.1.0"
