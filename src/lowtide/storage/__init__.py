"""Files, strategies, page-cache rungs, aligned buffers and leases: bytes on disk into memory we own.

The reading path, top to bottom: ``store.py`` (one call a batch) -> ``pread.py`` (the default strategy) ->
``buffers.py`` (where bytes land). ``mapped.py`` and ``direct.py`` are other strategies, ``spans.py`` the arithmetic.
"""

from lowtide.storage.buffers import Budget, Buffer, Pool
from lowtide.storage.files import Extent
from lowtide.storage.store import CACHES, STRATEGIES, Store

__all__ = ["CACHES", "STRATEGIES", "Budget", "Buffer", "Extent", "Pool", "Store"]
