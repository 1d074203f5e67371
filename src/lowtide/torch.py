"""Tensors from feeds, datasets for ``DataLoader``, and nanoGPT's ``get_batch`` as a drop-in.

One idea: a tensor shares memory with the batch that was read, so nothing is copied on the CPU; for a GPU the batch is
read into pinned memory, copied asynchronously, and its buffer is free again once an event says that the copy is done.

The only file that imports torch for reading. What needs CUDA is marked: no machine with one has run it yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from lowtide.arguments import at_least
from lowtide.errors import FormatError
from lowtide.feed import Feed
from lowtide.reading.upcoming import Numbers
from lowtide.reading.window_filler import WindowFiller
from lowtide.storage import Store
from lowtide.tokens import Tokens, open_tokens

__all__ = ["FeedDataset", "TensorFeed", "WindowDataset", "nanogpt", "tensors"]

Pair = tuple[torch.Tensor, torch.Tensor]

IN_FLIGHT = 1  # copies to a GPU: with the batch being filled that makes the two that every budget has room for


def tensors(feed: Feed, device: str | torch.device = "cpu", dtype: torch.dtype | None = None) -> TensorFeed:
    """The feed's batches as tensors on ``device``; has ``seek``, ``state_dict`` and ``load_state_dict`` of its own.

    ``dtype`` widens on the device: a feed made with ``dtype="uint16"`` ships two bytes per token and
    ``tensors(feed, "cuda", dtype=torch.int64)`` makes eight of them there.
    """
    _refuse_same_data_for_all(feed)
    return TensorFeed(feed, _Shipping(torch.device(device), dtype, feed.stores))


class TensorFeed:
    """An iterator of ``(x, y)`` tensors. Its state counts what the caller received."""

    def __init__(self, feed: Feed, shipping: _Shipping) -> None:
        self.feed = feed
        self._shipping = shipping
        self._received = feed.cursor

    def __iter__(self) -> TensorFeed:
        return self

    def __next__(self) -> Pair:
        before = self.feed.cursor
        try:
            pair = self._shipping.ship(next(self.feed))
        except BaseException:
            self.feed.cursor = before  # a batch that did not reach the device comes again
            raise
        self._received = self.feed.cursor
        return pair

    def seek(self, step: int) -> None:
        self.feed.seek(step)
        self._received = self.feed.cursor

    def state_dict(self) -> dict[str, Any]:
        return {**self.feed.state_dict(), "rows": self._received}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.feed.load_state_dict(state)
        self._received = self.feed.cursor


class _Shipping:
    """From arrays to tensors on a device."""

    def __init__(self, device: torch.device, dtype: torch.dtype | None, stores: Sequence[Store]) -> None:
        self.device = device
        self.dtype = dtype
        self._copying: deque[tuple[Any, Any]] = deque()
        if device.type == "cuda":
            if not torch.cuda.is_available():
                raise ValueError(f"device: expected one that is here, got {device} and no CUDA. Use device='cpu'.")
            for store in stores:
                store.pool.allocate_with(_allocate_pinned)  # untested: no machine with CUDA has run this

    def ship(self, batch: tuple[NDArray[Any], NDArray[Any]]) -> Pair:
        x, y = torch.from_numpy(batch[0]), torch.from_numpy(batch[1])
        if self.device.type == "cpu":
            return self._widened(x), self._widened(y)
        if self.device.type == "cuda":
            return self._ship_to_cuda(x, y)
        return self._widened(x.to(self.device)), self._widened(y.to(self.device))

    def _ship_to_cuda(self, x: torch.Tensor, y: torch.Tensor) -> Pair:  # untested: no machine with CUDA has run this
        there = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        # The host tensors hold the lease; they are let go only after the copy out of them has completed.
        self._copying.append((event, (x, y)))
        while self._copying and (self._copying[0][0].query() or len(self._copying) > IN_FLIGHT):
            self._copying.popleft()[0].synchronize()
        return self._widened(there[0]), self._widened(there[1])

    def _widened(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.dtype is None else tensor.to(self.dtype)


def _allocate_pinned(size: int) -> NDArray[Any]:  # untested: no machine with CUDA has run this
    memory: NDArray[Any] = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
    return memory


def _refuse_same_data_for_all(feed: Feed) -> None:
    """Several ranks and a feed that was told of none."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    world = torch.distributed.get_world_size() if distributed else 1
    if world > 1 and not feed.ranks_stated:
        raise ValueError(
            f"feed: expected one with rank= and world={world}, got one without: all ranks would train on equal rows. "
            f"Use batches(..., rank={torch.distributed.get_rank()}, world={world})."
        )


