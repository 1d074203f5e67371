"""torchdata's StatefulDataLoader: two workers, each with a place. See docs/trainers/stateful-dataloader.md."""

from __future__ import annotations

from pathlib import Path

import torch
from recipe import RANK, SAVE_EVERY, STEPS, VOCAB, WORLD, Noted, feed_of, main
from torch.nn import functional
from torchdata.stateful_dataloader import StatefulDataLoader

from lowtide.torch import FeedDataset


def train(directory: Path, kind: str) -> None:
    # lowtide: begin
    feed = feed_of(directory, kind, rank=RANK, world=WORLD)
    loader = StatefulDataLoader(FeedDataset(feed), batch_size=None, num_workers=2)
    # lowtide: end
    model = torch.nn.Embedding(VOCAB, VOCAB)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    saved = directory / "checkpoint.pt"  # of rank 0: it serves every rank
    step = 0
    if saved.exists():
        contents = torch.load(saved)
        model.load_state_dict(contents["model"])
        loader.load_state_dict(contents["loader"])  # lowtide
        step = contents["step"]
    note = Noted(directory)
    for x, y, *_ in loader:
        note(step, x)
        functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % SAVE_EVERY == 0 and RANK == 0:
            contents = {"model": model.state_dict(), "step": step, "loader": loader.state_dict()}  # lowtide
            torch.save(contents, saved.with_suffix(".new"))
            saved.with_suffix(".new").replace(saved)
        if step == STEPS:
            break


if __name__ == "__main__":
    main(train)
