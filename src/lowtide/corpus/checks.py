"""``verify``: read everything once and name every fault with its file and byte.

A corpus of ours records what its bytes must be, so one pass at the speed of the disk checks each block against its
checksum, each id against the vocabulary and each document's end against the end-of-text id. Other formats are checked
against their own headers and indexes. Stretches of files are read by as many threads as there are processors, each
block by one call that reads it, sums it and looks at its ids while it is in the processor's cache, without the GIL.
Costs `CHECKED` bytes per thread. Changes nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Lock, local
from typing import Any, NamedTuple

import numpy as np

from lowtide.blocks.objects import normal_address
from lowtide.corpus.finding import MEGATRONS, corpora_of, parts_without_manifest, stated_manifest
from lowtide.corpus.journal import WORK
from lowtide.engine import Checked, IdsWithin, checks_of, engine
from lowtide.errors import FormatError, LowtideError, discreet
from lowtide.formats import Extent, Layout, document_ends, dtype_smell, layout_of, token_layout
from lowtide.formats.corpus_parts import checked_part
from lowtide.formats.header import HeaderFile, contents_of, is_file, names_in, size_of
from lowtide.formats.tokens import megatron
from lowtide.formats.tokens.llmc import HEADER, looks_like
from lowtide.formats.tokens.manifest import (
    CHECKED,
    MANIFEST,
    Manifest,
    ShardEntry,
    manifest_content,
    manifest_digest,
    read_manifest,
)
from lowtide.formats.tokens.token_files import SUFFIXES
from lowtide.machine import open_regular
from lowtide.storage.buffers import allocate_anonymous

MOST_FAULTS = 100  # listed; a wrong dtype would otherwise list every block
STRETCH = 16 * CHECKED  # bytes that one thread reads before it takes others: each begins without read-ahead


@dataclass(frozen=True)
class Fault:
    """What is wrong, and where."""

    file: str
    offset: int | None  # byte of the file; None: the file as a whole
    what: str


@dataclass(frozen=True)
class Verified:
    """What was read and what was found."""

    files: int
    bytes: int
    tokens: int
    documents: int | None
    parts: dict[str, int]  # tokens of each part, if there are several
    faults: tuple[Fault, ...]
    checks: tuple[str, ...]  # what could be checked
    unverifiable: tuple[str, ...]  # what could not be checked, and why: not a fault, but no proof either


@dataclass(frozen=True)
class _Read:
    """One corpus, or one part of it, read to its end."""

    part: str
    files: int
    tokens: int
    documents: int | None
    checks: tuple[str, ...]


class _Findings:
    def __init__(self, progress: Callable[[int], None]) -> None:
        self.faults: list[Fault] = []
        self.unverifiable: list[str] = []
        self.bytes = 0
        self._progress, self._lock = progress, Lock()

    def fault(self, file: str | Path, offset: int | None, what: str) -> None:
        with self._lock:
            if len(self.faults) < MOST_FAULTS:
                self.faults.append(Fault(discreet(str(file)), offset, discreet(what)))

    def read(self, count: int) -> None:
        with self._lock:
            self.bytes += count
            self._progress(self.bytes)


def verify(
    paths: Sequence[str | Path],
    *,
    dtype: str | None = None,
    vocab: int | None = None,
    part: str | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Verified:
    """Check ``paths``: corpora of ours or any format we open; of a directory with parts, all of them or ``part``."""
    findings = _Findings(progress)
    corpora = [corpora_of(Path(path), checked_part(part)) for path in paths]
    ours = [path for path, one in zip(paths, corpora, strict=True) if one]
    for place in chain.from_iterable(parts_without_manifest(Path(path), part) for path in ours):
        findings.fault(place / MANIFEST, None, "expected the manifest of its shards, got none: copy it again")
    found = [_corpus(directory, name, findings, vocab) for one in corpora for directory, name in one]
    if others := [path for path in paths if path not in ours]:
        found += _others(others, dtype, vocab, part, findings)
    documents = [one.documents for one in found if one.documents is not None]
    names = dict.fromkeys(one.part for one in found if one.part)
    parts = {name: sum(one.tokens for one in found if one.part == name) for name in names}
    return Verified(
        sum(one.files for one in found),
        findings.bytes,
        sum(one.tokens for one in found),
        sum(documents) if len(documents) == len(found) else None,
        parts,
        tuple(sorted(findings.faults, key=lambda fault: (fault.file, fault.offset or 0))),
        tuple(dict.fromkeys(check for one in found for check in one.checks)),
        tuple(map(discreet, findings.unverifiable)),
    )


def _corpus(directory: Path, part: str, findings: _Findings, vocab: int | None) -> _Read:
    """One corpus of ours."""
    if (directory / WORK).is_dir() or (directory.parent / WORK).is_dir():
        findings.fault(directory, None, "a run is unfinished here: run its prepare or convert command again")
    nothing = _Read(part, 0, 0, None, ())
    try:
        manifest, content = read_manifest(directory), manifest_content(directory)
    except (LowtideError, OSError) as problem:
        findings.fault(directory / MANIFEST, None, str(problem))
        return nothing
    if manifest is None or content is None:
        return nothing
    bound = vocab if vocab is not None else manifest.vocab
    shards = [_Shard(directory, manifest, entry, bound, findings) for entry in manifest.entries]
    _side_by_side(lambda shard: shard.stretches(), shards)
    _check_tokenizer(directory, findings)
    tokens = sum(entry.tokens for entry in manifest.entries)
    counts = [entry.documents for entry in manifest.entries]
    documents = sum(count for count in counts if count is not None) if None not in counts else None
    _check_manifest(directory, content, {"tokens": tokens, "documents": documents}, findings)
    _check_strangers(directory, manifest, findings)
    summed = all(entry.crc32 is not None and (entry.ends is None or entry.ends_crc32) for entry in manifest.entries)
    if not summed:
        findings.unverifiable.append(
            f"{directory / MANIFEST} has no checksums for its shards: damage to ids cannot be detected. "
            "Convert it again to have them: lowtide convert --to lowtide."
        )
    checks = ["sizes", *(["checksums"] if summed else []), *(["manifest"] if "digest" in content else [])]
    checks += [*(["ids"] if bound is not None else []), *(["document ends"] if documents is not None else [])]
    files = sum(1 + (entry.ends is not None) for entry in manifest.entries)
    checks += ["tokenizer"] if content.get("tokenizer") else []
    return _Read(part, files, tokens, documents, tuple(checks))


def _check_manifest(
    directory: Path, content: dict[str, Any], counted: dict[str, int | None], findings: _Findings
) -> None:
    """Check the manifest against its own digest, and its totals against its shards."""
    path = directory / MANIFEST
    if "digest" not in content:
        findings.unverifiable.append(
            f"{path} has no digest, as older versions wrote none: the order of its shards cannot be checked."
        )
    elif content["digest"] != manifest_digest(content):
        findings.fault(path, None, "changed since it was written (its digest differs): copy it again from the original")
    for name, count in counted.items():
        if content.get(name) is not None and count is not None and content[name] != count:
            findings.fault(path, None, f"expected {name} {count}, the sum of its shards, got {content[name]!r}")


def _check_strangers(directory: Path, manifest: Manifest, findings: _Findings) -> None:
    """Files that look like a shard of this corpus but are not: a glob would read them too."""
    known = {name for entry in manifest.entries for name in (entry.file, entry.ends)}
    if str(directory).startswith("http"):
        return  # a web server does not say what it has
    for path in sorted(directory / name for name in names_in(str(directory))):
        if path.suffix in (*SUFFIXES, ".ends") and path.name not in known and not path.name.startswith("."):
            findings.fault(path, None, f"a shard that {MANIFEST} does not name: remove it, or copy the corpus again")


class _Shard:
    """Check one shard against its manifest entry."""

    def __init__(
        self, directory: Path, manifest: Manifest, entry: ShardEntry, vocab: int | None, findings: _Findings
    ) -> None:
        self._path, self._entry, self._findings = directory / entry.file, entry, findings
        self._ends = directory / entry.ends if entry.ends is not None else None
        self._dtype, self._vocab, self._eot = manifest.dtype, vocab, manifest.eot
        self._unfinished = entry.tokens if entry is manifest.entries[-1] else -1  # where a corpus may just stop

    def stretches(self) -> list[Callable[[], None]]:
        """What the whole file can be asked, asked; and the checks of its stretches."""
        found: list[Callable[[], None]] = []
        with self._told():
            size, lead = self._check_size()
            self._check_index(self._path.with_suffix(".idx"))
            with_ends = self._ends_in_order() and self._eot is not None
            ends = _ends_of(self._ends) if with_ends and self._ends is not None else None
            found = [partial(self._check, first, lead, ends) for first in range(0, size, STRETCH)]
        return found  # noqa: RET504 - empty where a fault was told

    def _check_index(self, index: Path) -> None:
        """Megatron's own table of documents, where there is one or the shard's name says that there was."""
        if is_file(str(index)):
            with self._told(index), HeaderFile(str(index)) as table, HeaderFile(str(self._path)) as data:
                _count_documents(megatron.read(table, data, tokens=True), self._findings)
        elif self._path.stem in MEGATRONS:
            self._findings.fault(index, None, "expected Megatron's index beside its tokens, got no file")

    @contextmanager
    def _told(self, path: Path | None = None) -> Iterator[None]:
        """A file that cannot be read is a fault of it."""
        try:
            yield
        except (LowtideError, OSError) as problem:
            where = getattr(problem, "filename", None) or getattr(problem, "path", None) or path or self._path
            self._findings.fault(where, None, getattr(problem, "strerror", None) or str(problem))

    def _check_size(self) -> tuple[int, int]:
        """Bytes of the file, and of the header some files of ours have."""
        with HeaderFile(str(self._path)) as file:  # anything but a regular file is refused here at once
            size, lead = file.size, HEADER if looks_like(file.read(0, HEADER)) else 0
        wanted = lead + self._entry.tokens * self._dtype.itemsize
        if size != wanted:
            what = f"expected {wanted} bytes ({self._entry.tokens} tokens), got {size}"
            told = f"{'cut short' if size < wanted else 'too long'}: {what}"
            self._findings.fault(self._path, min(size, wanted), told)
        return size, lead

    def _check(self, first: int, lead: int, ends: Any) -> None:
        """The stretch of the ids that begins at byte ``first``."""
        itemsize = self._dtype.itemsize
        ids = None if self._vocab is None else IdsWithin(self._dtype, self._vocab, lead)
        with self._told():
            for block in self._summed(_blocks(self._path, first, STRETCH, summed=True, ids=ids), self._entry.crc32):
                _check_ids(block, ids, self._path, self._findings)
                if ends is not None:
                    at = max(block.at, lead)
                    here = block.view[at - block.at :]
                    tokens = np.frombuffer(here[: len(here) // itemsize * itemsize], self._dtype)
                    self._check_ends(tokens, at, (at - lead) // itemsize, ends)

    def _summed(self, blocks: Iterator[_Block], sums: str | None) -> Iterator[_Block]:
        """Each block checked against its checksum."""
        for block in blocks:
            self._findings.read(len(block.view))
            place = block.at // CHECKED * 8
            if sums is not None and sums[place : place + 8] != f"{block.found.crc:08x}":
                self._findings.fault(block.path, block.at, f"checksum differs in the {len(block.view)} bytes from here")
            yield block

    def _check_ends(self, ids: Any, at: int, first: int, ends: Any) -> None:
        """Every document that ends in these ids, the first of which is at byte ``at``, ends with the end-of-text id."""
        here = ends[np.searchsorted(ends, first, "right") : np.searchsorted(ends, first + len(ids), "right")]
        last = here.astype(np.int64) - 1 - first
        wrong = last[(ids[last] != self._eot) & (here != self._unfinished)]
        if len(wrong):
            what = f"expected the end-of-text id {self._eot} at the end of a document, got {int(ids[wrong[0]])}"
            self._findings.fault(self._path, at + int(wrong[0]) * self._dtype.itemsize, what)

    def _ends_in_order(self) -> bool:
        """Whether there are ends, and they are valid."""
        if self._ends is None or self._entry.documents is None:
            return False
        size = size_of(str(self._ends))
        if size != 8 * self._entry.documents:
            what = f"expected {8 * self._entry.documents} bytes for {self._entry.documents} documents, got {size}"
            self._findings.fault(self._ends, min(size, 8 * self._entry.documents), what)
            return False
        last, sound = -1, True
        for block in self._summed(_blocks(self._ends, summed=True), self._entry.ends_crc32):
            ends = np.frombuffer(block.view, "<u8")
            steps = np.diff(ends.astype(np.int64), prepend=np.int64(last))
            if (steps <= 0).any():
                place = int(np.flatnonzero(steps <= 0)[0])
                before, found = int(ends[place]) - int(steps[place]), int(ends[place])
                what = f"documents out of order: expected an end beyond {before}, got {found}"
                self._findings.fault(self._ends, block.at + 8 * place, what)
                sound = False
            last = int(ends[-1])
        if self._entry.documents and last != self._entry.tokens:
            what = f"expected the last document to end at token {self._entry.tokens}, got {last}"
            self._findings.fault(self._ends, size - 8, what)
            sound = False
        return sound and size > 0


def _check_ids(block: _Block, ids: IdsWithin | None, path: str | Path, findings: _Findings) -> None:
    if ids is None or block.found.outside < 0:
        return
    place = (ids.skip if block.at == 0 else 0) + block.found.outside * ids.dtype.itemsize
    got = int(np.frombuffer(block.view, ids.dtype, 1, place)[0])
    findings.fault(path, block.at + place, f"expected ids from 0 to {ids.vocab - 1}, got {got}")


def _check_tokenizer(directory: Path, findings: _Findings) -> None:
    told = stated_manifest(directory).get("tokenizer")
    if not isinstance(told, dict) or "file" not in told:
        return
    file = directory / Path(str(told["file"])).name
    if not is_file(str(file)):
        findings.fault(file, None, "expected the tokenizer the manifest names, got no file")
    elif hashlib.sha256(contents_of(str(file))).hexdigest() != told.get("sha256"):
        findings.fault(file, None, "expected the tokenizer this corpus was made with, got another (sha256 differs)")


def _others(
    paths: Sequence[str | Path], dtype: str | None, vocab: int | None, part: str | None, findings: _Findings
) -> list[_Read]:
    """Any other format, checked against its own headers and indexes; every part of a directory."""
    source = [str(path) for path in paths]
    try:
        layout = _layout(source, dtype, part)
        others = layout.other_parts if part is None else ()
        layouts = [layout, *(_layout(source, dtype, other) for other in others)]
    except FileNotFoundError:
        raise
    except (LowtideError, OSError) as problem:
        findings.fault(source[0], None, str(problem))
        return [_Read("", len(source), 0, None, ("headers",))]
    return [_other(layout, vocab, findings) for layout in layouts]


def _other(layout: Layout, stated: int | None, findings: _Findings) -> _Read:
    vocab = stated if stated is not None else layout.vocab
    tokens = len(layout.shape) == 1 and layout.dtype.kind in "iu"
    smell = dtype_smell(layout) if tokens else None
    if smell is not None:
        findings.fault(layout.extents[0].path, 0, f"the dtype: {smell}")
    ids = IdsWithin(layout.dtype, vocab) if tokens and vocab is not None else None

    def check(path: str, first: int, length: int) -> None:
        for block in _blocks(Path(path), first, length, ids=ids):
            findings.read(len(block.view))
            _check_ids(block, ids, path, findings)

    def stretches(extent: Extent) -> list[Callable[[], None]]:
        cuts = ((run, at) for run in extent.runs() for at in range(0, run[1], STRETCH))
        return [partial(check, extent.path, run[0] + at, min(STRETCH, run[1] - at)) for run, at in cuts]

    _side_by_side(stretches, layout.extents)
    documents = _count_documents(layout, findings)
    checks = ["headers", "sizes", "readable to the end"]
    checks += ["dtype"] if tokens else []
    checks += ["ids"] if tokens and vocab is not None else []
    checks += ["document ends"] if documents is not None else []
    findings.unverifiable.append(
        f"{layout.extents[0].path} has no checksums: {layout.format} keeps none, so damage to its data goes unnoticed."
    )
    return _Read(layout.part or "", len(layout.extents), layout.shape[0] if tokens else 0, documents, tuple(checks))


def _layout(source: list[str], dtype: str | None, part: str | None) -> Layout:
    named: Any = source if len(source) > 1 else source[0]
    try:
        return token_layout(named, dtype=dtype, part=part)
    except FormatError:
        try:
            layout = layout_of(named, dtype=dtype)
        except (LowtideError, OSError, ValueError, TypeError):
            layout = None
        if layout is not None and (len(layout.shape) != 1 or layout.dtype.kind not in "iu"):
            return layout  # an array: only its header can be verified
        raise


def _count_documents(layout: Layout, findings: _Findings) -> int | None:
    try:
        blocks = document_ends(layout)
        return None if blocks is None else sum(len(block) for block in blocks)
    except (LowtideError, OSError) as problem:
        where = layout.documents[0].path if layout.documents else layout.extents[0].path
        findings.fault(getattr(problem, "path", where), getattr(problem, "offset", None), str(problem))
        return None


def _ends_of(path: Path) -> Any:
    """The ends of documents: a map of a local file, or what an object store has."""
    if normal_address(str(path)) is None:
        return np.memmap(path, "<u8", "r")
    return np.frombuffer(contents_of(str(path)), "<u8")


def _side_by_side(stretches: Callable[[Any], list[Callable[[], None]]], files: Sequence[Any]) -> None:
    """The stretches of all files, by as many threads as there are processors; the first error of any is raised."""
    from concurrent.futures import ThreadPoolExecutor  # only here: 6 ms, which workers of prepare need not pay

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        checks = chain.from_iterable(pool.map(stretches, files))
        for _ in pool.map(lambda check: check(), checks):
            pass


class _Buffer(local):
    """Each thread's own. Page-aligned: unaligned reads copy slower."""

    def __init__(self) -> None:
        self.view = memoryview(allocate_anonymous(CHECKED))


