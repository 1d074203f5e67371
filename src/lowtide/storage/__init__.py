"""Files, strategies, page-cache rungs, aligned buffers and leases: bytes on disk into memory we own.

The reading path, top to bottom: ``store.py`` (``start`` and ``finish``) -> ``read.py`` (the default strategy) ->
``watched_files.py`` (open files) and ``buffers.py`` (where bytes land). ``mapped.py`` has the other strategies,
``spans.py`` the arithmetic, ``budget.py`` the count of what is held, ``forks.py`` what children inherit, and
``writing/`` makes new files.
"""

from lowtide.storage.budget import Budget
from lowtide.storage.buffers import Bytes, Pool
from lowtide.storage.read import RESIDENT, SCATTERED, SEQUENTIAL
from lowtide.storage.store import CACHES, STRATEGIES, Store
from lowtide.storage.watched_files import Extent

__all__ = ["CACHES", "RESIDENT", "SCATTERED", "SEQUENTIAL", "STRATEGIES", "Budget", "Bytes", "Extent", "Pool", "Store"]
