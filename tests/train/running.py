"""Ways to run a tiny model on a tiny corpus: in this process, in another, on several ranks."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide.train import Settings, run
from lowtide.train.progress import JsonLines

Events = list[dict[str, Any]]
TINY: dict[str, Any] = {
    "data_dtype": "uint16",
    "vocab_size": 64,
    "batch_size": 4,
    "block_size": 16,
    "n_layer": 1,
    "n_head": 2,
    "n_embd": 16,
    "dropout": 0.1,
    "max_iters": 12,
    "warmup_iters": 2,
    "eval_interval": 3,
    "eval_iters": 2,
    "log_interval": 1,
    "keep": 100,
    "sample_tokens": 5,
    "picture": False,
}


def write_tokens(path: Path, count: int = 20_000, seed: int = 0) -> Path:
    """Tokens with something to learn: each id is likely to be followed by the next one."""
    chooses = np.random.default_rng(seed)
    steps = np.where(chooses.random(count) < 0.8, 1, chooses.integers(0, 64, count))
    (np.cumsum(steps) % 64).astype(np.uint16).tofile(path)
    return path


def train(settings: Settings, resume: Path | None = None) -> Events:
    """Run in this process; everything it said."""
    out = io.StringIO()
    run(settings, JsonLines(out), resume)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def losses(events: Events) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in events if event["event"] == "step"}


def flags(settings: Settings) -> list[str]:
    """The command line that gives these settings."""
    words = []
    for name, value in vars(settings).items():
        if value == getattr(Settings(), name):
            continue
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words += [flag, str(value)]
    return words


TRAIN = ["-m", "lowtide", "train"]


def start(*words: str, command: Sequence[str] = TRAIN, **environment: str) -> subprocess.Popen[str]:
    """``lowtide train`` in a process of its own, with one thread."""
    return subprocess.Popen(
        [sys.executable, *command, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def start_ranks(world: int, *words: str, command: Sequence[str] = TRAIN) -> list[subprocess.Popen[str]]:
    """The same command on several ranks, as torchrun starts them but with nobody watching over them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world), "GLOO_SOCKET_IFNAME": "lo"}
    return [start(*words, command=command, RANK=str(rank), LOCAL_RANK=str(rank), **shared) for rank in range(world)]


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 240) -> None:
    """Until something is true of a running process; fails, with what it said, when it ends or takes too long."""
    ends = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            pytest.fail(f"ended with {process.returncode} before its time: {process.communicate()}")
        assert time.monotonic() < ends, "took too long"
        time.sleep(0.01)
