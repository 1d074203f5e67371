"""What every peer is asked for: write the tokens in your own format, open them, give batches, say where you are."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.ledger import BATCH, LENGTH, ROW

Batch = tuple[Any, Any]  # x and y: 64 x 1,024 int64, contiguous; arrays or tensors
SEED = 7


class Peer:
    """One loader, opened for one rank at a state. Subclasses import their package in ``imports`` and nowhere else."""

    title: ClassVar[str] = ""
    packages: ClassVar[tuple[str, ...]] = ()  # beside those of the project
    without_dependencies: ClassVar[
        tuple[str, ...]
    ] = ()  # whose own pins contradict ours, or which ask for CUDA's builds
    version_of: ClassVar[str] = ""  # the distribution whose version the page names
    source: ClassVar[str] = "raw"  # the directory of its data: peers that read the same bytes share one
    shuffles: ClassVar[str] = "globally"
    resumes: ClassVar[str] = "its state"  # or "by hand": the user's own permutation; or "-"
    ranks: ClassVar[bool] = True
    stride: ClassVar[int] = LENGTH
    epoch: ClassVar[bool] = True  # False: drawn with replacement, without end
    code: ClassVar[str] = ""
    notes: ClassVar[str] = ""

    def __init__(self, place: Path, rank: int = 0, world: int = 1, state: Any = None) -> None:
        self.place, self.rank, self.world, self.given = place, rank, world, state
        self.batch = BATCH // world
        self.taken = state if isinstance(state, int) else 0  # rows of all ranks together

    def imports(self) -> None:
        """Everything slow that is not the loader's own work."""

    def convert(self, tokens: Path) -> None:
        """Write ``place`` from the token file; what reads the raw file has nothing to do."""

    def batches(self) -> Iterator[Batch]:
        """Open, and give the batches of one epoch from the state on."""
        raise NotImplementedError

    def state(self) -> Any:
        """What ``state`` takes to continue after the batches taken so far."""
        return self.taken

    def index_bytes(self) -> int:
        """What the order of an epoch holds in memory."""
        return 0

    def rows_of_epoch(self, tokens: int) -> int:
        """How many windows it cuts from so many tokens."""
        return tokens // ROW if self.stride == ROW else (tokens - 1) // LENGTH

    @property
    def scratch(self) -> Path:
        """Where it may write; the driver clears it."""
        return Path("build", "peers", "scratch", str(os.getpid()))

    @property
    def tokens(self) -> Path:
        return self.place / "tokens.bin"


class ByHand(Peer):
    """Arrays without a loader: the order is a permutation of the user's, dealt to ranks by the user."""

    resumes = "by hand"

    def windows(self) -> int:
        return (self.tokens.stat().st_size // 2 - 1) // LENGTH

    def batches(self) -> Iterator[Batch]:
        self.opened()
        self.order = np.random.default_rng(SEED).permutation(self.windows())
        share = slice(self.rank * self.batch, (self.rank + 1) * self.batch)
        for at in range(self.taken, len(self.order), BATCH):
            self.taken = at + BATCH
            yield self.read(self.order[at : at + BATCH][share])

    def opened(self) -> None:
        raise NotImplementedError

    def read(self, windows: NDArray[np.int64]) -> Batch:
        raise NotImplementedError

    def index_bytes(self) -> int:
        return int(self.order.nbytes)


BUFFERS = itertools.cycle([np.empty((2, BATCH, LENGTH), np.int64) for _ in range(2)])


def pair(rows: NDArray[Any]) -> Batch:
    """x and y of rows of 1,025 tokens, widened into buffers that are used again for the next batch but one.

    Every peer is spared new pages for each batch; a training loop that copies to a device needs no more.
    """
    x, y = next(BUFFERS)[:, : len(rows)]
    np.copyto(x, rows[:, :-1])
    np.copyto(y, rows[:, 1:])
    return x, y


def tensor_pair(rows: Any) -> Batch:
    """The same of a tensor of tokens; NumPy widens without waking torch's threads."""
    return pair(rows.numpy())
