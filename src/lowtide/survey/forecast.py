"""A whole run forecast: what it will hold, read and cost, as one frozen value.

The data is opened as the run would open it and asked for its plan; the rest is arithmetic. Reads headers and,
for the size of a feed's state, sixteen blocks of 4 KiB; only ``measure`` reads data, for as long as it says.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from lowtide.array import Array
from lowtide.errors import FormatError
from lowtide.machine import room_for_cache
from lowtide.order.locality import Stated, locality_of
from lowtide.reading.rows.iteration import BatchIterator
from lowtide.survey.projection import Plan, Projection, Workload, keeps_cache, project_run, windows_per_epoch
from lowtide.survey.subject import Opening, Subject, in_rows, opened
from lowtide.tokens import Tokens


@dataclass(frozen=True)
class RunAsked:
    """The run to project; None: not stated."""

    batch: int = 64  # tokens: windows per step over all ranks; arrays: rows per rank
    length: int = 1024
    order: str = "shuffled"
    locality: Stated | None = None
    world: int = 1
    ranks_here: int | None = None
    row: int | None = None
    steps_per_second: float | None = None
    tokens_per_second: float | None = None
    measure: float = 0.0  # seconds of reading to find out how fast one rank is fed


@dataclass(frozen=True)
class CacheOutlook:
    """Whether the page cache keeps the data, and whether it has room for it: half of what it could become."""

    kept: bool
    fits: bool
    room: int
    source: str


@dataclass(frozen=True)
class Forecast:
    """Everything projected about one run."""

    path: str
    files: int
    nbytes: int
    dtype: str
    dtype_guessed: bool
    shape: tuple[int, ...]
    parts: dict[str, int]  # tokens of each part of a directory that holds several, this one first
    what: str  # "windows" | "rows"
    order: str
    length: int | None
    batch: int  # items per step over all ranks
    batch_per_rank: int  # at most
    world: int
    ranks_here: int
    state_bytes: int
    cache: CacheOutlook
    plan: Plan
    measured_steps_per_second: float | None
    rate_from: str | None  # "measured" | "given"
    projection: Projection
    open: str


@dataclass(frozen=True)
class _OpenedRun:
    """What the opened data says about the run: its work, one rank's plan, and how to read an epoch of it."""

    work: Workload
    per_rank: int
    plan: Plan
    state_bytes: int
    epoch: Callable[[int], Iterable[Any]]
    call: str