class _Block(NamedTuple):
    """Bytes of a file from ``at`` on and what was found in them; valid until the thread's next one."""

    path: Path
    at: int
    view: memoryview
    found: Checked


def _blocks(
    path: Path, offset: int = 0, length: int | None = None, *, summed: bool = False, ids: IdsWithin | None = None
) -> Iterator[_Block]:
    """A file in blocks of CHECKED bytes; ``ids.skip``: bytes of the file before its ids."""
    later = ids and ids._replace(skip=0)
    if normal_address(str(path)) is not None:
        with HeaderFile(str(path)) as far:
            end = far.size if length is None else min(far.size, offset + length)
            for at in range(offset, end, CHECKED):
                view = memoryview(far.read(at, min(CHECKED, end - at)))
                yield _Block(path, at, view, checks_of(view, summed=summed, ids=later if at else ids))
        return
    call = engine().read_checked
    with open_regular(path) as file:
        end = file.status.st_size if length is None else min(offset + length, file.status.st_size)
        for at in range(offset, end, CHECKED):
            view = _buffer.view[: min(CHECKED, end - at)]
            found = call(file.number, at, view, summed=summed, ids=later if at else ids)
            if found.got:
                yield _Block(path, at, view[: found.got], found)
            if found.got < len(view):
                return  # shorter than it was


_buffer = _Buffer()
