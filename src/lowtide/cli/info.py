"""``lowtide info``: what files hold, and how Lowtide would read them and why.

One idea: everything printed comes from headers, the machine and the plan of an opened object; a guess is printed as a
guess and decides nothing. Reads headers, and sixteen small blocks to smell a wrong dtype.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from typing import Any

from lowtide.bench.data import Stated, call, find, holds_tokens, opened
from lowtide.cli.tables import Line, facts, show
from lowtide.formats import Layout, MissingDtypeError, dtype_smell
from lowtide.machine import file_kind, page_cache, read_ahead_bytes
from lowtide.storage import CACHES, STRATEGIES
from lowtide.units import format_size

LOOKED_AT = 1000  # files asked for their page cache; a corpus of more is not worth the wait
AUTO_BUDGET = " (auto: more where 3 batches need it)"

_FORMATS = {
    "npy": "NumPy array (.npy)",
    "raw": "raw numbers, no header",
    "nanogpt": "tokens without a header, as nanoGPT writes them",
    "olmo": "tokens without a header, as OLMo writes them",
    "llm.c": "llm.c tokens",
    "megatron": "Megatron tokens (.bin and .idx)",
    "lit-gpt": "lit-gpt packed tokens",
    "datatrove": "datatrove tokens (.ds)",
    "safetensors": "one tensor of a .safetensors file",
}


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = "Say what files hold and how they would be read. Several paths are read as one."
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a file, a glob, a corpus directory, or several")
    add_stated(parser)
    add_opening(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def add_stated(parser: argparse.ArgumentParser) -> None:
    """What a headerless file cannot say itself."""
    parser.add_argument("--dtype", help="of a file without a header, such as uint16")
    parser.add_argument("--shape", help="of a file without a header, such as -1,162 (one axis may be -1)")
    parser.add_argument("--tensor", help="which tensor of a .safetensors file")


def add_opening(parser: argparse.ArgumentParser) -> None:
    """How to open it, as lowtide.open takes it."""
    parser.add_argument("--strategy", default="auto", choices=STRATEGIES, help="how bytes leave the file (%(default)s)")
    parser.add_argument("--cache", default="auto", choices=CACHES, help="what stays in the page cache (%(default)s)")
    parser.add_argument("--budget", default="auto", metavar="SIZE", help="most bytes to hold, such as 64MiB")


def stated(arguments: argparse.Namespace) -> Stated:
    shape = None
    if arguments.shape is not None:
        try:
            shape = tuple(int(axis) for axis in arguments.shape.strip("()[] ,").replace("x", ",").split(","))
        except ValueError:
            raise ValueError(
                f"--shape: expected whole numbers, got {arguments.shape!r}. Write them as in --shape=-1,162."
            ) from None
    return Stated(arguments.dtype, shape, arguments.tensor)


def run(arguments: argparse.Namespace) -> int:
    guessed = None
    try:
        layout = find(arguments.paths, stated(arguments))
    except MissingDtypeError as problem:
        if problem.guess is None:
            raise
        guessed = arguments.dtype = problem.guess  # printed as a guess, and only here: opening asks for a statement
        layout = find(arguments.paths, stated(arguments))
    found = describe(layout, arguments) | {"dtype_guessed": guessed is not None}
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        show(_lines(found))
    return 0


def describe(layout: Layout, arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything there is to say, JSON-safe."""
    settings = {"strategy": arguments.strategy, "cache": arguments.cache, "budget": arguments.budget}
    with opened(layout, **settings) as data:
        plan = data.plan()
    first = layout.extents[0]
    said = stated(arguments)
    source = arguments.paths[0] if len(arguments.paths) == 1 else list(arguments.paths)
    return {
        "paths": arguments.paths,
        "format": layout.format,
        "kind": "tokens" if holds_tokens(layout) else "array",
        "dtype": str(layout.dtype),
        "shape": list(layout.shape),
        "order": "F" if layout.fortran else "C",
        "nbytes": layout.nbytes,
        "files": len(layout.extents),
        "first_file": first.path,
        "documents": _documents(layout),
        "vocab": layout.vocab,
        "eot": layout.eot,
        "filesystem": file_kind(first.path).name,
        "read_ahead": read_ahead_bytes(first.path),
        "cached": _cached(layout),
        "notes": list(layout.notes),
        "guess": dtype_smell(layout),
        "plan": plan.to_dict(),
        "stated": [name for name, value in {**vars(said), **settings}.items() if value not in (None, "auto")],
        "open": call(layout, source, said, **settings),
    }


