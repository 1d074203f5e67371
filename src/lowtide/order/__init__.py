"""Orders: which row comes when, as pure functions of integers.

Shuffling costs no memory, any position is computed directly, and resuming is one integer. ``words`` makes
random words from (key, counter), ``feistel`` a bijection of any size from them, ``orders`` and ``local``
what the rest of Lowtide uses. Nothing here opens a file. Promises and costs: docs/order.md.
"""

from lowtide.order.local import LocalPermutation
from lowtide.order.orders import Order, Permutation, rank_slice
from lowtide.order.words import draws, key

__all__ = ["LocalPermutation", "Order", "Permutation", "draws", "key", "rank_slice"]
