"""Several ranks with torch.distributed: each reads its own rows of one global batch.

    torchrun --nproc-per-node 2 examples/torch_ddp.py            a corpus made up on the spot
    torchrun --nproc-per-node 2 examples/torch_ddp.py train.bin uint16 50257

The global batch is the same for any number of ranks, so 1, 2 and 4 of them learn from the same rows in the same order,
and a state saved by any rank resumes on any number of them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed.nn.functional  # before the group exists: its defaults would keep the group, and gloo's threads
from numpy_loop import made_up
from torch import distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import lowtide
from lowtide.torch import tensors

BATCH = 32  # of all ranks together


def main(path: Path, dtype: str, vocab: int) -> None:
    rank, world = distributed.get_rank(), distributed.get_world_size()
    tokens = lowtide.open_tokens(path, dtype=dtype, vocab=vocab, budget="64MiB")
    feed = tokens.batches(BATCH, length=64, seed=1337, rank=rank, world=world)  # without them, tensors() refuses
    batches = tensors(feed)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Embedding(vocab, vocab))
    optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
    losses = []
    for _ in range(100):
        x, y = next(batches)
        loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()  # gradients are averaged over ranks here
        optimizer.step()
        mean = loss.detach().clone()
        distributed.all_reduce(mean)
        losses.append(mean.item() / world)
    if rank == 0:
        rows = batches.state_dict()["rows"]
        print(f"{world} ranks, {rows} rows: loss {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    distributed.init_process_group("gloo" if not torch.cuda.is_available() else "nccl")
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    else:
        shared = Path(tempfile.gettempdir()) / f"lowtide-example-{os.environ['MASTER_PORT']}"
        if distributed.get_rank() == 0:
            shared.mkdir(exist_ok=True)
            made_up(shared)
        distributed.barrier()
        main(shared / "tokens.bin", "uint16", 64)
        distributed.barrier()
        if distributed.get_rank() == 0:
            (shared / "tokens.bin").unlink()
            shared.rmdir()
    distributed.destroy_process_group()
