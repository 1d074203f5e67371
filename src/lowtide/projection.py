"""What a run will cost before it starts: memory, bytes, requests and time, for a batch, a length and a world size.

One idea: what a feed does is arithmetic on a few integers - windows in an epoch, pages under a window, reads in a
step - so a run can be projected: exactly where it is exact, as an expectation where it depends on where windows fall.
Pure: integers in, integers out; tests hold it against real runs.

Memory comes from ``plan()`` (a promise, never passed); this file multiplies it by the ranks of a machine. It counts
what Lowtide holds, not the interpreter or the model beside it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from lowtide.machine import PAGE
from lowtide.reading.plan import Plan


@dataclass(frozen=True)
class Reading:
    """What one step of a run reads: ``batch`` items (windows or rows) of ``item_bytes``, from ``items`` in an epoch.

    ``alignment``: items begin at multiples of this many bytes (a token's size, a row's size).
    """

    items: int
    item_bytes: int
    alignment: int
    batch: int  # of all ranks together
    world: int
    total_bytes: int  # of the data
    units: int  # tokens predicted by an item, or 1 for a row
    merges: bool = False  # items of a batch may be neighbours, and neighbours are read together


@dataclass(frozen=True)
class Projection:
    """A run in numbers. Bytes a step are of all ranks together; None: no rate was given, so no time is known."""

    items_per_epoch: int
    steps_per_epoch: float
    useful_bytes_per_step: int
    device_bytes_per_step: int  # page-rounded, while nothing of it is cached
    device_bytes_first_epoch: int
    device_bytes_later_epochs: int
    requests_per_step: int | None  # reads of all ranks together; None: a mapped strategy faults instead
    requests_at_most: bool  # neighbours in a batch may be read together, so there may be fewer
    process: dict[str, int]  # bytes by kind, at most, of one rank
    machine: dict[str, int]  # of all its ranks; the page cache is one for all
    steps_per_second: float | None = None
    units_per_second: float | None = None
    requests_per_second: float | None = None
    device_bytes_per_second: float | None = None
    seconds_per_epoch: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def pages_under(length: int, alignment: int, page: int = PAGE) -> float:
    """Pages that ``length`` bytes touch on average when they begin at any multiple of ``alignment`` alike.

    A run of n bytes at offset o touches ``(o % page + n - 1) // page + 1`` pages; this is that, averaged over the
    offsets the alignment allows, without walking them.
    """
    if length <= 0:
        return 0.0
    step = math.gcd(alignment, page)  # offsets modulo the page are the multiples of this, each as often as any other
    offsets = page // step
    full, rest = divmod(length - 1, page)
    crossing = offsets - -(
        -(page - rest) // step
    )  # offsets from which the bytes beyond whole pages reach one page more
    return 1 + full + crossing / offsets


def windows_per_epoch(tokens: int, length: int) -> int:
    """Windows of a shuffled epoch, the same for every phase."""
    return max(0, (tokens - length) // length)


def project_run(
    reading: Reading,
    plan: Plan,
    *,
    cached: bool,
    ranks_here: int,
    room: int | None = None,
    steps_per_second: float | None = None,
) -> Projection:
    """The whole run. ``cached``: the page cache will hold the data; ``ranks_here``: ranks on one machine; ``room``: the
    most its page cache can ever come to."""
    step_pages = round(reading.batch * pages_under(reading.item_bytes, reading.alignment))
    device_step = step_pages * PAGE
    steps = reading.items / reading.batch
    epoch = round(steps * device_step)
    most = math.inf if room is None else room
    process = {"anon": plan.anon, "mapped": plan.mapped, "cache": int(min(plan.cache, most))}
    machine = {
        "anon": plan.anon * ranks_here,
        # Ranks map the same file: its pages are there once, whoever maps them.
        "mapped": min(plan.mapped * ranks_here, max(plan.mapped, reading.total_bytes)),
        "cache": int(min(plan.cache * ranks_here, max(plan.cache, reading.total_bytes), most)),
    }
    mapped_strategy = plan.strategy in ("map", "remap", "advise")
    found = Projection(
        items_per_epoch=reading.items,
        steps_per_epoch=steps,
        useful_bytes_per_step=reading.batch * reading.item_bytes,
        device_bytes_per_step=device_step,
        device_bytes_first_epoch=min(epoch, reading.total_bytes) if cached else epoch,
        device_bytes_later_epochs=0 if cached else epoch,
        requests_per_step=None if mapped_strategy else reading.batch,
        requests_at_most=reading.merges,
        process=process,
        machine=machine,
    )
    return found if steps_per_second is None else _with_rate(found, reading, steps_per_second)


def _with_rate(found: Projection, reading: Reading, rate: float) -> Projection:
    requests = None if found.requests_per_step is None else found.requests_per_step * rate
    return replace(
        found,
        steps_per_second=rate,
        units_per_second=rate * reading.batch * reading.units,
        requests_per_second=requests,
        device_bytes_per_second=found.device_bytes_per_step * rate,
        seconds_per_epoch=found.steps_per_epoch / rate,
    )
