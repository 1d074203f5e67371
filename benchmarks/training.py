"""`lowtide train` beside a bare loop with the same model, and beside nanoGPT's architecture at equal size.

    .venv/bin/python -m benchmarks.training            # about four minutes

The sides are processes that all exist at once and are let go on in turn (SIGCONT, SIGSTOP), a few seconds each, so that
a noisy neighbour meets all of them; a figure is the median over turns. One is the command as a user starts it, its log
lines and its gauge included; the others do nothing but train on tokens they hold in memory, and get what makes them
fastest: glibc's thresholds set high, OpenMP as it comes (which spins longer), torch's fused AdamW.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import Figure, report
from lowtide.train.model import GPT, Shape
from lowtide.train.settings import Settings

DEFAULT = Settings()
VOCAB, ROWS, LENGTH = 4096, DEFAULT.batch_size, DEFAULT.block_size
SHAPE = Shape(VOCAB, LENGTH, DEFAULT.n_layer, DEFAULT.n_head, DEFAULT.n_embd)
EVERY = DEFAULT.log_interval  # steps between two lines of any side
WARM, LINES, ROUNDS = 2, 2, 8  # lines of output: before the first turn, timed in a turn; turns
TUNED = {"MALLOC_MMAP_THRESHOLD_": "1073741824", "MALLOC_TRIM_THRESHOLD_": "1073741824", "MALLOC_TOP_PAD_": "67108864"}
SIDES = {"bare": "a bare loop, the same model", "nanogpt": "nanoGPT's architecture"}


class NanoBlock(nn.Module):
    """LayerNorm, attention, LayerNorm, an MLP four times as wide: GPT-2's block without biases."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.n_head
        self.norms = nn.ModuleList(nn.LayerNorm(shape.n_embd, bias=False) for _ in range(2))
        self.qkv = nn.Linear(shape.n_embd, 3 * shape.n_embd, bias=False)
        self.out = nn.Linear(shape.n_embd, shape.n_embd, bias=False)
        self.up = nn.Linear(shape.n_embd, 4 * shape.n_embd, bias=False)
        self.down = nn.Linear(4 * shape.n_embd, shape.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        found = self.qkv(self.norms[0](x)).split(width, dim=2)
        q, k, v = (part.view(rows, length, self.heads, width // self.heads).transpose(1, 2) for part in found)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).contiguous().view(rows, length, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class NanoGPT(nn.Module):
    """nanoGPT's architecture in our words: learned positions, LayerNorms, the embedding again as output layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab_size, shape.n_embd)
        self.places = nn.Embedding(shape.block_size, shape.n_embd)
        self.blocks = nn.ModuleList(NanoBlock(shape) for _ in range(shape.n_layer))
        self.norm = nn.LayerNorm(shape.n_embd, bias=False)
        self.head = nn.Linear(shape.n_embd, shape.vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        features = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            features = block(features)
        logits = self.head(self.norm(features))
        return logits, F.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))


def loop(side: str, corpus: Path) -> None:
    """Train and do nothing else; one line for every few steps, for ever."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(0)
    model: nn.Module = GPT(SHAPE) if side == "bare" else NanoGPT(SHAPE)
    if world > 1:
        torch.distributed.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    tokens = torch.from_numpy(np.fromfile(corpus, np.uint16).astype(np.int64))
    for step in itertools.count(1):
        starts = torch.randint(len(tokens) - LENGTH - 1, (ROWS // world,)).tolist()
        x = torch.stack([tokens[start : start + LENGTH] for start in starts])
        y = torch.stack([tokens[start + 1 : start + 1 + LENGTH] for start in starts])
        model(x, y)[1].backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % EVERY == 0:
            print("step", step, flush=True)


def command(corpus: Path, out: str) -> list[str]:
    """`lowtide train`, as a user starts it."""
    flags = {"data": corpus, "data-dtype": "uint16", "vocab-size": VOCAB, "max-iters": 1_000_000, "out-dir": out}
    flags |= {"eval-interval": 1_000_000, "eval-iters": 1}
    return ["-m", "lowtide", "train", "--json", *(word for name in flags for word in (f"--{name}", str(flags[name])))]


class Side:
    """The processes of one side; they stand still but in their turn."""

    def __init__(self, side: str, corpus: Path, out: str, world: int, extra: dict[str, str] | None = None) -> None:
        ours = side == "lowtide"
        words = command(corpus, out) if ours else ["-m", "benchmarks.training", "--run", side, str(corpus)]
        environment = {**os.environ, **({} if ours else TUNED), **(extra or {})}
        if world > 1:  # as torchrun starts them
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = str(free.getsockname()[1])
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world)}
            environment |= {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // world)), "GLOO_SOCKET_IFNAME": "lo"}
        self._ranks = [
            subprocess.Popen(
                [sys.executable, *words],
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                text=True,
                env={**environment, **({"RANK": str(rank), "LOCAL_RANK": str(rank)} if world > 1 else {})},
            )
            for rank in range(world)
        ]
        self._lines(WARM)
        self._all(signal.SIGSTOP)

    def turn(self) -> float:
        """Tokens per second of one turn. Its first line only says that all have woken up."""
        self._all(signal.SIGCONT)
        self._lines(1)
        began = time.perf_counter()
        self._lines(LINES)
        seconds = time.perf_counter() - began
        self._all(signal.SIGSTOP)
        return LINES * EVERY * ROWS * LENGTH / seconds

    def _lines(self, count: int) -> None:
        said = self._ranks[0].stdout
        assert said is not None
        while count:
            line = said.readline()
            if not line:
                raise SystemExit(f"training: {self._ranks[0].args} ended with exit code {self._ranks[0].wait()}")
            count -= line.startswith(("step", '{"event": "step"'))

    def _all(self, number: int) -> None:
        for rank in self._ranks:
            rank.send_signal(number)

    def close(self) -> None:
        self._all(signal.SIGKILL)
        for rank in self._ranks:
            rank.wait()


def rates(ways: dict[str, tuple[str, dict[str, str]]], corpus: Path, world: int, rounds: int) -> dict[str, list[float]]:
    """Tokens per second of every way's turns."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as out, contextlib.ExitStack() as held:
        sides = {}
        for name, (side, extra) in ways.items():
            sides[name] = Side(side, corpus, f"{out}/{name}", world, extra)
            held.callback(sides[name].close)
        for turn in range(rounds):
            for name, side in sides.items():
                found[name].append(side.turn())
            shown = ", ".join(f"{name} {turns[-1]:,.0f}" for name, turns in found.items())
            print(f"{world} of ranks, turn {turn + 1}: {shown} tokens/s", file=sys.stderr)
    return found


def tokens_file(directory: Path) -> Path:
    """Random ids of our own: what they say does not change how long a step takes."""
    path = directory / "tokens.bin"
    np.random.default_rng(0).integers(0, VOCAB, 4_000_000, dtype=np.uint16).tofile(path)
    return path


def main() -> int:
    figures = []
    ways: dict[str, tuple[str, dict[str, str]]] = {name: (name, {}) for name in ("lowtide", *SIDES)}
    with tempfile.TemporaryDirectory() as directory:
        corpus = tokens_file(Path(directory))
        for world, ranks in ((1, "one rank"), (2, "two ranks")):
            found = {name: statistics.median(turns) for name, turns in rates(ways, corpus, world, ROUNDS).items()}
            for side, wanted in (("bare", 0.95), ("nanogpt", 1.0)):
                what = f"lowtide train, {ranks}, beside {SIDES[side]}"
                figures.append(Figure(what, found["lowtide"], found[side], "tokens/s", wanted))
    return report("Training: 1.3 M parameters, 16 x 128 tokens, float32 on a CPU", figures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        loop(sys.argv[2], Path(sys.argv[3]))
    else:
        sys.exit(1 if main() else 0)
