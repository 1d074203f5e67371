"""``lowtide plan``: what a run will hold, read and take, before it starts.

One idea: open the data as the run would, ask it for its plan, and multiply. Arithmetic is in ``projection``; this file
finds out what was asked for and prints. Reads headers only, unless ``--measure`` asks for two seconds of reading.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

from lowtide.array import Array
from lowtide.bench.data import call, find, opened
from lowtide.bench.jobs import in_rows
from lowtide.cli.info import add_opening, add_stated, stated
from lowtide.cli.tables import Line, facts, show, table
from lowtide.formats import Layout
from lowtide.machine import room_for_cache
from lowtide.projection import Projection, Reading, project_run, windows_per_epoch
from lowtide.reading.plan import Plan
from lowtide.reading.row_filler import SPARSE_FROM
from lowtide.reading.upcoming import BLOCK
from lowtide.tokens import Tokens
from lowtide.units import format_size

PROBE = 2.0  # seconds


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = "Project memory, bytes read, requests and time of a run, before it starts."
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a token file, corpus or array; several are one")
    parser.add_argument(
        "--batch", type=int, default=64, help="tokens: windows a step, of all ranks; arrays: rows a rank"
    )
    parser.add_argument("--length", type=int, default=1024, help="tokens of a window (%(default)s)")
    parser.add_argument("--row", type=int, help="read one axis of numbers as rows of this many, shuffled")
    parser.add_argument("--world", type=int, default=1, help="ranks that share the data (%(default)s)")
    parser.add_argument("--ranks-here", type=int, help="how many of them run on one machine (all)")
    add_stated(parser)
    add_opening(parser)
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument("--steps-per-second", type=float, metavar="RATE", help="how fast the run will go")
    rate.add_argument("--tokens-per-second", type=float, metavar="RATE", help="the same in tokens, of all ranks")
    parser.add_argument("--measure", action="store_true", help="read for 2 seconds and say how fast this machine feeds")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(arguments: argparse.Namespace) -> int:
    for name in ("batch", "length", "world", "row", "ranks_here", "steps_per_second", "tokens_per_second"):
        value = getattr(arguments, name)
        if value is not None and value <= 0:
            raise ValueError(f"--{name.replace('_', '-')}: expected more than 0, got {value}. Use a larger number.")
    found = _document(arguments)
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        show(_lines(found))
    return 0


def _document(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything projected, JSON-safe."""
    layout = find(arguments.paths, stated(arguments))
    if arguments.row is not None:
        if len(layout.shape) > 1:
            raise ValueError(f"--row: expected data along one axis, got shape {layout.shape}. Leave --row out.")
        layout = in_rows(layout, arguments.row)
    settings = {"strategy": arguments.strategy, "cache": arguments.cache, "budget": arguments.budget}
    with opened(layout, **settings) as data:
        reading, plan, batches, state = (
            _of_tokens(data, arguments) if isinstance(data, Tokens) else _of_rows(data, arguments)
        )
        measured = _measure(batches) if arguments.measure else None
    room, source = room_for_cache()
    fits = layout.nbytes <= room // 2
    kept = plan.rung == "keep"
    rate = _rate(arguments, reading, measured)
    here = min(arguments.world, arguments.ranks_here or arguments.world)
    projection = project_run(reading, plan, cached=fits and kept, ranks_here=here, room=room, steps_per_second=rate)
    return {
        "path": layout.extents[0].path,
        "files": len(layout.extents),
        "nbytes": layout.nbytes,
        "dtype": str(layout.dtype),
        "shape": list(layout.shape),
        "what": "windows" if isinstance(data, Tokens) else "rows",
        "length": arguments.length if isinstance(data, Tokens) else None,
        "batch": reading.batch,
        "world": arguments.world,
        "ranks_here": here,
        "state_bytes": state,
        "cache": {"kept": kept, "fits": fits, "room": room, "source": source},
        "plan": plan.to_dict(),
        "measured_steps_per_second": measured,
        "rate_from": "measured" if measured is not None and not _target(arguments) else "given" if rate else None,
        "projection": projection.to_dict(),
        "open": _call(layout, arguments, settings, tokens=isinstance(data, Tokens)),
    }


def _of_tokens(tokens: Tokens, arguments: argparse.Namespace) -> tuple[Reading, Plan, Iterator[Any], int]:
    length, item = arguments.length, tokens.dtype.itemsize
    feed = tokens.batches(arguments.batch, length=length, rank=0, world=arguments.world)
    reading = Reading(
        items=windows_per_epoch(len(tokens), length),
        item_bytes=(length + 1) * item,
        alignment=item,
        batch=arguments.batch,
        world=arguments.world,
        total_bytes=tokens.nbytes,
        units=length,
        merges=arguments.batch // arguments.world >= 4096,
    )
    return reading, feed.plan(), feed, len(json.dumps(feed.state_dict()))


def _of_rows(array: Array, arguments: argparse.Namespace) -> tuple[Reading, Plan, Iterator[Any], int]:
    row = array.layout.row_nbytes
    batch = min(arguments.batch, len(array))
    rows = array.shuffled(batch, rank=0, world=arguments.world)
    reading = Reading(
        items=len(array),
        item_bytes=row,
        alignment=max(1, row),
        batch=batch * arguments.world,
        world=arguments.world,
        total_bytes=array.nbytes,
        units=1,
        merges=min(batch, BLOCK) * SPARSE_FROM >= len(array),
    )
    return reading, array.plan(batch), rows, len(str(len(array)))


def _measure(batches: Iterator[Any]) -> float:
    """Steps a second that one rank is fed at, with the page cache as it is."""
    steps = 0
    start = time.perf_counter()
    while time.perf_counter() < start + PROBE:
        had = sum(1 for _ in islice(batches, 1))
        if not had:
            break
        steps += had
    return steps / (time.perf_counter() - start)


