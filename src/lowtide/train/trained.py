"""What is taken out of a run that was trained: its model, its weights for other code, and the rows of any of its steps.

A checkpoint holds the model's shape beside its weights, so nothing but the file is needed; the optimiser's state stays
on disk. It also remembers the run's settings and how many rows it had used at which step: where any step's rows lie is
arithmetic, for which no tensor is read. Steps are counted as ``metrics.jsonl`` counts them: the line of step 12 is
written after the twelfth.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lowtide.blocks.objects import normal_address
from lowtide.errors import StateError
from lowtide.feed import Feed
from lowtide.storage.own_files import atomic_write
from lowtide.survey.mix_plan import mix_plan
from lowtide.survey.step_rows import Read
from lowtide.train import checkpoints
from lowtide.train.data import open_data, train_feed
from lowtide.train.model import GPT, Shape
from lowtide.train.settings import Settings, first_corpus, layered, remembered

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


@dataclass(frozen=True)
class RunStep:
    """A feed, the steps of it that are one step of the run, and what they are read from."""

    feed: Feed
    steps: range
    tokens: Read
    data: str
    vocab_size: int
    checkpoint: Path
    notes: tuple[str, ...] = ()


def run_step(place: Path, step: int) -> RunStep:
    """Step ``step`` of the run in ``place``, all ranks' rows, from its newest checkpoint (or the one ``place`` is)."""
    path = checkpoints.named(place)
    known = checkpoints.glance(path)
    settings = layered(remembered(known["settings"]))
    if not 1 <= step <= settings.max_iters:
        raise ValueError(
            f"--step: expected 1 to {settings.max_iters}, as metrics.jsonl counts the steps of this run, got {step}. "
            "Use a step of the run."
        )
    _check_mixed(path, settings)
    if settings.data and normal_address(settings.data) is None and not Path(settings.data).exists():
        raise StateError(
            f"{path}: expected the corpus it names, {settings.data}, got no such file. Put it back, or look at a copy: "
            f"lowtide peek COPY --step {step - 1} --batch {settings.rows_per_step} --length {settings.block_size} "
            f"--seed {settings.seed}."
        )
    rows = settings.rows_per_step
    first = known["rows"] + (step - 1 - known["step"]) * rows
    changed = known["rows"] != known["step"] * rows
    if first < 0:
        raise StateError(
            f"{path}: expected step {step} at row 0 or later, got row {first}: the rows per step changed during the "
            "run. Name a checkpoint of that time instead of the directory."
        )
    data = open_data(settings)
    size = math.gcd(first, rows)
    feed = train_feed(replace(settings, documents=False), data, size)
    feed.load_state_dict(known["feed"])  # refuses another corpus than the one it was trained on
    note = f"rows per step changed during the run: counted from step {known['step']}, which had used {known['rows']:,}"
    steps = range(first // size, (first + rows) // size)
    tokens: Read = data.train
    if data.mixed is not None:
        tokens = {name: train for name, (train, _) in data.mixed.tokens.items()}
    corpus = first_corpus(vars(settings))
    return RunStep(feed, steps, tokens, corpus, data.vocab_size, path, (note,) if changed else ())


def _check_mixed(path: Path, settings: Settings) -> None:
    """StateError where a corpus of the run's mixture is gone."""
    for name, corpus in mix_plan(settings.mix).paths.items() if settings.mix else ():
        if normal_address(corpus) is None and not Path(corpus).exists():
            raise StateError(f"{path}: expected the corpus of {name!r}, {corpus}, got no such file. Put it back.")
