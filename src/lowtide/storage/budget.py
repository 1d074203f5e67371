"""The budget: the most bytes one opened object may hold at once in this process, and what it holds now.

Bytes are held by an object, a ``Holding``, for exactly as long as that object lives. Nothing has to be given back, so
nothing can be forgotten: an exception at any line drops the object, and the bytes come back with it.

Costs a sum over the live holdings (a handful) whenever something new is reserved; reused buffers reserve nothing. Does
not allocate.
"""

from __future__ import annotations

import gc
import weakref
from typing import Protocol

from lowtide.errors import BudgetError
from lowtide.machine import PAGE, room_for_cache
from lowtide.storage.forks import Turn, renew_in_children
from lowtide.units import KIB, MIB, format_size, parse_size

AUTO_BUDGET = 64 * MIB
AUTO_BATCHES = 3  # one in the user's hands, one being filled, one spare
AUTO_WINDOW = 256 * MIB  # most that it grows to for a window of a local shuffle
LARGEST_ALLOWANCE = 16 * MIB  # of what one store may hold mapped
SMALLEST_ALLOWANCE = 256 * KIB


def whole_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


class Trimmable(Protocol):
    """Keeps unused buffers for later."""

    def trim(self) -> None: ...


class Shrinkable(Protocol):
    """Holds bytes of a budget that it can do without."""

    def shrink(self) -> None:
        """Give them up."""
        ...


class Holding:
    """Bytes counted against a budget while this object lives; ``aside``: for as long as a store is open. In a larger
    budget those for what may be ``mapped`` are larger, and those for rows ``kept`` in memory more."""

    __slots__ = ("__weakref__", "aside", "kept", "mapped", "size")

    def __init__(self, size: int, *, aside: bool = False) -> None:
        self.size = size
        self.aside = aside
        self.mapped = self.kept = False


