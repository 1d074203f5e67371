"""``lowtide verify``: read data once and name every fault with its file and byte; exit 1 where there is one."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from dataclasses import asdict
from pathlib import Path

from lowtide.cli.flags import above_zero, add_json, add_part, add_paths
from lowtide.cli.options import option, whole
from lowtide.cli.tables import HowFar, Styled, counted, facts, show
from lowtide.corpus import Verified, verify
from lowtide.units import format_duration, format_size


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Read everything once and report every fault with file and byte: sizes, checksums, ids beyond the vocabulary, "
        "documents out of order, a wrong dtype, truncated files. Exit code 1 if there is a fault."
    )
    add_paths(parser, help="a corpus, a token file of any known format, an array")
    option(parser, "--dtype NAME", "dtype of a file without a header, such as uint16")
    option(parser, "--vocab N", "number of ids, where the data does not say it", whole)
    add_part(parser, default="all of them")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    above_zero(arguments, vocab="50257")
    begun = time.monotonic()
    with HowFar() as far:
        tell = lambda done: far.show(f"{format_size(done)} read")  # noqa: E731
        found = verify(
            arguments.paths, dtype=arguments.dtype, vocab=arguments.vocab, part=arguments.part, progress=tell
        )
    seconds = time.monotonic() - begun
    with contextlib.suppress(BrokenPipeError):  # the exit code says what was found, whether or not anybody reads it
        if arguments.json:
            print(json.dumps({**asdict(found), "ok": not found.faults, "seconds": seconds}, indent=2))
        else:
            show(_lines(found, seconds))
    return 1 if found.faults else 0


def _lines(found: Verified, seconds: float) -> list[Styled]:
    rate = f"{format_size(found.bytes / max(seconds, 1e-9))}/s"
    pairs = [
        ("read", f"{counted(found.files, 'file')}, {format_size(found.bytes)} in {format_duration(seconds)} ({rate})")
    ]
    if found.tokens:
        documents = "" if found.documents is None else f", {found.documents:,} documents"
        parts = ", ".join(f"{part} {count:,}" for part, count in found.parts.items())
        pairs.append(("tokens", f"{found.tokens:,}{documents}{f' ({parts})' if parts else ''}"))
    pairs.append(("checked", ", ".join(found.checks)))
    for fault in found.faults:
        place = fault.file if fault.offset is None else f"{fault.file}, byte {fault.offset}"
        named = fault.what.partition(": ")[0]  # some errors already begin with the whole path
        again = fault.what.startswith(fault.file) or Path(named).name == Path(fault.file).name
        pairs.append(("fault", fault.what if again else f"{place}: {fault.what}"))
    pairs += [("unverifiable", reason) for reason in found.unverifiable]
    unsure = "; not verifiable beyond what was checked" if found.unverifiable else ""
    pairs.append(("result", counted(len(found.faults), "fault") if found.faults else f"no fault found{unsure}"))
    return facts(pairs, {"fault": "red", "result": "red" if found.faults else "green"})
