"""XGBoost from rows on disk: ``lowtide.xgboost.data_iter(X, y)`` is a real ``xgboost.DataIter``.

XGBoost goes over the data several times and keeps what it makes of it: bins of a byte or two in a ``QuantileDMatrix``,
pages of them on disk in an ``ExtMemQuantileDMatrix``. So all it needs of us is one chunk after another, each read into
the same two buffers. The only file that imports XGBoost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import xgboost
from numpy.typing import NDArray

from lowtide.array import Array
from lowtide.reading.rows.iteration import BatchIterator
from lowtide.together import Together, together

__all__ = ["RowIter", "data_iter"]

Column = Array | NDArray[Any]


def data_iter(
    X: Array,  # noqa: N803 - as users of XGBoost write it
    y: Column | None = None,
    *,
    rows: int | None = None,
    cache_prefix: str | None = None,
    **info: Column,
) -> RowIter:
    """``X``, and labels ``y``, as an ``xgboost.DataIter`` of chunks of ``rows`` rows (default: as the budget allows).

    ``info``: what else ``xgboost.DMatrix`` takes by row: ``weight``, ``qid`` ... ``cache_prefix``: where an
    ``ExtMemQuantileDMatrix`` keeps its pages. Pass ``max_bin`` to the matrix and to ``train`` alike.

    >>> data = xgboost.QuantileDMatrix(lowtide.xgboost.data_iter(lowtide.open("x.npy"), lowtide.open("y.npy")))
    """
    if not isinstance(X, Array):
        raise TypeError(
            f"lowtide.xgboost.data_iter: expected what lowtide.open gives, got {type(X).__name__}. "
            "Use data_iter(lowtide.open(path), y)."
        )
    if X.ndim != 2:
        raise ValueError(
            f"{X.where}: expected rows of features, an array of 2 axes, got shape {X.shape}. Reshape the file's rows: "
            "lowtide.open(path, dtype=, shape=(-1, features))."
        )
    columns: dict[str, Any] = {"data": X, **({} if y is None else {"label": y}), **info}
    return RowIter(together(**columns), rows, cache_prefix)


class RowIter(xgboost.DataIter):
    """Chunks of rows in order, as often as XGBoost asks. What goes wrong is raised by the call that wanted the data."""

    def __init__(self, rows: Together, batch: int | None = None, cache_prefix: str | None = None) -> None:
        super().__init__(cache_prefix=cache_prefix)
        self._rows = rows
        self._batch = batch
        self._chunks: BatchIterator = rows.chunks(batch)

    def next(self, input_data: Callable[..., None]) -> bool:
        """Hand the next chunk over; False after the last one. XGBoost calls this."""
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        input_data(**chunk)
        return True

    def reset(self) -> None:
        """Begin again. XGBoost calls this."""
        self._chunks = self._rows.chunks(self._batch)
