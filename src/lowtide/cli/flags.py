"""Flags that several commands share, each with one name, one help line and one check, and what was said with them."""

from __future__ import annotations

import argparse
import math

from lowtide.cli.options import option
from lowtide.engine import ENGINES
from lowtide.formats.corpus_parts import PARTS
from lowtide.order.locality import locality_text
from lowtide.storage.store import CACHES, STRATEGIES
from lowtide.survey.subject import Opening, StatedData


def add_paths(parser: argparse.ArgumentParser, *, help: str) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help=help)


def add_stated(parser: argparse.ArgumentParser) -> None:
    """What a headerless file cannot say itself."""
    group = parser.add_argument_group("what the file does not say itself")
    option(group, "--dtype NAME", "dtype of a file without a header, such as uint16")
    option(group, "--shape AXES", "shape of a file without a header, such as -1,162 (one axis may be -1)")
    option(group, "--tensor NAME", "which tensor to read from a file that holds several")
    add_part(group)


def add_part(parser: argparse._ActionsContainer, default: str = "train") -> None:
    option(parser, "--part NAME", f"train, val or test of a directory that holds several ({default})", choices=PARTS)


def parts_text(parts: dict[str, int]) -> str:
    """Every part of a corpus and its tokens; the first is the one that is described."""
    first, *others = [f"{part} {count:,} tokens" for part, count in parts.items()]
    return ", ".join([f"{first} (this one)", *others]) + (f"; --part {[*parts][1]} for another" if others else "")


def add_opening(parser: argparse.ArgumentParser, *, engine_alone: str = "") -> None:
    """How to open it, as lowtide.open takes it. ``engine_alone``: what ``--engine`` without a value gives."""
    group = parser.add_argument_group("how to read it")
    option(group, "--strategy NAME", f"one of {', '.join(STRATEGIES)}", default="auto", choices=STRATEGIES)
    option(
        group,
        "--cache NAME",
        "what happens to the page cache after a read: auto, keep or drop",
        default="auto",
        choices=CACHES,
    )
    text = "who makes the calls: auto, native or python"
    if engine_alone:
        text += "; without a name and a path: say which one runs here, and why"
        names = (*ENGINES, engine_alone)
        group.add_argument(
            "--engine", nargs="?", const=engine_alone, default="auto", choices=names, metavar="NAME", help=text
        )
    else:
        option(group, "--engine NAME", text, default="auto", choices=ENGINES)
    add_budget(group)


def add_budget(parser: argparse._ActionsContainer) -> None:
    option(parser, "--budget SIZE", "most memory Lowtide may hold, such as 64MiB (auto)", default="auto")


def add_locality(parser: argparse._ActionsContainer) -> None:
    option(
        parser,
        "--locality SIZE",
        "bytes that a local shuffle mixes at a time, such as 64MiB; with the size of its blocks: 64MiB,1MiB",
    )


def locality(arguments: argparse.Namespace) -> tuple[str, ...] | None:
    return None if arguments.locality is None else locality_text(arguments.locality)


def add_json(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")


def stated(arguments: argparse.Namespace) -> StatedData:
    shape = None
    if arguments.shape is not None:
        try:
            shape = tuple(int(axis) for axis in arguments.shape.strip("()[] ,").replace("x", ",").split(","))
        except ValueError:
            raise ValueError(
                f"--shape: expected whole numbers, got {arguments.shape!r}. Write them as in --shape=-1,162."
            ) from None
    return StatedData(arguments.dtype, shape, arguments.tensor, arguments.part)


def opening(arguments: argparse.Namespace) -> Opening:
    return Opening(arguments.strategy, arguments.cache, arguments.budget, arguments.engine)


def above_zero(arguments: argparse.Namespace, **examples: str) -> None:
    """Refuse 0, less, and what is no number; ``examples``: a flag's name and the value to suggest."""
    for name, example in examples.items():
        value, flag = getattr(arguments, name), f"--{name.replace('_', '-')}"
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{flag}: expected more than 0, got {value}. Use {flag} {example}.")
