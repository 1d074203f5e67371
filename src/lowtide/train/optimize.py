"""How far to step: the learning rate of each step, and which parameters decay.

One idea: both are pure functions - a rate from (step, settings), groups from a model - so that a resumed
run needs nothing but its step. Cost: none. The loop does the stepping.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from lowtide.train.settings import Settings


def learning_rate(step: int, settings: Settings) -> float:
    """Linear warm-up, then half a cosine down to the lowest rate, then flat."""
    if step < settings.warmup_iters:
        return settings.learning_rate * (step + 1) / (settings.warmup_iters + 1)
    if step >= settings.decay_until:
        return settings.lowest_rate
    done = (step - settings.warmup_iters) / max(1, settings.decay_until - settings.warmup_iters)
    height = 0.5 * (1.0 + math.cos(math.pi * done))
    return settings.lowest_rate + height * (settings.learning_rate - settings.lowest_rate)


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Matrices decay; norm gains and other vectors do not (decay would pull a gain towards silence)."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]


def build_optimizer(model: nn.Module, settings: Settings, device: torch.device) -> torch.optim.AdamW:
    """AdamW with the two groups; its fused kernel where parameters live on a GPU."""
    return torch.optim.AdamW(
        decay_groups(model, settings.weight_decay),
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        fused=device.type == "cuda",
    )
