"""The index of a corpus's documents: every end, found once and kept.

An end is stored as its place inside a block of 65,536 tokens: two bytes per document, and a count per block. Finding
the ends around any token is a search inside one block. Ranges (splits) of a corpus share its index.

Costs 2 bytes per document and 1 to 4 per 65,536 tokens on disk, and one pass over the tokens if only an id marks
the ends. Searching holds 8 bytes per 65,536 tokens: 15 MB for 10^11 tokens; the ends themselves are held in memory if
they fit the budget, else the blocks around a token are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.engine import Numbers
from lowtide.errors import FormatError
from lowtide.reading.documents.boundaries import Marks, scan
from lowtide.reading.documents.kept_arrays import GrowingArrays, HeldArrays, KeptArrays, KeptFile, damaged, kept
from lowtide.reading.fingerprint import digest
from lowtide.reading.token_range import TokenRange
from lowtide.storage.store import Store

VERSION = 2  # of what builds an index: those of the first may lack documents of mapped files
BITS = 16
BLOCK_TOKENS = 1 << BITS
WRITTEN = 4096  # blocks of tokens scanned before their ends are written: 512 MiB of uint16, under a second
MOST_ENDS = 1 << 19  # ends found before they are written: 4 MiB, and a few times that while they are written
SHOWN = 512  # blocks between two reports of progress
ENDS = 32_768  # ends given at a time

Progress = Callable[[int, int], None] | None  # tokens done, tokens in total


class BoundaryIndex:
    """Ends of documents, counted from the corpus's first token."""

    def __init__(self, found: KeptArrays, store: Store) -> None:
        self.kept = found
        self._store = store
        counts: Numbers = found.arrays["counts"].part()
        self._before: Numbers = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)))
        self._low = found.arrays["low"]
        self.held = HeldArrays((self._low,), store.budget)
        self.tokens = int(found.facts["tokens"])
        self.marked = int(found.facts["marked"])  # ends that the corpus itself states
        if len(counts) != -(-self.tokens // BLOCK_TOKENS) or int(self._before[-1]) != len(self._low):
            raise damaged(found.path, f"{len(self._low)} ends in {self.tokens} tokens", "counts that differ")

    def __len__(self) -> int:
        """Documents of the whole corpus."""
        return len(self._low)

    def blocks(self, first: int, last: int) -> Iterator[Numbers]:
        """Ends in ``(first, last]``, ascending, in blocks; ``last`` counts as one, even in the middle of a document."""
        low, high = (int(self._ranks(np.array([at], np.int64), *self._around(at))[0]) for at in (first, last))
        reached = first
        for start in range(low, high, ENDS):
            stop = min(start + ENDS, high)
            ends = self._select(np.arange(start, stop, dtype=np.int64), self._low.part(start, stop), -start)
            reached = int(ends[-1])
            yield ends
        if reached < last:
            yield np.array([last], np.int64)

    def inside(self, starts: Numbers, span: int, batches: Callable[[], int] = lambda: 0) -> tuple[Numbers, Numbers]:
        """Every end in ``(start, start + span]`` of each start: which start, and how far after it. ``batches``: bytes
        of the budget that they need."""
        held = self.held.get(batches)
        if held is not None:
            return self._inside(starts, span, held[0], np.zeros(len(starts), np.int64))
        # The blocks of each span, some spans at a time.
        firsts = self._before[starts >> BITS]
        counts = self._before[np.minimum((starts + span) >> BITS, len(self._before) - 2) + 1] - firsts
        found = []
        for first, last in _some(counts, MOST_ENDS):
            mine = counts[first:last]
            low = self.kept.read_runs(*self._low.runs(firsts[first:last], mine), self._store.engine).view(
                self._low.kind
            )
            base = np.cumsum(mine) - mine - firsts[first:last]
            rows, behind = self._inside(starts[first:last], span, low, base)
            found.append((rows + first, behind))
        return np.concatenate([rows for rows, _ in found]), np.concatenate([behind for _, behind in found])

    def _inside(self, starts: Numbers, span: int, lows: NDArray[Any], base: Numbers) -> tuple[Numbers, Numbers]:
        ranks = self._ranks(np.concatenate((starts, starts + span)), lows, np.concatenate((base, base)))
        low, high = ranks[: len(starts)], ranks[len(starts) :]
        counts = high - low
        rows = np.repeat(np.arange(len(starts)), counts)
        inner = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, self._select(low[rows] + inner, lows, base[rows]) - starts[rows]

    def _around(self, position: int) -> tuple[NDArray[Any], int]:
        """The places in the block of a position, and the offset to add to a number to find them."""
        block = min(position >> BITS, len(self._before) - 2)
        first, last = int(self._before[block]), int(self._before[block + 1])
        return self._low.part(first, last), -first

    def _ranks(self, positions: Numbers, lows: NDArray[Any], base: Numbers | int) -> Numbers:
        """How many ends are at or before each position: bisection inside its block, for all at once.

        The place of end n of the corpus is ``lows[n + base]``.
        """
        before = self._before
        blocks = len(before) - 1
        block = np.minimum(positions >> BITS, blocks)
        low: Numbers = before[block]
        high: Numbers = before[np.minimum(block + 1, blocks)]
        inside = positions & (BLOCK_TOKENS - 1)
        for _ in range(int((high - low).max(initial=0)).bit_length()):
            middle = (low + high) >> 1
            # A finished search looks at a neighbour's value, which changes nothing.
            less = (lows[np.clip(middle + base, 0, len(lows) - 1)] < inside) & (low < high)
            low = np.where(less, middle + 1, low)
            high = np.where(less, high, np.maximum(middle, low))
        return low

    def _select(self, numbers: Numbers, lows: NDArray[Any], base: Numbers | int) -> Numbers:
        """Ends by number."""
        block = np.searchsorted(self._before, numbers, side="right") - 1
        found: Numbers = (block << BITS) + lows[numbers + base] + 1
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundaryIndex, (self.kept, self._store)


def _some(counts: Numbers, most: int) -> Iterator[tuple[int, int]]:
    """Groups of neighbours whose counts add up to at most ``most``, or a single one."""
    first, held = 0, 0
    for at, count in enumerate(counts.tolist()):
        if held and held + count > most:
            yield first, at
            first, held = at, 0
        held += count
    yield first, len(counts)


def identity_of(corpus: TokenRange, marks: Marks) -> dict[str, Any]:
    """What an index belongs to."""
    own = {"version": VERSION, "documents": str(marks), **corpus.fingerprint()}
    tables = corpus.layout.documents or ()
    return own if not tables else {**own, "tables": digest(*(f"{one.size} {one.count} ".encode() for one in tables))}


def key_of(identity: dict[str, Any]) -> str:
    """A short hash for file names."""
    return digest(repr(sorted(identity.items())).encode())[:16]


def boundary_index(tokens: TokenRange, marks: Marks, progress: Progress = None) -> BoundaryIndex:
    """The index of the whole corpus that these tokens are a range of, built if there is none yet."""
    corpus = TokenRange(tokens.layout, tokens.store)
    identity = identity_of(corpus, marks)
    what = KeptFile(f"documents-{key_of(identity)}.index", identity, tokens.layout.extents[0].path)
    building = _Building(corpus, marks, identity, progress)
    found = BoundaryIndex(kept(what, {"counts": "<u4", "low": "<u2"}, building.run), tokens.store)
    if marks.by != "offsets" and found.marked == 0:
        first = "last" if marks.by == "eot" else "first"
        raise FormatError(
            f"{tokens.store.where}: expected the id {marks.id} ({marks.by}) as the {first} token of every document, "
            f"got none among {len(corpus)} tokens. Open with the {marks.by}= that this tokenizer writes."
        )
    return found


class _Building:
    """One pass over the corpus, continuing where an earlier one stopped."""

    def __init__(self, corpus: TokenRange, marks: Marks, identity: dict[str, Any], progress: Progress) -> None:
        self.corpus, self.marks, self.identity, self.progress = corpus, marks, identity, progress

    def run(self, growing: GrowingArrays) -> None:
        total = len(self.corpus)
        counts = growing.entries()
        if not growing.keep({"counts": len(counts), "low": int(counts.sum(dtype=np.int64))}):
            counts = counts[:0]
        done = min(len(counts) * BLOCK_TOKENS, total)
        pending: list[NDArray[np.int64]] = []
        waiting, shown = 0, done
        for reached, ends in scan(self.corpus, self.marks, done, total) if done < total else ():
            pending.append(ends)
            waiting += len(ends)
            whole = reached // BLOCK_TOKENS * BLOCK_TOKENS
            if whole > done and (whole - done >= WRITTEN * BLOCK_TOKENS or waiting >= MOST_ENDS):
                done, pending = self._write(growing, pending, done, whole)
                waiting = len(pending[0])
            if self.progress is not None and reached - shown >= SHOWN * BLOCK_TOKENS:
                shown = reached
                self.progress(shown, total)
        if done < total:
            self._write(growing, pending, done, total)
        if self.progress is not None:
            self.progress(total, total)
        self._finish(growing, total)
        self.corpus.store.pool.trim()  # no batch needs a buffer as large as the scan's

    def _write(
        self, growing: GrowingArrays, pending: list[NDArray[np.int64]], done: int, upto: int
    ) -> tuple[int, list[NDArray[np.int64]]]:
        """Whole blocks of tokens ``[done, upto)``; an end at ``upto`` is the last place of the block before."""
        ends = np.concatenate(pending) if pending else np.empty(0, np.int64)
        first, last = ends.searchsorted((done, upto), side="right").tolist()
        mine, later = ends[first:last], ends[last:].copy()
        if upto == len(self.corpus) and (len(mine) == 0 or mine[-1] != upto):
            mine = np.append(mine, upto)  # the last document ends with the corpus
        places = mine - 1
        counts = np.bincount((places - done) >> BITS, minlength=-(-(upto - done) // BLOCK_TOKENS))
        growing.append(counts=counts, low=places & (BLOCK_TOKENS - 1))
        return upto, [later]

    def _finish(self, growing: GrowingArrays, total: int) -> None:
        counts = growing.entries()
        documents = int(counts.sum(dtype=np.int64))
        widest = int(counts.max(initial=0))
        kind = "<u1" if widest < 1 << 8 else "<u2" if widest < 1 << 16 else "<u4"
        facts = {"tokens": total, "documents": documents, "marked": self._marked(documents, total)}
        growing.finish(self.identity, facts, {"counts": kind})

    def _marked(self, documents: int, total: int) -> int:
        if self.marks.by == "offsets" or total == 0:
            return documents
        at = total - 1 if self.marks.by == "eot" else 0
        return documents - 1 + int(int(self.corpus.own(range(at, at + 1))[0]) == self.marks.id)
