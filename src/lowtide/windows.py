"""``Windows``: how rows are cut from tokens, independent of batch size and order.

A cut is fixed by the data and a few settings - length, stride or packed, with or without documents - and can be
examined (``len``, ``account``) before feeds are made from it. The plain cut costs nothing; documents and packing need
an index, built once and kept beside the data.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import DTypeLike

from lowtide.arguments import at_least, one_of, whole_number
from lowtide.errors import FormatError
from lowtide.feed import Feed, FeedRows, Ranks
from lowtide.order.locality import Stated, locality_of
from lowtide.order.steps import Skips
from lowtide.order.streams import Drawn, InOrder, Shuffled, Stream
from lowtide.reading.blocks_ahead import BlockFollower, follow
from lowtide.reading.documents.boundaries import marks_of, required_marks
from lowtide.reading.documents.boundary_index import BoundaryIndex, Progress, boundary_index
from lowtide.reading.documents.document_counts import Account, kept_most_runs, lengths_of
from lowtide.reading.documents.packed import PackedReader
from lowtide.reading.documents.packing import PackedRows, packed_rows
from lowtide.reading.documents.stride import DocumentedWindows
from lowtide.reading.habits import answers_habits
from lowtide.reading.token_range import TokenRange
from lowtide.reading.window_reader import WindowReader

CUTS = ("stride", "packed")
ORDERS = ("shuffled", "random", "sequential")
MOST_PACKED = 2**31 - 1  # tokens of a packed row


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
        self.dtype = WindowReader(tokens, self.length, dtype).dtype
        self._progress = progress
        self._packed: PackedRows | None = None
        self._index: BoundaryIndex | None = None
        if self.cut == "packed":
            if self.length > MOST_PACKED:
                raise ValueError(
                    f"length: expected at most {MOST_PACKED} (positions in a packed row are int32), got {length}. "
                    "Use length=1024."
                )
            self._packed = self._pack()
        elif self.documents:
            self._index = boundary_index(tokens, required_marks(tokens), progress)

    def __len__(self) -> int:
        """Windows of an epoch."""
        return (len(self.tokens) - self.length) // self.length if self._packed is None else len(self._packed)

    @answers_habits
    def batches(
        self,
        batch: int,
        *,
        seed: int = 0,
        order: str = "shuffled",
        locality: Stated | None = None,
        rank: int | None = None,
        world: int | None = None,
        skip: Skips = (),
    ) -> Feed:
        """A feed of ``(x, y)``, or ``(x, y, docs)`` with ``documents=True``; arguments as in ``Tokens.batches``."""
        batch = at_least("batch", batch, 1)
        ranks = checked_ranks(batch, rank, world)
        self.tokens.store.keep_for_ranks(ranks.world)
        return Feed(FeedRows(*self.rows_in(order, seed, locality, ranks.world)), batch, ranks, skip)

    def rows_in(
        self, order: str, seed: int, locality: Stated | None, world: int = 1
    ) -> tuple[WindowReader, Stream, BlockFollower | None, WindowReader | None]:
        """The ``FeedRows`` of these rows in an order, for one of ``world`` ranks."""
        tokens, length = self.tokens, self.length
        if self._packed is None:
            stream = window_stream(tokens, length, order, seed, locality)
            reader = self._window_reader()
            tail = 0 if stream.rows is None else max(0, len(tokens) - 1 - stream.rows * length)
            item = tokens.dtype.itemsize
            reader, follower = follow(reader, stream, world, length * item, tokens.first * item, item)
            return reader, stream, follower, reader.shorter(tail) if tail else None
        one_of("order", order, ORDERS)
        near = locality_of(locality, length * tokens.dtype.itemsize, order=order, what="window")
        count, seed = len(self._packed), whole_number("seed", seed)
        if order == "shuffled":
            stream = Shuffled(count, seed, purpose="packed", locality=near)
        else:
            stream = Drawn(count, seed, "packed") if order == "random" else InOrder(count)
        return PackedReader(tokens, self._packed, self.dtype, documents=self.documents), stream, None, None

    def account(self) -> Account:
        """Tokens of an epoch that are used, cut and padded, counted on the data; and the padding that one document per
        row would need."""
        total = len(self.tokens)
        marks = marks_of(self.tokens)
        used = total if self._packed is not None else len(self) * self.length
        if marks is None:
            return Account(total, len(self), self.length, used, total - used, 0, None, None)
        index = self._index or boundary_index(self.tokens, marks, self._progress)
        if self._packed is None:
            padded, most = 0, kept_most_runs(index, self.tokens, self.length)
            each = lengths_of(index, self.tokens.first, self.tokens.last)
            pieces = sum(int((-(-lengths // self.length)).sum()) for lengths in each)
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
            one_per_row_padded=1 - total / (pieces * self.length) if pieces else 0.0,
        )

    def __repr__(self) -> str:
        documents = " documents" if self.documents else ""
        where = self.tokens.store.where
        return f"<lowtide.Windows {len(self):,} x {self.length} {self.cut}{documents} of {where}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_progress": None}  # a callback belongs to this process

    def _pack(self) -> PackedRows:
        marks = required_marks(self.tokens)
        if len(self.tokens) == 0:
            raise FormatError(f"{self.tokens.store.where}: expected tokens to pack, got none. Use more data.")
        return packed_rows(self.tokens, marks, self.length, self._progress)

    def _window_reader(self) -> WindowReader:
        if self._index is None:
            return WindowReader(self.tokens, self.length, self.dtype)
        most = kept_most_runs(self._index, self.tokens, self.length)
        return DocumentedWindows(self.tokens, self.length, self.dtype, index=self._index, most_runs=most)


def window_stream(tokens: TokenRange, length: int, order: str, seed: int, locality: Stated | None) -> Stream:
    """First tokens of windows at stride ``length``, in an order; refused if there are too few tokens for it."""
    near = locality_of(locality, length * tokens.dtype.itemsize, order=one_of("order", order, ORDERS), what="window")
    seed = whole_number("seed", seed)  # a NumPy integer becomes an int: a state must be safe for JSON
    count = len(tokens)
    needed = {"sequential": 2, "random": length + 1}.get(order, 2 * length)
    if count < needed:
        longest = count // 2 if order == "shuffled" else count - 1
        raise FormatError(
            f"{tokens.store.where}: expected {needed} tokens or more for length={length} ({order}), got {count}. "
            f"Use {f'length={longest} or less, or ' if longest > 0 else ''}more data."
        )
    if order == "random":
        return Drawn(count - length, seed, "windows")
    if order == "sequential":
        return InOrder((count - 1) // length, length)
    # The same number of windows for every phase, so that all epochs have equally many rows.
    windows = (count - length) // length
    return Shuffled(windows, seed, purpose="windows", stride=length, phased=True, locality=near)


def checked_ranks(batch: int, rank: int | None, world: int | None) -> Ranks:
    """Which reader of how many; refused if the global batch does not divide among them."""
    if (rank is None) != (world is None):
        raise ValueError(
            f"rank: expected rank= and world= together, got rank={rank} and world={world}. "
            "Pass both, or neither when one process reads everything."
        )
    size = 1 if world is None else at_least("world", world, 1, example="world=1")
    mine = 0 if rank is None else at_least("rank", rank, 0, example="rank=0")
    if mine >= size:
        raise ValueError(f"rank: expected 0 to {size - 1} for world={size}, got {mine}. Ranks count from 0.")
    if batch % size:
        below, above = batch // size * size, -(-batch // size) * size
        nearest = f"batch={above}" if below == 0 else f"batch={below} or batch={above}"
        raise ValueError(
            f"batch: expected a global batch that divides among world={size} ranks, got {batch}. Use {nearest}."
        )
    return Ranks(mine, size, stated=rank is not None)
