"""What shipping asks of a device: staging memory, a copy that may be late, and an event that says when it is done.

``AcceleratorApi`` uses ``torch.accelerator`` and ``torch.Event``, so CUDA, XPU and others stream alike. No
machine with one of them has run it yet; what shipping does with the answers is tested with a simulated device that
copies late, out of order, or not at all.
"""

from __future__ import annotations

import mmap
from typing import Any, Protocol

import torch

from lowtide.storage.buffers import allocate_anonymous


class CopyEvent(Protocol):
    """Completed once every copy before it on its stream is done."""

    def query(self) -> bool: ...
    def synchronize(self) -> None: ...


class DeviceApi(Protocol):
    """The calls through which batches reach a device. ``stream`` is whatever ``current_stream`` gave."""

    def staging(self, size: int) -> Any:
        """Writable, page-aligned memory with the buffer protocol, from which copies may be asynchronous."""
        ...

    def current_stream(self) -> Any: ...
    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor on the device that will have the contents of ``tensor``, which must not change until then."""
        ...

    def event(self, stream: Any) -> CopyEvent:
        """An event recorded after every copy requested on ``stream`` so far."""
        ...


class AcceleratorApi:  # untested: no machine with an accelerator has run this
    """The device of ``torch.accelerator``."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def staging(self, size: int) -> Any:
        try:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
        except RuntimeError:  # a device that pins nothing copies from ordinary memory
            pageable: mmap.mmap = allocate_anonymous(size)
            return pageable

    def current_stream(self) -> Any:
        return torch.accelerator.current_stream(self.device)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, non_blocking=True)

    def event(self, stream: Any) -> CopyEvent:
        event = torch.Event(self.device.type)
        event.record(stream)
        return event


def device_of(stated: str | torch.device) -> torch.device:
    """What the caller wrote, as a device; ValueError for a name that torch does not know."""
    try:
        return torch.device(stated)
    except RuntimeError:
        raise ValueError(f"device: expected cpu, cuda or cuda:N, say, got {stated!r}. Use device='cpu'.") from None


def api_of(device: torch.device) -> DeviceApi | None:
    """How batches reach ``device``; None for those that need no streaming: the CPU, and ``meta``."""
    if device.type in ("cpu", "meta"):
        return None
    here = torch.accelerator.current_accelerator(check_available=True)
    if here is None or here.type != device.type:
        raise ValueError(
            f"device: expected one that this machine has, got {device}, and there is no {device.type.upper()} here. "
            f"Use device='{'cpu' if here is None else here.type}'."
        )
    return AcceleratorApi(device)
