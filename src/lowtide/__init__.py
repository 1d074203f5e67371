"""Lowtide reads arrays and token corpora far bigger than RAM inside a memory budget you set."""

from lowtide.array import Array, open
from lowtide.errors import BudgetError, FormatError, LowtideError, ReadError, StateError

__all__ = [
    "Array",
    "BudgetError",
    "FormatError",
    "LowtideError",
    "ReadError",
    "StateError",
    "open",
]

__version__ = "0.1.0"
