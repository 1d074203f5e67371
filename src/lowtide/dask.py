"""Dask arrays over rows on disk: ``lowtide.dask.array(a)``.

The graph carries the opened array, not its rows - a few hundred bytes that name the file - and each block is
read through our reader by the worker that needs it, when it needs it. So a block is one bounded read into memory the
worker owns, and nothing is mapped, sent or kept.

Costs one block per task at a time. The workers must see the files under the same path. The only file that imports Dask.
"""

from __future__ import annotations

from typing import Any

import dask
import dask.array
import numpy as np
from dask.utils import parse_bytes
from numpy.typing import NDArray

from lowtide.arguments import at_least
from lowtide.array import Array
from lowtide.tokens import Tokens

__all__ = ["array"]


def array(a: Array | Tokens, chunks: int | str = "auto") -> Any:
    """``a`` as a ``dask.array.Array`` cut into blocks of ``chunks`` whole rows.

    ``"auto"``: blocks of Dask's ``array.chunk-size`` (128 MiB) or of the array's budget, whichever is less.

    >>> lowtide.dask.array(lowtide.open("x.npy", budget="64MiB")).mean(axis=0).compute()
    """
    if not isinstance(a, (Array, Tokens)):
        raise TypeError(
            f"lowtide.dask.array: expected what lowtide.open gives, got {type(a).__name__}. Use lowtide.open(path)."
        )
    blocks = DaskBlocks(a)
    width = max(1, blocks.nbytes // max(1, len(a)))
    if chunks == "auto":
        rows = max(1, min(parse_bytes(dask.config.get("array.chunk-size")), a.plan().budget) // width)
    else:
        rows = at_least("chunks", chunks, 1, example="chunks=4096")
    whole = tuple((axis,) for axis in blocks.shape[1:])
    lengths = [rows] * (len(a) // rows) + ([len(a) % rows] if len(a) % rows else [])
    return dask.array.from_array(  # type: ignore[no-untyped-call]
        blocks, chunks=(tuple(lengths) or (0,), *whole), asarray=False, meta=np.empty((0,) * blocks.ndim, blocks.dtype)
    )


class DaskBlocks:
    """What Dask asks of an array - shape, dtype and ``[...]`` - and nothing else, so that it does not guess."""

    def __init__(self, source: Array | Tokens) -> None:
        self._source = source
        self.dtype = source.dtype
        self.shape = (len(source), *getattr(source, "shape", (0,))[1:])
        self.ndim = len(self.shape)
        self.nbytes = int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize

    def __getitem__(self, key: Any) -> NDArray[Any]:
        if isinstance(key, tuple) and len(key) == 1:
            (key,) = key
        rows: NDArray[Any] = self._source[key]
        return rows