# Datasets for torch.utils.data.DataLoader


class WindowDataset(Dataset[Pair]):
    """Map-style: item i is window i as ``(x, y)``. ``DataLoader`` fetches a whole batch in one read."""

    def __init__(self, tokens: Tokens, length: int) -> None:
        self._windows = WindowFiller(tokens, at_least("length", length, 1))
        self._count = (len(tokens) - 1) // length
        if self._count < 1:
            raise FormatError(
                f"{tokens.store.where}: expected {length + 1} tokens or more for length={length}, got {len(tokens)}. "
                f"Use a smaller length."
            )

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Pair:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Pair]:
        numbers: Numbers = np.asarray(indices, np.int64)
        if len(numbers) and not (-self._count <= numbers.min() and numbers.max() < self._count):
            outside = next(int(number) for number in numbers if not -self._count <= number < self._count)
            raise IndexError(
                f"dataset: expected windows from 0 to {self._count - 1}, got {outside}. Use range(len(dataset))."
            )
        self._windows.admit(len(numbers))
        starts = numbers % self._count * self._windows.length + self._windows.tokens.first
        x, y = (torch.from_numpy(half) for half in self._windows.read(starts))
        return list(zip(x, y, strict=True))


class FeedDataset(IterableDataset[Pair]):
    """Iterable-style: the feed's batches, dealt to the workers in turn, so that none is given twice.

    Use ``DataLoader(FeedDataset(feed), batch_size=None, num_workers=2)``; the loader returns them in the feed's order.
    """

    def __init__(self, feed: Feed) -> None:
        _refuse_same_data_for_all(feed)
        self.feed = feed

    def __iter__(self) -> Iterator[Pair]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for turn, rows in enumerate(self.feed.cursors()):
            if turn % workers == worker:
                x, y = self.feed.at(rows)
                yield torch.from_numpy(x), torch.from_numpy(y)


# nanoGPT


def nanogpt(
    data_dir: str | Path,
    *,
    block_size: int,
    batch_size: int,
    device: str | torch.device = "cpu",
    cache: str = "auto",
    budget: int | str = "auto",
) -> Callable[[str], Pair]:
    """nanoGPT's ``get_batch`` over ``train.bin`` and ``val.bin`` of ``data_dir``: the same batches, bit for bit.

    Draws from torch's global generator exactly when called, as nanoGPT does, so a run goes on unchanged.
    ``cache="drop"`` leaves nothing in the page cache.
    """
    at_least("block_size", block_size, 1)
    at_least("batch_size", batch_size, 1)
    target = torch.device(device)
    ready: dict[str, tuple[WindowFiller, _Shipping]] = {}

    def get_batch(split: str) -> Pair:
        if split not in ready:
            tokens = open_tokens(Path(data_dir) / f"{split}.bin", dtype="uint16", cache=cache, budget=budget)
            if len(tokens) <= block_size:
                raise FormatError(
                    f"{tokens.store.where}: expected more than block_size={block_size} tokens, got {len(tokens)}. "
                    f"Use block_size={max(1, len(tokens) - 1)} or less."
                )
            windows = WindowFiller(tokens, block_size)
            windows.admit(batch_size)
            ready[split] = windows, _Shipping(target, None, (tokens.store,))
        windows, shipping = ready[split]
        starts = torch.randint(len(windows.tokens) - block_size, (batch_size,))
        return shipping.ship(windows.read(starts.numpy()))

    return get_batch
