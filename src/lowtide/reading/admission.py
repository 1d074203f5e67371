"""The only check against the budget: two batches must fit, with what is held while one is filled.

A for loop holds one batch while the next is filled. What cannot fit is refused before a byte is read, naming the number
to change; a budget that was not stated grows instead, as far as there is memory for one batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from lowtide.errors import BudgetError
from lowtide.machine import memory_limit
from lowtide.reading.ahead import Reader
from lowtide.storage.budget import whole_pages
from lowtide.units import GIB, format_size


def admit(reader: Reader, rows: int, where: str, smaller: Callable[[int], str]) -> None:
    """Refuse batches of ``rows`` that the budget cannot hold; ``smaller(n)``: how to ask for n rows instead."""
    for store in reader.stores:
        store.require_open()

    size = reader.nbytes(rows)
    if size > GIB:  # smaller ones need no look at the machine
        found = memory_limit()
        if found.limit is not None and size > found.limit:
            way = smaller(max(1, rows * (found.limit // 4) // size))
            raise BudgetError(
                f"{where}: expected a batch of at most {format_size(found.limit)}, the memory that the {found.source} "
                f"allows, got one of {format_size(size)}. {way[0].upper()}{way[1:]}."
            )

    def needed(count: int) -> int:
        return 2 * whole_pages(reader.nbytes(count)) + whole_pages(reader.scratch(count))

    budget = reader.budget
    fits = bisect_right(range(1, rows), budget.limit - budget.aside, key=needed)
    budget.admit(size, copies=2, extra=reader.scratch(rows), where=where, smaller=smaller(fits) if fits else "")
