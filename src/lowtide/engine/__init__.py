"""Who makes the calls: the C core if it was built, otherwise its Python twin. Both give the same bytes.

An engine is a set of functions with the same names. ``engine()`` says which one is in use and why; nothing above this
package asks whether there is a compiler, and other packages import only from here. Importing loads the extension if
there is one (under a millisecond), reads no environment and starts no thread.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from lowtide.engine import column_sums, document_planes, id_checks, mapping, packed_plans, permutation, reads
from lowtide.engine.column_sums import ColumnSums, blank_sums
from lowtide.engine.document_planes import Planes, run_begins, spread
from lowtide.engine.id_checks import Checked, IdsWithin, checks_of
from lowtide.engine.mapping import FAULT_AROUND, FAULT_MOST
from lowtide.engine.packed_plans import PackedTables, RowPieces, packed_plan, pieces_of
from lowtide.engine.runs import (
    DROP,
    DROP_SEQUENTIAL,
    KEEP,
    KEEP_NEAR,
    KEEP_SEQUENTIAL,
    SOURCES,
    WAYS,
    Numbers,
    Pair,
    Problem,
    Runs,
    WatchedFiles,
)

try:
    import lowtide.engine._core as _core
except ImportError as problem:  # not built, or built for another interpreter
    _missing: str | None = str(problem)
else:
    _missing = None

__all__ = [
    "DROP",
    "DROP_SEQUENTIAL",
    "ENGINES",
    "FAULT_AROUND",
    "FAULT_MOST",
    "KEEP",
    "KEEP_NEAR",
    "KEEP_SEQUENTIAL",
    "SOURCES",
    "WAYS",
    "Checked",
    "ColumnSums",
    "Engine",
    "FileMapping",
    "IdsWithin",
    "Numbers",
    "PackedTables",
    "Pair",
    "Planes",
    "Problem",
    "ReadLane",
    "ReadQueue",
    "RowPieces",
    "Runs",
    "WatchedFiles",
    "blank_sums",
    "checks_of",
    "engine",
    "packed_plan",
    "pieces_of",
    "run_begins",
    "spread",
]

ENGINES = ("auto", "native", "python")
VARIABLE = "LOWTIDE_ENGINE"
NOTE = Path(__file__).parent / "not_built.txt"  # written by setup.py when the compiler failed


Found = int | tuple[str, int, int, int]  # runs found in the page cache, or the fields of a Problem


class ReadQueue(Protocol):
    """Fills targets, one call at a time."""

    def fill(self, runs: Any, target: Any, drop: int, /) -> Found: ...
    def close(self) -> None: ...


class ReadLane(Protocol):
    """Fills one target while its owner does something else."""

    def start(self, runs: Any, target: Any, drop: int, /) -> None: ...
    def wait(self) -> Found: ...
    def close(self) -> None: ...


class FileMapping(Protocol):
    """A file's first bytes in memory, as a read-only buffer."""

    def take_back(self, first: int, length: int) -> None: ...


