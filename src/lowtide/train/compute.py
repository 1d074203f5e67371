"""Where and in which number format the forward pass runs.

One idea: asked for once, checked before anything is opened; a device or format this machine lacks is
refused in one line. ``auto`` is float32 on a CPU (bfloat16 there is slower without matrix units), and on a
GPU bfloat16 where it has it, else float16 with a loss scaler. The GPU paths were not run on the machines
this was written on.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Compute:
    """One device and the number format of its forward passes."""

    device: torch.device
    dtype: torch.dtype

    def autocast(self) -> AbstractContextManager[object]:
        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def scaler(self) -> torch.amp.GradScaler:
        """Float16 loses small gradients unless the loss is scaled up; the other formats pass through unchanged."""
        return torch.amp.GradScaler(self.device.type, enabled=self.dtype is torch.float16)

    def __str__(self) -> str:
        return f"{self.device}, {str(self.dtype).removeprefix('torch.')}"


def choose(device: str, dtype: str, local_rank: int = 0) -> Compute:
    """The device and format asked for; ValueError when this machine lacks them."""
    try:
        place = torch.device(device)
    except RuntimeError as problem:
        raise ValueError(
            f"--device {device}: expected cpu, cuda or cuda:N, got {device!r}. Use --device cpu."
        ) from problem
    if place.type == "cuda":
        place = _cuda(device, place, local_rank)
    elif place.type != "cpu":
        raise ValueError(f"--device {device}: expected cpu, cuda or cuda:N, got {device!r}. Use --device cpu.")
    if dtype != "auto":
        return Compute(place, _DTYPES[dtype])
    if place.type == "cpu":
        return Compute(place, torch.float32)
    return Compute(place, torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16)


def _cuda(asked: str, place: torch.device, local_rank: int) -> torch.device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise ValueError(f"--device {asked}: expected a CUDA device, got none. Use --device cpu.")
    index = local_rank if place.index is None else place.index
    if index >= count:
        raise ValueError(
            f"--device {asked}: expected a device below cuda:{count}, got cuda:{index}. Use --device cuda:0."
        )
    chosen = torch.device("cuda", index)
    torch.cuda.set_device(chosen)
    return chosen
