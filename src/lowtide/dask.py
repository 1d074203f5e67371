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
from lowtide.reading.rows.member_rows import Column
from lowtide.together import Together
from lowtide.tokens import Tokens

__all__ = ["array"]


def array(a: Array | Tokens | Together, chunks: int | str = "auto") -> Any:
    """``a`` as a ``dask.array.Array`` cut into blocks of ``chunks`` whole rows; of ``together``, a tuple of them, or a
    dict where its arrays have names, all cut alike.

    ``"auto"``: blocks of Dask's ``array.chunk-size`` (128 MiB) or of the budget, whichever is less.

    >>> lowtide.dask.array(lowtide.open("x.npy", budget="64MiB")).mean(axis=0).compute()
    """
    if not isinstance(a, (Array, Tokens, Together)):
        raise TypeError(
            f"lowtide.dask.array: expected what lowtide.open or together gives, got {type(a).__name__}. "
            "Use lowtide.open(path)."
        )
    sources: dict[str, Any] = a.columns() if isinstance(a, Together) else {"": a}
    if chunks == "auto":
        width = max(1, sum(one.nbytes for one in sources.values()) // max(1, len(a)))
        rows = max(1, min(parse_bytes(dask.config.get("array.chunk-size")), a.plan().budget) // width)
    else:
        rows = at_least("chunks", chunks, 1, example="chunks=4096")
    found = {name: _cut(DaskBlocks(one), rows) for name, one in sources.items()}
    if not isinstance(a, Together):
        return found[""]
    return tuple(found.values()) if a.names is None else found


def _cut(blocks: DaskBlocks, rows: int) -> Any:
    count, *rest = blocks.shape
    lengths = [rows] * (count // rows) + ([count % rows] if count % rows else [])
    return dask.array.from_array(  # type: ignore[no-untyped-call]
        blocks,
        chunks=(tuple(lengths) or (0,), *((axis,) for axis in rest)),
        asarray=False,
        meta=np.empty((0,) * blocks.ndim, blocks.dtype),
    )


class DaskBlocks:
    """What Dask asks of an array - shape, dtype and ``[...]`` - and nothing else, so that it does not guess."""

    def __init__(self, source: Array | Tokens | Column) -> None:
        self._source = source
        self.dtype = source.dtype
        self.shape = (len(source), *getattr(source, "shape", (0,))[1:])
        self.ndim = len(self.shape)
        self.nbytes = source.nbytes

    def __getitem__(self, key: Any) -> NDArray[Any]:
        if isinstance(key, tuple) and len(key) == 1:
            (key,) = key
        rows: NDArray[Any] = self._source[key]
        return rows
