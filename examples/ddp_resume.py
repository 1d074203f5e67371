"""Plain DistributedDataParallel: each rank reads its slice of the global batch. See docs/trainers/ddp.md."""

from __future__ import annotations

from pathlib import Path

import torch
from recipe import RANK, SAVE_EVERY, STEPS, VOCAB, WORLD, Noted, feed_of, main
from torch import distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from lowtide.torch import tensors


def train(directory: Path, kind: str) -> None:
    meeting = {} if WORLD > 1 else {"store": distributed.HashStore(), "rank": 0, "world_size": 1}
    distributed.init_process_group("gloo", **meeting)
    batches = tensors(feed_of(directory, kind, rank=RANK, world=WORLD))  # lowtide
    model = DistributedDataParallel(torch.nn.Embedding(VOCAB, VOCAB))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    saved = directory / "checkpoint.pt"
    step = 0
    if saved.exists():
        contents = torch.load(saved)
        model.module.load_state_dict(contents["model"])
        batches.load_state_dict(contents["feed"])  # lowtide: any rank's state serves every rank
        step = contents["step"]
    note = Noted(directory)
    for x, y, *_ in batches:
        note(step, x)
        functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % SAVE_EVERY == 0 and RANK == 0:
            contents = {"model": model.module.state_dict(), "step": step, "feed": batches.state_dict()}  # lowtide
            torch.save(contents, saved.with_suffix(".new"))
            saved.with_suffix(".new").replace(saved)
        if step == STEPS:
            break
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(train)
