"""``convert``: from any token format Lowtide opens to ours, nanoGPT's, llm.c's or Megatron's.

Ids pass through in chunks, and the formats differ only at document borders: ours, nanoGPT's and Megatron's end a
document with its boundary id, llm.c's begins one with it. If the id is known it is moved to the other side, which
shifts all ids by one; if not, ids are copied as they are. One thread reads and sums the next chunk while another writes
this one. Bounded in memory, restartable like ``prepare``; at the end our own readers open the output and every id is
compared by checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lowtide.arguments import one_of
from lowtide.corpus.finding import stated_manifest
from lowtide.corpus.journal import Journal, PlannedFile, refuse_other_files
from lowtide.corpus.request import FORMATS, SHARD_TOKENS, Request
from lowtide.corpus.shards import OFTEN, ShardWriter, write_manifest
from lowtide.corpus.writers import Sink, Target, make_sink
from lowtide.engine import engine
from lowtide.errors import FormatError
from lowtide.formats import Layout, token_layout
from lowtide.formats.tokens.manifest import ShardEntry
from lowtide.storage.own_files import atomic_write
from lowtide.tokens import Tokens, open_tokens

Chunk = tuple[NDArray[Any], NDArray[np.int64]]  # ids, and the ends of the documents in them
Thing = TypeVar("Thing")

IDS_AT_ONCE = 1 << 20  # ids per chunk
_BUDGET = "64MiB"


@dataclass(frozen=True)
class Stated:
    """What the caller knows and the files do not say."""

    dtype: str | None = None
    eot: int | None = None
    bos: int | None = None
    vocab: int | None = None


@dataclass(frozen=True)
class Conversion:
    """What came out, one entry for each part."""

    output: str
    to: str
    tokens: int
    parts: tuple[str, ...]
    moved: bool  # whether the boundary id moved to the other side of its document
    notes: tuple[str, ...]


def convert(
    source: str | Path,
    output: str | Path,
    to: str,
    stated: Stated | None = None,
    shard_tokens: int = SHARD_TOKENS,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Conversion:
    """Write the tokens of ``source`` to ``output`` in another format; a directory with train and val gives both."""
    one_of("--to", to, FORMATS)
    stated, target = stated or Stated(), Path(output)
    layouts = _parts_of(str(source), stated.dtype)
    refuse_other_files(target)
    journal = Journal(target)
    with journal.held():
        request = Request(shard_tokens=shard_tokens, format=to)
        journal.agree(request, _planned(layouts), boundary=[stated.eot, stated.bos, stated.vocab, stated.dtype])
        jobs = [_Part(journal, name, str(source), to, stated, request) for name in layouts]
        total, done = sum(job.tokens for job in jobs), 0
        for job in jobs:
            job.write(_from(progress, done, 2 * total))
            done += job.tokens
        for job in jobs:
            job.compare(_from(progress, done, 2 * total))
            done += job.tokens
        _write_foreign_manifest(jobs)
        journal.remove()
    notes = tuple(dict.fromkeys(note for job in jobs for note in job.notes))
    return Conversion(str(target), to, total, tuple(layouts), any(job.shift for job in jobs), notes)


def _from(progress: Callable[[int, int], None], before: int, total: int) -> Callable[[int], None]:
    return lambda here: progress(before + here, total)


def write_foreign(source: Path, journal: Journal, to: str, shard_tokens: int) -> None:
    """Write a corpus of ours, made in the work directory, in another format."""
    request = Request(shard_tokens=shard_tokens, format=to)
    jobs = [_Part(journal, name, str(source), to, Stated(), request) for name in _parts_of(str(source), None)]
    for job in jobs:
        job.write(lambda _: None)
        job.compare(lambda _: None)
    _write_foreign_manifest(jobs)


def _write_foreign_manifest(jobs: Sequence[_Part]) -> None:
    """A manifest for what other formats do not say - dtype, vocabulary, tokenizer - for all parts together."""
    first = jobs[0]
    if first.to != "lowtide":
        shards = [shard.as_dict() for job in jobs for shard in job.shards]
        write_manifest(first.directory, first.manifest(sum(job.tokens for job in jobs), shards))


class _Part:
    """Train, val or all of a corpus on its way from one format to another."""

    def __init__(self, journal: Journal, name: str, source: str, to: str, stated: Stated, request: Request) -> None:
        self._journal, self._name, self._source, self.to = journal, name, source, to
        self._stated, self._request = stated, request
        with self._opened() as tokens:
            self.tokens = len(tokens)
            self._vocab, self._dtype = tokens.vocab, tokens.dtype
            eot, bos = tokens.eot, stated.bos
            if bos is None and eot is None:
                bos = tokens.bos  # known for llm.c's files if a manifest of ours is beside them
            self._beside = Path(tokens.layout.extents[0].path).parent
        if self.tokens == 0:
            raise FormatError(f"{source}: expected tokens, got none. Name files that hold some.")
        first = to == "llmc"  # where this format puts the boundary id
        self._boundary = bos if bos is not None else eot
        self.shift = 0 if self._boundary is None else int(first) - int(bos is not None)
        self._ends_known = not first and self._boundary is not None
        self._tokenizer: dict[str, Any] | None = None
        self.notes = () if self._boundary is not None else ("no boundary id is known: ids are copied as they are",)
        self._cut_anywhere = False
        part = name or "train"
        self._done_file = f"convert-{part}.json"
        names = {"nanogpt": part, "llmc": f"tokens_{part}", "megatron": f"{part}_text_document", "lowtide": name}
        self.directory = journal.output / name if to == "lowtide" else journal.output
        self.shards: list[ShardEntry] = []
        self._written_as = ""
        self._target = Target(
            self.directory,
            journal.path,
            names[to],
            self.tokens,
            self._dtype.itemsize,
            self._vocab,
            request.shard_tokens,
        )

    def write(self, progress: Callable[[int], None]) -> None:
        """Write every id, continuing where an earlier try stopped."""
        state = self._journal.read(self._done_file) or {}
        at, check = int(state.get("at", 0)), int(state.get("check", 0))
        sink = make_sink(self.to, self._target, state.get("sink", {}), self._ids_dtype())
        unsaved = 0
        try:
            with self._opened() as tokens, _made_beside(_summed(self._shifted(tokens, at), check)) as chunks:
                for ids, ends, check in chunks:
                    finished = sink.add(ids, ends)
                    at, unsaved = at + len(ids), unsaved + ids.nbytes
                    if finished or unsaved >= OFTEN:
                        self._save(sink, at, check)
                        unsaved = 0
                    progress(at)
            if not state.get("ended"):
                sink.end()
            self._save(sink, at, check, ended=True)
            self._keep_tokenizer()
            self._written_as, self.shards = sink.ids, sink.shards
            if isinstance(sink, ShardWriter):
                shards = [self._entry(shard, self.directory) for shard in sink.shards]
                documents = {} if self._cut_anywhere else {"documents": sink.documents}
                write_manifest(self.directory, {**self.manifest(sink.tokens, shards), **documents})
        finally:
            sink.close()
        self._check = check

    def compare(self, progress: Callable[[int], None]) -> None:
        """Open what was written as anyone would and compare every id."""
        name = {"lowtide": "", "llmc": f"{self._target.name}_*.bin"}.get(self.to, f"{self._target.name}.bin")
        where = str(self.directory / name)
        dtype = "uint16" if self.to == "nanogpt" else None
        check, at = 0, 0
        with open_tokens(where, dtype=dtype, budget=_BUDGET) as tokens:
            counted = len(tokens)
            chunks = (tokens[first : first + IDS_AT_ONCE] for first in range(0, counted, IDS_AT_ONCE))
            with _made_beside(chunks) as made:
                for ids in made:
                    check = engine().crc32_of_ids(ids, check)
                    at += len(ids)
                    progress(at)
        if (counted, check) != (self.tokens, self._check):
            raise FormatError(
                f"{self._journal.output}: expected {self.tokens} ids with checksum {self._check:08x} after conversion, "
                f"got {counted} with {check:08x}. Check the disk and convert again."
            )

    def _opened(self) -> Tokens:
        stated = self._stated
        part = self._name or None
        return open_tokens(
            self._source, part=part, dtype=stated.dtype, eot=stated.eot, vocab=stated.vocab, budget=_BUDGET
        )

    def _shifted(self, tokens: Tokens, start: int) -> Iterator[Chunk]:
        """Chunks of output ids from ``start`` on, with the ends of the documents in them."""
        self._refuse_open_ends(tokens)
        index = None if self.shift or self._boundary is not None else tokens.documents()
        stored = _between(index, start) if index is not None else None
        self._cut_anywhere = index is None and not self._ends_known
        if self._cut_anywhere and self.to == "megatron":
            raise FormatError(
                f"{self._source}: expected documents for megatron, got tokens without boundaries. State the id that "
                "ends a document with --eot."
            )
        marked = False
        for first in range(start, self.tokens, IDS_AT_ONCE):
            last = min(first + IDS_AT_ONCE, self.tokens)
            ids = self._ids(tokens, first, last)
            if stored is not None:
                ends = stored(first, last)
            elif self._ends_known:
                ends = np.flatnonzero(ids == self._boundary) + 1
                marked = marked or len(ends) > 0
                if last == self.tokens and start == 0 and not marked:
                    self._refuse_unseen()
            else:  # no documents: our shards end wherever they are full
                step = self._request.shard_tokens
                ends = np.arange((first // step + 1) * step, last + 1, step, dtype=np.int64) - first
            if last == self.tokens and self.to in ("lowtide", "megatron") and (not len(ends) or ends[-1] != len(ids)):
                ends = np.append(ends, len(ids))  # tokens after the last boundary are a document too
            yield ids, ends

    def _refuse_unseen(self) -> None:
        """Of an id that occurs nowhere all would be one document. A small val part may have no end of one."""
        if self._name in ("", "train"):
            flag = "--eot" if self._stated.bos is None else "--bos"
            raise FormatError(
                f"{self._source}: expected the id {self._boundary} at the end of documents, got none among "
                f"{self.tokens} tokens. State the id that this tokenizer writes with {flag}."
            )

    def _ids(self, tokens: Tokens, first: int, last: int) -> NDArray[Any]:
        if self.shift == 0:
            return np.asarray(tokens[first:last])
        assert self._boundary is not None
        ids = np.empty(last - first, tokens.dtype)
        if self.shift == 1:  # to the front: the id after the last document is now before the first
            inner = np.asarray(tokens[max(first - 1, 0) : last - 1])
            ids[len(ids) - len(inner) :] = inner
            if first == 0:
                ids[0] = self._boundary
        else:
            inner = np.asarray(tokens[first + 1 : min(last + 1, self.tokens)])
            ids[: len(inner)] = inner
            if last == self.tokens:
                ids[-1] = self._boundary
        return ids

    def _refuse_open_ends(self, tokens: Tokens) -> None:
        if not self.shift:
            return
        place = self.tokens - 1 if self.shift == 1 else 0
        if int(tokens[place]) != self._boundary:
            side = "last" if self.shift == 1 else "first"
            raise FormatError(
                f"{self._source}: expected {self._boundary}, a document boundary, as its {side} id, got "
                f"{int(tokens[place])}. State the id with --eot (ends a document) or --bos (begins one)."
            )

    def _ids_dtype(self) -> str:
        if self._dtype.kind == "u" and self._dtype.itemsize <= 4:
            return self._dtype.name
        return "uint16" if self._vocab is not None and self._vocab <= 2**16 else "uint32"

    def _save(self, sink: Sink, at: int, check: int, ended: bool = False) -> None:
        state = {"at": at, "check": check, "sink": sink.checkpoint(), "ended": ended}
        self._journal.write(self._done_file, state)
        sink.settle()

    def manifest(self, tokens: int, shards: list[dict[str, Any]]) -> dict[str, Any]:
        """What a manifest says about these shards."""
        boundary = "bos" if self.to == "llmc" else "eot"  # llm.c begins a document with it
        told = {boundary: self._boundary, "vocab": self._vocab, "tokenizer": self._tokenizer}
        known = {name: value for name, value in told.items() if value is not None}
        return {"lowtide": 1, "dtype": self._written_as, **known, "tokens": tokens, "shards": shards}

    def _entry(self, shard: ShardEntry, directory: Path) -> dict[str, Any]:
        """A shard for the manifest; without documents, its ends only tell where it was cut, and are left out."""
        if not self._cut_anywhere:
            return shard.as_dict()
        (directory / str(shard.ends)).unlink(missing_ok=True)
        return ShardEntry(shard.file, shard.tokens, shard.crc32).as_dict()

    def _keep_tokenizer(self) -> None:
        """Copy the tokenizer of a corpus of ours along with its tokens."""
        told = stated_manifest(self._beside).get("tokenizer")
        self._tokenizer = told if isinstance(told, dict) else None
        if isinstance(told, dict) and told.get("file"):
            name = Path(str(told["file"])).name
            self.directory.mkdir(parents=True, exist_ok=True)
            with atomic_write(self.directory / name) as file:
                file.write((self._beside / name).read_bytes())


def _summed(chunks: Iterator[Chunk], check: int) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], int]]:
    """Each chunk with the checksum of all ids up to its end."""
    for ids, ends in chunks:
        check = engine().crc32_of_ids(ids, check)
        yield ids, ends, check


@contextmanager
def _made_beside(things: Iterator[Thing]) -> Iterator[Iterator[Thing]]:
    """The same, each made by another thread while the caller works on the one before: reading and summing do not hold
    the GIL, nor does writing. Nothing is being made any more when the block ends."""
    from concurrent.futures import ThreadPoolExecutor  # only here: 6 ms, which workers of prepare need not pay

    with ThreadPoolExecutor(1) as beside:
        coming = beside.submit(next, things, None)

        def made() -> Iterator[Thing]:
            nonlocal coming
            while (thing := coming.result()) is not None:
                coming = beside.submit(next, things, None)
                yield thing

        yield made()


def _between(blocks: Iterator[NDArray[np.int64]], start: int) -> Callable[[int, int], NDArray[np.int64]]:
    """Ends of documents in growing ranges, from a stream of blocks."""
    held = np.empty(0, np.int64)
    reached = start

    def take(first: int, last: int) -> NDArray[np.int64]:
        nonlocal held, reached
        blocks_here = [held]
        while reached < last and (block := next(blocks, None)) is not None:
            blocks_here.append(block[block > start])
            reached = int(block[-1]) if len(block) else reached
        held = np.concatenate(blocks_here)
        here = held[held <= last] - first
        held = held[held > last]
        return here

    return take


def _parts_of(source: str, dtype: str | None) -> dict[str, Layout]:
    """Every part of a directory that holds several; anything else as it is, under ""."""
    first = token_layout(source, dtype=dtype)
    others = {part: token_layout(source, dtype=dtype, part=part) for part in first.other_parts}
    return {first.part or "": first, **others}


def _planned(layouts: dict[str, Layout]) -> list[PlannedFile]:
    extents = [extent for layout in layouts.values() for extent in layout.extents]
    return [(extent.path, extent.size, Path(extent.path).stat().st_mtime_ns) for extent in extents]
