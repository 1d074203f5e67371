"""accelerate: ``prepare`` deals the rows of a ``StreamDataset`` to ranks. See docs/trainers/accelerate.md."""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import Accelerator, skip_first_batches
from recipe import BATCH, SAVE_EVERY, STEPS, VOCAB, WORLD, Noted, feed_of, main
from torch.nn import functional
from torch.utils.data import DataLoader

from lowtide.torch import StreamDataset


def train(directory: Path, kind: str) -> None:
    accelerator = Accelerator(cpu=True)
    # lowtide: begin
    feed = feed_of(directory, kind)
    dataset = StreamDataset(feed, rows=(feed.epoch_rows or 80) // BATCH * BATCH)
    loader = DataLoader(dataset, batch_size=BATCH // WORLD, shuffle=False)
    # lowtide: end
    model = torch.nn.Embedding(VOCAB, VOCAB)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0), loader)
    saved = directory / "checkpoint.pt"
    step = 0
    if saved.exists():
        contents = torch.load(saved)
        accelerator.unwrap_model(model).load_state_dict(contents["model"])
        step = contents["step"]
    note = Noted(directory)
    while step < STEPS:
        epoch, done = divmod(step, len(loader))  # lowtide: begin
        left = skip_first_batches(loader, done)
        left.set_epoch(epoch)  # lowtide: end
        for x, y, *_ in left:
            if step >= STEPS:
                break
            note(step, x)
            loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % SAVE_EVERY == 0 and accelerator.is_main_process:
                contents = {"model": accelerator.unwrap_model(model).state_dict(), "step": step}
                torch.save(contents, saved.with_suffix(".new"))
                saved.with_suffix(".new").replace(saved)
    accelerator.end_training()


if __name__ == "__main__":
    main(train)
