"""Grows workers: torch DataLoader workers read a list of tuples that the parent made."""

import os
import time

import torch
from torch.utils.data import DataLoader, Dataset

SECONDS = float(os.environ.get("SECONDS", "4"))
ITEMS = 1_200_000


class Tuples(Dataset[torch.Tensor]):
    """Two workers take batches of 4 in turn, so that each of them walks through all items."""

    def __init__(self) -> None:
        self.items = [(number, f"sample {number}") for number in range(ITEMS)]

    def __len__(self) -> int:
        return 240

    def __getitem__(self, index: int) -> torch.Tensor:
        part, turn = ITEMS * 8 // len(self), index // 8
        touched = sum(len(name) for _, name in self.items[turn * part : (turn + 1) * part])
        time.sleep(4 * SECONDS / len(self))
        return torch.tensor(touched)


if __name__ == "__main__":
    for _ in DataLoader(Tuples(), batch_size=4, num_workers=2, multiprocessing_context="fork"):
        pass
