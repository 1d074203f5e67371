"""``lowtide info``: what files hold, and how Lowtide would read them and why. ``survey`` describes, this file prints.

A guess is printed as a guess and decides nothing.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from lowtide.cli.flags import above_zero, add_json, add_opening, add_stated, opening, parts_text, stated
from lowtide.cli.options import option, whole
from lowtide.cli.tables import HowFar, Styled, counted, facts, show
from lowtide.engine import engine
from lowtide.formats import ArrayMember
from lowtide.survey.description import Description, describe, survey_documents
from lowtide.survey.projection import Plan, cache_reason, keeps_cache, other_reasons, strategy_reason
from lowtide.survey.subject import find, several_members
from lowtide.units import format_size

WHICH = "which"  # --engine without a value
GUESSED = "(a guess from its name or first block: nothing in the file says so)"
AUTO_BUDGET = " (auto: more where 3 batches need it)"

_FORMATS = {
    "npy": "NumPy array (.npy)",
    "raw": "raw numbers, no header",
    "lowtide": "a corpus of Lowtide's own: tokens and a manifest.json",
    "nanogpt": "tokens without a header, as nanoGPT writes them",
    "olmo": "tokens without a header, as OLMo writes them",
    "llm.c": "llm.c tokens",
    "megatron": "Megatron tokens (.bin and .idx)",
    "lit-gpt": "lit-gpt packed tokens",
    "datatrove": "datatrove tokens (.ds)",
    "safetensors": "one tensor of a .safetensors file",
    "npz": "one member of an .npz archive, read in place",
    "hdf5": "one dataset of an HDF5 file, read in place",
}


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say what files hold and how Lowtide would read them. Several paths are read as one. Reads headers only, and a "
        "few small blocks to notice a wrong dtype."
    )
    parser.epilog = "Example: lowtide info features.f32 --dtype float32 --shape=-1,162"
    parser.add_argument("paths", nargs="*", metavar="PATH", help="a file, a glob, a corpus directory, or several")
    add_json(parser)
    add_stated(parser)
    group = parser.add_argument_group("documents of a corpus")
    group.add_argument(
        "--documents",
        action="store_true",
        help="count them; where only an id marks them, reads every token once and keeps an index",
    )
    option(group, "--eot ID", "the id that ends a document", whole)
    option(group, "--bos ID", "the id that begins a document", whole)
    option(group, "--length N", "tokens per window (1024)", whole, 1024)
    add_opening(parser, engine_alone=WHICH)


def run(arguments: argparse.Namespace) -> int:
    if arguments.engine == WHICH:
        return _say_engine(arguments)
    if not arguments.paths:
        raise TypeError("expected a file, a corpus or a glob, got none. Name one, or ask for --engine alone.")
    members = several_members(arguments.paths) if arguments.tensor is None else ()
    if members:
        _show_members(arguments.paths[0], members, as_json=arguments.json)
        return 0
    subject = find(arguments.paths, stated(arguments))
    found = describe(subject, opening(arguments))
    documents: dict[str, int | str] = {}
    if arguments.documents:
        above_zero(arguments, length="1024")
        eot, bos, window = arguments.eot, arguments.bos, arguments.length
        with HowFar() as far:
            tell = lambda done, total: far.show(f"looking for documents: {done / total if total else 1:.0%}")  # noqa: E731
            how = opening(arguments)
            marks, counts = survey_documents(subject, how, eot=eot, bos=bos, window=window, progress=tell)
        documents = {"known_by": marks, **counts.to_dict()}
    if arguments.json:
        more = {"document_counts": documents} if documents else {}
        print(json.dumps({**asdict(found), **more}, indent=2))
    else:
        show(_lines(found, documents))
    return 0


def _say_engine(arguments: argparse.Namespace) -> int:
    """Which engine runs here, and why; with ``--json`` as a document."""
    if arguments.paths:
        raise TypeError(f"--engine: expected no path where it has no value, got {arguments.paths[0]}. Leave one out.")
    found = engine()
    about = {"name": found.name, "why": " ".join(found.why.split())}
    print(json.dumps(about) if arguments.json else f"engine {about['name']}: {about['why']}")
    return 0


def _show_members(path: str, members: tuple[ArrayMember, ...], *, as_json: bool) -> None:
    """A file of several arrays: what each is, and whether it can be read where it lies."""
    if as_json:
        print(json.dumps({"path": path, "members": [{**asdict(one), "in_place": one.in_place} for one in members]}))
        return
    pairs = []
    for one in members:
        how = "read in place" if one.in_place else f"cannot be read in place: {one.why_not}"
        pairs.append((one.name, f"{one.dtype} {' x '.join(f'{axis:,}' for axis in one.shape)}, {how}"))
    readable = next((one.name for one in members if one.in_place), members[0].name)
    lines = [Styled(f"{path}: {counted(len(members), 'array')}", "bold"), *facts(pairs)]
    show([*lines, Styled(f"Describe one of them with: lowtide info {path} --tensor {readable}")])


def _lines(found: Description, documents: dict[str, int | str]) -> list[Styled]:
    name = found.first_file + (f" and {found.files - 1:,} more" if found.files > 1 else "")
    pairs = [*_data(found, documents), *_reading(found), ("open", found.open)]
    styles = {"guess": "bold yellow", "note": "yellow", "because": "dim", "because ": "dim", "open": "bold green"}
    return [Styled(name, "bold"), *facts(pairs, styles, as_is="open")]


def _data(found: Description, documents: dict[str, int | str]) -> list[tuple[str, str]]:
    pairs = [("what", _FORMATS.get(found.format, found.format)), ("dtype", _dtype_text(found))]
    if found.kind == "tokens":
        pairs.append(("tokens", f"{found.shape[0]:,}"))
        if found.parts:
            pairs.append(("parts", parts_text(found.parts)))
    else:
        axes = " x ".join(f"{axis:,}" for axis in found.shape)
        pairs.append(("shape", axes + (", Fortran order" if found.order == "F" else "")))
    pairs.append(("size", f"{format_size(found.nbytes)} in {counted(found.files, 'file')}"))
    if documents:
        lengths = ", ".join(f"{name} {documents[name]:,}" for name in ("shortest", "median", "longest"))
        pairs.append(("documents", f"{documents['documents']:,}, known by {documents['known_by']}"))
        pairs.append(("tokens each", lengths))
        pairs.append(("in a window", f"at most {documents['most_in_window']:,} in {documents['window']:,} tokens"))
    elif found.documents is not None:
        pairs.append(("documents", f"{found.documents:,}"))
    if found.vocab is not None:
        pairs.append(("vocab", f"{found.vocab:,} ids"))
    if found.eot is not None:
        pairs.append(("eot", f"id {found.eot} ends a document"))
    pairs.append(("disk", _disk_text(found)))
    told = f"the {next(iter(found.parts))} part of this corpus" if found.parts else None  # by the line of the parts
    pairs += [("note", note) for note in found.notes if told is None or not note.startswith(told)]
    if found.guess:
        pairs.append(("guess", found.guess))
    return pairs


def _reading(found: Description) -> list[tuple[str, str]]:
    plan = found.plan
    return [
        ("strategy", f"{plan.strategy}, engine {plan.engine}"),
        ("because", strategy_reason(plan)),
        ("page cache", "kept" if keeps_cache(plan) else "left clean"),
        *(() if keeps_cache(plan) else (cleaning_fact(plan),)),
        *(("because ", reason) for reason in (cache_reason(plan), *other_reasons(plan))),
        ("budget", f"{format_size(plan.budget)}{'' if 'budget' in found.stated else AUTO_BUDGET}"),
        ("at most", ", ".join(f"{kind} {format_size(getattr(plan, kind))}" for kind in ("anon", "mapped", "cache"))),
    ]


def cleaning_fact(plan: Plan) -> tuple[str, str]:
    return "cleaned by", plan.rung


def _dtype_text(found: Description) -> str:
    if found.dtype_guessed:
        return f"{found.dtype} {GUESSED}"
    return f"{found.dtype} ({'as stated' if 'dtype' in found.stated else 'as the file says'})"


def _disk_text(found: Description) -> str:
    parts = [found.filesystem]
    if found.read_ahead is not None:
        parts.append(f"read-ahead {format_size(found.read_ahead)}")
    if found.cached is not None:
        share = found.cached / found.nbytes if found.nbytes else 0.0
        parts.append(f"{format_size(found.cached)} ({min(1.0, share):.0%}) in the page cache now")
    return ", ".join(parts)
