"""Is the data in the page cache already? Decides when announcing reads pays.

One idea: telling the kernel of reads before making them is worth 6x when they miss and costs as much as the reads when
they hit. RWF_NOWAIT answers for free: it reads what is cached and refuses what is not. So a store starts out
believing in the cache, learns of the first miss from a refused read, and from then on announces; now and then it lets
one call go unannounced to learn whether the cache has filled meanwhile.
"""

from __future__ import annotations

import os

NOWAIT = getattr(os, "RWF_NOWAIT", 0)
RECHECK_CALLS = 32  # an unannounced cold call costs about twice an announced one: 3 % of one in 32


class Temperature:
    """``cold`` is what the last reads said. One per store; races between threads only cost a wrong guess."""

    __slots__ = ("_calls", "cold")

    def __init__(self) -> None:
        self.cold = False
        self._calls = 0

    def announce_next(self) -> bool:
        """Whether to tell the kernel of the next call now."""
        self._calls += 1
        return self.cold and self._calls % RECHECK_CALLS != 0

    def try_cached(self) -> bool:
        """Whether this call should first try the cache alone."""
        return bool(NOWAIT) and (not self.cold or self._calls % RECHECK_CALLS == 0)
