"""What a corpus's documents are like - how many, how long, how many share one window - and what a cut does to them.

Everything is counted on the index, block by block, in bounded memory: two passes for an exact median, one
for the rest. The most runs in a window is kept beside the data, because every training run needs it at its start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lowtide.engine import Numbers
from lowtide.reading.documents.boundary_index import BoundaryIndex, key_of
from lowtide.reading.documents.kept_arrays import GrowingArrays, KeptFile, kept
from lowtide.reading.token_range import TokenRange

HIGH = 1 << 16  # lengths are counted by their high part first, then by the low part of the median's


@dataclass(frozen=True)
class DocumentCounts:
    """Documents of a range of tokens; lengths in tokens. The median of an even number is the lower one."""

    documents: int
    shortest: int
    median: int
    longest: int
    window: int  # a length,
    most_in_window: int  # and the most documents in one window of it

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True)
class Account:
    """Tokens of one epoch. ``cut`` tokens are in no row; ``padded`` ones are in rows, but not from the corpus."""

    tokens: int  # of the corpus
    windows: int
    length: int
    used: int
    cut: int
    padded: int
    most_documents: int | None  # in one window; None: nothing tells documents apart
    one_per_row_padded: float | None  # share of padding with one document per row

    @property
    def used_share(self) -> float:
        """Of the corpus."""
        return self.used / self.tokens if self.tokens else 0.0

    @property
    def cut_share(self) -> float:
        """Of the corpus."""
        return self.cut / self.tokens if self.tokens else 0.0

    @property
    def padded_share(self) -> float:
        """Of what the rows hold."""
        return self.padded / (self.windows * self.length) if self.windows else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Safe for JSON, with the shares."""
        shares = {"used_share": self.used_share, "cut_share": self.cut_share, "padded_share": self.padded_share}
        return {**asdict(self), **shares}

    def __str__(self) -> str:
        lines = [
            f"windows   {self.windows:,} of {self.length:,} tokens per epoch",
            f"used      {self.used:,} tokens, {self.used_share:.2%} of the corpus",
            f"cut       {self.cut:,} tokens, {self.cut_share:.2%} of the corpus",
            f"padded    {self.padded:,} tokens, {self.padded_share:.2%} of the rows",
        ]
        if self.most_documents is not None:
            lines.append(f"documents at most {self.most_documents:,} in one window")
        if self.one_per_row_padded is not None:
            lines.append(f"elsewhere one document per row would pad {self.one_per_row_padded:.1%}")
        return "\n".join(lines)


def count_documents(index: BoundaryIndex, first: int, last: int, window: int) -> DocumentCounts:
    high = np.zeros(HIGH, np.int64)
    count, shortest, longest = 0, last - first, 0
    for lengths in lengths_of(index, first, last):
        count += len(lengths)
        shortest, longest = min(shortest, int(lengths.min())), max(longest, int(lengths.max()))
        high += np.bincount(np.minimum(lengths >> 16, HIGH - 1), minlength=HIGH)
    upto = np.cumsum(high)
    middle = (count - 1) // 2
    part = int(np.searchsorted(upto, middle, side="right"))
    low = np.zeros(HIGH, np.int64)
    for lengths in lengths_of(index, first, last):
        low += np.bincount(lengths[lengths >> 16 == part] & (HIGH - 1), minlength=HIGH)
    before = int(upto[part - 1]) if part else 0
    median = (part << 16) + int(np.searchsorted(np.cumsum(low), middle - before, side="right"))
    most = most_in_window(index.blocks(first, last), last, window)
    return DocumentCounts(count, shortest, min(median, longest), longest, window, most)


def lengths_of(index: BoundaryIndex, first: int, last: int) -> Iterator[Numbers]:
    """Tokens of every document, block by block."""
    for ends in index.blocks(first, last):
        yield np.diff(ends, prepend=first)
        first = int(ends[-1])


def most_in_window(blocks: Iterable[Numbers], last: int, length: int) -> int:
    """The most documents that any window of ``length`` tokens holds a part of, wherever it begins."""
    most, held = 0, np.empty(0, np.int64)
    for block in blocks:
        ends = np.concatenate((held, block[block < last]))  # no window crosses the end of the corpus
        if len(ends):
            # Borders inside one window are at most length - 2 apart.
            together = np.searchsorted(ends, ends + (length - 2), side="right") - np.arange(len(ends))
            most = max(most, int(together.max()))
            held = ends[ends >= ends[-1] - length]
    return 1 + (most if length > 1 else 0)


def kept_most_runs(index: BoundaryIndex, tokens: TokenRange, length: int) -> int:
    """The same for these tokens, measured once for this range and length."""
    first, last = tokens.first, tokens.last
    identity: dict[str, Any] = {**index.kept.identity, "length": length, "range": [first, last]}

    def measure(growing: GrowingArrays) -> None:
        growing.finish(identity, {"most_runs": most_in_window(index.blocks(first, last), last, length)}, {})

    what = KeptFile(f"runs-{length}-{key_of(identity)}.count", identity, tokens.layout.extents[0].path)
    return int(kept(what, {"nothing": "<u1"}, measure).facts["most_runs"])
