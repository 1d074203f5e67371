"""Grows workers: torch DataLoader workers read a list of tuples that the parent made."""

import os
import time

import torch
from torch.utils.data import DataLoader, Dataset

SECONDS = float(os.environ.get("SECONDS", "4"))
ITEMS = 1_200_000


class Tuples(Dataset):
    def __init__(self):
        self.items = [(number, f"sample {number}") for number in range(ITEMS)]

    def __len__(self):
        return 240

    def __getitem__(self, index):
        part = ITEMS // len(self)
        touched = sum(len(name) for _, name in self.items[index * part : (index + 1) * part])
        time.sleep(2 * SECONDS / len(self))
        return torch.tensor(touched)


if __name__ == "__main__":
    for _ in DataLoader(Tuples(), batch_size=4, num_workers=2, multiprocessing_context="fork"):
        pass
