"""The index of a corpus's documents: every end, found once and kept.

An end is the number of its block of 65,536 tokens and its place inside: two bytes per document, and a count
per block. Finding the ends around any token is a search inside one block. Ranges (splits) of a corpus share its index.

Costs 2 bytes per document and 1 to 4 per 65,536 tokens on disk, and one pass over the tokens where only an id marks
the ends. Searching holds 8 bytes per 65,536 tokens: 15 MB for 10^11 tokens. Mapped, not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.engine import Numbers
from lowtide.errors import FormatError
from lowtide.reading.documents.boundaries import Marks, scan
from lowtide.reading.documents.kept_arrays import GrowingArrays, KeptArrays, KeptFile, damaged, kept
from lowtide.reading.fingerprint import digest
from lowtide.reading.token_range import TokenRange

BITS = 16
BLOCK_TOKENS = 1 << BITS
WRITTEN = 4096  # blocks of tokens looked at before their ends are written down: 512 MiB of uint16, under a second
MOST_ENDS = 1 << 19  # ends found before they are written down: 4 MiB, and a few times that while they are written
SHOWN = 512  # blocks between two reports of progress
ENDS = 32_768  # ends given at a time

Progress = Callable[[int, int], None] | None  # tokens done, tokens there are


class BoundaryIndex:
    """Ends of documents, counted from the corpus's first token."""

    def __init__(self, found: KeptArrays) -> None:
        self.kept = found
        self._counts, self._low = found.arrays["counts"], found.arrays["low"]
        self.tokens = int(found.facts["tokens"])
        self.marked = int(found.facts["marked"])  # ends that the corpus itself states
        self._before: Numbers | None = None
        if len(self._counts) != -(-self.tokens // BLOCK_TOKENS) or int(self._counts.sum(dtype=np.int64)) != len(
            self._low
        ):
            raise damaged(found.path, f"{len(self._low)} ends in {self.tokens} tokens", "counts that say otherwise")

    def __len__(self) -> int:
        """Documents of the whole corpus."""
        return len(self._low)

    def blocks(self, first: int, last: int) -> Iterator[Numbers]:
        """Ends in ``(first, last]``, ascending, in blocks; ``last`` is one, also in the middle of a document."""
        low, high = (int(rank) for rank in self._ranks(np.array([first, last], np.int64)))
        reached = first
        for start in range(low, high, ENDS):
            ends = self._select(np.arange(start, min(start + ENDS, high), dtype=np.int64))
            reached = int(ends[-1])
            yield ends
        if reached < last:
            yield np.array([last], np.int64)

    def inside(self, starts: Numbers, span: int) -> tuple[Numbers, Numbers]:
        """Every end in ``(start, start + span]`` of each start: which start, and how far behind it."""
        ranks = self._ranks(np.concatenate((starts, starts + span)))
        low, high = ranks[: len(starts)], ranks[len(starts) :]
        counts = high - low
        rows = np.repeat(np.arange(len(starts)), counts)
        inner = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, self._select(low[rows] + inner) - starts[rows]

    def _ranks(self, positions: Numbers) -> Numbers:
        """How many ends are at or before each position: bisection inside the block it falls into, all at once."""
        before = self._prefix()
        block = np.minimum(positions >> BITS, len(self._counts))
        low: Numbers = before[block]
        high: Numbers = before[np.minimum(block + 1, len(self._counts))]
        inside = positions & (BLOCK_TOKENS - 1)
        for _ in range(int((high - low).max(initial=0)).bit_length()):
            middle = (low + high) >> 1
            # A finished search looks at a neighbour's value, which changes nothing.
            less = (self._low[np.minimum(middle, len(self._low) - 1)] < inside) & (low < high)
            low = np.where(less, middle + 1, low)
            high = np.where(less, high, np.maximum(middle, low))
        return low

    def _select(self, numbers: Numbers) -> Numbers:
        """Ends by number."""
        block = np.searchsorted(self._prefix(), numbers, side="right") - 1
        found: Numbers = (block << BITS) + self._low[numbers] + 1
        return found

    def _prefix(self) -> Numbers:
        """Ends before each block."""
        self.kept.check()
        if self._before is None:
            self._before = np.concatenate((np.zeros(1, np.int64), np.cumsum(self._counts, dtype=np.int64)))
        return self._before

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundaryIndex, (self.kept,)


def identity_of(corpus: TokenRange, marks: Marks) -> dict[str, Any]:
    """What an index belongs to."""
    own = {"documents": str(marks), **corpus.fingerprint()}
    tables = corpus.layout.documents or ()
    return own if not tables else {**own, "tables": digest(*(f"{one.size} {one.count} ".encode() for one in tables))}


def key_of(identity: dict[str, Any]) -> str:
    """A short word for file names."""
    return digest(repr(sorted(identity.items())).encode())[:16]


def boundary_index(tokens: TokenRange, marks: Marks, progress: Progress = None) -> BoundaryIndex:
    """The index of the whole corpus these tokens are a range of, built where there is none yet."""
    corpus = TokenRange(tokens.layout, tokens.store)
    identity = identity_of(corpus, marks)
    what = KeptFile(f"documents-{key_of(identity)}.index", identity, tokens.layout.extents[0].path)
    found = BoundaryIndex(kept(what, {"counts": "<u4", "low": "<u2"}, _Building(corpus, marks, identity, progress).run))
    if marks.by != "offsets" and found.marked == 0:
        first = "last" if marks.by == "eot" else "first"
        raise FormatError(
            f"{tokens.store.where}: expected the id {marks.id} ({marks.by}) as the {first} token of every document, "
            f"got none among {len(corpus)} tokens. Open with the {marks.by}= that this tokenizer writes."
        )
    return found


class _Building:
    """One pass over the corpus, from where an earlier one stopped."""

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
        for piece in scan(self.corpus, self.marks, done, total) if done < total else ():
            pending.append(piece.ends)
            waiting += len(piece.ends)
            whole = piece.reached // BLOCK_TOKENS * BLOCK_TOKENS
            if whole > done and (whole - done >= WRITTEN * BLOCK_TOKENS or waiting >= MOST_ENDS):
                done, pending = self._write(growing, pending, done, whole)
                waiting = len(pending[0])
            if self.progress is not None and piece.reached - shown >= SHOWN * BLOCK_TOKENS:
                shown = piece.reached
                self.progress(shown, total)
        if done < total:
            self._write(growing, pending, done, total)
        if self.progress is not None:
            self.progress(total, total)
        self._finish(growing, total)
        self.corpus.store.pool.trim()  # no batch needs a buffer of a scan's size

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