class Engine:
    """``name`` is native or python; ``why`` says in words why it was chosen. Its attributes are functions of
    the C core or of its twin."""

    def __init__(self, name: str, why: str) -> None:
        self.name, self.why = name, why
        self._native = native = name == "native"
        main = _core if native else reads
        self._queue, self._unavailable = main.Queue, main.unavailable
        # Runs of a mapping, copied or widened into a target: None, or the first problem.
        self.fill_mapped: Callable[[Any, Any, Any], tuple[str, int, int, int] | None] = main.fill_mapped
        # Tell the kernel of these runs, which will be read.
        self.announce: Callable[[Any], None] = main.announce
        # (fd, size, changed): whether the file is still that long and has not been written since.
        self.unchanged: Callable[[int, int, int], bool] = main.unchanged
        # (files, numbers, stride, lengths, fds, offsets): descriptors and offsets of runs of many files, those files
        # checked; False: look closer, in Python.
        self.locate: Callable[[WatchedFiles, Any, int, Any, Any, Any, bool], bool] = main.locate
        # (fd, size, shifted, scattered): its first bytes; shifted so that no fault maps a folio of 2 MiB.
        self.mapping: Callable[[int, int, bool, bool], FileMapping] = (_core if native else mapping).Mapping
        # (source, offsets, length, into, places): bytes of source to rows of into; places None: one after the other.
        self.copy_rows: Callable[[Any, Any, int, Any, Any], None] = main.copy_rows
        # (numbers, n, constants, tweaks, inverted): map numbers below n in place by a permutation, or back.
        self.permute: Callable[[Any, int, Any, Any, bool], None] = (_core if native else permutation).permute
        # Tables that many batches are planned from.
        self.hold_tables: Callable[[PackedTables], Any] = (_core if native else packed_plans).hold_tables
        # (tables, rows, into): reads and runs of a batch of packed rows (reads, runs, documents closed, any padding?);
        # None: no room, or damaged tables.
        self.packed_plan: Callable[[PackedTables, Any, Any], tuple[int, int, int, int] | None] = (
            _core if native else packed_plans
        ).packed_plan

        where = _core if native else document_planes
        # (planes, marks, begins): write documents into the planes from what reading with ``Pair.marks`` noted; returns
        # tokens of the longest run. None: too many, or none noted.
        self.documents_noted: Callable[[Planes, Any, bool], int | None] = where.documents_noted
        # (planes, begins, closing, padding): the same from where runs begin, last tokens of documents, and which runs
        # are padding.
        self.documents_given: Callable[[Planes, Any, Any, Any], int] = where.documents_given
        # (x, y, begins, closing, padding, pad, eot): overwrite surplus tokens with padding; returns the first document
        # that does not end with eot, or -1.
        self.packed_close: Callable[[Any, Any, Any, Any, Any, int, int | None], int] = where.packed_close

    def queue(self, way: str, *, depth: int = 64, staging: int = 1 << 20, alignment: int = 4096) -> ReadQueue:
        """A queue that reads misses this way, with at most ``depth`` in flight and ``staging`` bytes of its own."""
        made: ReadQueue = self._queue(way, depth, staging, alignment)
        return made

    def lane(self, way: str, *, depth: int = 64, staging: int = 1 << 20, alignment: int = 4096) -> ReadLane:
        """The same with ``start`` and ``wait``, and a thread that fills the target; only the native engine has it."""
        made: ReadLane = _core.Lane(way, depth, staging, alignment)
        return made

    def documents_marked(self, planes: Planes, x: Any, y: Any, id: int, *, begins: bool) -> int:
        """Write documents that end (or begin) with an id in x into the planes; returns tokens of the longest run."""
        native = self._native and x.dtype.char in "ilq"
        found: int = (_core if native else document_planes).documents_marked(planes, x, y, id, begins)
        return found

    def add_columns(self, sums: ColumnSums, rows: Any) -> None:
        """Add rows to the sums of their columns, NaN counted and left out; without the GIL in the C core."""
        native = self._native and rows.dtype.isnative and rows.dtype.char in "?bBhHiIlLqQefd"
        (_core if native else column_sums).add_columns(sums, rows)

    def crc32(self, bytes: Any, crc: int = 0) -> int:
        """As zlib's, several times faster where the processor multiplies without carry."""
        found = _core.crc32(bytes, crc) if self._native else None
        return id_checks.crc32(bytes, crc) if found is None else found

    def crc32_of_ids(self, ids: Any, crc: int = 0) -> int:
        """The same of ids as little-endian int64, whatever type they have here."""
        native = self._native and ids.dtype.isnative and ids.dtype.char in "BHIilq" and ids.flags.c_contiguous
        found = _core.crc32_of_ids(ids, crc) if native else None
        return id_checks.crc32_of_ids(ids, crc) if found is None else found

    def read_checked(
        self, fd: int, offset: int, into: memoryview, *, summed: bool, ids: IdsWithin | None = None
    ) -> Checked:
        """Bytes of a file, their CRC-32 and the first id outside of its vocabulary, in one pass without the GIL."""
        native = self._native and (
            ids is None or (ids.dtype.isnative and ids.dtype.name in SOURCES and 0 <= ids.vocab < 2**64)
        )
        if native:
            asked = (-1, 0, 0) if ids is None else (SOURCES.index(ids.dtype.name), ids.vocab, ids.skip)
            found = _core.read_checked(fd, offset, into, summed, *asked)
            if found is not None:
                return Checked(*found)
        return id_checks.read_checked(fd, offset, into, summed=summed, ids=ids)

    def unpack_lzf(self, packed: Any, into: Any) -> int | None:
        """Unpack a chunk of h5py's filter without the GIL: bytes that came, -1 for damaged ones or more than ``into``
        holds. None: this engine cannot, h5py can."""
        return _core.unpack_lzf(packed, into) if self._native else None

    def joined_texts(
        self, block: bytes, key: bytes | None, between: bytes, end: bytes, ranges: Any
    ) -> tuple[bytes, int, int, bytes] | None:
        """Documents of a block, each followed by ``end``: what stands between ``between`` or, given a ``key``, the text
        of that field in lines of JSON. (text, documents, empty ones left out, where code points of ``ranges`` begin, as
        int64). None: this engine cannot, or the block is not plainly right. Without the GIL."""
        return _core.joined_texts(block, key, between, end, ranges) if self._native else None

    def code_points(self, text: bytes, ranges: Any) -> bytes | None:
        """Where code points of ``ranges`` begin, as int64. None: this engine cannot, or the text is not UTF-8."""
        return _core.code_points(text, ranges) if self._native else None

    def string_units(self, text: bytes, first: int) -> int | None:
        """Where whole units of a JSON string end, bytes and escapes before a quote. None: this engine cannot."""
        return _core.string_units(text, first) if self._native else None

    def cut_after(self, text: bytes | bytearray, mark: int, end: int) -> int | None:
        """The first place where a document may be cut between words, -1 if there is none. None: this engine cannot."""
        return _core.cut_after(text, mark, end) if self._native else None

    def unavailable(self) -> dict[str, str]:
        """Each way of reading misses, and why it is unavailable ('': available). Asks the kernel once per process."""
        return dict(_unavailable(self._unavailable, os.getpid()))


