"""nanoGPT's ``get_batch``: the same batches from the same generator, read inside a budget instead of through a map."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from lowtide.arguments import at_least
from lowtide.errors import FormatError
from lowtide.feed import admit_rows
from lowtide.reading.window_reader import WindowReader
from lowtide.tokens import open_tokens
from lowtide.torch.devices import device_of
from lowtide.torch.shipping import Shipping

Pair = tuple[torch.Tensor, torch.Tensor]


def nanogpt(
    data_dir: str | Path,
    *,
    block_size: int,
    batch_size: int,
    device: str | torch.device = "cpu",
    cache: str = "auto",
    budget: int | str = "auto",
) -> Callable[[str], Pair]:
    """nanoGPT's ``get_batch`` over ``train.bin`` and ``val.bin`` of ``data_dir``: the same batches, bit for bit.

    Draws from torch's global generator exactly when called, as nanoGPT does, so a run continues unchanged.
    ``cache="drop"`` leaves nothing in the page cache.

    >>> x, y = lowtide.torch.nanogpt(".", block_size=128, batch_size=12)("train")
    """
    at_least("block_size", block_size, 1)
    at_least("batch_size", batch_size, 1)
    if not os.fspath(data_dir):
        raise ValueError("data_dir: expected a directory, got empty text. Use data_dir='data/openwebtext'.")
    target = device_of(device)
    ready: dict[str, tuple[int, WindowReader, Shipping]] = {}

    def get_batch(split: str) -> Pair:
        if split not in ready:
            tokens = open_tokens(Path(data_dir) / f"{split}.bin", dtype="uint16", cache=cache, budget=budget)
            if len(tokens) <= block_size:
                raise FormatError(
                    f"{tokens.store.where}: expected more than block_size={block_size} tokens, got {len(tokens)}. "
                    f"Use block_size={max(1, len(tokens) - 1)} or less."
                )
            windows = WindowReader(tokens, block_size)
            admit_rows(windows, batch_size)
            ready[split] = len(tokens) - block_size, windows, Shipping(target, None, windows.pools)
        count, windows, shipping = ready[split]
        starts = torch.randint(count, (batch_size,))
        pair: Pair = shipping.ship(windows.start(starts.numpy()).finish())
        return pair

    return get_batch
