"""``lowtide peek``: what a step is or was trained on - every row's file, byte, document, ids and text.

Name a corpus and the feed's settings, or the directory of a run, which has them. ``survey`` finds the rows,
this file prints them. torch is imported for a run's directory only.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from lowtide.arguments import at_least
from lowtide.cli.flags import add_json, add_locality, add_part, locality
from lowtide.cli.options import option, whole
from lowtide.cli.tables import Styled, counted, facts, show, visible, width
from lowtide.errors import StateError, discreet
from lowtide.mixture import mix
from lowtide.prepare.tokenizers.spelling import words_of
from lowtide.survey.mix_plan import MixPlan, mix_plan
from lowtide.survey.step_rows import StepRow, step_rows
from lowtide.tokens import open_tokens
from lowtide.windows import ORDERS

SHOWN_IDS = 12
SHOWN_TEXT = 300  # characters of a row, unless all is asked for
CUTS = ("stride", "packed")
FEED_FLAGS = ("batch", "length", "seed", "order", "cut", "locality", "rank", "world", "part", "dtype", "eot", "bos")


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show what a step is or was trained on: every row's file, byte, document, ids, and the text where a tokenizer "
        "is known. Give a corpus and the feed's settings, or a run's directory to find the text behind a spike in "
        "metrics.jsonl."
    )
    parser.epilog = "Examples: lowtide peek corpus/ --step 48211 --batch 64 --seed 1337; lowtide peek out --step 350"
    parser.add_argument(
        "place", nargs="?", metavar="CORPUS|OUT_DIR", help="a corpus or token file, or the directory of a run"
    )
    option(parser, "--mix TEXT", "instead of a corpus: several with weights, web=PATH:0.7,code=PATH:0.3 (as in train)")
    option(parser, "--step N", "a feed's step, from 0; a run's, as in metrics.jsonl", whole, required=True)
    add_json(parser)
    parser.add_argument("--full", action="store_true", help="all ids and all text of every row")
    option(parser, "--tokenizer FILE", "bytes or a tokenizer.json (default: the corpus's own)", default="")
    feed = parser.add_argument_group("the feed (a run's directory knows its own)")
    option(feed, "--batch B", "global batch (64)", whole)
    option(feed, "--length L", "tokens per row (1024)", whole)
    option(feed, "--seed S", "seed of the order (0)", whole)
    option(feed, "--order NAME", f"{', '.join(ORDERS)} (shuffled)", choices=ORDERS)
    option(feed, "--cut NAME", "how rows are cut: stride, or packed (whole documents) (stride)", choices=CUTS)
    add_locality(feed)
    option(feed, "--rank R", "only the rows of this rank", whole)
    option(feed, "--world W", "number of ranks", whole)
    add_part(feed)
    option(feed, "--dtype NAME", "dtype of a file without a header, such as uint16")
    option(feed, "--eot ID", "the id that ends a document", whole)
    option(feed, "--bos ID", "the id that begins a document", whole)


class Peeked(NamedTuple):
    """Rows, and where they come from."""

    heading: list[tuple[str, str]]
    rows: list[StepRow]
    settings: dict[str, Any]


def run(arguments: argparse.Namespace) -> int:
    at_least("--step", arguments.step, 0, example="--step 0")
    if (arguments.place is None) == (arguments.mix is None):
        what = "both" if arguments.mix else "neither"
        raise TypeError(f"expected a corpus, an out directory or --mix, got {what}. Name one of them.")
    place = Path(arguments.place or "")
    is_place = arguments.mix is None
    has_checkpoints = is_place and (place.suffix == ".pt" or (place.is_dir() and any(place.glob("step-*.pt"))))
    if is_place and not has_checkpoints and (place / "metrics.jsonl").is_file():
        raise StateError(f"{place}: expected a checkpoint of the run, got none. Peek at its corpus instead.")
    found = _of_run(place, arguments) if has_checkpoints else _of_corpus(arguments)
    if arguments.json:
        print(json.dumps({**found.settings, "rows": [asdict(row) for row in found.rows]}, indent=2))
    else:
        show([*facts(found.heading), *_lines(found.rows, arguments.full)])
    return 0


def _of_run(place: Path, arguments: argparse.Namespace) -> Peeked:
    stated = [f"--{name}" for name in FEED_FLAGS if getattr(arguments, name) is not None]
    if stated:
        raise ValueError(f"{stated[0]}: expected none, got one: {place} has its own. Leave out {', '.join(stated)}.")
    from lowtide.train.trained import run_step

    found = run_step(place, arguments.step)
    rows = step_rows(found.feed, found.tokens, found.steps, words_of(found.data, found.vocab_size, arguments.tokenizer))
    heading = [
        ("run", f"step {arguments.step:,} as metrics.jsonl counts, settings from {found.checkpoint}"),
        ("rows", f"{counted(len(rows), 'row')} from row {rows[0].row:,} on"),
        *(("note", note) for note in found.notes),
    ]
    return Peeked(heading, rows, {"step": arguments.step, "checkpoint": str(found.checkpoint)})


def _of_corpus(arguments: argparse.Namespace) -> Peeked:
    length, cut = 1024 if arguments.length is None else arguments.length, arguments.cut or "stride"
    how = {
        "batch": 64 if arguments.batch is None else arguments.batch,
        "seed": arguments.seed or 0,
        "order": arguments.order or "shuffled",
        "locality": locality(arguments),
        "rank": arguments.rank,
        "world": arguments.world,
    }
    plan = mix_plan(arguments.mix) if arguments.mix else MixPlan({"": arguments.place}, {"": 1.0})
    opened = {
        name: open_tokens(path, part=arguments.part, dtype=arguments.dtype, eot=arguments.eot, bos=arguments.bos)
        for name, path in plan.paths.items()
    }
    windows = {name: tokens.windows(length, cut=cut) for name, tokens in opened.items()}
    first = next(iter(opened.values()))
    if arguments.mix:
        feed = mix(plan.joined(windows), then=plan.joined_later(windows)).batches(**how)
    else:
        feed = windows[""].batches(**how)
    vocab = first.vocab or (256 if first.dtype.itemsize == 1 else 0)
    words = words_of(next(iter(plan.paths.values())), vocab, arguments.tokenizer)
    try:
        rows = step_rows(feed, opened if arguments.mix else first, [arguments.step], words)
    except IndexError as problem:
        raise ValueError(f"--step: {str(problem).removeprefix('feed: ')}") from None
    settings = {**how, "length": length, "cut": cut, **({"mix": discreet(arguments.mix)} if arguments.mix else {})}
    stated = ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None)
    heading = [("step", f"{arguments.step:,} of {discreet(arguments.place or 'a mixture')}"), ("feed", stated)]
    return Peeked(heading, rows, {"step": arguments.step, **settings})


def _lines(rows: list[StepRow], full: bool) -> list[Styled]:
    lines = []
    for row in rows:
        corpus = "" if row.corpus is None else f"{row.corpus}: "
        lines += [Styled(""), Styled(f"row {row.row:,}  {corpus}{row.file} byte {row.offset:,}", "bold")]
        pairs = [("token", f"{row.token:,} of the corpus")]
        if row.document is not None:
            inside = row.token - row.document.first_token
            size = counted(row.document.tokens, "token")
            pairs.append(("document", f"number {row.document.number:,}, {size}; begins {inside:,} tokens before"))
        if row.packed:
            padding = f", then {counted(row.padding, 'token')} of padding" if row.padding else ""
            pairs.append(("packed", f"{counted(len(row.packed), 'document')}{padding}"))
            for each in row.packed:
                number = f"number {each.document.number:,}, " if each.document is not None else ""
                place = f"{'' if each.file == row.file else f'{each.file} '}byte {each.offset:,}"
                pairs.append(("document", f"{number}{counted(each.tokens, 'token')} from {place}"))
        elif row.ends:
            shown = ", ".join(map(str, row.ends[:SHOWN_IDS])) + (", ..." if len(row.ends) > SHOWN_IDS else "")
            pairs.append(("ends", f"{counted(len(row.ends), 'document')} here, at {shown}"))
        most = len(row.ids) if full else SHOWN_IDS
        pairs.append(("ids", " ".join(map(str, row.ids[:most])) + (" ..." if most < len(row.ids) else "")))
        lines += facts(pairs, {"ids": "dim"})
        lines += _text(row.text, full)
    return lines


def _text(text: str | None, full: bool) -> list[Styled]:
    if text is None:
        return []
    shown = text if full else text[:SHOWN_TEXT]
    room = max(30, width() - 4)
    lines = [
        Styled(f"  | {part}")
        for line in shown.splitlines()
        for part in textwrap.wrap(visible(line), room, drop_whitespace=False, break_on_hyphens=False) or [""]
    ]
    more = len(text) - len(shown)
    return [*lines, *([Styled(f"  ... {more:,} more characters: --full", "dim")] if more else [])]