def forecast(subject: Subject, opening: Opening, asked: RunAsked) -> Forecast:
    """The run, projected from the data's headers and its own plan."""
    layout = subject.layout if asked.row is None else in_rows(subject.layout, asked.row)
    with opened(layout, opening) as data:
        tokens = isinstance(data, Tokens)
        if not tokens and asked.tokens_per_second is not None:
            raise ValueError("--tokens-per-second: expected tokens, got rows of an array. Use --steps-per-second.")
        run = _of_tokens(data, asked) if isinstance(data, Tokens) else _of_rows(data, asked)
        measured = steps_per_second(run.epoch, asked.measure) if asked.measure else None
    room, source = room_for_cache()
    outlook = CacheOutlook(keeps_cache(run.plan), layout.nbytes <= room // 2, room, source)
    given = _given_rate(asked, run.work)
    rate = measured if given is None else given
    here = min(asked.world, asked.ranks_here or asked.world)
    cached = outlook.fits and outlook.kept
    return Forecast(
        path=layout.extents[0].path,
        files=len(layout.extents),
        nbytes=layout.nbytes,
        dtype=str(layout.dtype),
        dtype_guessed=subject.dtype_guessed,
        shape=layout.shape,
        parts=subject.tokens_by_part(),
        what="windows" if tokens else "rows",
        order=asked.order,
        length=asked.length if tokens else None,
        batch=run.work.batch,
        batch_per_rank=run.per_rank,
        world=asked.world,
        ranks_here=here,
        state_bytes=run.state_bytes,
        cache=outlook,
        plan=run.plan,
        measured_steps_per_second=measured,
        rate_from=None if rate is None else "measured" if given is None else "given",
        projection=project_run(run.work, run.plan, cached=cached, ranks_here=here, room=room, steps_per_second=rate),
        open=f"{subject.call(opening)}{run.call}",
    )


def steps_per_second(epoch: Callable[[int], Iterable[Any]], seconds: float) -> float | None:
    """Steps per second at which one rank is fed, epoch after epoch, with the page cache as it is; None: no steps."""
    steps = turn = 0
    start = time.perf_counter()
    while time.perf_counter() < start + seconds:
        before = steps
        for _ in epoch(turn):
            steps += 1
            if time.perf_counter() >= start + seconds:
                break
        if steps == before:
            break
        turn += 1
    return steps / (time.perf_counter() - start) if steps else None


def _given_rate(asked: RunAsked, work: Workload) -> float | None:
    if asked.steps_per_second is not None:
        return asked.steps_per_second
    return None if asked.tokens_per_second is None else asked.tokens_per_second / (work.batch * work.units)


def _of_tokens(tokens: Tokens, asked: RunAsked) -> _OpenedRun:
    length, item, order = asked.length, tokens.dtype.itemsize, asked.order
    feed = tokens.batches(asked.batch, length=length, order=order, locality=asked.locality, rank=0, world=asked.world)
    # Every token but the first is predicted once: in order, by full windows and a shorter last one. For random order,
    # an epoch is counted as that many windows.
    in_order = -(-(len(tokens) - 1) // length)
    work = Workload(
        items=windows_per_epoch(len(tokens), length) if order == "shuffled" else in_order,
        item_bytes=(length + 1) * item,
        alignment=item,
        batch=asked.batch,
        world=asked.world,
        total_bytes=tokens.nbytes,
        units=length,
        order=order,
        overlap=item,
        steps=len(feed) if order == "sequential" else None,
    )

    def epoch(_: int) -> Iterable[Any]:
        feed.seek(0)  # a sequential feed ended; shuffled and random feeds never do
        return feed

    chosen = "" if order == "shuffled" else f", order={json.dumps(order)}"
    chosen += _locality_call(asked)
    ranks = f", rank=rank, world={asked.world}" if asked.world > 1 else ""
    call = f".batches({asked.batch}, length={length}{chosen}{ranks})"
    state = len(json.dumps(feed.state_dict()))
    return _OpenedRun(work, asked.batch // asked.world, feed.plan(), state, epoch, call)


def _of_rows(array: Array, asked: RunAsked) -> _OpenedRun:
    count, world, order = len(array), asked.world, asked.order
    if count == 0:
        raise FormatError(f"{array.layout.extents[0].path}: expected rows to read, got none. Use another file.")
    share = count if order == "random" else -(-count // world)  # the largest share of any rank
    each = asked.batch if order == "random" else min(asked.batch, share)
    layout, row = array.layout, array.layout.row_nbytes
    work = Workload(
        items=count,
        item_bytes=row,
        alignment=layout.dtype.itemsize if layout.fortran else max(1, row),
        batch=each * world if order == "random" else min(each * world, count),
        world=world,
        total_bytes=array.nbytes,
        units=1,
        order=order,
        places=math.prod(layout.shape[1:]) if layout.fortran else 1,
        steps=-(-share // each) if order == "sequential" else None,
    )

    def epoch(number: int) -> BatchIterator:
        if order == "sequential":
            return array.chunks(each, rank=world - 1, world=world)
        if order == "random":
            return array.sample(each, seed=number)
        return array.shuffled(each, epoch=number, locality=asked.locality, rank=world - 1, world=world)

    if order != "shuffled":
        locality_of(asked.locality, row, order=order)  # refuses one
    first = epoch(0)  # refuses what the budget cannot hold, even if nothing is measured
    ranks = f", rank=rank, world={world}" if world > 1 else ""
    seeds = ", seed=rank" if world > 1 else ""
    calls = {
        "sequential": ("chunks", ranks),
        "random": ("sample", seeds),
        "shuffled": ("shuffled", _locality_call(asked) + ranks),
    }
    name, more = calls[order]
    return _OpenedRun(work, each, first.plan(), len(str(count)), epoch, f".{name}({asked.batch}{more})")


def _locality_call(asked: RunAsked) -> str:
    stated = asked.locality
    if stated is None:
        return ""
    sizes = [json.dumps(size) for size in (stated if isinstance(stated, tuple) else (stated,))]
    return f", locality={sizes[0]}" if len(sizes) == 1 else f", locality=({', '.join(sizes)})"
