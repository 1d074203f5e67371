"""Tensors from every iterator of ours, datasets for ``DataLoader``, and nanoGPT's ``get_batch`` as a drop-in.

A tensor shares memory with the batch that was read, so nothing is copied on the CPU. For a GPU the batch is read into
pinned memory, copied asynchronously, and its buffer is free again once an event says that the copy is done.

The only file that imports torch for reading. What needs CUDA is marked: no machine with one has run it yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import length_hint, methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from lowtide.arguments import at_least
from lowtide.array import Array
from lowtide.engine import Numbers
from lowtide.errors import FormatError
from lowtide.feed import Feed, admit_rows
from lowtide.reading.rows.iteration import BatchIterator
from lowtide.reading.window_reader import WindowReader
from lowtide.storage import Pool
from lowtide.together import Together
from lowtide.tokens import Tokens, open_tokens

__all__ = ["FeedDataset", "RowDataset", "TensorFeed", "WindowDataset", "nanogpt", "tensors"]

Pair = tuple[torch.Tensor, torch.Tensor]
DtypeFor = torch.dtype | Sequence[torch.dtype | None] | dict[str, torch.dtype | None] | None

KNOWN = {
    np.dtype(kind) for kind in ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool")
}
IN_FLIGHT = 1  # copies to a GPU: with the batch being filled that makes the two that every budget has room for


def tensors(batches: Feed | BatchIterator, device: str | torch.device = "cpu", dtype: DtypeFor = None) -> TensorFeed:
    """The batches of a feed, of an array's iterator or of ``together``'s, as tensors on ``device``.

    Batches keep their form: one tensor, a tuple or a dict of them. ``dtype`` converts on the device, so that a feed
    made with ``dtype="uint16"`` ships two bytes per token and ``tensors(feed, "cuda", dtype=torch.int64)`` makes eight
    of them there; for tuples and dicts it may say one dtype for each (None: as it is). On the CPU nothing is copied.
    The result has ``state_dict``, ``load_state_dict`` and ``len``, as what it was made of has.

    >>> x, y = next(lowtide.torch.tensors(feed))
    """
    if not isinstance(batches, (Feed, BatchIterator)):
        raise TypeError(
            f"tensors: expected a feed or an iterator of rows, got {type(batches).__name__}. "
            "Use tensors(a.shuffled(64)) or tensors(tokens.batches(64, length=1024))."
        )
    _refuse_same_data_for_all(batches)
    return TensorFeed(batches, _Shipping(torch.device(device), dtype, batches.pools))


class TensorFeed:
    """An iterator of tensors. Its state counts what the caller received."""

    def __init__(self, feed: Feed | BatchIterator, shipping: _Shipping) -> None:
        self.feed = feed
        self._shipping = shipping
        self._received = feed.position

    def __iter__(self) -> TensorFeed:
        return self

    def __next__(self) -> Any:
        feed = self.feed
        before, sought, had = feed.position, feed.sought, feed.delivered
        try:
            batch = self._shipping.ship(next(feed))
        except BaseException:
            # A batch that did not reach the device comes again, unless a handler sought or took the one behind it.
            if feed.sought == sought and feed.delivered == had + 1:
                feed.position = before
            raise
        self._received = feed.position
        return batch

    def __len__(self) -> int:
        return len(self.feed)

    def __length_hint__(self) -> int:
        return length_hint(self.feed)

    @property
    def position(self) -> int:
        """Rows received."""
        return self._received

    def seek(self, step: int) -> None:
        if not isinstance(self.feed, Feed):
            raise TypeError(
                "seek: expected a feed, got an iterator of rows. Make it with start=, or set .feed.position."
            )
        self.feed.seek(step)
        self._received = self.feed.position

    def state_dict(self) -> dict[str, Any]:
        return self.feed.state_at(self._received)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.feed.load_state_dict(state)
        self._received = self.feed.position


class _Shipping:
    """From arrays to tensors on a device."""

    def __init__(self, device: torch.device, dtype: DtypeFor, pools: Sequence[Pool]) -> None:
        self.device = device
        self.dtype = dtype
        self._plain = device.type == "cpu" and dtype is None
        self._copying: deque[tuple[Any, Any]] = deque()
        if device.type == "cuda":
            if not torch.cuda.is_available():
                raise ValueError(f"device: expected one that is here, got {device} and no CUDA. Use device='cpu'.")
            for pool in pools:
                pool.allocate_with(_allocate_pinned)  # untested: no machine with CUDA has run this

    def ship(self, batch: Any) -> Any:
        if self._plain and type(batch) is tuple:  # x and y, in two calls of torch
            for one in batch:
                if type(one) is not np.ndarray or one.dtype not in KNOWN:
                    break
            else:
                return tuple(map(torch.from_numpy, batch))
        here = _each(_tensor, batch)
        if self.device.type == "cpu":
            return self._converted(here)
        if self.device.type == "cuda":
            return self._ship_to_cuda(here)
        return self._converted(_each(lambda tensor: tensor.to(self.device), here))

    def _ship_to_cuda(self, here: Any) -> Any:  # untested: no machine with CUDA has run this
        there = _each(lambda tensor: tensor.to(self.device, non_blocking=True), here)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        # The host tensors hold the lease; they are let go only after the copy out of them has completed.
        self._copying.append((event, here))
        while self._copying and (self._copying[0][0].query() or len(self._copying) > IN_FLIGHT):
            self._copying.popleft()[0].synchronize()
        return self._converted(there)

    def _converted(self, batch: Any) -> Any:
        dtype = self.dtype
        if dtype is None:
            return batch
        if isinstance(dtype, torch.dtype):
            return _each(lambda tensor: tensor.to(dtype), batch)
        given = batch if isinstance(batch, dict) else dict(enumerate(batch if isinstance(batch, tuple) else (batch,)))
        wanted: dict[Any, Any] = dtype if isinstance(dtype, dict) else dict(enumerate(dtype))
        if set(wanted) != set(given):
            named = isinstance(batch, dict)
            raise ValueError(
                f"dtype: expected one for each of {sorted(given) if named else f'{len(given)} arrays of a batch'}, got "
                f"{sorted(wanted) if named else len(wanted)}. Use None where it stays as it is."
            )
        for name, one in wanted.items():
            if one is not None:
                given[name] = _each(methodcaller("to", one), given[name])
        return given if isinstance(batch, dict) else tuple(given.values()) if isinstance(batch, tuple) else given[0]


def _tensor(rows: NDArray[Any]) -> torch.Tensor:
    try:
        return torch.from_numpy(rows)
    except (TypeError, ValueError) as problem:
        raise TypeError(
            f"tensors: expected numbers that torch has a dtype for, got {rows.dtype}. Convert rows with NumPy first."
        ) from problem


def _each(change: Callable[[Any], Any], batch: Any) -> Any:
    """``batch`` with every array or tensor in it changed: alone, in tuples and dicts."""
    if isinstance(batch, (np.ndarray, torch.Tensor)):
        return change(batch)
    if isinstance(batch, dict):
        return {name: _each(change, one) for name, one in batch.items()}
    if isinstance(batch, tuple):
        parts = [_each(change, one) for one in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    return batch


def _allocate_pinned(size: int) -> NDArray[Any]:  # untested: no machine with CUDA has run this
    memory: NDArray[Any] = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
    return memory


def _refuse_same_data_for_all(batches: Feed | BatchIterator) -> None:
    """Several ranks, and batches for training that were told of none. (All ranks may validate on the same chunks.)"""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    world = torch.distributed.get_world_size() if distributed else 1
    told = batches.ranks_stated if isinstance(batches, Feed) else batches.world > 1 or batches.order != "shuffled"
    if world > 1 and not told:
        what, call = ("feed", "batches") if isinstance(batches, Feed) else ("iterator", "shuffled")
        raise ValueError(
            f"{what}: expected one with rank= and world={world}, got one without: all ranks would train on equal rows. "
            f"Use {call}(..., rank={torch.distributed.get_rank()}, world={world})."
        )


# Datasets for torch.utils.data.DataLoader


class WindowDataset(Dataset[Pair]):
    """Map-style: item i is window i as ``(x, y)``. ``DataLoader`` fetches a whole batch in one read."""

    def __init__(self, tokens: Tokens, length: int) -> None:
        self._windows = WindowReader(tokens, at_least("length", length, 1))
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
        windows = self._windows
        admit_rows(windows, len(numbers))
        x, y = (torch.from_numpy(half) for half in windows.start(numbers % self._count * windows.length).finish())
        return list(zip(x, y, strict=True))


class RowDataset(Dataset[Any]):
    """Map-style: item i is row i of an array as a tensor, or of ``together`` as a tuple or dict of them.

    ``DataLoader`` fetches a whole batch in one read, in its own process or in workers, forked or spawned.

    >>> dataset = lowtide.torch.RowDataset(a)
    """

    def __init__(self, rows: Array | Together) -> None:
        if not isinstance(rows, (Array, Together)):
            raise TypeError(
                f"RowDataset: expected an array or together(...), got {type(rows).__name__}. Use lowtide.open(path)."
            )
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        found = _each(_tensor, self.rows[np.asarray(indices, np.int64)])
        if isinstance(found, dict):
            return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]
        return list(zip(*found, strict=True)) if isinstance(found, tuple) else list(found)


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

    >>> x, y = lowtide.torch.nanogpt(".", block_size=128, batch_size=12)("train")
    """
    at_least("block_size", block_size, 1)
    at_least("batch_size", batch_size, 1)
    target = torch.device(device)
    ready: dict[str, tuple[int, WindowReader, _Shipping]] = {}

    def get_batch(split: str) -> Pair:
        if split not in ready:
            tokens = open_tokens(Path(data_dir) / f"{split}.bin", dtype="uint16", cache=cache, budget=budget)
            if len(tokens) <= block_size:
                raise FormatError(
                    f"{tokens.store.where}: expected more than block_size={block_size} tokens, got {len(tokens)}. "
                    f"Use block_size={max(1, len(tokens) - 1)} or less."
                )
            windows = WindowReader(tokens, block_size)
            admit_rows(windows, batch_size)
            ready[split] = len(tokens) - block_size, windows, _Shipping(target, None, windows.pools)
        count, windows, shipping = ready[split]
        starts = torch.randint(count, (batch_size,))
        pair: Pair = shipping.ship(windows.start(starts.numpy()).finish())
        return pair

    return get_batch
