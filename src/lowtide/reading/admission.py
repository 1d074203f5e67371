"""The only check against the budget: two batches must fit, with what is held while one is filled.

A for loop holds one batch while the next is filled. What cannot fit is refused before a byte is read, naming the number
to change; a budget that was not stated grows instead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from lowtide.reading.ahead import Reader
from lowtide.storage.budget import whole_pages


def admit(reader: Reader, rows: int, where: str, smaller: Callable[[int], str]) -> None:
    """Refuse batches of ``rows`` that the budget cannot hold; ``smaller(n)``: how to ask for n rows instead."""
    for store in reader.stores:
        store.require_open()

    def needed(count: int) -> int:
        return 2 * whole_pages(reader.nbytes(count)) + whole_pages(reader.scratch(count))

    budget = reader.budget
    fits = bisect_right(range(1, rows), budget.limit - budget.aside, key=needed)
    budget.admit(
        reader.nbytes(rows), copies=2, extra=reader.scratch(rows), where=where, smaller=smaller(fits) if fits else ""
    )
