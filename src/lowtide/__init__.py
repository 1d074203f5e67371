"""Lowtide reads arrays and token corpora far bigger than RAM inside a memory budget you set."""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowtide.array import Array, open
    from lowtide.create import create
    from lowtide.errors import BudgetError, FormatError, LowtideError, ReadError, StateError, WriteError
    from lowtide.feed import Feed
    from lowtide.memory import watch
    from lowtide.mixture import Mixture, mix
    from lowtide.storage.release import release
    from lowtide.together import Together, together
    from lowtide.tokens import Tokens, open_tokens

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

# Where each name is imported from on first use: importing lowtide alone costs nothing.
_HOMES = {
    "array": "Array open",
    "create": "create",
    "errors": "BudgetError FormatError LowtideError ReadError StateError WriteError",
    "feed": "Feed",
    "memory.watch": "watch",
    "mixture": "Mixture mix",
    "storage.release": "release",
    "together": "Together together",
    "tokens": "Tokens open_tokens",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
# Modules that import a framework, each with an extra of the same name.
_ADAPTERS = ("torch", "dask", "ray", "xgboost", "lightgbm")


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(importlib.import_module(f"lowtide.{_HOME_OF[name]}"), name)
        globals()[name] = value
        return value
    if name in _ADAPTERS:
        try:
            return importlib.import_module(f"lowtide.{name}")
        except ModuleNotFoundError as problem:
            raise AttributeError(
                f"lowtide.{name}: expected {name} to be installed, got {problem}. Run: pip install 'lowtide[{name}]'."
            ) from problem
    raise AttributeError(f"module 'lowtide' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_ADAPTERS, *(name for name in globals() if name.startswith("__"))})


class _Package(ModuleType):
    """Python binds a module to its package when it is imported: this keeps ``lowtide.create`` and ``lowtide.together``
    the functions in the modules of these names."""

    def __setattr__(self, name: str, value: Any) -> None:
        is_module = isinstance(value, ModuleType) and _HOME_OF.get(name) == name
        super().__setattr__(name, getattr(value, name) if is_module else value)


sys.modules[__name__].__class__ = _Package