def _documents(layout: Layout) -> int | None:
    if layout.documents is None:
        return None
    # Megatron's table has a boundary more than documents: the first is where the first begins.
    return sum(max(0, shard.count - (shard.kind == "megatron")) for shard in layout.documents.shards)


def _cached(layout: Layout) -> int | None:
    """Bytes of the data in the page cache now, where the kernel tells."""
    if len(layout.extents) > LOOKED_AT:
        return None
    with contextlib.suppress(OSError):
        return sum(page_cache(extent.path, extent.offset, extent.length).cached for extent in layout.extents)
    return None


def _lines(found: dict[str, Any]) -> list[Line]:
    plan = found["plan"]
    name = found["first_file"] + (f" and {found['files'] - 1} more" if found["files"] > 1 else "")
    pairs = [("what", _FORMATS.get(found["format"], found["format"])), ("dtype", _dtype_text(found))]
    if found["kind"] == "tokens":
        pairs.append(("tokens", f"{found['shape'][0]:,}"))
    else:
        axes = " x ".join(f"{axis:,}" for axis in found["shape"])
        pairs.append(("shape", axes + (", Fortran order" if found["order"] == "F" else "")))
    pairs.append(("size", f"{format_size(found['nbytes'])} in {_count(found['files'], 'file')}"))
    if found["documents"] is not None:
        pairs.append(("documents", f"{found['documents']:,}"))
    if found["vocab"] is not None:
        pairs.append(
            ("vocab", f"{found['vocab']:,} ids" + (f", {found['eot']} ends a document" if found["eot"] else ""))
        )
    pairs.append(("disk", _disk_text(found)))
    pairs += [("note", note) for note in found["notes"]]
    if found["guess"]:
        pairs.append(("guess", found["guess"]))
    reading = [
        ("strategy", f"{plan['strategy']}, engine {plan['engine']}"),
        ("because", plan["why"][0]),
        ("page cache", "kept" if plan["rung"] == "keep" else f"left clean by {plan['rung']}"),
        *(("because ", reason) for reason in plan["why"][1:]),
        ("budget", f"{format_size(plan['budget'])}{'' if 'budget' in found['stated'] else AUTO_BUDGET}"),
        ("at most", ", ".join(f"{kind} {format_size(plan[kind])}" for kind in ("anon", "mapped", "cache"))),
    ]
    styles = {"guess": "bold yellow", "note": "yellow", "because": "dim", "because ": "dim"}
    together = facts([*pairs, *reading, ("open", found["open"])], {**styles, "open": "bold green"}, as_is="open")
    return [Line(name, "bold"), *together]


def _dtype_text(found: dict[str, Any]) -> str:
    if found["dtype_guessed"]:
        return f"{found['dtype']} (a guess from the first block: nothing in the file says so)"
    return f"{found['dtype']} ({'as stated' if 'dtype' in found['stated'] else 'as the file says'})"


def _disk_text(found: dict[str, Any]) -> str:
    parts = [str(found["filesystem"])]
    if found["read_ahead"] is not None:
        parts.append(f"read-ahead {format_size(found['read_ahead'])}")
    if found["cached"] is not None:
        share = found["cached"] / found["nbytes"] if found["nbytes"] else 0.0
        parts.append(f"{format_size(found['cached'])} ({min(1.0, share):.0%}) in the page cache now")
    return ", ".join(parts)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
