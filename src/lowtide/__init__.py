"""Lowtide reads arrays and token corpora far bigger than RAM inside a memory budget you set."""

from lowtide.errors import BudgetError, FormatError, LowtideError, ReadError, StateError

__all__ = [
    "BudgetError",
    "FormatError",
    "LowtideError",
    "ReadError",
    "StateError",
]

__version__ = "0.1.0"
