"""nanoGPT's loop with a feed: it fetches a batch ahead, so the state is taken before the fetch. See docs/nanogpt.md.

examples/nanogpt_train.py shows the edits in place; this is the same loop with checkpoints on disk, to be killed.
"""

from __future__ import annotations

from pathlib import Path

import torch
from recipe import RANK, SAVE_EVERY, STEPS, VOCAB, WORLD, Noted, feed_of, main
from torch.nn import functional

from lowtide.torch import tensors


def train(directory: Path, kind: str) -> None:
    model = torch.nn.Embedding(VOCAB, VOCAB)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    batches = tensors(feed_of(directory, kind, rank=RANK, world=WORLD))  # lowtide
    saved = directory / "ckpt.pt"
    iter_num = 0
    if saved.exists():
        checkpoint = torch.load(saved)
        model.load_state_dict(checkpoint["model"])
        batches.load_state_dict(checkpoint["feed"])  # lowtide
        iter_num = checkpoint["iter_num"]
    note = Noted(directory)
    state, fetched = batches.state_dict(), next(batches)  # lowtide
    while iter_num < STEPS:
        if iter_num % SAVE_EVERY == 0 and iter_num and RANK == 0:
            checkpoint = {"model": model.state_dict(), "iter_num": iter_num, "feed": state}  # lowtide
            torch.save(checkpoint, saved.with_suffix(".new"))
            saved.with_suffix(".new").replace(saved)
        x, y = fetched[:2]
        state, fetched = batches.state_dict(), next(batches)  # lowtide
        note(iter_num, x)
        functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        iter_num += 1


if __name__ == "__main__":
    main(train)
