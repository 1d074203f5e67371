"""Lowtide reads arrays and token corpora far bigger than RAM inside a memory budget you set."""

import importlib
from typing import TYPE_CHECKING, Any

from lowtide.array import Array, open
from lowtide.create import create
from lowtide.errors import BudgetError, FormatError, LowtideError, ReadError, StateError, WriteError
from lowtide.feed import Feed
from lowtide.storage.release import release
from lowtide.together import Together, together
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
    "Together",
    "Tokens",
    "WriteError",
    "create",
    "mix",
    "open",
    "open_tokens",
    "release",
    "together",
    "watch",
]

__version__ = "0.1.0"

_ADAPTERS = ("torch", "dask", "ray")  # modules that import a framework, each with an extra of the same name


def __getattr__(name: str) -> Any:
    """``lowtide.watch``, ``lowtide.mix`` and the adapters on first use: readers need not pay for them at import."""
    if name == "watch":
        from lowtide.memory import watch

        return watch
    if name in ("mix", "Mixture"):
        from lowtide import mixture

        return getattr(mixture, name)
    if name in _ADAPTERS:
        try:
            return importlib.import_module(f"lowtide.{name}")
        except ModuleNotFoundError as problem:
            raise AttributeError(
                f"lowtide.{name}: expected {name} to be installed, got {problem}. Run: pip install 'lowtide[{name}]'."
            ) from problem
    raise AttributeError(f"module 'lowtide' has no attribute {name!r}")
