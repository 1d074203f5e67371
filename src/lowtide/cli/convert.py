"""``lowtide convert``: tokens from one format into another, bounded, restartable, compared id by id at the end."""

from __future__ import annotations

import argparse
import contextlib
import json
from dataclasses import asdict

from lowtide.cli.flags import add_json
from lowtide.cli.options import option, whole
from lowtide.cli.tables import HowFar, facts, show
from lowtide.corpus import convert
from lowtide.corpus.conversion import Conversion, Stated
from lowtide.corpus.request import FORMATS, SHARD_TOKENS


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write tokens in another format. Our files, nanoGPT's and Megatron's have the boundary id at the end of a "
        "document, llm.c's at its beginning: if the id is known, it is moved. At the end every id is compared."
    )
    parser.add_argument("source", metavar="SOURCE", help="a corpus, a token file of any known format, or a directory")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="directory to write to")
    option(parser, "--to FORMAT", f"one of {', '.join(FORMATS)}", choices=FORMATS, required=True)
    option(parser, "--dtype NAME", "dtype of a file without a header, such as uint16")
    option(parser, "--eot ID", "the id that ends a document, where the data does not say", whole)
    option(parser, "--bos ID", "the id that begins a document, as in llm.c's files", whole)
    option(parser, "--vocab N", "number of ids, where the data does not say it", whole)
    option(
        parser,
        "--shard-tokens N",
        "a shard ends with the document that reaches N tokens (%(default)s)",
        whole,
        SHARD_TOKENS,
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    stated = Stated(arguments.dtype, arguments.eot, arguments.bos, arguments.vocab)
    with HowFar() as far:
        tell = lambda done, total: far.show(f"{done / max(total, 1):4.0%}")  # noqa: E731
        found = convert(arguments.source, arguments.output, arguments.to, stated, arguments.shard_tokens, tell)
    with contextlib.suppress(BrokenPipeError):  # all is written, whether or not anybody reads so
        if arguments.json:
            print(json.dumps(asdict(found), indent=2))
        else:
            show(facts(_told(found)))
    return 0


def _told(found: Conversion) -> list[tuple[str, str]]:
    moved = "moved to the other end of every document" if found.moved else "stays where it was"
    return [
        ("written", f"{found.output} ({found.to})"),
        ("tokens", f"{found.tokens:,}, every one compared"),
        ("boundary id", moved if not found.notes else "not known"),
        *(("note", note) for note in found.notes),
    ]
