"""``lowtide bench``: every way to read a file, measured on this machine and disk, and what to take.

One idea: the figures come from fresh processes that each read the user's own file one way; this file asks for them,
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
from typing import Any

from lowtide.bench.advice import Advice, recommend
from lowtide.bench.data import call, find, holds_tokens, opened
from lowtide.bench.jobs import PATTERNS, Ask, Job, jobs_for, one_file, quick
from lowtide.bench.run import Outcome, Progress
from lowtide.bench.run import run as run_jobs
from lowtide.bench.text import document, notes, pattern_rows, title
from lowtide.cli.info import add_stated, stated
from lowtide.cli.tables import Line, facts, show, table
from lowtide.formats import Layout
from lowtide.machine import file_kind, read_ahead_bytes, total_memory
from lowtide.storage import Store
from lowtide.tokens import Tokens
from lowtide.units import MIB, format_size


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = "Measure every strategy and cache policy beside np.memmap, on your own file and disk."
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="a file or corpus; of several files the largest is read"
    )
    parser.add_argument("--quick", action="store_true", help="one round, under 30 seconds whatever the file's size")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="a case and round may take, cold and warm each (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds; figures are medians (%(default)s)")
    parser.add_argument("--batch", type=int, default=0, help="rows or windows of a batch (64)")
    parser.add_argument("--row", type=int, default=0, help="read one axis of numbers as rows of this many")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a window (%(default)s)")
    parser.add_argument(
        "--budget", default="auto", metavar="SIZE", help="most bytes each way of ours may hold (64 MiB)"
    )
    parser.add_argument("--no-drop", action="store_true", help="leave the page cache alone: warm figures only")
    add_stated(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(arguments: argparse.Namespace) -> int:
    ask = _ask(arguments)
    whole = find(arguments.paths, stated(arguments))
    layout = one_file(whole)
    jobs = jobs_for(layout, ask, cold=False)
    _refuse_early(layout, ask, jobs)
    with _progress() as progress:
        outcome = run_jobs(layout, ask, progress)
    store = Store(whole.extents, budget=ask.budget)
    budget, keep, why = store.budget.limit, not store.drop, store.cache_why
    store.close()
    advice = recommend(outcome.cases, keep=keep, cache_why=why, budget=budget)
    source = arguments.paths[0] if len(arguments.paths) == 1 else list(arguments.paths)
    settings = {"strategy": advice.strategy, "cache": advice.cache, "budget": _stated_size(budget)}
    line = call(whole, source, stated(arguments), **settings)
    found = _facts(whole, layout, ask, budget)
    if arguments.json:
        print(json.dumps(document(found, outcome, advice, line), indent=2))
    else:
        show([*_head(found), *_tables(outcome, jobs), *_foot(outcome, ask, advice, line, found)])
    return 0 if any(case.rounds for case in outcome.cases) else 1


def _stated_size(size: int) -> str:
    """As one would write it in a call: 67108864 -> '64MiB'."""
    return f"{size // MIB}MiB" if size % MIB == 0 else str(size)


def _ask(arguments: argparse.Namespace) -> Ask:
    for name in ("seconds", "rounds", "length"):
        if getattr(arguments, name) <= 0:
            raise ValueError(f"--{name}: expected more than 0, got {getattr(arguments, name)}. Leave it out.")
    for name in ("batch", "row"):
        if getattr(arguments, name) < 0:
            raise ValueError(f"--{name}: expected 1 or more, got {getattr(arguments, name)}. Leave it out.")
    ask = Ask(
        batch=arguments.batch,
        row=arguments.row,
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
        with opened(rows, strategy="read", cache="keep", budget=ask.budget) as data:
            if isinstance(data, Tokens):
                data.batches(job.batch, length=job.length, order="random")
            else:
                data.shuffled(job.batch)


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on stderr if that is a terminal; else nothing."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(30), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("one run that is not counted", total=None)

        def progress(done: int, jobs: int, name: str) -> None:
            bar.update(task, completed=done, total=jobs, description=name)

        yield progress


def _facts(whole: Layout, layout: Layout, ask: Ask, budget: int) -> dict[str, Any]:
    path = layout.extents[0].path
    return {
        "path": path,
        "nbytes": layout.nbytes,
        "holes": _holes(path),
        "files": len(whole.extents),
        "dtype": str(layout.dtype),
        "shape": list(layout.shape),
        "kind": "tokens" if holds_tokens(layout) else "array",
        "filesystem": file_kind(path).name,
        "read_ahead": read_ahead_bytes(path),
        "memory": total_memory(),
        "cpus": os.cpu_count(),
        "budget": budget,
        "seconds_per_case": ask.seconds,
        "rounds": ask.rounds,
        "quick": ask.total_seconds is not None,
        "warm_bytes": min(ask.warm_bytes, layout.nbytes),
    }


def _holes(path: str) -> int:
    """Bytes of the file that were never written. A few pages less on the disk than in the file are no hole."""
    status = Path(path).stat()
    missing = status.st_size - status.st_blocks * 512
    return missing if missing > max(MIB, status.st_size // 100) else 0


def _head(found: dict[str, Any]) -> list[Line]:
    axes = " x ".join(f"{axis:,}" for axis in found["shape"])
    of = f", the largest of {found['files']:,} files" if found["files"] > 1 else ""
    ahead = "" if found["read_ahead"] is None else f", read-ahead {format_size(found['read_ahead'])}"
    memory = f"{found['cpus']} CPUs, {format_size(found['memory'])} of memory"
    return [
        Line(found["path"], "bold"),
        Line(f"{axes} {found['dtype']}, {format_size(found['nbytes'])}{of}"),
        Line(f"{found['filesystem']}{ahead}; {memory}; budget {format_size(found['budget'])}"),
    ]


def _tables(outcome: Outcome, jobs: list[Job]) -> list[Line]:
    lines = []
    for pattern in PATTERNS:
        job = next((job for job in jobs if job.pattern == pattern), None)
        if job is None:
            continue
        item = next(case.item_bytes for case in outcome.cases if case.pattern == pattern)
        lines += [Line(""), Line(title(pattern, job.batch, item, job.length), "bold")]
        lines += table(*pattern_rows(outcome.cases, pattern))
    return lines


def _foot(outcome: Outcome, ask: Ask, advice: Advice, line: str, found: dict[str, Any]) -> list[Line]:
    warm_bytes, quick_run = found["warm_bytes"], found["quick"]
    legend = [
        ("ratio", "to np.memmap kept open, one gather a batch"),
        ("warm", f"the first {format_size(warm_bytes)} of the file, in the page cache, read again and again"),
        ("anon, mapped", "MiB the process grew by, at most"),
    ]
    if outcome.warm_only is None:
        legend += [
            ("cache", "MiB left in the page cache after the cold part"),
            ("disk", "bytes the disk gave for each byte asked for, cold"),
        ]
    pairs = [*legend, *(("note", note) for note in notes(outcome, ask.seconds, quick=quick_run, holes=found["holes"]))]
    pairs += [("because", reason) for reason in advice.reasons] + [("beside", other) for other in advice.beside]
    styles = {name: "dim" for name, _ in legend} | {"note": "yellow", "recommended": "bold green"}
    return [Line(""), *facts([*pairs, ("recommended", line)], styles, as_is="recommended")]
