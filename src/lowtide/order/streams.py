"""Streams: which item comes at which position, epoch after epoch. Rows, windows and packed rows are all items.

Position k of a stream is in epoch ``k // epoch``; each epoch has an order of its own, a pure function of the settings.
Nothing is stored per item, any position costs the same, and resuming needs nothing but the position. Integers only.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lowtide.order.local import LocalPermutation
from lowtide.order.locality import Locality
from lowtide.order.orders import Order, Permutation
from lowtide.order.words import draws, key

Positions = NDArray[np.int64]
Items = NDArray[np.int64]

KNOWN_EPOCHS = 3  # a batch straddles two; a look ahead may reach a third


class Stream(Protocol):
    """Positions -> items."""

    @property
    def order(self) -> str: ...
    @property
    def epoch(self) -> int | None: ...  # items of one epoch; None: the stream has no epochs and never runs out
    @property
    def rows(self) -> int | None: ...  # positions of a stream that has an end; None: endless
    @property
    def among(self) -> int: ...  # neighbouring positions are any of so many items; 0: there is no saying

    def at(self, positions: Positions) -> Items: ...
    def settings(self) -> dict[str, Any]: ...  # what fixes the order, safe for JSON
    def notes(self) -> tuple[str, ...]: ...  # what a plan says of the order


class LocalWindow(NamedTuple):
    """What a local shuffle mixes at a time: the items of ``blocks`` blocks come at ``positions`` positions."""

    epoch: int
    number: int
    position: int  # the first
    positions: int
    blocks: int
    phase: int  # of the epoch: 0 for rows


class Shuffled:
    """Every item of ``n`` once per epoch, in an order of each epoch's own; the first is epoch ``first_epoch``.

    Item i is the number ``i * stride``, and where ``phased`` that plus a phase of the epoch: windows at a stride.
    ``locality``: shuffle within windows of whole blocks only.
    """

    order = "shuffled"
    rows = None

    def __init__(
        self,
        n: int,
        seed: int,
        first_epoch: int = 0,
        *,
        purpose: str = "rows",
        stride: int = 1,
        phased: bool = False,
        locality: Locality | None = None,
    ) -> None:
        self.n = self.epoch = n
        self.seed, self.first_epoch, self.purpose = seed, first_epoch, purpose
        self.stride, self.phased, self.locality = stride, phased, locality
        self.among = n if locality is None else min(n, locality.items_per_window)
        self._known: dict[int, tuple[Order, int]] = {}

    def at(self, positions: Positions) -> Items:
        if not len(positions):
            return np.empty(0, np.int64)
        epochs, places = np.divmod(positions, self.n)
        found = np.empty(len(positions), np.int64)
        # Not np.unique: its first call imports numpy.ma, and a child forked meanwhile waits for the import for ever.
        for first, last in _equal(epochs):
            order, phase = self._of_epoch(int(epochs[first]))
            found[first:last] = order.at(places[first:last])
            if self.stride != 1:
                found[first:last] *= self.stride
            if phase:
                found[first:last] += phase
        return found

    # Of a local shuffle

    def window(self, position: int) -> LocalWindow:
        """What is being mixed at a position."""
        epoch, place = divmod(position, self.n)
        found = self._local(epoch).window_at(place)
        phase = self._of_epoch(epoch)[1]
        return LocalWindow(epoch, found.number, epoch * self.n + found.position, found.rows, found.blocks, phase)

    def first_items(self, window: LocalWindow, first: int, count: int) -> Items:
        """The first item of each of a window's blocks, in the order of the data: ``count`` from the ``first`` on."""
        order = self._local(window.epoch)
        return order.blocks_of(window.number, first, count) * order.rows_per_block

    def comes_next(self, items: Items, position: int) -> Positions:
        """Where the window begins in which each of these items comes next: in the window of ``position`` or later."""
        epoch, place = divmod(position, self.n)
        order = self._local(epoch)
        windows = order.windows_of(items // order.rows_per_block)
        found = order.window_positions(windows) + epoch * self.n
        later = np.flatnonzero(windows < order.window_at(place).number)
        if len(later):
            order = self._local(epoch + 1)
            windows = order.windows_of(items[later] // order.rows_per_block)
            found[later] = order.window_positions(windows) + (epoch + 1) * self.n
        return found

    def _local(self, epoch: int) -> LocalPermutation:
        order = self._of_epoch(epoch)[0]
        assert isinstance(order, LocalPermutation)
        return order

    def _of_epoch(self, epoch: int) -> tuple[Order, int]:
        known = self._known.get(epoch)
        if known is None:
            known = self._order(self.first_epoch + epoch), self._phase(self.first_epoch + epoch)
            if len(self._known) >= KNOWN_EPOCHS:
                self._known.clear()
            self._known[epoch] = known
        return known

    def _order(self, epoch: int) -> Order:
        keyed: dict[str, Any] = {"seed": self.seed, "epoch": epoch, "purpose": self.purpose}
        if self.locality is None:
            return Permutation(self.n, **keyed)
        return LocalPermutation(self.n, self.locality.items_per_block, self.locality.blocks_per_window, **keyed)

    def _phase(self, epoch: int) -> int:
        return key(self.seed, epoch, "phase") % self.stride if self.phased else 0

    def settings(self) -> dict[str, Any]:
        own: dict[str, Any] = {"order": self.order, "seed": self.seed}
        if self.purpose == "rows":
            own["epoch"] = self.first_epoch
        return own if self.locality is None else {**own, "locality": self.locality.setting()}

    def notes(self) -> tuple[str, ...]:
        return () if self.locality is None else (self.locality.mixes(self.n),)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}


class Drawn:
    """Items of ``n`` drawn with replacement, without end."""

    epoch = rows = None

    def __init__(self, n: int, seed: int, purpose: str = "sample") -> None:
        self.n = self.among = n
        self.seed, self.purpose = seed, purpose
        self.order = "sample" if purpose == "sample" else "random"

    def at(self, positions: Positions) -> Items:
        found = np.empty(len(positions), np.int64)
        for first, last in _equal(positions - np.arange(len(positions))) if len(positions) else ():
            start = int(positions[first])
            found[first:last] = draws(self.n, seed=self.seed, start=start, count=last - first, purpose=self.purpose)
        return found

    def settings(self) -> dict[str, Any]:
        return {"order": self.order, "seed": self.seed}

    def notes(self) -> tuple[str, ...]:
        return ()


class InOrder:
    """Items 0, ``stride``, 2 ``stride`` ... as they lie, ``n`` per epoch; ``finite``: one epoch and no more."""

    among = 0

    def __init__(self, n: int, stride: int = 1, *, finite: bool = True) -> None:
        self.n = self.epoch = n
        self.stride = stride
        self.order = "sequential" if finite else "chunks"
        self.rows = n if finite else None

    def at(self, positions: Positions) -> Items:
        return (positions if self.rows is not None else positions % max(1, self.n)) * self.stride

    def items(self, first: int, count: int) -> range:
        """Those at ``[first, first + count)``, all of one epoch."""
        begin = (first if self.rows is not None else first % max(1, self.n)) * self.stride
        return range(begin, begin + count * self.stride, self.stride)

    def settings(self) -> dict[str, Any]:
        return {"order": self.order}

    def notes(self) -> tuple[str, ...]:
        return ()


class Given:
    """The caller's own numbers (checked, negative ones allowed) of ``n`` rows, in the caller's order."""

    order = "gather"
    rows = None
    among = 0

    def __init__(self, indices: NDArray[Any] | range, n: int) -> None:
        self.indices, self.n, self.epoch = indices, n, len(indices)

    def at(self, positions: Positions) -> Items:
        if not len(positions):
            return np.empty(0, np.int64)
        places = positions % self.epoch
        parts = [
            np.asarray(self.indices[int(places[a]) : int(places[b - 1]) + 1])
            for a, b in _equal(places - np.arange(len(places)))
        ]
        found: Items = np.concatenate(parts).astype(np.int64)
        return np.where(found < 0, found + self.n, found)

    def settings(self) -> dict[str, Any]:
        import hashlib  # here: it brings OpenSSL, 3 ms at every import

        step, digest = 1 << 16, hashlib.blake2b(digest_size=16)
        for first in range(0, len(self.indices), step):
            digest.update(np.asarray(self.indices[first : first + step]).astype("<i8").tobytes())
        return {"order": self.order, "indices": digest.hexdigest()}

    def notes(self) -> tuple[str, ...]:
        return ()


def _equal(values: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Where equal neighbours begin and end: [first, last) of each."""
    return pairwise([0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)])
