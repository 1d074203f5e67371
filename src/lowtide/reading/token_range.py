"""A range of token ids over a store, whatever files they are in.

Tokens are rows of one integer; a split is another range over the same store and budget, and windows cross file
boundaries because the store has none. Ids are checked against ``vocab`` on every read and never wrapped.
``tokens.py`` adds what users call; readers of windows and documents read from here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.engine import Numbers
from lowtide.errors import FormatError
from lowtide.formats import Layout
from lowtide.reading.fingerprint import hash_of_blocks, hash_of_sizes
from lowtide.reading.rows.reader import RowReader
from lowtide.storage.store import Store


class TokenRange:
    """Tokens ``[first, last)`` of a layout; ``vocab`` is the number of ids, ``eot`` the one that ends a document,
    ``bos`` the one that begins it."""

    def __init__(
        self,
        layout: Layout,
        store: Store,
        first: int = 0,
        last: int | None = None,
        vocab: int | None = None,
        eot: int | None = None,
        bos: int | None = None,
    ) -> None:
        self.layout = layout
        self.store = store
        self.first = first
        self.last = layout.shape[0] if last is None else last
        self.vocab, self.eot, self.bos = vocab, eot, bos
        self.dtype = layout.dtype
        self._rows = RowReader(layout, store)
        self._ends = np.cumsum(layout.rows, dtype=np.int64)
        self._fingerprint: dict[str, Any] | None = None

    def __len__(self) -> int:
        return self.last - self.first

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.layout, self.store, self.first, self.last, self.vocab, self.eot, self.bos)

    @property
    def nbytes(self) -> int:
        return len(self) * self.dtype.itemsize

    def own(self, rows: range | Numbers) -> NDArray[Any]:
        """These tokens of the range, in a new array."""
        if isinstance(rows, range):
            rows = range(self.first + rows.start, self.first + rows.stop)
        else:
            rows = rows + self.first
        tokens = self._rows.own(rows)
        self.check(tokens, lambda index: int(rows[index]))
        return tokens

    def check(self, tokens: NDArray[Any], position: Callable[[int], int]) -> None:
        """Refuse ids outside the vocabulary; ``position(index)`` tells where in the corpus the i-th id is."""
        if self.vocab is None or tokens.size == 0:
            return
        low = int(tokens.min()) if tokens.dtype.kind == "i" else 0
        if int(tokens.max()) < self.vocab and low >= 0:
            return
        index = int(np.flatnonzero((tokens >= self.vocab) | (tokens < 0))[0])
        raise self.refused(int(tokens.reshape(-1)[index]), *self.place(position(index)))

    def refused(self, found: int, path: str, offset: int) -> FormatError:
        """The error for an id outside the vocabulary."""
        assert self.vocab is not None
        return FormatError(
            f"{path}: expected ids from 0 to {self.vocab - 1} (vocab={self.vocab}), got {found} at byte {offset}. "
            f"Check the dtype ({self.dtype}) and the tokenizer, or open with a larger vocab."
        )

    def place(self, token: int) -> tuple[str, int]:
        """File and byte offset of a token, counted from the first file's first token."""
        file = int(np.searchsorted(self._ends, token, side="right"))
        extent = self.layout.extents[file]
        before = int(self._ends[file]) - self.layout.rows[file]
        return extent.path, extent.place((token - before) * self.dtype.itemsize)

    def fingerprint(self) -> dict[str, Any]:
        """What makes this corpus this corpus, wherever it is copied: never path, time or inode."""
        if self._fingerprint is None:
            self._fingerprint = {
                "dtype": self.dtype.str,
                "tokens": len(self),
                "first": self.first,
                "files": hash_of_sizes(extent.size for extent in self.layout.extents),
                "blocks": hash_of_blocks(self.store, self.dtype.itemsize, self.first, len(self)),
            }
        return dict(self._fingerprint)
