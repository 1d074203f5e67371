"""What files hold and how Lowtide would read them, as one frozen value.

Everything here comes from headers, the machine and the plan of an opened object; a guess is marked as one and decides
nothing. Reads headers, and sixteen small blocks to notice a dtype that is probably wrong. Only counting documents,
which must be asked for, may take a pass over the tokens.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from itertools import islice

from lowtide.blocks.addresses import is_address
from lowtide.errors import discreet
from lowtide.formats import Layout, dtype_smell
from lowtide.machine import file_kind, page_cache, read_ahead_bytes
from lowtide.reading.documents.boundaries import required_marks
from lowtide.reading.documents.boundary_index import Progress, boundary_index
from lowtide.reading.documents.document_counts import DocumentCounts, count_documents
from lowtide.survey.projection import Plan
from lowtide.survey.subject import Opening, Subject, opened
from lowtide.tokens import Tokens

_MOST_FILES = 1000  # files whose page cache is looked up; for more, it is not worth the wait


@dataclass(frozen=True)
class Description:
    """Everything there is to say about one array or corpus; None: unknown or absent."""

    paths: tuple[str, ...]
    format: str
    kind: str  # "tokens" | "array"
    dtype: str
    dtype_guessed: bool
    shape: tuple[int, ...]
    order: str  # "C" | "F"
    nbytes: int
    files: int
    first_file: str
    documents: int | None
    vocab: int | None
    eot: int | None
    parts: dict[str, int]  # tokens of each part of a directory that holds several, this one first
    filesystem: str
    read_ahead: int | None
    cached: int | None  # bytes in the page cache now
    notes: tuple[str, ...]
    guess: str | None  # a dtype that looks wrong
    plan: Plan
    stated: tuple[str, ...]  # names of the settings the user stated
    open: str


def describe(subject: Subject, opening: Opening) -> Description:
    layout = subject.layout
    with opened(layout, opening) as data:
        plan = data.plan()
    first = layout.extents[0]
    made_from = "behind an address" if is_address(first.path) else "decoded into blocks"
    said = {**vars(subject.stated), **vars(opening)}
    if subject.dtype_guessed:
        del said["dtype"]
    return Description(
        paths=tuple(map(discreet, subject.paths)),
        format=layout.format,
        kind=subject.kind,
        dtype=str(layout.dtype),
        dtype_guessed=subject.dtype_guessed,
        shape=layout.shape,
        order="F" if layout.fortran else "C",
        nbytes=layout.nbytes,
        files=len(layout.extents),
        first_file=first.path,
        documents=_documents(layout),
        vocab=layout.vocab,
        eot=layout.eot,
        parts=subject.tokens_by_part(),
        filesystem=file_kind(first.path).name if first.made is None else made_from,
        read_ahead=read_ahead_bytes(first.path) if first.made is None else None,
        cached=_cached(layout),
        notes=layout.notes,
        guess=dtype_smell(layout),
        plan=replace(plan, why=tuple(reason for reason in plan.why if reason not in layout.notes)),  # shown as notes
        stated=tuple(name for name, value in said.items() if value not in (None, "auto")),
        open=subject.call(opening),
    )


def survey_documents(
    subject: Subject, opening: Opening, *, eot: int | None, bos: int | None, window: int, progress: Progress = None
) -> tuple[str, DocumentCounts]:
    """How documents are known, in a word or two, and their counts, from the same index that training uses.

    If there is none yet, it is built here and kept, so a later run does not have to.
    """
    layout = subject.layout
    if eot is not None or bos is not None:
        layout = replace(layout, eot=layout.eot if eot is None else eot, bos=layout.bos if bos is None else bos)
    with opened(layout, opening) as data:
        if not isinstance(data, Tokens):
            raise ValueError(
                f"{discreet(subject.paths[0])}: expected tokens for --documents, got an array of shape "
                f"{subject.layout.shape}. Leave --documents out."
            )
        marks = required_marks(data)
        index = boundary_index(data, marks, progress)
        return str(marks), count_documents(index, data.first, data.last, window)


def _documents(layout: Layout) -> int | None:
    if layout.documents is None:
        return None
    # Megatron's table has one boundary more than documents: its first is where document 0 begins.
    return sum(max(0, shard.count - (shard.kind == "megatron")) for shard in layout.documents)


def _cached(layout: Layout) -> int | None:
    """Bytes of the data in the page cache now, if the kernel tells."""
    if len(layout.extents) > _MOST_FILES or any(extent.made is not None for extent in layout.extents):
        return None
    with contextlib.suppress(OSError):
        runs = [(extent.path, *run) for extent in layout.extents for run in islice(extent.runs(), _MOST_FILES)]
        return None if len(runs) >= _MOST_FILES else sum(page_cache(*run).cached for run in runs)
    return None
