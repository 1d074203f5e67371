"""``lowtide plan``: what a run will hold, read and cost, before it starts. ``survey`` forecasts, this file prints."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from lowtide.cli.flags import (
    above_zero,
    add_json,
    add_locality,
    add_opening,
    add_paths,
    add_stated,
    locality,
    opening,
    parts_text,
    stated,
)
from lowtide.cli.info import GUESSED, cleaning_fact
from lowtide.cli.options import number, option, whole
from lowtide.cli.tables import Styled, counted, facts, show, table
from lowtide.survey.forecast import Forecast, RunAsked, forecast
from lowtide.survey.projection import ORDERS, Projection, cache_reason, other_reasons
from lowtide.survey.subject import find
from lowtide.units import format_duration, format_size

PROBE = 2.0  # seconds: what the help and the docs say


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say how much memory a run will hold, what it will read and how long it will take, before it starts. Reads "
        "headers and a few small blocks; only --measure reads data."
    )
    parser.epilog = "Example: lowtide plan data/train.bin --batch 512 --world 8 --measure"
    add_paths(parser, help="a token file, a corpus or an array; several paths are read as one")
    add_json(parser)
    run = parser.add_argument_group("the run")
    option(run, "--batch N", "tokens: windows per step of all ranks; arrays: rows per rank (64)", whole, 64)
    option(run, "--length N", "tokens per window (1024)", whole, 1024)
    option(run, "--order NAME", f"{', '.join(ORDERS)} (shuffled)", default="shuffled", choices=ORDERS)
    add_locality(run)
    option(run, "--row N", "read one axis of numbers as rows of N", whole)
    option(run, "--world N", "ranks that share the data (1)", whole, 1)
    option(run, "--ranks-here N", "ranks that run on one machine (all of them)", whole)
    rate = parser.add_argument_group("how fast it goes (without one of these no times are printed)")
    option(rate, "--steps-per-second RATE", "steps per second the run will make", number)
    option(rate, "--tokens-per-second RATE", "the same in tokens, of all ranks", number)
    rate.add_argument("--measure", action="store_true", help="read for 2 seconds to see how fast one rank is fed here")
    add_stated(parser)
    add_opening(parser)


def run(arguments: argparse.Namespace) -> int:
    above_zero(arguments, batch="64", length="1024", world="1", row="512", ranks_here="1")
    above_zero(arguments, steps_per_second="1", tokens_per_second="10000")
    if arguments.steps_per_second is not None and arguments.tokens_per_second is not None:
        raise ValueError(
            "--tokens-per-second: expected one rate, got --steps-per-second as well. Leave one of them out."
        )
    asked = RunAsked(
        batch=arguments.batch,
        length=arguments.length,
        order=arguments.order,
        locality=locality(arguments),
        world=arguments.world,
        ranks_here=arguments.ranks_here,
        row=arguments.row,
        steps_per_second=arguments.steps_per_second,
        tokens_per_second=arguments.tokens_per_second,
        measure=PROBE if arguments.measure else 0.0,
    )
    found = forecast(find(arguments.paths, stated(arguments)), opening(arguments), asked)
    if arguments.json:
        print(json.dumps(asdict(found), indent=2))
    else:
        show(_lines(found))
    return 0


def _lines(found: Forecast) -> list[Styled]:
    more = f" and {found.files - 1:,} more" if found.files > 1 else ""
    axes = " x ".join(f"{axis:,}" for axis in found.shape)
    guess = [Styled(f"{found.dtype} {GUESSED}", "yellow")] if found.dtype_guessed else []
    head = [Styled(f"{found.path}{more}", "bold"), Styled(f"{axes} {found.dtype}, {format_size(found.nbytes)}"), *guess]
    head += facts([("parts", parts_text(found.parts))]) if found.parts else []
    reading = [("strategy", f"{found.plan.strategy}, engine {found.plan.engine}"), _cache_fact(found)]
    reading += [] if found.cache.kept else [cleaning_fact(found.plan)]
    reading += [("because", reason) for reason in other_reasons(found.plan)]
    state = "one integer (start=), or state_dict()"
    if found.what == "windows":
        state = f"{found.state_bytes:,} bytes of JSON"
    last = [*reading, *_rate_facts(found), ("state", state), ("run", found.open)]
    return [
        *head,
        Styled(""),
        *facts([*_step_facts(found), *_read_facts(found)]),
        Styled(""),
        *_memory_table(found),
        Styled(""),
        *facts(last, {"run": "bold green", "because": "dim"}, as_is="run"),
    ]


def _step_facts(found: Forecast) -> list[tuple[str, str]]:
    projection, each = found.projection, found.batch_per_rank
    items = counted(found.batch, found.what[:-1])
    length = "" if found.length is None else f" of {found.length:,} tokens"
    at_most = "" if each * found.world == found.batch else "at most "
    ranks = f", {at_most}{each:,} per rank on {found.world:,} ranks" if found.world > 1 else ""
    steps = f"{projection.steps_per_epoch:,.1f}".removesuffix(".0")
    steps = f"{counted(projection.items_per_epoch, found.what[:-1])}, {steps} steps"
    drawn = " (drawn with replacement: as many as the data has)" if found.order == "random" else ""
    return [("step", f"{items}{length}, {found.order}{ranks}"), ("epoch", f"{steps}{drawn}")]


def _read_facts(found: Forecast) -> list[tuple[str, str]]:
    projection = found.projection
    useful, device = projection.useful_bytes_per_step, projection.device_bytes_per_step
    times = device / useful if useful else 1.0
    asks = "by page faults"
    if projection.requests_per_step is not None:
        asks = f"in {'at most ' if projection.requests_at_most else ''}{counted(projection.requests_per_step, 'read')}"
    step = f"{format_size(useful)} {asks}; {format_size(device)} from the disk, in whole pages ({times:.1f}x)"
    first = f"{format_size(projection.device_bytes_first_epoch)} from the disk"
    return [("reads per step", step), ("reads per epoch", f"{first}{_later_text(projection)}")]


def _later_text(projection: Projection) -> str:
    later = projection.device_bytes_later_epochs
    if not later:
        return ", then nothing more"
    if later == projection.device_bytes_first_epoch:
        return ", every epoch"
    return f", {format_size(later)} in the second, then less and less"


def _memory_table(found: Forecast) -> list[Styled]:
    kinds = ("anon", "mapped", "cache")
    process, machine, budget = found.projection.process, found.projection.machine, found.plan.budget
    own = ["one process", *(format_size(process[kind]) for kind in kinds), format_size(budget)]
    name = f"one machine ({counted(found.ranks_here, 'rank')})"
    whole = [name, *(format_size(machine[kind]) for kind in kinds), format_size(found.ranks_here * budget)]
    return table(["memory, at most", *kinds, "budget"], [own, whole], gap=4)


def _cache_fact(found: Forecast) -> tuple[str, str]:
    cache, reason = found.cache, cache_reason(found.plan)
    if not cache.kept:
        return "page cache", f"left clean: {reason}"
    if cache.fits:
        return "page cache", f"will hold the data: {reason}"
    room = f"{format_size(found.nbytes)} of data, half of {format_size(cache.room)} free for cache"
    return "page cache", f"kept, but it will not hold the data ({room}): {reason}"


def _rate_facts(found: Forecast) -> list[tuple[str, str]]:
    projection, measured = found.projection, found.measured_steps_per_second
    rate = projection.steps_per_second
    pairs = []
    if measured is not None:
        fed = f"one rank is fed {_rate_text(measured)} steps/s here, with the page cache as it was"
        pairs.append(("measured", fed))
    if rate is None or projection.seconds_per_epoch is None or projection.device_bytes_per_second is None:
        return [*pairs, ("rate", "unknown: add --steps-per-second, --tokens-per-second or --measure for times")]
    parts = [f"an epoch in {format_duration(projection.seconds_per_epoch)}"]
    if found.what == "windows":
        parts.append(f"{projection.units_per_second:,.0f} tokens/s")
    if projection.requests_per_second is not None:
        parts.append(f"{projection.requests_per_second:,.0f} reads/s")
    parts.append(f"{format_size(projection.device_bytes_per_second)}/s from the disk while uncached")
    if measured and found.rate_from == "given":
        parts.append(f"{rate / measured:.1%} of what one rank can be fed")
    return [*pairs, (f"at {_rate_text(rate)} steps/s", ", ".join(parts))]


def _rate_text(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
