"""A corpus: a range of token ids over a store, whatever files they lie in.

One idea: tokens are rows of one integer, and a split is a range of them over the same store and budget; windows cross
file boundaries because the store knows none. Ids are checked against ``vocab`` on every read and never wrapped.

``tokens.py`` puts what users call on top; feeds and windows read from here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.errors import FormatError
from lowtide.formats import Layout
from lowtide.rows import Numbers, Rows
from lowtide.storage import Store
from lowtide.storage.buffers import wrap

FINGERPRINT_BLOCKS = 16
FINGERPRINT_BYTES = 4096


class Corpus:
    """Tokens ``[first, last)`` of a layout; of ``vocab`` ids, ``eot`` ends a document and ``bos`` begins one."""

    vocab: int | None = None
    eot: int | None = None
    bos: int | None = None

    def __init__(self, layout: Layout, store: Store, *, first: int = 0, last: int | None = None) -> None:
        self.layout = layout
        self.store = store
        self.first = first
        self.last = layout.shape[0] if last is None else last
        self._rows = Rows(layout, store)
        self._ends = np.cumsum(layout.rows, dtype=np.int64)
        self._fingerprint: dict[str, Any] | None = None

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.layout.dtype

    @property
    def nbytes(self) -> int:
        return len(self) * self.dtype.itemsize

    def own(self, rows: range | Numbers) -> NDArray[Any]:
        """These tokens of the range, in an array of the caller's own."""
        if isinstance(rows, range):
            rows = range(self.first + rows.start, self.first + rows.stop)
        else:
            rows = rows + self.first
        tokens = self._rows.own(rows)
        self.check(tokens, lambda index: int(rows[index]))
        return tokens

    def check(self, tokens: NDArray[Any], position: Callable[[int], int]) -> None:
        """Refuse ids outside the vocabulary; ``position(index)`` tells where in the corpus the i-th id stands."""
        if self.vocab is None or tokens.size == 0:
            return
        low = int(tokens.min()) if tokens.dtype.kind == "i" else 0
        if int(tokens.max()) < self.vocab and low >= 0:
            return
        index = int(np.flatnonzero((tokens >= self.vocab) | (tokens < 0))[0])
        found = int(tokens.reshape(-1)[index])
        path, offset = self.place(position(index))
        raise FormatError(
            f"{path}: expected ids from 0 to {self.vocab - 1} (vocab={self.vocab}), got {found} at byte {offset}. "
            f"Check the dtype ({self.dtype}) and the tokenizer, or open with a larger vocab."
        )

    def place(self, token: int) -> tuple[str, int]:
        """File and byte offset of a token, counted from the first file's first token."""
        file = int(np.searchsorted(self._ends, token, side="right"))
        extent = self.layout.extents[file]
        before = int(self._ends[file]) - self.layout.rows[file]
        return extent.path, extent.offset + (token - before) * self.dtype.itemsize

    def fingerprint(self) -> dict[str, Any]:
        """What makes this corpus this corpus, wherever it is copied: never path, time or inode."""
        if self._fingerprint is None:
            self._fingerprint = {
                "dtype": self.dtype.str,
                "tokens": len(self),
                "first": self.first,
                "files": [extent.size for extent in self.layout.extents],
                "blocks": self._hash_of_blocks(),
            }
        return dict(self._fingerprint)

    def _hash_of_blocks(self) -> str:
        """Of blocks sampled at fixed shares of the range, its first and last among them."""
        item = self.dtype.itemsize
        count = min(FINGERPRINT_BYTES // item, len(self))  # 0 of an empty corpus: nothing is read
        # Integer arithmetic: a float would round differently from 2**53 tokens on.
        span = len(self) - count
        starts = [self.first + span * block // (FINGERPRINT_BLOCKS - 1) for block in range(FINGERPRINT_BLOCKS)]
        # Not from the pool: a state must be had also while the user's batches fill the budget.
        blocks = wrap(np.empty(FINGERPRINT_BLOCKS * count * item, np.uint8))
        if count:
            self.store.gather(np.array(starts, np.int64), item, count * item, blocks, sparse=True)
        import hashlib  # here: it brings OpenSSL, 3 ms at every import

        return hashlib.blake2b(blocks.view, digest_size=16).hexdigest()
