"""``Docs``: which tokens of a batch belong to which document, beside x and y.

One idea: a batch is a list of runs - stretches of one document inside one row, or of padding - and everything else
follows from where runs begin. ``cu_seqlens`` has one length for all batches, so compiled kernels see one shape.

Costs 9 bytes per token of the batch and about a quarter of a nanosecond per byte. Reads nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowtide.reading.upcoming import Numbers
from lowtide.storage.budget import whole_pages
from lowtide.storage.buffers import Filling

INT32, BOOL = np.dtype(np.int32), np.dtype(np.bool_)
MOST_TOKENS = 2**31 - 1
AT_ONCE = 1 << 17  # tokens whose runs are spread at a time: what NumPy makes between stays in the second-level cache
FEW = 4  # rows per run that begins inside a row, from which on such runs are written one by one


class Docs(NamedTuple):
    """Documents of a batch. Arrays are the caller's until dropped, like x and y."""

    positions: NDArray[np.int32]  # shape of x: from 0 at a document's first token in its row; 0 on padding
    ids: NDArray[np.int32]  # shape of x: the run a token belongs to, from 0; -1 on padding
    cu_seqlens: NDArray[np.int32]  # 0, the end of every run of the flattened batch, then its size up to a fixed length
    max_seqlen: int  # of the longest run
    loss_mask: NDArray[np.bool_]  # shape of x: True where y is the next token of the same document


class RunsOfBatch(NamedTuple):
    """What a batch's documents are computed from; all positions count through the flattened batch."""

    begins: Numbers  # of every run, ascending; every row begins one
    closing: Numbers  # last tokens of documents
    padding: NDArray[np.bool_] | None = None  # which runs are padding

    def numbers(self) -> NDArray[np.int32]:
        """The id of every run: documents count from 0, padding is -1."""
        if self.padding is None:
            return np.arange(len(self.begins), dtype=np.int32)
        found = (~self.padding).cumsum(dtype=np.int32)
        found -= 1
        found[self.padding] = -1
        return found


class DocsFiller:
    """Makes ``Docs`` of rows of ``length`` tokens with at most ``most_runs`` runs each."""

    def __init__(self, length: int, most_runs: int) -> None:
        self.length = length
        self.most_runs = most_runs
        self._counting = np.empty(0, np.int32)

    def nbytes(self, rows: int) -> int:
        """Bytes of the buffer that holds a batch's docs."""
        return self._places(rows)[3]

    def fill(self, runs: RunsOfBatch, rows: int, out: Filling, base: int) -> Docs:
        """The docs of ``rows`` rows, in ``nbytes(rows)`` of a buffer from byte ``base`` on."""
        shape, size, begins = (rows, self.length), rows * self.length, runs.begins
        second, third, fourth, _ = self._places(rows)
        positions, ids = out.lend(shape, INT32, base), out.lend(shape, INT32, base + second)
        bounds = out.lend((rows * self.most_runs + 1,), INT32, base + third)
        mask = out.lend(shape, BOOL, base + fourth)
        bounds[: len(begins)] = begins
        bounds[len(begins) :] = size
        lengths = bounds[1 : len(begins) + 1] - bounds[: len(begins)]
        if (len(begins) - rows) * FEW <= rows:
            self._by_rows(runs, lengths, positions, ids)
        else:
            self._by_runs(runs, lengths, positions.reshape(-1), ids.reshape(-1))
        mask.fill(True)
        mask.reshape(-1)[runs.closing] = False
        if runs.padding is not None:
            padded = spread(begins[runs.padding], lengths[runs.padding])
            positions.reshape(-1)[padded] = 0
            mask.reshape(-1)[padded] = False
        return Docs(positions, ids, bounds, int(lengths.max(initial=0)), mask)

    def _by_rows(
        self, runs: RunsOfBatch, lengths: NDArray[np.int32], positions: NDArray[np.int32], ids: NDArray[np.int32]
    ) -> None:
        """Where most rows are one run: rows first, then the few runs that begin inside one."""
        counting, begins, numbers = self._count(self.length), runs.begins, runs.numbers()
        positions[:] = counting
        ids[:] = numbers[begins.searchsorted(np.arange(0, positions.size, self.length)), None]
        flat_positions, flat_ids = positions.reshape(-1), ids.reshape(-1)
        for run in (begins % self.length).nonzero()[0].tolist():
            first, length = int(begins[run]), int(lengths[run])
            flat_positions[first : first + length] = counting[:length]
            flat_ids[first : first + length] = numbers[run]

    def _by_runs(
        self, runs: RunsOfBatch, lengths: NDArray[np.int32], positions: NDArray[np.int32], ids: NDArray[np.int32]
    ) -> None:
        """Every run spread over its tokens, some rows at a time."""
        begins, numbers = runs.begins, runs.numbers()
        step = max(1, AT_ONCE // self.length) * self.length
        for first in range(0, len(ids), step):
            last = min(first + step, len(ids))
            some = slice(*begins.searchsorted((first, last)))
            ids[first:last] = numbers[some].repeat(lengths[some])
            starts = (begins[some] - first).astype(np.int32).repeat(lengths[some])
            np.subtract(self._count(last - first), starts, out=positions[first:last])

    def _places(self, rows: int) -> tuple[int, int, int, int]:
        """Where ids, cu_seqlens and loss_mask begin, and where it all ends."""
        plane = whole_pages(rows * self.length * INT32.itemsize)
        third = 2 * plane
        fourth = third + whole_pages((rows * self.most_runs + 1) * INT32.itemsize)
        return plane, third, fourth, fourth + rows * self.length

    def _count(self, size: int) -> NDArray[np.int32]:
        if len(self._counting) < size:
            self._counting = np.arange(size, dtype=np.int32)
        return self._counting[:size]

    def __reduce__(self) -> tuple[Any, ...]:
        return DocsFiller, (self.length, self.most_runs)


def spread(begins: Numbers, lengths: NDArray[Any]) -> Numbers:
    """Every position of the stretches ``[begin, begin + length)``."""
    found: Numbers = (begins - lengths.cumsum() + lengths).repeat(lengths)
    found += np.arange(len(found))
    return found


def checked_size(rows: int, length: int) -> None:
    """Positions are 32-bit, as kernels want them."""
    if rows * length > MOST_TOKENS:
        raise ValueError(
            f"batch: expected at most {MOST_TOKENS} tokens per rank with documents=True, got {rows} x {length}. "
            f"Use a batch of {MOST_TOKENS // length} per rank."
        )
