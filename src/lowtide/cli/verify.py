"""``lowtide verify``: read data once and name every fault with its file and byte; exit 1 where there is one."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict

from lowtide.cli.tables import Styled, counted, facts, show
from lowtide.corpus import Verified, verify
from lowtide.units import format_duration, format_size


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Read everything once and name every fault with file and byte: sizes, checksums, ids beyond the vocabulary, "
        "documents out of order, a wrong dtype, cut ends. Exit 1 where there is a fault."
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a corpus, a token file of any known format, an array")
    parser.add_argument("--dtype", help="of a file without a header, such as uint16")
    parser.add_argument("--vocab", type=int, metavar="N", help="number of ids, where the data does not say it")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(arguments: argparse.Namespace) -> int:
    begun = time.monotonic()
    progress = _Counter()
    found = verify(arguments.paths, dtype=arguments.dtype, vocab=arguments.vocab, progress=progress)
    progress.close()
    seconds = time.monotonic() - begun
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
        pairs.append(("tokens", f"{found.tokens:,}{documents}"))
    pairs.append(("checked", ", ".join(found.checks)))
    for fault in found.faults:
        place = fault.file if fault.offset is None else f"{fault.file}, byte {fault.offset}"
        pairs.append(("fault", f"{place}: {fault.what}" if not fault.what.startswith(fault.file) else fault.what))
    pairs.append(("result", counted(len(found.faults), "fault") if found.faults else "no fault found"))
    return facts(pairs, {"fault": "red", "result": "red" if found.faults else "green"})


class _Counter:
    """Bytes read so far, on a terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._last = 0.0

    def __call__(self, done: int) -> None:
        if self._shown and time.monotonic() - self._last > 0.2:
            self._last = time.monotonic()
            print(f"\r{format_size(done)} read ", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._shown and self._last:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
