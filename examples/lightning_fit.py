"""Lightning: the loader is made when training begins, at the checkpoint's step. See docs/trainers/lightning.md."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from recipe import SAVE_EVERY, STEPS, VOCAB, WORLD, Noted, feed_of, main
from torch.nn import functional
from torch.utils.data import DataLoader

from lowtide.torch import FeedDataset


class Bigrams(lightning.LightningModule):
    def __init__(self, directory: Path, kind: str) -> None:
        super().__init__()
        self.scores = torch.nn.Embedding(VOCAB, VOCAB)
        self.directory, self.kind = directory, kind
        self.note = Noted(directory)

    # lowtide: begin
    def train_dataloader(self) -> DataLoader[Any]:
        feed = feed_of(self.directory, self.kind, rank=self.trainer.global_rank, world=self.trainer.world_size)
        feed.seek(self.trainer.global_step)
        return DataLoader(FeedDataset(feed), batch_size=None)

    # lowtide: end

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        x, y, *_docs = batch
        self.note(self.trainer.global_step, x)
        return functional.cross_entropy(self.scores(x).flatten(0, 1), y.flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


def train(directory: Path, kind: str) -> None:
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    keep = ModelCheckpoint(directory / "checkpoints", every_n_train_steps=SAVE_EVERY, save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=WORLD,
        strategy="ddp" if WORLD > 1 else "auto",
        max_steps=STEPS,
        max_epochs=-1,
        callbacks=[keep],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    saved = sorted((directory / "checkpoints").glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    trainer.fit(Bigrams(directory, kind), ckpt_path=str(saved[-1]) if saved else None, weights_only=False)


if __name__ == "__main__":
    main(train)
