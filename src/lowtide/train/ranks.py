"""The ranks of a run: who this process is, and the few things ranks say to each other.

All talk goes through gloo on CPU tensors (and NCCL for gradients on GPUs), with a time limit, so that a rank that dies
ends the others with one line instead of a hang. Leaving is delicate: gloo's threads live until nothing refers to the
group, and one that wakes up while the interpreter is torn down aborts the process. DDP keeps the group alive, and so do
default arguments of ``torch.distributed.nn.functional`` made while there is a group. So that module is imported here,
while there is none, and `joined` lets go of everything else before it returns, which joins the threads.
"""

from __future__ import annotations

import gc
import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before any group exists: see the top of this file

from lowtide.errors import LowtideError

Plain = TypeVar("Plain")  # what pickle carries between ranks


class RankLostError(LowtideError):
    """Another rank died, left or stayed silent for longer than the time limit."""


@dataclass(frozen=True)
class World:
    """This process among all of them."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def total(self, values: list[float]) -> list[float]:
        """Each value summed over all ranks, in double precision."""
        if self.world == 1:
            return values
        summed = torch.tensor(values, dtype=torch.float64)
        with self.listening():
            dist.all_reduce(summed)
        return [float(value) for value in summed]

    def any(self, flag: int) -> int:
        """The largest of all ranks' flags."""
        if self.world == 1:
            return flag
        largest = torch.tensor(flag, dtype=torch.int64)
        with self.listening():
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest)

    def gather(self, value: Plain) -> list[Plain]:
        """One plain value from each rank, on every rank."""
        if self.world == 1:
            return [value]
        values = [value] * self.world
        with self.listening():
            dist.all_gather_object(values, value)
        return values

    def from_first(self, value: Plain) -> Plain:
        """Rank 0's plain value, on every rank."""
        if self.world == 1:
            return value
        values = [value]
        with self.listening():
            dist.broadcast_object_list(values, src=0)
        return values[0]

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Turn a lost connection or a timeout into one line about the other ranks."""
        try:
            yield
        except RuntimeError as problem:
            if self.world == 1 or not _is_connection(problem):
                raise
            raise RankLostError(
                f"rank {self.rank}: expected all {self.world} ranks to answer, got no answer ({_reason(problem)}). "
                "See the other ranks' messages, then start again with --resume."
            ) from problem


def described() -> World:
    """The world that torchrun's environment describes, or a world of one."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return World()
    return World(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ.get("LOCAL_RANK", "0")))


@contextmanager
def joined(world: World, device: torch.device, timeout: int) -> Iterator[World]:
    """The same world once its ranks can talk to each other."""
    if world.world == 1:
        yield world
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    with world.listening():
        dist.init_process_group(backend, rank=world.rank, world_size=world.world, timeout=timedelta(seconds=timeout))
    try:
        yield world
        with world.listening():
            dist.barrier()  # no rank closes its connections while another still waits for an answer
    except BaseException as problem:
        _clear_frames(problem)
        raise
    finally:
        dist.destroy_process_group()
        gc.collect()  # DDP is full of circles; see the top of this file


def _clear_frames(problem: BaseException | None) -> None:
    """Clear the frames an error remembers: DDP, and with it the group, would live in them as long as the error does."""
    seen: set[int] = set()
    while problem is not None and id(problem) not in seen:
        seen.add(id(problem))
        traceback.clear_frames(problem.__traceback__)
        problem = problem.__cause__ or problem.__context__


_SIGNS = (
    "connection closed|connection reset|connection refused|broken pipe|timed out|timeout|gloo|nccl|no route to host"
)


def _is_connection(problem: RuntimeError) -> bool:
    return isinstance(problem, dist.DistError) or re.search(_SIGNS, str(problem).lower()) is not None


def _reason(problem: RuntimeError) -> str:
    """What torch's message says after its source location: ``[.../pair.cc:544] Connection closed by peer [...]``."""
    line = str(problem).splitlines()[0]
    text = line.split("] ", 1)[1] if line.startswith("[") and "] " in line else line
    return text.split(" [")[0].strip(" .")
