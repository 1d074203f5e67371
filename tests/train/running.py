"""Ways to run a tiny model on a tiny corpus: in this process, in another, on several ranks.

Most tests need a process of its own to send signals to or to kill, and not a fresh interpreter: those processes are
forked from a server that has imported torch once. Where the fresh one is what is tested, `start_fresh` starts it.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import multiprocessing.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lowtide.cli import main
from lowtide.train import Settings, run
from lowtide.train.telling import JsonLines

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


SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["lowtide.cli.train", "tests.train.running"])
multiprocessing.util.get_temp_dir()  # now: the directory that a session's tests work in is gone before the server is


class Forked:
    """A function in a process of its own, asked for its output as `subprocess.Popen` is."""

    def __init__(
        self, target: Callable[..., int | None], *given: Any, environment: dict[str, str] | None = None
    ) -> None:
        self._said = [tempfile.NamedTemporaryFile("w+") for _ in range(2)]  # noqa: SIM115  # closed with this object
        names = [file.name for file in self._said]
        self._process = SERVER.Process(target=_in_child, args=(names, environment or {}, target, given), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def said(self) -> str:
        """What it has printed so far."""
        return Path(self._said[0].name).read_text()

    def communicate(self, timeout: float = 240) -> tuple[str, str]:
        self._process.join(timeout)
        assert self._process.exitcode is not None, "took too long"
        out, err = (Path(file.name).read_text() for file in self._said)
        return out, err

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _in_child(names: list[str], environment: dict[str, str], target: Callable[..., int | None], given: Any) -> None:
    for descriptor, name in zip((1, 2), names, strict=True):
        file = os.open(name, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.update(environment)
    torch.set_num_threads(1)
    sys.exit(target(*given))


def start(*words: str, **environment: str) -> Forked:
    """``lowtide train`` in a process of its own, with one thread."""
    return Forked(main, ["train", *words], environment=environment)


def start_fresh(*words: str) -> subprocess.Popen[str]:
    """The same from the interpreter's first instruction on."""
    return subprocess.Popen(
        [sys.executable, "-m", "lowtide", "train", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def start_ranks(world: int, target: Callable[..., int | None], *given: Any) -> list[Forked]:
    """The same on several ranks, as torchrun starts them but with nobody watching over them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world), "GLOO_SOCKET_IFNAME": "lo"}
    return [
        Forked(target, *given, environment={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(world)
    ]


def wait_for(condition: Callable[[], bool], process: Forked | subprocess.Popen[str], seconds: float = 240) -> None:
    """Until something is true of a running process; fails, with what it said, when it ends or takes too long."""
    ends = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            pytest.fail(f"ended with {process.returncode} before its time: {process.communicate()}")
        assert time.monotonic() < ends, "took too long"
        time.sleep(0.01)
