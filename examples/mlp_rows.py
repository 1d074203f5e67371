"""An MLP trained on features and labels that stay on disk: stopped in mid-epoch, resumed, and as good as in memory.

    python examples/mlp_rows.py                     features and labels made up on the spot
    python examples/mlp_rows.py X.npy y.npy 10      yours: float features, whole-number labels, how many classes

The same loop runs twice: over arrays in memory and over the files in a budget of 4 MiB. What is Lowtide is five lines.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import nn

import lowtide
from lowtide.torch import tensors

BATCH, EPOCHS = 256, 3
Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]


def made_up(directory: Path, rows: int = 20_000, columns: int = 32, classes: int = 10) -> tuple[Path, Path]:
    """Points around one centre per class, near enough to each other that a model has something to learn."""
    chance = np.random.default_rng(0)
    centres = chance.normal(size=(classes, columns))
    labels = chance.integers(0, classes, rows)
    points = centres[labels] + chance.normal(scale=1.5, size=(rows, columns))
    np.save(directory / "X.npy", points.astype(np.float32))
    np.save(directory / "y.npy", labels)
    return directory / "X.npy", directory / "y.npy"


class Learner:
    """A small MLP and its optimizer; ``mean`` and ``std`` of the training rows scale what it sees."""

    def __init__(self, mean: np.ndarray, std: np.ndarray, classes: int) -> None:
        torch.manual_seed(0)
        self.mean, self.std = torch.from_numpy(mean).float(), torch.from_numpy(np.maximum(std, 1e-6)).float()
        self.model = nn.Sequential(nn.Linear(len(mean), 64), nn.ReLU(), nn.Linear(64, classes))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)

    def learn(self, x: torch.Tensor, y: torch.Tensor) -> None:
        loss = nn.functional.cross_entropy(self.model((x - self.mean) / self.std), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def accuracy(self, batches: Batches) -> float:
        right = total = 0
        with torch.no_grad():
            for x, y in batches:
                right += int((self.model((x - self.mean) / self.std).argmax(1) == y).sum())
                total += len(y)
        return right / total


def on_disk(x_path: Path, y_path: Path, classes: int) -> float:
    """Train from the files, stopping in the middle of the second epoch and going on from the state."""
    both = lowtide.together(x_path, y_path, budget="4MiB")
    train, val = both.split(val=0.1, seed=0)
    stats = lowtide.open(x_path, budget="4MiB").split(val=0.1, seed=0)[0].stats()
    learner = Learner(stats.mean, stats.std, classes)

    batches = tensors(train.shuffled(BATCH, seed=1, epochs=EPOCHS))
    whole = len(batches)
    for _ in range(whole // 2):  # stopped here ...
        learner.learn(*next(batches))
    state = batches.state_dict()  # ... with a few integers, to be kept with the weights ...
    resumed = tensors(train.shuffled(BATCH, seed=1, epochs=EPOCHS))
    resumed.load_state_dict(state)  # ... and resumed in what would be another process
    for x, y in resumed:
        learner.learn(x, y)
    print(f"on disk: stopped after {whole // 2} of {whole} batches, resumed at row {state['position']:,}")
    print(train.plan(BATCH))
    return learner.accuracy(tensors(val.chunks(1024)))


def in_memory(x_path: Path, y_path: Path, classes: int) -> float:
    """The twin: the same loop over the same rows, all of them in memory, shuffled by torch."""
    x, y = (torch.from_numpy(np.load(path)) for path in (x_path, y_path))
    rows = lowtide.together(np.arange(len(x)))  # only to hold out the same rows
    train, val = (torch.from_numpy(part[:][0]) for part in rows.split(val=0.1, seed=0))
    learner = Learner(x[train].double().mean(0).numpy(), x[train].double().std(0, correction=0).numpy(), classes)
    generator = torch.Generator().manual_seed(1)
    for _ in range(EPOCHS):
        for part in train[torch.randperm(len(train), generator=generator)].split(BATCH):
            learner.learn(x[part], y[part])
    return learner.accuracy((x[part], y[part]) for part in val.split(1024))


def main(x_path: Path, y_path: Path, classes: int) -> None:
    from_disk = on_disk(x_path, y_path, classes)
    from_memory = in_memory(x_path, y_path, classes)
    print(f"accuracy on held-out rows: {from_disk:.3f} from disk, {from_memory:.3f} from memory")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(*made_up(Path(directory)), 10)
