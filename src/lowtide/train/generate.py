"""A trained model taken out of its run: text from any checkpoint, weights for other code.

A checkpoint holds the model's shape beside its weights, so nothing but the file is needed. Costs the model in
memory once; one sampled token costs one forward pass over the last window. The optimiser's state stays on disk.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from lowtide.storage.own_files import atomic_write
from lowtide.train import checkpoints
from lowtide.train.model import GPT, Shape

WEIGHTS = "weights.safetensors"


@dataclass(frozen=True)
class TrainedModel:
    """A model in eval mode, and what its run knew."""

    model: GPT
    path: Path
    step: int
    settings: dict[str, Any]


def load_trained(place: Path, device: torch.device, *, best: bool = False) -> TrainedModel:
    """The model of a checkpoint, or of an out directory: its newest, or with ``best`` that of the lowest val loss."""
    path = checkpoints.best(place) if best and place.is_dir() else checkpoints.named(place)
    contents = checkpoints.load_whole(path)
    model = GPT(Shape(**contents["shape"]))
    model.load_state_dict(contents["model"])
    return TrainedModel(model.to(device).eval(), path, contents["step"], dict(contents["settings"]))


def write_weights(path: Path, model: GPT, step: int) -> bool:
    """Write the weights as safetensors, with the model's shape as metadata; False when the package is missing."""
    try:
        from safetensors.torch import save
    except ImportError:
        return False
    # The output layer is the embedding; one table is enough.
    tensors = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items() if name != "head.weight"}
    about = {"format": "pt", "shape": json.dumps(asdict(model.shape)), "step": str(step)}
    with atomic_write(path) as file:
        file.write(save(tensors, about))
    return True
