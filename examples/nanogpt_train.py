"""nanoGPT's train.py with Lowtide: which lines change, shown on a loop of the same shape that runs here.

    python examples/nanogpt_train.py                           a data directory made up on the spot
    python examples/nanogpt_train.py data/openwebtext 50304    yours: train.bin and val.bin, and the vocabulary

**One line: the same batches, faster, with flat memory.** In nanoGPT's train.py:

    before   def get_batch(split):          the whole function, down to its `return x, y`
    after    from lowtide.torch import nanogpt
             get_batch = nanogpt(data_dir, block_size=block_size, batch_size=batch_size, device=device)

Nothing else changes. Every batch is bit for bit what it was under the same torch seed, and torch's generator is left
where nanoGPT would leave it, so a run that is half done goes on as if nothing had happened.

**A few more: every window once per epoch, and exact resume.** nanoGPT draws starts with replacement: after an epoch's
worth of tokens more than a third has not been seen, and a resumed run draws other batches than an uninterrupted one.

    import lowtide                          among the imports
    import lowtide.torch

    above `checkpoint = None`, which comes after the model and the optimiser have taken what they need from it:

    feed = lowtide.open_tokens(os.path.join(data_dir, 'train.bin'), dtype='uint16').batches(
        batch_size * ddp_world_size, length=block_size, seed=1337,
        rank=int(os.environ.get('RANK', 0)), world=ddp_world_size)
    batches = lowtide.torch.tensors(feed, device=device)
    if init_from == 'resume':
        batches.load_state_dict(checkpoint['feed'])

    before   X, Y = get_batch('train')      twice: before the loop, and after the forward pass
    after    state = batches.state_dict(); X, Y = next(batches)

    before   torch.save(checkpoint, ...)
    after    checkpoint['feed'] = state; torch.save(checkpoint, ...)

nanoGPT fetches a batch ahead of training on it. `state` is from before that fetch, so that a resumed run begins with
the batch that was fetched and not yet learned from.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from numpy_loop import made_up
from torch.nn import functional

import lowtide
from lowtide.torch import nanogpt, tensors

BLOCK_SIZE, BATCH_SIZE = 64, 12


def estimate_loss(model: torch.nn.Module, get_batch: Callable[[str], Any]) -> dict[str, float]:
    """As nanoGPT does it: the mean over some random batches of each split."""
    with torch.no_grad():
        losses = {split: [loss_of(model, *get_batch(split)) for _ in range(10)] for split in ("train", "val")}
    return {split: float(torch.stack(found).mean()) for split, found in losses.items()}


def loss_of(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


def learn(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    loss_of(model, x, y).backward()
    optimizer.step()
    optimizer.zero_grad()


def one_line(data_dir: Path, vocab: int) -> None:
    """The drop-in: the loop below has nanoGPT's shape, and only where get_batch comes from is new."""
    torch.manual_seed(1337)
    model = torch.nn.Embedding(vocab, vocab)
    optimizer = torch.optim.SGD(model.parameters(), lr=20.0)

    get_batch = nanogpt(data_dir, block_size=BLOCK_SIZE, batch_size=BATCH_SIZE)

    fetched = get_batch("train")
    before = estimate_loss(model, get_batch)
    for _ in range(150):
        x, y = fetched
        fetched = get_batch("train")
        learn(model, optimizer, x, y)
    after = estimate_loss(model, get_batch)
    print(f"drop-in: val {before['val']:.3f} -> {after['val']:.3f}")


def exactly_once(data_dir: Path, vocab: int) -> None:
    """Every window once per epoch; stopped twice and resumed, it learns from the rows it would have learned from."""
    whole, interrupted = (rows_learned(data_dir, vocab, stops) for stops in ((100,), (40, 71, 100)))
    assert torch.equal(whole, interrupted)
    print(f"exactly once: {len(whole)} rows, the same with two stops on the way")


def rows_learned(data_dir: Path, vocab: int, stops: tuple[int, ...]) -> torch.Tensor:
    """Trains to each stop, each time from nothing but the last checkpoint; all rows that were learned from."""
    checkpoint = None
    learned = []
    for stop in stops:
        model = torch.nn.Embedding(vocab, vocab)
        optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
        tokens = lowtide.open_tokens(data_dir / "train.bin", dtype="uint16", vocab=vocab)
        batches = tensors(tokens.batches(BATCH_SIZE, length=BLOCK_SIZE, seed=1337))
        first = 0
        if checkpoint is not None:
            model.load_state_dict(checkpoint["model"])
            batches.load_state_dict(checkpoint["feed"])
            first = checkpoint["iter_num"]
        state, fetched = batches.state_dict(), next(batches)
        for _ in range(first, stop):
            x, y = fetched
            state, fetched = batches.state_dict(), next(batches)
            learn(model, optimizer, x, y)
            learned.append(x.clone())
        checkpoint = {"model": model.state_dict(), "feed": state, "iter_num": stop}
    return torch.cat(learned)


if __name__ == "__main__":
    torch.set_num_threads(1)  # a model this small only waits for its threads
    if len(sys.argv) > 1:
        one_line(Path(sys.argv[1]), int(sys.argv[2]))
        exactly_once(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            made_up(Path(directory), "train.bin")
            made_up(Path(directory), "val.bin", count=20_000)
            one_line(Path(directory), 64)
            exactly_once(Path(directory), 64)
