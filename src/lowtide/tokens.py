"""``lowtide.open_tokens`` and ``Tokens``: a corpus of token ids to train on.

Slices give arrays you own, ``split`` gives a training and a validation range over the same files and budget, and
``batches`` a feed. Opening reads headers only.
"""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lowtide.arguments import at_least
from lowtide.blocks.block_store import open_store
from lowtide.blocks.objects import reaching
from lowtide.feed import Feed
from lowtide.formats import Source, column_layout, document_ends, token_layout
from lowtide.order.locality import Stated
from lowtide.order.steps import Skips
from lowtide.reading.documents.boundaries import ends_by_id, marks_of
from lowtide.reading.documents.boundary_index import Progress
from lowtide.reading.habits import TOKEN_NAMES, OnDisk, answers_habits
from lowtide.reading.opened import Opened, html_table
from lowtide.reading.plan import Plan, project
from lowtide.reading.rows.indexing import refuse_name, select, whole
from lowtide.reading.rows.stratified import val_count
from lowtide.reading.token_range import TokenRange
from lowtide.storage.store import Store
from lowtide.units import format_size
from lowtide.windows import Windows

ITERATED = 65_536  # tokens read at a time when somebody loops over them one by one


@answers_habits
def open_tokens(  # noqa: PLR0913 - every option is one of the promised ones
    source: Source,
    *,
    dtype: DTypeLike | None = None,
    eot: int | None = None,
    bos: int | None = None,
    vocab: int | None = None,
    part: str | None = None,
    tensor: str | None = None,
    column: str | None = None,
    strategy: str = "auto",
    cache: str = "auto",
    budget: int | str = "auto",
    engine: str = "auto",
    disk: int | str = "auto",
    cache_dir: str | PathLike[str] | None = None,
    remote: dict[str, Any] | None = None,
) -> Tokens:
    """Open a corpus: a token file of any known format, a glob, a list or a directory of them.

    Headerless files need ``dtype``. In a directory that holds train and val it opens the train part; ``part="val"`` or
    ``"test"`` opens another. ``vocab`` is the number of ids; a larger id raises ``FormatError`` at the batch that
    contains it. ``eot`` is the id that ends a document, ``bos`` the one that begins it. ``tensor`` names the array of a
    ``.safetensors``, ``.npz`` or HDF5 file that holds several. ``column`` names the column of ids in Parquet or Arrow
    files, which is decoded once into ``cache_dir`` (``~/.cache/lowtide`` unless stated). ``budget``, ``strategy``,
    ``cache``, ``engine``, ``disk`` and ``remote``: as in ``open``, which also says how addresses are read.

    Reads headers only. Raises ``FileNotFoundError``, or ``FormatError`` for files that do not hold tokens, and for a
    list or glob that mixes train and val.

    >>> tokens = lowtide.open_tokens("train.bin", dtype="uint16", vocab=50257, budget="256MiB")
    """
    if column is not None and tensor is not None:
        raise ValueError(
            f"column: expected column= or tensor=, got column={column!r} and tensor={tensor!r}. Leave one out."
        )
    with reaching(disk, cache_dir, remote):
        if column is None:
            layout = token_layout(source, dtype=dtype, tensor=tensor, part=part)
        else:
            layout = column_layout(source, column, dtype=dtype, part=part)
    return Tokens(
        layout,
        open_store(layout.extents, strategy=strategy, cache=cache, budget=budget, engine=engine),
        vocab=layout.vocab if vocab is None else at_least("vocab", vocab, 1, example="vocab=50257"),
        eot=layout.eot if eot is None else at_least("eot", eot, 0, example="eot=50256"),
        bos=layout.bos if bos is None else at_least("bos", bos, 0, example="bos=1"),
    )


