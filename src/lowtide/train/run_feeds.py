"""The feeds of a run: what the settings make of the tokens it reads.

One idea: whatever is cut, mixed or shuffled, a step gets one `Batch` - x, y, and where documents matter the run each
token belongs to and which targets count - and the val loss is taken over the same windows for every cut, at a stride
and in order, so that runs can be compared. Opens and reads nothing itself; an index of documents is built at the first
use and kept beside the data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from lowtide.feed import Feed
from lowtide.train.halves import Halves
from lowtide.train.settings import Settings


class Batch(NamedTuple):
    """One pass's rows. ``runs`` keeps attention inside documents; ``counted`` says which targets are learned."""

    x: Tensor
    y: Tensor
    runs: Tensor | None = None
    counted: Tensor | None = None


def train_feed(settings: Settings, data: Halves, rows: int, rank: int | None = None, world: int | None = None) -> Feed:
    """Rows to train on, in the order the settings fix."""
    options: dict[str, Any] = {"seed": settings.seed, "locality": settings.locality or None}
    options |= {"rank": rank, "world": world}
    if data.mixed is not None:
        cut_already = settings.documents or settings.cut == "packed"
        return data.mixed.train.batches(rows, length=None if cut_already else settings.block_size, **options)
    with_docs = settings.documents or settings.cut == "packed"  # padding must not be learned
    windows = data.train.windows(settings.block_size, cut=settings.cut, documents=with_docs)
    return windows.batches(rows, **options)


def val_feed(settings: Settings, data: Halves) -> Feed:
    """Val windows at a stride, in order."""
    if data.mixed is not None:
        length = None if settings.documents else settings.block_size
        return data.mixed.val.batches(settings.batch_size, length=length, order="sequential")
    windows = data.val.windows(settings.block_size, documents=settings.documents)
    return windows.batches(settings.batch_size, order="sequential")


def as_batch(parts: Any, settings: Settings, change: Callable[[Any], Tensor]) -> Batch:
    """What a feed gave, each array changed to a tensor where it is none yet."""
    x, y, *docs = parts
    if not docs:
        return Batch(change(x), change(y))
    runs = change(docs[0].ids) if settings.documents else None
    return Batch(change(x), change(y), runs, change(docs[0].loss_mask))
