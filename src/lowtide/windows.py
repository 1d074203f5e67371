"""``Windows``: how rows are cut from tokens, before anyone says how many at a time or in which order.

One idea: a cut is fixed by the data and a few settings - length, stride or packed, with or without documents - and is
looked at (``len``, ``account``) before feeds are made from it. The plain cut costs nothing; documents and packing need
an index, built once and kept beside the data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import DTypeLike

from lowtide.arguments import at_least, one_of, whole_number
from lowtide.errors import FormatError
from lowtide.feed import Feed, Ranks, Skips
from lowtide.reading.accounts import Account, count_pieces, cropped_share, one_per_row
from lowtide.reading.boundaries import marks_of, required_marks
from lowtide.reading.boundary_index import BoundaryIndex, Progress, boundary_index
from lowtide.reading.cuts import Cut, StrideCut
from lowtide.reading.document_counts import kept_most_runs
from lowtide.reading.packed_cut import PackedCut, PackedOrder
from lowtide.reading.packed_filler import PackedFiller
from lowtide.reading.packed_rows import PackedRows, packed_rows
from lowtide.reading.run_ahead import RunAhead, TokenStretches, store_for_runs
from lowtide.reading.streams import ORDERS, ShuffledStream, locality_of, make_stream
from lowtide.reading.stride_documents import StrideDocumentsCut
from lowtide.reading.token_range import TokenRange
from lowtide.reading.window_filler import WindowFiller
from lowtide.units import parse_size

CUTS = ("stride", "packed")


class Windows:
    """Rows of ``length`` tokens cut from a range of tokens. ``len(windows)``: rows of one epoch.

    >>> windows = tokens.windows(128)
    >>> x, y = next(windows.batches(64, seed=1337))
    """

    def __init__(
        self,
        tokens: TokenRange,
        length: int,
        *,
        cut: str = "stride",
        documents: bool = False,
        dtype: DTypeLike = "int64",
        progress: Progress = None,
    ) -> None:
        self.tokens = tokens
        self.length = at_least("length", length, 1)
        self.cut = one_of("cut", cut, CUTS)
        self.documents = bool(documents)
        self.dtype = WindowFiller(tokens, self.length, dtype).dtype
        self._progress = progress
        self._packed: PackedRows | None = None
        self._index: BoundaryIndex | None = None
        if self.cut == "packed":
            self._packed = self._pack()
        elif self.documents:
            self._index = boundary_index(tokens, required_marks(tokens), progress)

    def __len__(self) -> int:
        """Windows of an epoch."""
        return (len(self.tokens) - self.length) // self.length if self._packed is None else len(self._packed)

    def batches(
        self,
        batch: int,
        *,
        seed: int = 0,
        order: str = "shuffled",
        locality: int | str | None = None,
        rank: int | None = None,
        world: int | None = None,
        skip: Skips = (),
    ) -> Feed:
        """A feed of ``(x, y)``, or ``(x, y, docs)`` with ``documents=True``; arguments as in ``Tokens.batches``."""
        batch = at_least("batch", batch, 1)
        ranks = checked_ranks(batch, rank, world)
        self.tokens.store.keep_for_ranks(ranks.world)
        cut, admit = self.rows_in(order, seed, locality)
        feed = Feed(cut, batch, ranks, skip)
        admit(batch // ranks.world)
        return feed

    def rows_in(self, order: str, seed: int, locality: int | str | None) -> tuple[Cut, Callable[[int], None]]:
        """The rows in an order, and what refuses batches of so many rows that do not fit the budget."""
        one_of("order", order, ORDERS)
        if self._packed is None:
            return self._stride_rows(order, seed, locality)
        neighbours = self._neighbours(locality, order)
        filler = PackedFiller(self.tokens, self._packed, self.dtype, documents=self.documents)
        stream = PackedOrder(len(self._packed), order, whole_number("seed", seed), neighbours)
        return PackedCut(filler, stream), filler.admit

    @property
    def most_runs(self) -> int:
        """Most runs (documents, and padding) in any window; 0 where documents were not asked for."""
        if not self.documents:
            return 0
        if self._packed is not None:
            return self._packed.most_runs
        assert self._index is not None
        return kept_most_runs(self._index, self.tokens, self.length)

    def account(self) -> Account:
        """Tokens of an epoch that are used, cut and padded, measured on the data; and what others would cut and pad."""
        total = len(self.tokens)
        marks = marks_of(self.tokens)
        used = total if self._packed is not None else len(self) * self.length
        if marks is None:
            return Account(total, len(self), self.length, used, total - used, 0, None, None, None)
        index = self._index or boundary_index(self.tokens, marks, self._progress)
        where = index, self.tokens.first, self.tokens.last
        if self._packed is None:
            padded, most, pieces = 0, kept_most_runs(index, self.tokens, self.length), count_pieces(*where, self.length)
        else:
            padded, most, pieces = self._packed.padded, self._packed.most_documents, self._packed.pieces
        return Account(
            tokens=total,
            windows=len(self),
            length=self.length,
            used=used,
            cut=total - used,
            padded=padded,
            most_documents=most,
            cropping_packer_cut=cropped_share(*where, self.length),
            one_per_row_padded=one_per_row(total, pieces, self.length),
        )

    def __repr__(self) -> str:
        documents = " documents" if self.documents else ""
        where = self.tokens.store.where
        return f"<lowtide.Windows {len(self):,} x {self.length} {self.cut}{documents} of {where}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_progress": None}  # a callback of this process

    def _pack(self) -> PackedRows:
        marks = required_marks(self.tokens)
        if len(self.tokens) == 0:
            raise FormatError(f"{self.tokens.store.where}: expected tokens to pack, got none. Use more data.")
        return packed_rows(self.tokens, marks, self.length, self._progress)

    def _stride_rows(self, order: str, seed: int, locality: int | str | None) -> tuple[Cut, Callable[[int], None]]:
        tokens, runs = self.tokens, None
        near = locality_of(locality, self.length, tokens.dtype.itemsize, order)
        stream = make_stream(order, len(tokens), self.length, seed, near)
        long_enough(tokens, self.length, order)
        if isinstance(stream, ShuffledStream) and stream.locality is not None:
            tokens, runs = _in_stretches(tokens, stream)
        windows = WindowFiller(tokens, self.length, self.dtype, consecutive=stream.consecutive)
        if self._index is None:
            return StrideCut(windows, stream, runs), windows.admit
        most = kept_most_runs(self._index, tokens, self.length)
        marks = required_marks(tokens)
        documented = StrideDocumentsCut(windows, stream, marks=marks, index=self._index, most_runs=most, runs=runs)
        return documented, documented.admit

    def _neighbours(self, locality: int | str | None, order: str) -> int | None:
        """Rows that a local shuffle mixes, from bytes on disk."""
        if locality is None:
            return None
        if order != "shuffled":
            raise ValueError(f"locality: expected order='shuffled' with it, got order={order!r}. Leave locality= out.")
        row = self.length * self.tokens.dtype.itemsize
        size = parse_size(locality, what="locality")
        if size < row:
            raise ValueError(f"locality: expected {row} bytes (one window) or more, got {size}. Use locality='64MiB'.")
        return size // row


def _in_stretches(tokens: TokenRange, stream: ShuffledStream) -> tuple[TokenRange, RunAhead | None]:
    """These tokens as a local shuffle reads them, and what announces its stretches."""
    stretches = TokenStretches(stream, tokens.first, tokens.dtype.itemsize)
    store = store_for_runs(tokens.store, stretches.largest)
    if store is None:
        return tokens, None
    runs = RunAhead(store, stretches, largest=stretches.largest, drop=store is not tokens.store)
    if store is tokens.store:
        return tokens, runs
    same = TokenRange(tokens.layout, store, first=tokens.first, last=tokens.last)
    same.vocab, same.eot, same.bos = tokens.vocab, tokens.eot, tokens.bos
    return same, runs


def long_enough(tokens: TokenRange, length: int, order: str) -> None:
    """FormatError where there are too few tokens for one row, or one epoch."""
    needed = {"sequential": 2, "random": length + 1}.get(order, 2 * length)
    if len(tokens) < needed:
        longest = len(tokens) // 2 if order == "shuffled" else len(tokens) - 1
        raise FormatError(
            f"{tokens.store.where}: expected {needed} tokens or more for length={length} ({order}), got {len(tokens)}. "
            f"Use {f'length={longest} or less, or ' if longest > 0 else ''}more data."
        )


def checked_ranks(batch: int, rank: int | None, world: int | None) -> Ranks:
    """Which reader of how many; refused where the global batch does not divide among them."""
    if (rank is None) != (world is None):
        raise ValueError(
            f"rank: expected rank= and world= together, got rank={rank} and world={world}. "
            "Pass both, or neither when one process reads everything."
        )
    size = 1 if world is None else at_least("world", world, 1)
    mine = 0 if rank is None else at_least("rank", rank, 0)
    if mine >= size:
        raise ValueError(f"rank: expected 0 to {size - 1} for world={size}, got {mine}. Ranks count from 0.")
    if batch % size:
        below, above = batch // size * size, -(-batch // size) * size
        nearest = f"batch={above}" if below == 0 else f"batch={below} or batch={above}"
        raise ValueError(
            f"batch: expected a global batch that divides among world={size} ranks, got {batch}. Use {nearest}."
        )
    return Ranks(mine, size, stated=rank is not None)
