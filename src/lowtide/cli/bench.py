"""``lowtide bench``: every way to read a file, measured on this machine and disk, and what to take.

The figures come from fresh processes that each read the user's own file one way; this file asks for them,
shows how far it is, and prints. It reads the file and, for cold figures, throws that file out of the page cache.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from lowtide.bench.jobs import READING_PATTERNS, Ask, Job, jobs_for, layout_here, one_file, quick
from lowtide.bench.presentation import BenchFacts, document, notes, pattern_rows, title
from lowtide.bench.recommend import Advice, recommend
from lowtide.bench.rounds import Measurements, OnJob, measure_all
from lowtide.cli.flags import above_zero, add_budget, add_json, add_paths, add_stated, stated
from lowtide.cli.options import number, option, whole
from lowtide.cli.tables import Styled, facts, show, table, watched
from lowtide.formats import Layout
from lowtide.machine import file_kind, read_ahead_bytes, total_memory
from lowtide.survey.projection import Plan, cache_reason, keeps_cache
from lowtide.survey.subject import Opening, Subject, find, holds_tokens, opened
from lowtide.tokens import Tokens
from lowtide.units import MIB, format_size


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure every strategy and cache policy beside np.memmap, on your own file and disk, and recommend one. Cold "
        "figures throw the file out of the page cache, for every process on the machine."
    )
    parser.epilog = "Example: lowtide bench data/train.bin --quick"
    add_paths(parser, help="a file or a corpus; of several files only the largest is read")
    add_json(parser)
    time = parser.add_argument_group("how long")
    time.add_argument("--quick", action="store_true", help="one round in about half a minute, whatever the file's size")
    option(time, "--seconds S", "per case and round, for cold and for warm figures (1)", number, 1.0)
    option(time, "--rounds N", "figures are medians of N rounds (3)", whole, 3)
    time.add_argument("--no-drop", action="store_true", help="leave the page cache alone: warm figures only")
    run = parser.add_argument_group("what to read")
    option(run, "--batch N", "rows or windows per batch (64)", whole)
    option(run, "--row N", "read one axis of numbers as rows of N", whole)
    option(run, "--length N", "tokens per window (1024)", whole, 1024)
    add_budget(run)
    add_stated(parser)


def run(arguments: argparse.Namespace) -> int:
    ask = _ask(arguments)
    subject = find(arguments.paths, stated(arguments))
    layout = layout_here(one_file(subject.layout))
    jobs = jobs_for(layout, ask, cold=False)
    _refuse_early(layout, ask, jobs)
    with opened(subject.layout, Opening(budget=ask.budget)) as data:
        plan = data.plan()
    found = _facts(subject, layout, ask, plan)  # now: reading may fill a file's holes where it lives in memory
    with _progress() as on_job:
        outcome = measure_all(layout, ask, on_job)
    if outcome.stopped and not any(case.rounds for case in outcome.cases):
        print("lowtide bench: stopped by Ctrl-C before the first figure.", file=sys.stderr)
        return 130
    advice = recommend(outcome.cases, keep=keeps_cache(plan), cache_why=cache_reason(plan), budget=plan.budget)
    line = subject.call(Opening(advice.strategy, advice.cache, _stated_size(plan.budget)))
    if arguments.json:
        print(json.dumps(document(found, outcome, advice, line), indent=2))
    else:
        show([*_head(found), *_tables(outcome, jobs), *_foot(found, outcome, advice, line)])
    return 0 if any(case.rounds for case in outcome.cases) else 1


def _stated_size(size: int) -> str:
    """As one would write it in a call: 67108864 -> '64MiB'."""
    return f"{size // MIB}MiB" if size % MIB == 0 else str(size)


def _ask(arguments: argparse.Namespace) -> Ask:
    above_zero(arguments, seconds="1", rounds="3", length="1024", batch="64", row="512")
    ask = Ask(
        batch=arguments.batch or 0,
        row=arguments.row or 0,
        length=arguments.length,
        budget=arguments.budget,
        seconds=arguments.seconds,
        rounds=arguments.rounds,
        drop=not arguments.no_drop,
    )
    return quick(ask) if arguments.quick else ask


def _refuse_early(layout: Layout, ask: Ask, jobs: list[Job]) -> None:
    """What cannot fit the budget is refused here, in one line, not by thirty processes."""
    for job in jobs:
        if job.way != "read, keep":
            continue
        rows = layout if job.pattern == "windows" else replace(layout, shape=job.shape)
        with opened(rows, Opening("read", "keep", ask.budget)) as data:
            if isinstance(data, Tokens):
                data.batches(job.batch, length=job.length, order="random")
            else:
                data.shuffled(job.batch)


@contextlib.contextmanager
def _progress() -> Iterator[OnJob]:
    """A bar on stderr if that is a terminal; else nothing."""
    if not watched():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(30), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("a first run that is not counted", total=None)

        def progress(done: int, jobs: int, name: str) -> None:
            bar.update(task, completed=done, total=jobs, description=name)

        yield progress


def _facts(subject: Subject, layout: Layout, ask: Ask, plan: Plan) -> BenchFacts:
    path, whole = layout.extents[0].path, subject.layout
    return BenchFacts(
        path=path,
        nbytes=layout.nbytes,
        holes=_holes(path),
        files=len(whole.extents),
        all_nbytes=whole.nbytes,
        dtype=str(layout.dtype),
        dtype_guessed=subject.dtype_guessed,
        shape=layout.shape,
        kind="tokens" if holds_tokens(layout) else "array",
        filesystem=file_kind(path).name,
        read_ahead=read_ahead_bytes(path),
        memory=total_memory(),
        cpus=os.cpu_count(),
        budget=plan.budget,
        engine=plan.engine,
        seconds_per_case=ask.seconds,
        rounds=ask.rounds,
        quick=ask.total_seconds is not None,
        warm_bytes=min(ask.warm_bytes, layout.nbytes),
    )


def _holes(path: str) -> int:
    """Bytes of the file that were never written. A few pages less on the disk than in the file are no hole."""
    status = Path(path).stat()
    missing = status.st_size - status.st_blocks * 512
    return missing if missing > max(MIB, status.st_size // 100) else 0


def _head(found: BenchFacts) -> list[Styled]:
    axes = " x ".join(f"{axis:,}" for axis in found.shape)
    of = f", the largest of {found.files:,} files" if found.files > 1 else ""
    ahead = "" if found.read_ahead is None else f", read-ahead {format_size(found.read_ahead)}"
    memory = f"{found.cpus} CPUs, {format_size(found.memory)} of memory"
    return [
        Styled(found.path, "bold"),
        Styled(f"{axes} {found.dtype}, {format_size(found.nbytes)}{of}"),
        Styled(f"{found.filesystem}{ahead}; {memory}"),
        Styled(f"budget {format_size(found.budget)}, engine {found.engine}"),
    ]


def _tables(outcome: Measurements, jobs: list[Job]) -> list[Styled]:
    lines = []
    for pattern in READING_PATTERNS:
        job = next((job for job in jobs if job.pattern == pattern), None)
        if job is None:
            continue
        item = next(case.item_bytes for case in outcome.cases if case.pattern == pattern)
        lines += [Styled(""), Styled(title(pattern, job.batch, item, job.length), "bold")]
        lines += table(*pattern_rows(outcome.cases, pattern))
    return lines


def _foot(found: BenchFacts, outcome: Measurements, advice: Advice, line: str) -> list[Styled]:
    legend = [
        ("ratio", "to np.memmap kept open, one gather per batch"),
        ("warm", f"the first {format_size(found.warm_bytes)} of the file, in the page cache, read again and again"),
        ("anon, mapped", "MiB the process grew by, at most"),
    ]
    if outcome.warm_only is None:
        legend += [("cache", "MiB left in the page cache after the cold part")]
        legend += [("disk", "bytes the disk gave per byte asked for, cold")]
    pairs = [*legend, *(("note", note) for note in notes(found, outcome))]
    pairs += [("because", reason) for reason in advice.reasons] + [("also", other) for other in advice.beside]
    styles = {name: "dim" for name, _ in legend} | {"note": "yellow", "recommended": "bold green"}
    return [Styled(""), *facts([*pairs, ("recommended", line)], styles, as_is="recommended")]
