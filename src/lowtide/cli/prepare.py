"""``lowtide prepare``: text files in, a token corpus out.

Every flag is a field of `Request` (what fixes the corpus) or `Resources` (how to get there); this file finds
out what was asked for, shows how far it is, and says at the end what came out and what to do next.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
import time
from dataclasses import asdict
from typing import Any

from lowtide.cli.flags import add_json
from lowtide.cli.options import number, option, whole
from lowtide.cli.tables import counted, facts, show, watched
from lowtide.corpus.request import FORMATS, POLICIES, REQUEST_FIELDS, SHARD_TOKENS
from lowtide.prepare import Prepared, Request, Resources, prepare
from lowtide.prepare.job import Status
from lowtide.prepare.resources import ENCODING_ENGINES
from lowtide.units import format_duration, format_size

_EVERY = 10.0  # seconds between lines where there is no terminal


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Make a token corpus from text: bounded in memory, verified, restartable. If it is killed, the same "
        "command continues where it stopped."
    )
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="files, globs or directories of .txt, .md, .jsonl (all also .gz, .zst) or .parquet; - is standard input",
    )
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="directory of the corpus")
    _add_text(parser)
    _add_corpus(parser)
    group = parser.add_argument_group("how it runs")
    option(group, "--engine", "who encodes (%(default)s)", default="local", choices=ENCODING_ENGINES)
    option(group, "--address ADDRESS", "of a Ray cluster; without it Ray starts on this machine", default="")
    option(group, "--workers N", "processes that encode (one per processor)", whole, 0)
    option(group, "--budget SIZE", "most memory to hold, such as 512MiB (%(default)s)", default="auto")
    text = "auto uses gigatoken if it gives the same ids (%(default)s)"
    option(group, "--tokenizer-engine", text, default="auto", choices=("auto", "tokenizers"))
    add_json(group)


def _add_text(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("documents")
    group.add_argument("--lines", action="store_true", help=".txt: a document per line (otherwise per file)")
    option(group, "--separator TEXT", ".txt: the text between two documents (\\n: a line end)", default="")
    option(group, "--endings LIST", "endings of other files to read as text, such as .py,.rs", default="")
    option(group, "--field NAME", ".jsonl: the field that holds the text (%(default)s)", default="text")
    option(group, "--column NAME", ".parquet: the column that holds the text (%(default)s)", default="text")
    text = "what to do with text that is not UTF-8 (%(default)s)"
    option(group, "--invalid-utf8", text, default="refuse", choices=POLICIES)
    group.add_argument(
        "--skip-bad", action="store_true", help="leave out lines of JSON that cannot be used, and count them"
    )


def _add_corpus(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("corpus")
    option(group, "--tokenizer FILE", "bytes (default), a tokenizer.json, .tiktoken or .model", default="bytes")
    option(group, "--train-bpe VOCAB", "first train a BPE tokenizer with this many ids", whole, 0)
    option(group, "--eot TOKEN", "the end-of-text token, if the tokenizer does not name one", default="")
    option(group, "--val SHARE", "share of documents for val/, such as 0.005", number, 0.0)
    option(group, "--test SHARE", "share of documents for test/", number, 0.0)
    group.add_argument(
        "--dedup",
        nargs="?",
        const="256MiB",
        default=None,
        metavar="SIZE",
        help="leave out documents seen before, remembered in this much memory (256MiB: 12 million documents)",
    )
    option(
        group,
        "--shard-tokens N",
        "a shard ends with the document that reaches N tokens (%(default)s)",
        whole,
        SHARD_TOKENS,
    )
    option(group, "--format", "format of the files to write (%(default)s)", default="lowtide", choices=FORMATS)


def run(arguments: argparse.Namespace) -> int:
    fields = {name: getattr(arguments, name) for name in REQUEST_FIELDS}
    separator = arguments.separator.replace("\\n", "\n").replace("\\t", "\t")  # as shells leave them
    request = Request(**fields | {"dedup": arguments.dedup is not None, "separator": separator})
    resources = Resources(
        arguments.engine,
        arguments.address,
        arguments.workers,
        arguments.budget,
        arguments.dedup or "256MiB",
        arguments.tokenizer_engine,
    )
    progress = _Bar() if watched() else _Lines()
    try:
        found = prepare(arguments.inputs, arguments.output, request, resources, progress)
    except KeyboardInterrupt:
        progress.close()
        print("lowtide prepare: stopped. Run the same command again: it continues where it stopped.", file=sys.stderr)
        return 130
    finally:
        progress.close()
    with contextlib.suppress(BrokenPipeError):  # the corpus is whole, whether or not anybody reads so
        if arguments.json:
            print(json.dumps(asdict(found), indent=2))
        else:
            show(facts(_told(found, request)))
    return 0


def _told(found: Prepared, request: Request) -> list[tuple[str, str]]:
    size = found.tokens * (2 if found.dtype == "uint16" else 4)
    pairs = [
        ("corpus", f"{found.output}  ({counted(found.shards, 'shard')}, {format_size(size)})"),
        ("tokens", f"{found.tokens:,} x {found.dtype}, vocabulary {found.vocab:,}"),
        ("documents", f"{found.documents:,}{_met(found.tally)}"),
        ("encoder", found.encoder),
    ]
    if found.was_complete:
        pairs.append(("time", "nothing to do: this corpus was complete"))
    else:
        rate = found.tokens / max(found.seconds, 1e-9)
        speed = f"{rate / 1e6:,.1f} million" if rate >= 1e5 else f"{rate:,.0f}"
        took = f"{format_duration(found.seconds)}, {speed} tokens/s"
        pairs.append(("time", took + (" (continued an earlier run)" if found.went_on else "")))
    pairs += [("note", note) for note in found.notes]
    place = shlex.quote(found.output)
    if request.format == "lowtide":
        pairs.append(("next", f"lowtide verify {place}; lowtide train --data {place}"))
    return pairs


def _met(tally: dict[str, int]) -> str:
    words = {
        "empty": "empty left out",
        "bad": "bad lines left out",
        "replaced": "with invalid UTF-8 replaced",
        "duplicates": "duplicates left out",
        "cut": "encoded in parts",
    }
    told = [f"{tally[name]:,} {text}" for name, text in words.items() if tally.get(name)]
    return f" ({', '.join(told)})" if told else ""


class _Lines:
    """A line now and then, on stderr."""

    def __init__(self) -> None:
        self._begun = self._said = time.monotonic()
        self._first: int | None = None

    def __call__(self, now: Status) -> None:
        if self._first is None and now.stage == "encoding":
            self._first, self._begun = now.done, time.monotonic()
        if time.monotonic() - self._said >= _EVERY:
            self._said = time.monotonic()
            print(f"lowtide prepare: {self.words(now)}", file=sys.stderr, flush=True)

    def words(self, now: Status) -> str:
        if now.stage != "encoding":
            return {"tokenizer": "looking at the tokenizer", "writing": "writing the manifest"}[now.stage]
        rate = (now.done - (self._first or 0)) / max(time.monotonic() - self._begun, 1e-6)
        left = f", {format_duration((now.total - now.done) / rate)} left" if rate > 0 and now.done < now.total else ""
        return (
            f"{format_size(now.done)} of {format_size(now.total)}, {now.tokens:,} tokens, {now.documents:,} documents, "
            f"{now.shards} shards, {format_size(rate)}/s{left}"
        )

    def close(self) -> None: ...


class _Bar(_Lines):
    """The same figures under a bar, on a terminal."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns: list[Any] = [BarColumn(bar_width=24), TextColumn("{task.fields[figures]}", markup=False)]
        self._bar = Progress(*columns, console=Console(stderr=True, highlight=False), transient=True)
        self._task = self._bar.add_task("prepare", total=None, figures="")
        self._bar.start()

    def __call__(self, now: Status) -> None:
        if self._first is None and now.stage == "encoding":
            self._first, self._begun = now.done, time.monotonic()
        self._bar.update(self._task, total=now.total or None, completed=now.done, figures=self.words(now))

    def close(self) -> None:
        self._bar.stop()
