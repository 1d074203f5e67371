"""``lowtide convert``: tokens from one format into another, bounded, restartable, compared id by id at the end."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict

from lowtide.cli.tables import facts, show
from lowtide.corpus import convert
from lowtide.corpus.conversion import Stated
from lowtide.corpus.request import FORMATS, SHARD_TOKENS


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write tokens in another format. Ours, nanoGPT's and Megatron's end a document with its boundary id, llm.c's "
        "begins one with it: where the id is known it is moved. Every id is compared at the end."
    )
    parser.add_argument("source", metavar="SOURCE", help="a corpus, a token file of any known format, or a directory")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="directory to write to")
    parser.add_argument("--to", required=True, choices=FORMATS, help="format of the output")
    parser.add_argument("--dtype", help="of a file without a header, such as uint16")
    parser.add_argument(
        "--eot", type=int, metavar="ID", help="the id that ends a document, where the data does not say"
    )
    parser.add_argument("--bos", type=int, metavar="ID", help="the id that begins a document, as in llm.c's files")
    parser.add_argument("--vocab", type=int, metavar="N", help="number of ids, where the data does not say it")
    parser.add_argument("--shard-tokens", type=int, default=SHARD_TOKENS, metavar="N", help="of a shard (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(arguments: argparse.Namespace) -> int:
    stated = Stated(arguments.dtype, arguments.eot, arguments.bos, arguments.vocab)
    progress = _Share()
    try:
        found = convert(arguments.source, arguments.output, arguments.to, stated, arguments.shard_tokens, progress)
    finally:
        progress.close()
    if arguments.json:
        print(json.dumps(asdict(found), indent=2))
        return 0
    moved = "moved to the other side of its document" if found.moved else "where it was"
    pairs = [
        ("written", f"{found.output} ({found.to})"),
        ("tokens", f"{found.tokens:,}, every one compared"),
        ("boundary", moved if not found.notes else "not known"),
    ]
    show(facts([*pairs, *(("note", note) for note in found.notes)]))
    return 0


class _Share:
    """How much is done, on a terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._last = 0.0

    def __call__(self, done: int, total: int) -> None:
        if self._shown and time.monotonic() - self._last > 0.2:
            self._last = time.monotonic()
            print(f"\r{done / max(total, 1):4.0%} ", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._shown and self._last:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
