"""Files, strategies, page-cache rungs, aligned buffers and leases: bytes on disk into memory we own.

The reading path, top to bottom: ``store.py`` (one call per batch) -> ``read.py`` (the default strategy) ->
``buffers.py`` (where bytes land). ``mapped.py`` and ``direct.py`` are other strategies, ``spans.py`` the arithmetic,
``descriptors.py`` the open files, ``budget.py`` the count of what is held, ``forks.py`` what children inherit.
"""

from lowtide.storage.budget import Budget
from lowtide.storage.buffers import Buffer, Filling, Pool
from lowtide.storage.descriptors import Extent
from lowtide.storage.store import CACHES, STRATEGIES, Store

__all__ = ["CACHES", "STRATEGIES", "Budget", "Buffer", "Extent", "Filling", "Pool", "Store"]