class Tokens(TokenRange, Opened, OnDisk):
    """Token ids on disk. Slices are arrays you own; ``split`` makes two parts, ``batches`` a feed.

    Holds no data, only what its feeds lend, at most the budget, which splits and feeds share. May be used by several
    threads, after a fork, and pickled. Raises ``ReadError`` and ``BudgetError`` as arrays do.

    >>> len(tokens), tokens[1_000:2_000]
    """

    not_here = TOKEN_NAMES

    @property
    def where(self) -> str:
        """The file it reads, or the first of several."""
        return self.store.where

    @property
    def stores(self) -> tuple[Store, ...]:
        return (self.store,)

    def __repr__(self) -> str:
        part = "" if self.layout.part is None else f" {self.layout.part} part,"
        return f"<lowtide.Tokens {self.store.where}{part} {len(self):,} x {self.dtype} {format_size(self.nbytes)}>"

    def _repr_html_(self) -> str:
        facts = {"file": self.where, "tokens": f"{len(self):,}", "dtype": str(self.dtype)}
        known = {"vocab": self.vocab, "eot": self.eot, "bos": self.bos}
        facts |= {name: f"{value:,}" for name, value in known.items() if value is not None}
        if len(self) < self.layout.shape[0]:
            facts["part of"] = f"{self.layout.shape[0]:,} tokens"
        facts |= {"bytes": format_size(self.nbytes), "budget": format_size(self.store.budget.limit)}
        return html_table("lowtide.Tokens", facts)

    def __getitem__(self, key: Any) -> Any:
        """Tokens as an ordinary array you own, indexed as NumPy would.

        >>> tokens[:100], tokens[-1]
        """
        if isinstance(key, str):
            refuse_name(key, (), "tokens[10:20]", "token")
        selection = select(key, (len(self),), "token")
        tokens = self.own(selection.rows)
        return tokens if selection.rest is None else tokens[selection.rest]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return whole(self, dtype, copy)

    def __iter__(self) -> Iterator[Any]:
        """Token by token, read in blocks."""
        for first in range(0, len(self), ITERATED):
            yield from self.own(range(first, min(first + ITERATED, len(self))))

    def split(self, val: float | int = 0.005) -> tuple[Tokens, Tokens]:
        """All but the tail, and the tail; ``val`` is the tail's share (below 1) or number of tokens. Reads nothing.

        >>> train, val = tokens.split(val=0.005)
        """
        border = self.last - val_count(val, len(self), "tokens")
        return self._range(self.first, border), self._range(border, self.last)

    @answers_habits
    def batches(  # noqa: PLR0913 - each by name: what there is to say about a feed
        self,
        batch: int,
        *,
        length: int,
        seed: int = 0,
        order: str = "shuffled",
        locality: Stated | None = None,
        rank: int | None = None,
        world: int | None = None,
        dtype: DTypeLike = "int64",
        skip: Skips = (),
    ) -> Feed:
        """A feed of ``(x, y)`` with ``length`` tokens per row; ``batch`` is the global batch of all ranks together.

        ``order``: ``shuffled`` (every window once per epoch), ``random`` (with replacement) or ``sequential`` (every
        token predicted once; ``.whole_batches()`` leaves out rows that do not fill a batch). ``locality``: for
        disks that are slow at scattered reads: bytes that are mixed at a time, as whole blocks (1 MiB unless stated:
        ``("64MiB", "256KiB")``) from all over the tokens. ``skip``: steps of this batch size to leave out around a loss
        spike, as (first, last), both included.

        Reads nothing yet. Raises ``BudgetError`` if two batches do not fit, ``FormatError`` if there are too few
        tokens, ``ValueError`` for a batch that does not divide among the ranks.

        >>> x, y = next(tokens.batches(64, length=128, seed=1337))
        """
        windows = self.windows(length, dtype=dtype)
        return windows.batches(batch, seed=seed, order=order, locality=locality, rank=rank, world=world, skip=skip)

    def windows(
        self,
        length: int,
        *,
        cut: str = "stride",
        documents: bool = False,
        dtype: DTypeLike = "int64",
        progress: Progress = None,
    ) -> Windows:
        """Rows of ``length`` tokens to make feeds from. ``cut``: ``stride`` (what ``batches`` uses) or ``packed``
        (whole documents by best fit, the rest padded). ``documents=True`` adds which document each token belongs to.

        Documents and packing need an index, built on first use and kept beside the data or in the user's cache
        directory; ``progress(done, total)`` is called with tokens while it is built. Raises ``FormatError`` if
        nothing tells documents apart.

        >>> tokens.windows(128).account()
        """
        return Windows(self, length, cut=cut, documents=documents, dtype=dtype, progress=progress)

    def documents(self) -> Iterator[NDArray[np.int64]] | None:
        """Where documents end, in blocks of bounded size: from the format, or by reading all tokens for ``eot`` or
        ``bos``. None if nothing tells documents apart."""
        blocks = document_ends(self.layout)
        if blocks is None:
            marks = marks_of(self)
            return None if marks is None else ends_by_id(self, marks)
        # An end at the first token of a split closes a document of the part before it; at 0 it is an empty document.
        least = self.first + 1 if self.first else 0
        return (block[(block >= least) & (block <= self.last)] - self.first for block in blocks)

    def plan(self) -> Plan:
        """The most bytes of each kind, and how tokens are read; a feed's own ``plan()`` knows its batches."""
        limit = self.store.budget.limit
        return project(self.store, limit, announced=limit, why=self.layout.notes)

    def _range(self, first: int, last: int) -> Tokens:
        return Tokens(self.layout, self.store, first, last, self.vocab, self.eot, self.bos)
