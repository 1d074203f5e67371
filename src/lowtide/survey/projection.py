"""The arithmetic of a run before it starts: memory, bytes, requests and time.

What a feed does is arithmetic on a few integers - windows per epoch, pages under a window, reads per step - so a run
can be projected: exactly, or as an expectation if it depends on where windows fall. Pure: numbers in, numbers out;
tests compare it with brute force and real runs.

Memory comes from ``plan()`` (a promise, never exceeded); this file multiplies it by the ranks of a machine. It counts
what Lowtide holds, not the interpreter or the model beside it. Outside the library's core, only this file knows what a
plan looks like.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from lowtide.machine import PAGE
from lowtide.reading.plan import Plan as Plan

ORDERS = ("shuffled", "random", "sequential")
MAPPED = ("map", "remap", "advise")  # strategies that fault pages in instead of asking for bytes
FEW_NEIGHBOURS = 64  # if data is this many times longer than a batch, hardly any rows of a batch are neighbours


@dataclass(frozen=True)
class Workload:
    """What one step of a run reads: ``batch`` items (windows or rows) of ``item_bytes``, from ``items`` per epoch.

    ``alignment``: items begin at multiples of this many bytes (a token's size, a row's size). ``places``: an item is
    in so many places (the columns of a Fortran-ordered array). ``overlap``: bytes that it shares with the next one in
    order. ``steps``: per epoch, if that is not simply ``items / batch``.
    """

    items: int
    item_bytes: int
    alignment: int
    batch: int  # of all ranks together
    world: int  # ranks that share the batch
    total_bytes: int  # of the data
    units: int  # tokens predicted by an item, or 1 for a row
    order: str = "shuffled"
    places: int = 1
    overlap: int = 0
    steps: int | None = None

    @property
    def requests(self) -> int:
        """Reads per step, at most: rows in order are one run; nothing else has to be."""
        rows_in_order = self.order == "sequential" and self.units == 1
        return self.places * (self.world if rows_in_order else self.batch)

    @property
    def steps_per_epoch(self) -> float:
        return self.items / self.batch if self.steps is None else float(self.steps)


@dataclass(frozen=True)
class Projection:
    """A run in numbers. Bytes per step are for all ranks together; None: no rate was given, so no time is known."""

    items_per_epoch: int
    steps_per_epoch: float
    useful_bytes_per_step: int
    device_bytes_per_step: int  # page-rounded, as long as nothing is cached
    device_bytes_first_epoch: int
    device_bytes_later_epochs: int  # each; for random order and a page cache that holds the data, the second one
    requests_per_step: int | None  # reads of all ranks together; None: a mapped strategy faults instead
    requests_at_most: bool  # neighbours in a batch may be read together, so there may be fewer
    process: dict[str, int]  # bytes by kind, at most, of one rank
    machine: dict[str, int]  # of all its ranks, which share the page cache
    steps_per_second: float | None = None
    units_per_second: float | None = None
    requests_per_second: float | None = None
    device_bytes_per_second: float | None = None
    seconds_per_epoch: float | None = None


def strategy_reason(plan: Plan) -> str:
    return plan.why[0] if plan.why else ""


def cache_reason(plan: Plan) -> str:
    """Why the page cache is kept or left clean."""
    return plan.why[1] if len(plan.why) > 1 else ""


def other_reasons(plan: Plan) -> tuple[str, ...]:
    return plan.why[2:]


def keeps_cache(plan: Plan) -> bool:
    return plan.rung == "keep"


def pages_under(length: int, alignment: int) -> float:
    """Pages that ``length`` bytes touch on average if every multiple of ``alignment`` is an equally likely start.

    A run of n bytes at offset o touches ``(o % PAGE + n - 1) // PAGE + 1`` pages; this is its average over the
    offsets that the alignment allows, without enumerating them.
    """
    if length <= 0:
        return 0.0
    step = math.gcd(alignment, PAGE)  # offsets modulo the page are the multiples of this, all equally often
    offsets = PAGE // step
    full, rest = divmod(length - 1, PAGE)
    # Offsets at which the bytes beyond whole pages reach into one more page.
    crossing = offsets - -(-(PAGE - rest) // step)
    return 1 + full + crossing / offsets


def windows_per_epoch(tokens: int, length: int) -> int:
    """Windows of a shuffled epoch, the same for every phase."""
    return max(0, (tokens - length) // length)


def project_run(
    work: Workload,
    plan: Plan,
    *,
    cached: bool,
    ranks_here: int,
    room: int | None = None,
    steps_per_second: float | None = None,
) -> Projection:
    """The whole run. ``cached``: the page cache will hold the data; ``ranks_here``: ranks on one machine; ``room``: the
    most its page cache can ever hold."""
    first, later = _epochs(work, cached=cached)
    most = math.inf if room is None else room
    process = {"anon": plan.anon, "mapped": plan.mapped, "cache": int(min(plan.cache, most))}
    machine = {
        "anon": plan.anon * ranks_here,
        # Ranks map the same file: its pages are in memory once, however many map them.
        "mapped": min(plan.mapped * ranks_here, max(plan.mapped, work.total_bytes)),
        "cache": int(min(plan.cache * ranks_here, max(plan.cache, work.total_bytes), most)),
    }
    # Windows in order are neighbours, and rows of a small array often are: neighbours may be read together.
    close = work.order == "sequential" and work.units > 1
    found = Projection(
        items_per_epoch=work.items,
        steps_per_epoch=work.steps_per_epoch,
        useful_bytes_per_step=work.batch * work.item_bytes,
        device_bytes_per_step=_device_step(work),
        device_bytes_first_epoch=first,
        device_bytes_later_epochs=later,
        requests_per_step=None if plan.strategy in MAPPED else work.requests,
        requests_at_most=close or (work.order != "sequential" and _per_rank(work) * FEW_NEIGHBOURS >= work.items),
        process=process,
        machine=machine,
    )
    return found if steps_per_second is None else _with_rate(found, work, steps_per_second)


def _per_rank(work: Workload) -> int:
    return -(-work.batch // work.world)


def _device_step(work: Workload) -> int:
    """Bytes of whole pages under one step's items: each item separately or, in order, one run per rank."""
    runs, items = (work.world, _per_rank(work)) if work.order == "sequential" else (work.batch, 1)
    run = (items * (work.item_bytes - work.overlap) + work.overlap) // work.places
    pages = round(runs * work.places * pages_under(run, work.alignment))
    return pages * PAGE if work.places == 1 else min(pages * PAGE, _whole(work))


def _whole(work: Workload) -> int:
    return -(-work.total_bytes // PAGE) * PAGE


def _epochs(work: Workload, *, cached: bool) -> tuple[int, int]:
    """Bytes from the device in the first epoch, and in each later one."""
    whole = _whole(work)
    if work.order == "sequential":
        return whole, 0 if cached else whole
    epoch = round(work.steps_per_epoch * _device_step(work))
    if not cached:
        return epoch, epoch
    if work.order == "random":
        # Drawn with replacement: a page stays unread with probability exp(-epoch / whole), epoch after epoch.
        unread = math.exp(-epoch / whole) if whole else 1.0
        return round(whole * (1 - unread)), round(whole * unread * (1 - unread))
    return min(epoch, work.total_bytes), 0


def _with_rate(found: Projection, work: Workload, rate: float) -> Projection:
    requests = None if found.requests_per_step is None else found.requests_per_step * rate
    return replace(
        found,
        steps_per_second=rate,
        units_per_second=rate * work.batch * work.units,
        requests_per_second=requests,
        device_bytes_per_second=found.device_bytes_per_step * rate,
        seconds_per_epoch=found.steps_per_epoch / rate,
    )
