"""Tensors from every iterator of ours, datasets for ``DataLoader``, and nanoGPT's ``get_batch`` as a drop-in.

A tensor shares memory with the batch that was read, so nothing is copied on the CPU. For a GPU or another accelerator
the batch is read into pinned memory, copied asynchronously, and its buffer is free again once an event says that the
copy is done. Only the files of this room import torch for reading.
"""

from lowtide.torch.datasets import FeedDataset, RowDataset
from lowtide.torch.drop_in import nanogpt
from lowtide.torch.row_streams import StreamDataset, WindowDataset
from lowtide.torch.shipping import TensorFeed, tensors

__all__ = ["FeedDataset", "RowDataset", "StreamDataset", "TensorFeed", "WindowDataset", "nanogpt", "tensors"]
