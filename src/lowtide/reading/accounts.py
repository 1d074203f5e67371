"""What a cut does to the tokens of a corpus: how many stand in rows, how many in none, and how much is padding.

One idea: counted on the data, not estimated, beside what two other ways to fill rows would do to the same documents.
The packer that crops (nanochat's: the largest of 1,000 waiting documents that fits, and where none fits the shortest
one, cropped) is played through on the first 4 Mi tokens; one document per row is plain arithmetic.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from lowtide.reading.boundary_index import BoundaryIndex
from lowtide.reading.document_counts import lengths_of

PLAYED_TOKENS = 4 << 20
WAITING = 1000  # documents nanochat's packer chooses from


@dataclass(frozen=True)
class Account:
    """Tokens of one epoch. ``cut`` tokens stand in no row; ``padded`` ones are in rows, but not of the corpus."""

    tokens: int  # of the corpus
    windows: int
    length: int
    used: int
    cut: int
    padded: int
    most_documents: int | None  # in one window; None: nothing tells documents apart
    cropping_packer_cut: float | None  # share of the tokens that nanochat's packer would crop
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
        if self.cropping_packer_cut is not None:
            lines.append(f"elsewhere a packer that crops (nanochat's) would cut {self.cropping_packer_cut:.1%}")
        if self.one_per_row_padded is not None:
            lines.append(f"          one document per row would pad {self.one_per_row_padded:.1%}")
        return "\n".join(lines)


def cropped_share(index: BoundaryIndex, first: int, last: int, length: int) -> float:
    """Share of the tokens that nanochat's packer crops, played on the first 4 Mi tokens."""
    lengths = _documents(index, first, last)
    waiting: list[int] = []
    seen = cropped = 0
    capacity = length + 1  # it packs x and y as one row
    while True:
        room = capacity
        while room:
            while len(waiting) < WAITING and (more := next(lengths, 0)):
                insort(waiting, more)
                seen += more
            if not waiting:
                return cropped / seen if seen else 0.0
            at = bisect_right(waiting, room)
            if at:
                room -= waiting.pop(at - 1)
            else:
                cropped += waiting.pop(0) - room
                room = 0


def one_per_row(tokens: int, pieces: int, length: int) -> float:
    """Share of padding with every piece in a row of its own."""
    return 1 - tokens / (pieces * length) if pieces else 0.0


def count_pieces(index: BoundaryIndex, first: int, last: int, length: int) -> int:
    return sum(int((-(-lengths // length)).sum()) for lengths in lengths_of(index, first, last))


def _documents(index: BoundaryIndex, first: int, last: int) -> Iterator[int]:
    for lengths in lengths_of(index, first, min(last, first + PLAYED_TOKENS)):
        yield from lengths.tolist()