class Budget:
    """A stated budget is strict. ``"auto"`` is 64 MiB, or three batches where batches are larger than that; it may grow
    to what reading a whole window of a local shuffle takes."""

    def __init__(self, budget: int | str) -> None:
        self.stated = budget != "auto"
        self.limit = parse_size(budget, what="budget") if self.stated else AUTO_BUDGET
        self.peak = 0
        # Sizes of rows that are kept in memory where half of what is left holds them, the smallest first.
        self.keepable: tuple[int, ...] = ()
        self._turn = Turn()
        self._holdings: set[weakref.ref[Holding]] = set()
        self._idle: set[weakref.ref[Trimmable]] = set()
        self._others: set[weakref.ref[Shrinkable]] = set()
        renew_in_children(self)

    def __repr__(self) -> str:
        stated = "stated" if self.stated else "auto, grows with the batch"
        held, peak = format_size(self.held), format_size(self.peak)
        return f"<lowtide budget {format_size(self.limit)} ({stated}): {held} held, {peak} at most so far>"

    def __reduce__(self) -> tuple[type[Budget], tuple[int | str]]:
        return Budget, (self.limit if self.stated else "auto",)

    @property
    def held(self) -> int:
        return sum(holding.size for holding in self._living())

    @property
    def aside(self) -> int:
        """The part of ``held`` that strategies keep for themselves as long as their store is open."""
        return sum(holding.size for holding in self._living() if holding.aside)

    def admit(self, batch: int, *, copies: int, where: str, smaller: str, extra: int = 0) -> None:
        """Refuse batches, before a byte is read, if ``copies`` cannot be held; an unstated budget grows instead.

        ``smaller``: another way out, if there is one: ``use chunks(512)``.
        """
        batch = max(batch, 1)  # rows without bytes have buffers too
        aside = self.aside
        needed = whole_pages(batch) * copies + whole_pages(extra) + aside
        if not self.stated:
            batches = whole_pages(batch) * max(copies, AUTO_BATCHES)
            self.limit = max(self.limit, batches + whole_pages(extra) + aside)
        elif needed > self.limit:
            more = f" + {format_size(whole_pages(extra))} to read into" if extra else ""
            wanted = needed - aside
            needed = max(needed, self._enough(wanted))
            more += f" + {format_size(needed - wanted)} set aside" if needed > wanted else ""
            raise BudgetError(
                f"{where}: expected a budget of {format_size(needed)} or more ({copies} x "
                f"{format_size(whole_pages(batch))}: what you hold and what is being filled{more}), "
                f"got {format_size(self.limit)}. "
                f"Open with budget={needed}{' or ' + smaller if smaller else ''}."
            )

    def _enough(self, wanted: int) -> int:
        """The least budget that holds so many bytes beside what would be set aside in it."""
        living = self._living()
        fixed = sum(holding.size for holding in living if holding.aside and not (holding.mapped or holding.kept))
        mappings = sum(holding.mapped for holding in living)
        found, more = 0, wanted
        while more > found:
            found, mapped, kept = more, 0, 0
            for _ in range(mappings):
                mapped += _allowance(found - mapped)
            for size in self.keepable:
                kept += size if size <= (found - fixed - mapped) // 2 - kept else 0
            more = wanted + fixed + mapped + kept
        return found

    def allow_mapped(self) -> Holding | None:
        """Set aside what one more store may hold mapped: a quarter of what others leave, so that something is left
        however many stores share the budget. None if that is too little."""
        free = self.limit - self.aside
        if free < 4 * SMALLEST_ALLOWANCE:
            return None
        found = self.reserve(_allowance(free), aside=True, urgent=True)
        if found is not None:
            found.mapped = True
        return found

    def grow(self, size: int) -> None:
        """Let an unstated budget hold ``size`` bytes: up to 256 MiB, and a quarter of what the machine has left."""
        if not self.stated and self.limit < size <= AUTO_WINDOW and size <= room_for_cache()[0] // 4:
            self.limit = size

    def reserve(self, size: int, *, aside: bool = False, urgent: bool = False) -> Holding | None:
        """Hold ``size`` bytes for as long as the result lives; None if they do not fit.

        Free buffers make room first. If ``urgent``, so do batches under way that nobody has asked for yet, and arrays
        caught in reference cycles, which the user no longer has.
        """
        found = self._reserved(size, aside)
        for make_room in (self.trim, self.shrink, gc.collect) if urgent else (self.trim,):
            if found is not None:
                break
            make_room()
            self.trim()
            found = self._reserved(size, aside)
        return found

    def _reserved(self, size: int, aside: bool) -> Holding | None:
        with self._turn.lock:
            held = self.held + size
            if held > self.limit:
                return None
            holding = Holding(size, aside=aside)
            self._holdings.add(weakref.ref(holding, self._holdings.discard))
            self.peak = max(self.peak, held)
            return holding

    def may_trim(self, idle: Trimmable) -> None:
        """Note that ``idle`` keeps free buffers that count against this budget."""
        self._idle.add(weakref.ref(idle, self._idle.discard))

    def trim(self) -> None:
        """Give up every free buffer, whoever keeps it."""
        for reference in list(self._idle):
            idle = reference()
            if idle is not None:
                idle.trim()

    def may_shrink(self, other: Shrinkable) -> None:
        """Note that ``other`` holds bytes of this budget that it can do without."""
        self._others.add(weakref.ref(other, self._others.discard))

    def shrink(self) -> None:
        """Have everybody give up what they can do without."""
        for reference in list(self._others):
            other = reference()
            if other is not None:
                other.shrink()

    def renew_after_fork(self) -> None:
        """A child starts with nothing held: what it inherited belongs to the parent's count."""
        self._holdings = set()
        self.peak = 0

    def _living(self) -> list[Holding]:
        # One list from the set at once: a finalizer may take from the set at any moment.
        return [holding for reference in list(self._holdings) if (holding := reference()) is not None]


def _allowance(free: int) -> int:
    return max(SMALLEST_ALLOWANCE, min(LARGEST_ALLOWANCE, free // 4))
