"""Tensors of batches, on the CPU without a copy and on other devices by asynchronous ones.

A copy out of a batch's buffer may still be under way when the next batch is wanted. So the batch is held here from
before its copies are requested until an event recorded after them has completed: an interrupt or a failing copy in
between leaves it held, and its buffer is given to nobody else meanwhile. Copies under way are waited for when somebody
needs their room in the budget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import length_hint, methodcaller
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lowtide.feed import Feed, FeedStats
from lowtide.reading.rows.iteration import BatchIterator
from lowtide.storage.buffers import Pool
from lowtide.torch.devices import CopyEvent, DeviceApi, api_of, device_of

DtypeFor = torch.dtype | Sequence[torch.dtype | None] | dict[str, torch.dtype | None] | None

KNOWN = {
    np.dtype(kind) for kind in ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool")
}
IN_FLIGHT = 1  # copies to a device: with the batch being filled that makes the two that every budget has room for


def tensors(batches: Feed | BatchIterator, device: str | torch.device = "cpu", dtype: DtypeFor = None) -> TensorFeed:
    """The batches of a feed, of an array's iterator or of ``together``'s, as tensors on ``device``.

    Batches keep their form: one tensor, a tuple or a dict of them. ``dtype`` converts on the device, so that a feed
    made with ``dtype="uint16"`` ships two bytes per token and ``tensors(feed, "cuda", dtype=torch.int64)`` makes eight
    of them there; for tuples and dicts it may be one dtype for each (None: unchanged). On the CPU nothing is copied.
    The result has ``state_dict``, ``load_state_dict`` and ``len`` if its source has them.

    >>> x, y = next(lowtide.torch.tensors(feed))
    """
    if not isinstance(batches, (Feed, BatchIterator)):
        raise TypeError(
            f"tensors: expected a feed or an iterator of rows, got {type(batches).__name__}. "
            "Use tensors(a.shuffled(64)) or tensors(tokens.batches(64, length=1024))."
        )
    refuse_same_data_for_all(batches)
    return TensorFeed(batches, Shipping(device_of(device), dtype, batches.pools))


class TensorFeed:
    """An iterator of tensors. Its state counts what the caller received."""

    def __init__(self, feed: Feed | BatchIterator, shipping: Shipping) -> None:
        self.feed = feed
        self._shipping = shipping
        self._received = feed.position

    def __iter__(self) -> TensorFeed:
        return self

    def __next__(self) -> Any:
        feed = self.feed
        before, sought, had = feed.position, feed.sought, feed.delivered
        try:
            arrays = next(feed)
            read = perf_counter()
            batch = self._shipping.ship(arrays)
            feed.shipping += perf_counter() - read
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

    def stats(self) -> FeedStats:
        """What the feed has done so far, the time for shipping included; of a feed only."""
        if not isinstance(self.feed, Feed):
            raise TypeError("stats: expected a feed, got an iterator of rows. Time its batches yourself.")
        return self.feed.stats()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.feed.load_state_dict(state)
        self._received = self.feed.position


@dataclass(slots=True, eq=False)
class InFlight:
    """A batch out of which copies were asked for on ``stream``: all of them where ``asked``, done by ``event``."""

    host: Any
    stream: Any
    asked: bool = False
    event: CopyEvent | None = None


class Copies:
    """Copies under way to one device. The pools that make their buffers here keep it alive, so that what is under way
    stays held also when the iterator that asked for it is gone."""

    def __init__(self, api: DeviceApi, pools: Sequence[Pool]) -> None:
        self._api = api
        self._under_way: deque[InFlight] = deque()
        for pool in pools:
            pool.budget.shrink()  # copies that another iterator asked for are completed before their keeper is replaced
            pool.budget.may_shrink(self)
            pool.allocate_with(self.staging)

    def staging(self, size: int) -> Any:
        return self._api.staging(size)

    def of(self, here: Any) -> Any:
        """``here`` on the device, soon."""
        copying = InFlight(here, self._api.current_stream())
        self._under_way.append(copying)  # before the first copy: whatever happens from here on, the batch stays held
        try:
            there = each(self._api.copy, here)
            copying.event = self._api.event(copying.stream)
        finally:
            copying.asked = True
        self._let_go(IN_FLIGHT)
        return there

    def shrink(self) -> None:
        """Wait for the copies under way: somebody needs their room."""
        self._let_go(0)

    def _let_go(self, most: int) -> None:
        """Of what is completed, and wait until at most ``most`` are left. Copies that failed or were
        interrupted half-way are behind an event that is recorded on their stream now."""
        for copying in list(self._under_way):
            if copying.event is None:
                if not copying.asked:
                    continue  # another thread is asking
                copying.event = self._api.event(copying.stream)
            if not copying.event.query():
                if len(self._under_way) <= most:
                    continue
                copying.event.synchronize()
            with suppress(ValueError):  # another thread was quicker
                self._under_way.remove(copying)


class Shipping:
    """From arrays to tensors on a device; ``api``: how they get there, where it is not the CPU."""

    def __init__(
        self, device: torch.device, dtype: DtypeFor, pools: Sequence[Pool], api: DeviceApi | None = None
    ) -> None:
        self.device = device
        self.dtype = _of_torch(dtype)
        api = api_of(device) if api is None else api
        self._copies = None if api is None else Copies(api, pools)
        self._plain = api is None and device.type == "cpu" and dtype is None

    def ship(self, batch: Any) -> Any:
        if self._plain and type(batch) is tuple:  # x and y, in two calls of torch
            for one in batch:
                if type(one) is not np.ndarray or one.dtype not in KNOWN:
                    break
            else:
                return tuple(map(torch.from_numpy, batch))
        here = each(as_tensor, batch)
        if self._copies is not None:
            return self._converted(self._copies.of(here))
        return self._converted(here if self.device.type == "cpu" else each(methodcaller("to", self.device), here))

    def _converted(self, batch: Any) -> Any:
        dtype = self.dtype
        if dtype is None:
            return batch
        if isinstance(dtype, torch.dtype):
            return each(lambda tensor: tensor.to(dtype), batch)
        given = batch if isinstance(batch, dict) else dict(enumerate(batch if isinstance(batch, tuple) else (batch,)))
        wanted: dict[Any, Any] = dtype if isinstance(dtype, dict) else dict(enumerate(dtype))
        if set(wanted) != set(given):
            named = isinstance(batch, dict)
            raise ValueError(
                f"dtype: expected one for each of {sorted(given) if named else f'{len(given)} arrays of a batch'}, got "
                f"{sorted(wanted) if named else len(wanted)}. Use None for one that stays as it is."
            )
        for name, one in wanted.items():
            if one is not None:
                given[name] = each(methodcaller("to", one), given[name])
        return given if isinstance(batch, dict) else tuple(given.values()) if isinstance(batch, tuple) else given[0]


def _of_torch(dtype: DtypeFor) -> DtypeFor:
    single = isinstance(dtype, (str, type, np.dtype)) or not isinstance(dtype, (Sequence, dict))
    for one in (dtype,) if single else dtype.values() if isinstance(dtype, dict) else dtype:  # type: ignore[union-attr]
        if one is not None and not isinstance(one, torch.dtype):
            raise TypeError(f"dtype: expected a dtype of torch, got {one!r}. Use torch.int64, say.")
    return dtype


def as_tensor(rows: NDArray[Any]) -> torch.Tensor:
    try:
        return torch.from_numpy(rows)
    except (TypeError, ValueError) as problem:
        raise TypeError(
            f"tensors: expected numbers that torch has a dtype for, got {rows.dtype}. Convert rows with NumPy first."
        ) from problem


def each(change: Callable[[Any], Any], batch: Any) -> Any:
    """``batch`` with every array or tensor in it changed: alone, in tuples and dicts."""
    if isinstance(batch, (np.ndarray, torch.Tensor)):
        return change(batch)
    if isinstance(batch, dict):
        return {name: each(change, one) for name, one in batch.items()}
    if isinstance(batch, tuple):
        parts = [each(change, one) for one in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    return batch


def refuse_same_data_for_all(batches: Feed | BatchIterator) -> None:
    """Refuse training batches without ranks where torch has several. (All ranks may validate on the same chunks.)"""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    world = torch.distributed.get_world_size() if distributed else 1
    told = batches.ranks_stated if isinstance(batches, Feed) else batches.world > 1 or batches.order != "shuffled"
    if world > 1 and not told:
        what, call = ("feed", "batches") if isinstance(batches, Feed) else ("iterator", "shuffled")
        raise ValueError(
            f"{what}: expected one with rank= and world={world}, got one without: all ranks would train on the same "
            f"rows. Use {call}(..., rank={torch.distributed.get_rank()}, world={world})."
        )
