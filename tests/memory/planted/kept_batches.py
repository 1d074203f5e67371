"""Grows shared memory: batches of a torch DataLoader with workers are kept, and each lies in /dev/shm."""

import os
import time

import torch
import truth
from torch.utils.data import DataLoader, Dataset

SECONDS = float(os.environ.get("SECONDS", "6"))


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 480

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(2 * SECONDS / len(self))
        return torch.full((64 * 1024,), float(index))  # 256 KiB


if __name__ == "__main__":
    kept = list(DataLoader(Rows(), batch_size=4, num_workers=2, multiprocessing_context="fork"))
    truth.tell(held__shmem__peak=truth.rollup("Pss_Shmem"))
    time.sleep(2)
    os._exit(0)
