"""``verify``: read everything once and name every fault with its file and byte.

A corpus of ours says what its bytes must be, so each block is checksummed, each id compared with the
vocabulary and each document's end with the end-of-text id, in one pass at the speed of the disk; of other formats their
own headers and indexes are held against the data. Shards are read by as many threads as there are processors: reading
and checksumming leave Python's lock. Costs `CHECKED` bytes per thread. Changes nothing.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from lowtide.corpus.finding import corpora_in, stated_manifest
from lowtide.corpus.journal import WORK
from lowtide.errors import FormatError, LowtideError
from lowtide.formats import Layout, document_ends, dtype_smell, layout_of, token_layout
from lowtide.formats.tokens.manifest import CHECKED, MANIFEST, Manifest, ShardEntry, read_manifest

MOST_FAULTS = 100  # listed; a wrong dtype would otherwise list every block


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
    faults: tuple[Fault, ...]
    checks: tuple[str, ...]  # what could be checked


class _Findings:
    def __init__(self, progress: Callable[[int], None]) -> None:
        self.faults: list[Fault] = []
        self.bytes = 0
        self._progress, self._lock = progress, Lock()

    def fault(self, file: str | Path, offset: int | None, what: str) -> None:
        with self._lock:
            if len(self.faults) < MOST_FAULTS:
                self.faults.append(Fault(str(file), offset, what))

    def read(self, count: int) -> None:
        with self._lock:
            self.bytes += count
            self._progress(self.bytes)


def verify(
    paths: Sequence[str | Path],
    *,
    dtype: str | None = None,
    vocab: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Verified:
    """Check what ``paths`` name: corpora of ours (also a directory of ``train`` and ``val``) or any format we open."""
    findings = _Findings(progress)
    corpora = [corpus for path in paths for corpus in _corpora(Path(path))]
    if corpora and all(_corpora(Path(path)) for path in paths):
        parts = [_corpus(directory, findings, vocab) for directory in corpora]
        files, tokens = sum(part[0] for part in parts), sum(part[1] for part in parts)
        known = [part[2] for part in parts if part[2] is not None]
        documents = sum(known) if len(known) == len(parts) else None
        checks: tuple[str, ...] = ("sizes", "checksums", "ids", "document ends", "tokenizer")
    else:
        files, tokens, documents, checks = _others(paths, dtype, vocab, findings)
    order = sorted(findings.faults, key=lambda fault: (fault.file, fault.offset or 0))
    return Verified(files, findings.bytes, tokens, documents, tuple(order), checks)


def _corpora(path: Path) -> list[Path]:
    """The corpora of ours a directory is or holds, finished or not."""
    return corpora_in(path) or ([path] if (path / WORK).is_dir() else [])


def _corpus(directory: Path, findings: _Findings, vocab: int | None) -> tuple[int, int, int | None]:
    """(files, tokens, documents) of one corpus of ours."""
    if (directory / WORK).is_dir() or (directory.parent / WORK).is_dir():
        findings.fault(directory, None, "a run is unfinished here: run its prepare or convert command again")
    try:
        manifest = read_manifest(directory)
    except (LowtideError, OSError) as problem:
        findings.fault(directory / MANIFEST, None, str(problem))
        return 0, 0, None
    if manifest is None:
        return 0, 0, None
    bound = vocab if vocab is not None else manifest.vocab
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(lambda entry: _Shard(directory, manifest, entry, bound, findings).check(), manifest.entries))
    _check_tokenizer(directory, findings)
    counts = [entry.documents for entry in manifest.entries]
    documents = sum(count for count in counts if count is not None) if None not in counts else None
    return 2 * len(manifest.entries), sum(entry.tokens for entry in manifest.entries), documents


class _Shard:
    """One shard held against its manifest entry."""

    def __init__(
        self, directory: Path, manifest: Manifest, entry: ShardEntry, vocab: int | None, findings: _Findings
    ) -> None:
        self._path, self._entry, self._findings = directory / entry.file, entry, findings
        self._ends = directory / entry.ends if entry.ends is not None else None
        self._dtype, self._vocab, self._eot = manifest.dtype, vocab, manifest.eot

    def check(self) -> None:
        try:
            self._check()
        except OSError as problem:
            self._findings.fault(problem.filename or self._path, None, problem.strerror or str(problem))

    def _check(self) -> None:
        itemsize = self._dtype.itemsize
        wanted, size = self._entry.tokens * itemsize, self._path.stat().st_size
        if size != wanted:
            what = "cut short" if size < wanted else "too long"
            self._findings.fault(
                self._path,
                min(size, wanted),
                f"{what}: expected {wanted} bytes ({self._entry.tokens} tokens), got {size}",
            )
        ends = self._document_ends()
        for at, view in self._summed(self._path, self._entry.crc32):
            ids = np.frombuffer(view[: len(view) // itemsize * itemsize], self._dtype)
            _check_ids(ids, self._vocab, self._path, at, self._findings)
            if ends is not None and self._eot is not None:
                self._check_ends(ids, at // itemsize, ends)

    def _summed(self, path: Path, sums: str | None) -> Iterator[tuple[int, memoryview]]:
        """The file block by block, each held against its checksum."""
        for block, (at, view) in enumerate(_blocks(path)):
            self._findings.read(len(view))
            if sums is not None and sums[8 * block : 8 * block + 8] != f"{zlib.crc32(view):08x}":
                self._findings.fault(path, at, f"checksum differs in the {len(view)} bytes from here")
            yield at, view

    def _check_ends(self, ids: Any, first: int, ends: Any) -> None:
        """Every document that ends in this block ends with the end-of-text id."""
        here = ends[np.searchsorted(ends, first, "right") : np.searchsorted(ends, first + len(ids), "right")]
        last = here.astype(np.int64) - 1 - first
        wrong = last[ids[last] != self._eot]
        if len(wrong):
            offset = (first + int(wrong[0])) * self._dtype.itemsize
            what = f"expected the end-of-text id {self._eot} at the end of a document, got {int(ids[wrong[0]])}"
            self._findings.fault(self._path, offset, what)

    def _document_ends(self) -> Any:
        """The ends as a map of their file, once they are known to be in order; None where they are not to be used."""
        if self._ends is None or self._entry.documents is None:
            return None
        size = self._ends.stat().st_size
        if size != 8 * self._entry.documents:
            what = f"expected {8 * self._entry.documents} bytes for {self._entry.documents} documents, got {size}"
            self._findings.fault(self._ends, min(size, 8 * self._entry.documents), what)
            return None
        last, sound = -1, True
        for at, view in self._summed(self._ends, self._entry.ends_crc32):
            ends = np.frombuffer(view, "<u8")
            steps = np.diff(ends.astype(np.int64), prepend=np.int64(last))
            if (steps <= 0).any():
                place = int(np.flatnonzero(steps <= 0)[0])
                before, found = int(ends[place]) - int(steps[place]), int(ends[place])
                what = f"documents out of order: expected an end beyond {before}, got {found}"
                self._findings.fault(self._ends, at + 8 * place, what)
                sound = False
            last = int(ends[-1])
        if self._entry.documents and last != self._entry.tokens:
            what = f"expected the last document to end at token {self._entry.tokens}, got {last}"
            self._findings.fault(self._ends, size - 8, what)
            sound = False
        return np.memmap(self._ends, "<u8", "r") if sound and size else None


def _check_ids(ids: Any, vocab: int | None, path: str | Path, at: int, findings: _Findings) -> None:
    if vocab is None or not ids.size:
        return
    low = int(ids.min()) if ids.dtype.kind == "i" else 0
    if int(ids.max()) < vocab and low >= 0:
        return
    place = int(np.flatnonzero((ids >= vocab) | (ids < 0))[0])
    what = f"expected ids from 0 to {vocab - 1}, got {int(ids[place])}"
    findings.fault(path, at + place * ids.dtype.itemsize, what)


def _check_tokenizer(directory: Path, findings: _Findings) -> None:
    told = stated_manifest(directory).get("tokenizer")
    if not isinstance(told, dict) or "file" not in told:
        return
    file = directory / Path(str(told["file"])).name
    if not file.is_file():
        findings.fault(file, None, "expected the tokenizer the manifest names, got no file")
    elif hashlib.sha256(file.read_bytes()).hexdigest() != told.get("sha256"):
        findings.fault(file, None, "expected the tokenizer this corpus was made with, got another (sha256 differs)")


def _others(
    paths: Sequence[str | Path], dtype: str | None, stated: int | None, findings: _Findings
) -> tuple[int, int, int | None, tuple[str, ...]]:
    """Any other format: what its own headers and indexes say, held against the data."""
    source = [str(path) for path in paths]
    try:
        layout = _layout(source, dtype)
    except FileNotFoundError:
        raise
    except (LowtideError, OSError) as problem:
        findings.fault(source[0], None, str(problem))
        return len(source), 0, None, ("headers",)
    vocab = stated if stated is not None else layout.vocab
    tokens = len(layout.shape) == 1 and layout.dtype.kind in "iu"
    smell = dtype_smell(layout) if tokens else None
    if smell is not None:
        findings.fault(layout.extents[0].path, 0, f"the dtype: {smell}")
    for extent in layout.extents:
        for at, view in _blocks(Path(extent.path), extent.offset, extent.length):
            findings.read(len(view))
            itemsize = layout.dtype.itemsize
            if tokens and len(view) >= itemsize:
                ids = np.frombuffer(view[: len(view) // itemsize * itemsize], layout.dtype)
                _check_ids(ids, vocab, extent.path, at, findings)
    documents = _count_documents(layout, findings)
    checks = ["headers", "sizes", "readable to the end"]
    checks += ["dtype"] if tokens else []
    checks += ["ids"] if tokens and vocab is not None else []
    checks += ["document ends"] if documents is not None else []
    return len(layout.extents), layout.shape[0] if tokens else 0, documents, tuple(checks)


def _layout(source: list[str], dtype: str | None) -> Layout:
    named: Any = source if len(source) > 1 else source[0]
    try:
        return token_layout(named, dtype=dtype)
    except FormatError:
        try:
            layout = layout_of(named, dtype=dtype)
        except (LowtideError, OSError, ValueError, TypeError):
            layout = None
        if layout is not None and (len(layout.shape) != 1 or layout.dtype.kind not in "iu"):
            return layout  # an array: verified as far as its header goes
        raise


def _count_documents(layout: Layout, findings: _Findings) -> int | None:
    try:
        blocks = document_ends(layout)
        return None if blocks is None else sum(len(block) for block in blocks)
    except (LowtideError, OSError) as problem:
        where = layout.documents[0].path if layout.documents else layout.extents[0].path
        findings.fault(getattr(problem, "path", where), getattr(problem, "offset", None), str(problem))
        return None


def _blocks(path: Path, offset: int = 0, length: int | None = None) -> Iterator[tuple[int, memoryview]]:
    """(offset, bytes) of a file in blocks of CHECKED bytes; a view is good until the next one."""
    # Page-aligned: unaligned reads copy slower. Never closed by hand: arrays over it may live a little longer.
    view = memoryview(mmap.mmap(-1, CHECKED))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        left = os.fstat(descriptor).st_size - offset if length is None else length
        while left > 0:
            wanted, done = min(CHECKED, left), 0
            while done < wanted and (got := os.preadv(descriptor, [view[done:wanted]], offset + done)):
                done += got
            if done == 0:
                return
            yield offset, view[:done]
            offset, left = offset + done, left - done
    finally:
        os.close(descriptor)
