"""``Docs``: which tokens of a batch belong to which document, beside x and y.

A batch is a list of runs - tokens of one document inside one row, or padding - and everything else follows from where
runs begin. ``cu_seqlens`` has one length for all batches, so compiled kernels see one shape.

Costs 9 bytes per token of the batch and about a quarter of a nanosecond per byte. Reads nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowtide.engine import Planes
from lowtide.storage.budget import whole_pages
from lowtide.storage.buffers import Bytes

INT32, BOOL = np.dtype(np.int32), np.dtype(np.bool_)
MOST_TOKENS = 2**31 - 1


class Docs(NamedTuple):
    """Documents of a batch. Arrays are the caller's until dropped, like x and y."""

    positions: NDArray[np.int32]  # shape of x: from 0 at a document's first token in its row; 0 on padding
    ids: NDArray[np.int32]  # shape of x: the run a token belongs to, from 0; -1 on padding
    cu_seqlens: NDArray[np.int32]  # 0, the end of every run of the flattened batch, then its size up to a fixed length
    max_seqlen: int  # of the longest run
    loss_mask: NDArray[np.bool_]  # shape of x: True where y is the next token of the same document


def docs_of(planes: Planes, longest: int) -> Docs:
    """The docs in planes that the engine has filled; ``longest``: what it said about runs."""
    positions, ids, bounds, mask, _ = planes
    return Docs(positions, ids, bounds, longest, mask)


class DocsFiller:
    """Makes ``Docs`` for rows of ``length`` tokens with at most ``most_runs`` runs each."""

    def __init__(self, length: int, most_runs: int) -> None:
        self.length = length
        self.most_runs = most_runs
        self._known = -1, (0, 0, 0, 0)  # rows of the last batch, and its places

    def nbytes(self, rows: int) -> int:
        """Bytes of the buffer that holds a batch's docs."""
        return self._places(rows)[3]

    def check_size(self, rows: int) -> None:
        """Positions are 32-bit, as kernels want them."""
        if rows * self.length > MOST_TOKENS:
            raise ValueError(
                f"batch: expected at most {MOST_TOKENS} tokens per rank with documents=True, got {rows} x "
                f"{self.length}. Use a batch of {MOST_TOKENS // self.length} per rank."
            )

    def planes(self, rows: int, root: Bytes, base: int) -> Planes:
        """Where the docs of ``rows`` rows go, in ``nbytes(rows)`` of a buffer from byte ``base`` on."""
        shape = rows, self.length
        second, third, fourth, _ = self._places(rows)
        return Planes(
            np.ndarray(shape, INT32, root, base),
            np.ndarray(shape, INT32, root, base + second),
            np.ndarray(rows * self.most_runs + 1, INT32, root, base + third),
            np.ndarray(shape, BOOL, root, base + fourth),
            self.length,
        )

    def _places(self, rows: int) -> tuple[int, int, int, int]:
        """Where ids, cu_seqlens and loss_mask begin, and where it all ends."""
        known, places = self._known
        if known != rows:
            plane = whole_pages(rows * self.length * INT32.itemsize)
            third = 2 * plane
            fourth = third + whole_pages((rows * self.most_runs + 1) * INT32.itemsize)
            places = plane, third, fourth, fourth + rows * self.length
            self._known = rows, places
        return places

    def __reduce__(self) -> tuple[Any, ...]:
        return DocsFiller, (self.length, self.most_runs)