@functools.lru_cache(maxsize=4)
def _unavailable(ask: Callable[[], dict[str, str]], process: int) -> dict[str, str]:  # noqa: ARG001
    """Asking takes 30 ms, as the kernel ends a ring slowly. A forked child may be allowed less, so it asks again."""
    return ask()


def engine(asked: str = "auto") -> Engine:
    """The engine ``asked`` for, else LOWTIDE_ENGINE's; ``native`` is refused if it was not built."""
    what, why = "engine", f"engine={asked!r} was asked for"
    if asked == "auto":
        asked = os.environ.get(VARIABLE, "auto")
        what, why = VARIABLE, f"{VARIABLE}={asked}"
    if asked not in ENGINES:
        raise ValueError(f"{what}: expected one of {', '.join(ENGINES)}, got {asked!r}. Use {what}={_AUTO[what]}.")
    return _chosen(asked, why)


_AUTO = {"engine": "'auto'", VARIABLE: "auto"}


@functools.cache
def _chosen(name: str, why: str) -> Engine:
    if name == "auto":
        return Engine("native", "the extension is built") if _missing is None else Engine("python", why_missing())
    if name == "native" and _missing is not None:
        raise ValueError(
            f"engine: expected the native engine ({why}), got none: {why_missing()}. "
            "Use engine='python', or install it again with a C compiler."
        )
    return Engine(name, why)


def why_missing() -> str:
    """Why there is no extension, in words."""
    try:
        return f"the extension was not built: {NOTE.read_text().strip()}"
    except OSError:
        return f"the extension does not load: {_missing}"