def _target(arguments: argparse.Namespace) -> bool:
    return arguments.steps_per_second is not None or arguments.tokens_per_second is not None


def _rate(arguments: argparse.Namespace, reading: Reading, measured: float | None) -> float | None:
    if arguments.steps_per_second is not None:
        return float(arguments.steps_per_second)
    if arguments.tokens_per_second is not None:
        return float(arguments.tokens_per_second) / (reading.batch * reading.units)
    return measured


def _call(layout: Layout, arguments: argparse.Namespace, settings: dict[str, str], *, tokens: bool) -> str:
    source = arguments.paths[0] if len(arguments.paths) == 1 else list(arguments.paths)
    ranks = f", rank=rank, world={arguments.world}" if arguments.world > 1 else ""
    opening = call(layout, source, stated(arguments), **settings)
    if tokens:
        return f"{opening}.batches({arguments.batch}, length={arguments.length}{ranks})"
    return f"{opening}.shuffled({arguments.batch}{ranks})"


def _lines(found: dict[str, Any]) -> list[Line]:
    projection = Projection(**found["projection"])
    more = f" and {found['files'] - 1} more" if found["files"] > 1 else ""
    axes = " x ".join(f"{axis:,}" for axis in found["shape"])
    lines = [
        Line(f"{found['path']}{more}", "bold"),
        Line(f"{axes} {found['dtype']}, {format_size(found['nbytes'])}"),
        Line(""),
    ]
    lines += facts([*_step_facts(found, projection), *_read_facts(projection)])
    lines += [Line(""), *_memory_table(found, projection), Line("")]
    state = f"{found['state_bytes']:,} bytes of JSON" if found["what"] == "windows" else "one integer (start=)"
    lines += facts(
        [_cache_fact(found), *_rate_facts(found, projection), ("state", state), ("run", found["open"])],
        {"run": "bold green"},
        as_is="run",
    )
    return lines


def _step_facts(found: dict[str, Any], projection: Projection) -> list[tuple[str, str]]:
    each = found["batch"] // found["world"]
    what = f"windows of {found['length']:,} tokens" if found["what"] == "windows" else "rows"
    ranks = f", {each:,} for each of {found['world']:,} ranks" if found["world"] > 1 else ""
    return [
        ("step", f"{found['batch']:,} {what}{ranks}"),
        ("epoch", f"{projection.items_per_epoch:,} {found['what']}, {projection.steps_per_epoch:,.1f} steps"),
    ]


def _read_facts(projection: Projection) -> list[tuple[str, str]]:
    useful, device = projection.useful_bytes_per_step, projection.device_bytes_per_step
    times = device / useful if useful else 1.0
    asks = "page faults instead of reads"
    if projection.requests_per_step is not None:
        asks = f"{'at most ' if projection.requests_at_most else ''}{projection.requests_per_step:,} reads"
    step = f"{format_size(useful)} in {asks}; {format_size(device)} from the disk, in whole pages ({times:.1f}x)"
    later = projection.device_bytes_later_epochs
    after = f"later ones {format_size(later)}" if later else "later ones nothing"
    epoch = f"{format_size(projection.device_bytes_first_epoch)} from the disk, {after}"
    return [("a step reads", step), ("an epoch reads", epoch)]


def _memory_table(found: dict[str, Any], projection: Projection) -> list[Line]:
    kinds = ("anon", "mapped", "cache")
    own = [
        "a process",
        *(format_size(projection.process[kind]) for kind in kinds),
        format_size(found["plan"]["budget"]),
    ]
    ranks = found["ranks_here"]
    name = f"a machine ({ranks:,} rank{'' if ranks == 1 else 's'})"
    whole = [
        name,
        *(format_size(projection.machine[kind]) for kind in kinds),
        format_size(ranks * found["plan"]["budget"]),
    ]
    return table(["memory, at most", *kinds, "budget"], [own, whole], gap=4)


def _cache_fact(found: dict[str, Any]) -> tuple[str, str]:
    cache = found["cache"]
    reasons = "; ".join(found["plan"]["why"][1:2])
    if not cache["kept"]:
        return "page cache", f"left clean ({found['plan']['rung']}): {reasons}"
    if cache["fits"]:
        return "page cache", f"will hold the data: {reasons}"
    room = f"{format_size(found['nbytes'])} of data, half of {format_size(cache['room'])} free for cache"
    return "page cache", f"kept, but it will not hold the data ({room}): {reasons}"


def _rate_facts(found: dict[str, Any], projection: Projection) -> list[tuple[str, str]]:
    rate, measured = projection.steps_per_second, found["measured_steps_per_second"]
    pairs = []
    if measured is not None:
        pairs.append(("measured", f"one rank is fed {measured:,.0f} steps/s here, with the page cache as it was"))
    if rate is None or projection.seconds_per_epoch is None or projection.device_bytes_per_second is None:
        return [*pairs, ("rate", "not given: add --steps-per-second, --tokens-per-second or --measure for times")]
    parts = []
    if found["what"] == "windows":
        parts.append(f"{projection.units_per_second:,.0f} tokens/s")
    if projection.requests_per_second is not None:
        parts.append(f"{projection.requests_per_second:,.0f} reads/s")
    parts.append(f"{format_size(projection.device_bytes_per_second)}/s while uncached")
    parts.append(f"an epoch in {_duration(projection.seconds_per_epoch)}")
    if measured and found["rate_from"] == "given":
        parts.append(f"{rate / measured:.1%} of what one rank can be fed")
    return [*pairs, (f"at {rate:,.4g} steps/s", ", ".join(parts))]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:,.1f} days"
