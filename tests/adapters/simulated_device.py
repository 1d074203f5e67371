"""A device that is not there: its copies are made late, in any order, slowly, or not at all.

A copy asked for reads its source only when it is made, by address, as a real device does: whoever gave the source's
memory to somebody else meanwhile gets wrong numbers. Two streams take turns, so that a later batch may arrive before an
earlier one. What happens when is drawn from a seed.
"""

from __future__ import annotations

import ctypes
import random
from typing import Any, NamedTuple

import torch

from lowtide.storage.buffers import allocate_anonymous


class DeviceFaultError(RuntimeError):
    """The device refused."""


class LateCopy(NamedTuple):
    source: int  # where the bytes are: no reference, or the lease would never end
    target: torch.Tensor


class SimulatedStream:
    """Copies in the order asked for. A copy counts as made when all before it on the stream are."""

    def __init__(self) -> None:
        self.waiting: list[LateCopy] = []
        self.asked = self.made = 0

    def make(self, count: int) -> None:
        for copy in self.waiting[:count]:
            size = copy.target.numel() * copy.target.element_size()
            ctypes.memmove(copy.target.data_ptr(), copy.source, size)
            self.made += 1
        del self.waiting[:count]


class SimulatedEvent:
    def __init__(self, device: SimulatedDevice, stream: SimulatedStream) -> None:
        self._device, self._stream, self._behind = device, stream, stream.asked

    def query(self) -> bool:
        self._device.happen("query")
        return self._stream.made >= self._behind

    def synchronize(self) -> None:
        self._device.happen("synchronize")
        self._stream.make(self._behind - self._stream.made)


class SimulatedDevice:
    """``faults``: share of calls that fail; ``interrupts``: share that a Ctrl-C comes into; ``slow``: share of looks at
    the device between which nothing is copied."""

    def __init__(self, seed: int, *, faults: float = 0.0, interrupts: float = 0.0, slow: float = 0.7) -> None:
        self._chance = random.Random(seed)
        self._faults, self._interrupts, self._slow = faults, interrupts, slow
        self._streams = SimulatedStream(), SimulatedStream()
        self._turn = 0
        self.counts = dict.fromkeys(("copies", "faults", "interrupts", "staged"), 0)

    def staging(self, size: int) -> Any:
        self.counts["staged"] += 1
        return allocate_anonymous(size)

    def current_stream(self) -> SimulatedStream:
        self.happen("current_stream")
        self._turn += 1
        return self._streams[self._turn % 2]

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        self.happen("copy")
        stream = self._streams[self._turn % 2]
        target = torch.full_like(tensor, -1)
        stream.waiting.append(LateCopy(tensor.data_ptr(), target))
        stream.asked += 1
        self.counts["copies"] += 1
        if self._chance.random() < self._interrupts:  # the copy was asked for, and the call did not return
            self._interrupt()
        return target

    def event(self, stream: SimulatedStream) -> SimulatedEvent:
        self.happen("event")
        return SimulatedEvent(self, stream)

    def happen(self, call: str) -> None:
        """Time passes: perhaps some copies are made; perhaps this call fails."""
        chance = self._chance
        if chance.random() >= self._slow:
            stream = chance.choice(self._streams)
            stream.make(chance.randint(0, len(stream.waiting)))
        if call != "query" and chance.random() < self._faults:
            self.counts["faults"] += 1
            raise DeviceFaultError(call)
        if chance.random() < self._interrupts:
            self._interrupt()

    def _interrupt(self) -> None:
        self.counts["interrupts"] += 1
        raise KeyboardInterrupt

    def finish(self) -> None:
        for stream in self._streams:
            stream.make(len(stream.waiting))
