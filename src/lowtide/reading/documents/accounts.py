"""What a cut does to the tokens of a corpus: how many stand in rows, how many in none, and how much is padding.

Counted on the data, not estimated, beside what one document per row would pad.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lowtide.reading.documents.boundary_index import BoundaryIndex
from lowtide.reading.documents.document_counts import lengths_of


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


def one_per_row(tokens: int, pieces: int, length: int) -> float:
    """Share of padding with every piece in a row of its own."""
    return 1 - tokens / (pieces * length) if pieces else 0.0


def count_pieces(index: BoundaryIndex, first: int, last: int, length: int) -> int:
    return sum(int((-(-lengths // length)).sum()) for lengths in lengths_of(index, first, last))
