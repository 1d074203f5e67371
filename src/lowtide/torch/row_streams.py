"""Map-style datasets of rows of tokens: item k is row k of a stream, whoever asks for it.

A row of a stream is a pure function of its number. So a sampler that goes through the numbers in order gives exactly
what the feed gives, and every framework that resumes by skipping indices - the Hugging Face Trainer, accelerate,
Megatron, Grain - resumes exactly, on any number of ranks, without reading what it skips. A loader fetches a whole batch
in one read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from lowtide.arguments import at_least, one_of
from lowtide.engine import Numbers
from lowtide.errors import FormatError
from lowtide.feed import Feed
from lowtide.order.steps import MOST_ROWS
from lowtide.reading.documents.docs import Docs
from lowtide.tokens import Tokens
from lowtide.torch.shipping import each
from lowtide.windows import Windows

STYLES = ("xy", "hf")
IGNORED = -100  # the label that transformers, like torch's cross entropy, leaves out of the loss


class RowDocs(NamedTuple):
    """Documents of one row, as ``Docs`` has them for a batch; ``ids`` count from 0 in every row."""

    positions: torch.Tensor
    ids: torch.Tensor
    loss_mask: torch.Tensor


class StreamDataset(Dataset[Any]):
    """Map-style: ``ds[k]`` is row k of the feed's stream, whatever its batch, ranks and position.

    ``len`` is the rows of one epoch, or those of a finite feed (without the shorter row it may end with); ``rows=``
    states another length, and is required if a feed has no epochs (a mixture, ``order="random"``).
    ``set_epoch(e)`` makes ``ds[k]`` row ``e * len + k``. Go through it in order (``shuffle=False``): the stream is
    shuffled already.

    A row is ``(x, y)``, or ``(x, y, docs)`` where the feed has documents. ``style="hf"``: ``{"input_ids", "labels"}``
    with labels *not* shifted, because transformers' models shift them themselves: with y as labels a model would learn
    the token after the next, and no error would tell you. With documents also ``position_ids``, and labels are -100
    where the token before is of another document.

    >>> dataset = lowtide.torch.StreamDataset(feed)
    >>> x, y = dataset[1_000]
    """

    def __init__(self, feed: Feed, *, rows: int | None = None, style: str = "xy") -> None:
        if not isinstance(feed, Feed):
            raise TypeError(
                f"StreamDataset: expected a feed, got {type(feed).__name__}. "
                "Use StreamDataset(tokens.batches(64, length=1024)); for arrays use RowDataset."
            )
        self.feed = feed
        self.style = one_of("style", style, STYLES)
        found = feed.epoch_rows if rows is None else at_least("rows", rows, 1, example="rows=1_000_000")
        if not found:
            raise ValueError(
                f"StreamDataset: expected rows= for a feed without epochs, got {feed!r}. "
                "Use rows=1_000_000, or however many rows an epoch should have."
            )
        self._rows = found
        # In shared memory, so that workers that are kept from epoch to epoch see it change.
        self._epoch: torch.Tensor = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return self._rows

    def set_epoch(self, epoch: int) -> None:
        """From now on ``ds[k]`` is row ``epoch * len + k``; a finite order begins again. Frameworks call this."""
        number, most = at_least("epoch", epoch, 0, example="set_epoch(0)"), max(MOST_ROWS // self._rows, 1) - 1
        if number > most:
            raise ValueError(
                f"epoch: expected 0 to {most} epochs of {self._rows} rows, got {number}. Use set_epoch(0)."
            )
        self._epoch[0] = number

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        count = self._rows
        numbers = row_numbers(indices)
        if len(numbers) and not (-count <= numbers.min() and numbers.max() < count):
            outside = next(int(number) for number in numbers if not -count <= number < count)
            raise IndexError(f"dataset: expected rows from 0 to {count - 1}, got {outside}. Use range(len(dataset)).")
        rows = numbers % count + int(self._epoch[0]) * count
        finite = self.feed.end_of_rows
        x, y, *docs = self.feed.rows_at(rows if finite is None else rows % finite)
        if self.style == "hf":
            found = _for_transformers(x, docs[0] if docs else None)
            return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]
        if not docs:
            return list(zip(torch.from_numpy(x), torch.from_numpy(y), strict=True))
        of_rows = _row_docs(docs[0])
        each_docs = (RowDocs(*row) for row in zip(*of_rows, strict=True))
        return list(zip(torch.from_numpy(x), torch.from_numpy(y), each_docs, strict=True))


def row_numbers(indices: Sequence[int]) -> Numbers:
    """What a sampler asks for; TypeError for anything but whole numbers, of which NumPy would make row numbers too."""
    numbers = np.asarray(indices)
    if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
        raise TypeError(f"dataset: expected whole numbers of rows, got {list(indices)!r}. Use dataset[0].")
    found: Numbers = numbers.astype(np.int64)
    return found


def _row_docs(docs: Docs) -> RowDocs:
    """Runs numbered in each row, so that a row does not depend on the batch it was read with."""
    ids = docs.ids
    if ids.size:
        ids = np.where(ids >= 0, ids - np.where(ids >= 0, ids, np.iinfo(np.int32).max).min(axis=1, keepdims=True), -1)
    return each(torch.from_numpy, RowDocs(docs.positions, ids.astype(np.int32), docs.loss_mask))  # type: ignore[arg-type,no-any-return]


def _for_transformers(x: NDArray[Any], docs: Docs | None) -> dict[str, torch.Tensor]:
    inputs = torch.from_numpy(x).long()
    labels = inputs.clone()
    if docs is None:
        return {"input_ids": inputs, "labels": labels}
    labels[:, 1:][~torch.from_numpy(docs.loss_mask[:, :-1])] = IGNORED
    return {"input_ids": inputs, "labels": labels, "position_ids": torch.from_numpy(docs.positions).long()}


class WindowDataset(StreamDataset):
    """Map-style: item i is window i of the corpus, in its order, as ``(x, y)``; of ``tokens.windows(...)`` row i.

    For samplers that shuffle. The rows of ``StreamDataset`` are shuffled already, differently in each epoch.
    """

    def __init__(self, tokens: Tokens | Windows, length: int | None = None) -> None:
        if not isinstance(tokens, (Tokens, Windows)):
            raise TypeError(
                f"WindowDataset: expected tokens or windows, got {type(tokens).__name__}. "
                "Use WindowDataset(lowtide.open_tokens(path), 1024)."
            )
        if isinstance(tokens, Tokens):
            if length is None:
                raise TypeError("length: expected the tokens of a window, got none. Use WindowDataset(tokens, 1024).")
            tokens = tokens.windows(at_least("length", length, 1))
        elif length not in (None, tokens.length):
            raise ValueError(f"length: expected the windows' own {tokens.length}, got {length!r}. Leave length= out.")
        length, count = tokens.length, len(tokens.tokens)
        if tokens.cut == "stride" and count <= length:
            raise FormatError(
                f"{tokens.tokens.store.where}: expected {length + 1} tokens or more for length={length}, got {count}. "
                f"Use a smaller length."
            )
        super().__init__(tokens.batches(1, order="sequential"))
