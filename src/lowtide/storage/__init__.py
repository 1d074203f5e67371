"""Files, strategies, page-cache rungs, aligned buffers and leases: bytes on disk into memory we own.

The reading path, top to bottom: ``store.py`` (``start`` and ``finish``) -> ``read.py`` (the default strategy) ->
``watched_files.py`` (open files) and ``buffers.py`` (where bytes land). ``mapped.py`` has the other strategies,
``spans.py`` the arithmetic, ``budget.py`` the count of what is held, ``forks.py`` what children inherit, and
``writing/`` makes new files. Names are imported on first use: a report written by ``own_files.py`` needs no NumPy.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowtide.storage.budget import Budget
    from lowtide.storage.buffers import Bytes, Pool
    from lowtide.storage.read import RESIDENT, SCATTERED, SEQUENTIAL
    from lowtide.storage.store import CACHES, STRATEGIES, Store
    from lowtide.storage.watched_files import Extent, FilePieces

__all__ = [
    "CACHES",
    "RESIDENT",
    "SCATTERED",
    "SEQUENTIAL",
    "STRATEGIES",
    "Budget",
    "Bytes",
    "Extent",
    "FilePieces",
    "Pool",
    "Store",
]

_HOMES = {
    "budget": "Budget",
    "buffers": "Bytes Pool",
    "read": "RESIDENT SCATTERED SEQUENTIAL",
    "store": "CACHES STRATEGIES Store",
    "watched_files": "Extent FilePieces",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'lowtide.storage' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"lowtide.storage.{_HOME_OF[name]}"), name)
    return value
