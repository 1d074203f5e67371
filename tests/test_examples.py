"""Every example runs as its first lines say, and learns something."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lowtide

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run(*command: str | Path, **environment: str) -> str:
    source = str(Path(lowtide.__file__).parent.parent)
    places = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1", **environment},  # 64 cores would only wait
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def need(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"NOT TESTED: {module} is not installed, so its example did not run")


def losses(text: str) -> tuple[float, float]:
    first, last = re.findall(r"(?:loss|val) ([0-9.]+) -> ([0-9.]+)", text)[0]
    return float(first), float(last)


def test_the_numpy_example_learns_resumes_and_predicts_every_token_of_val() -> None:
    text = run("-W", "error", EXAMPLES / "numpy_loop.py")
    first, last = losses(text)
    assert (first, last < 1.0) == (4.159, True)  # from the logarithm of 64
    assert "budget      64.0 MiB" in text


def test_the_numpy_example_takes_a_file_of_ones_own(tmp_path: Path) -> None:
    (np.arange(30_000) % 50).astype(np.uint32).tofile(tmp_path / "mine.u32")
    first, last = losses(run(EXAMPLES / "numpy_loop.py", tmp_path / "mine.u32", "uint32", "50"))
    assert last < 0.2 < first


@pytest.mark.slow
def test_the_nanogpt_example_learns_from_the_drop_in_and_from_a_feed_that_is_stopped() -> None:
    need("torch")
    text = run("-W", "error", EXAMPLES / "nanogpt_train.py")
    first, last = losses(text)
    assert last < 1.0 < first
    assert "exactly once: 1200 rows, the same with two stops on the way" in text


@pytest.mark.trainers
@pytest.mark.slow
def test_the_ddp_example_learns_from_the_same_rows_on_one_rank_and_on_two() -> None:
    need("torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    one = run(EXAMPLES / "torch_ddp.py", **alone)  # what torchrun would set, without a process that only watches
    two = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", EXAMPLES / "torch_ddp.py")
    assert "1 ranks, 3200 rows" in one
    assert "2 ranks, 3200 rows" in two
    assert losses(one) == pytest.approx(losses(two), abs=0.002)  # sums of floats in another order
    assert losses(two)[1] < 1.0


@pytest.mark.slow
def test_the_jax_example_learns() -> None:
    need("jax")
    first, last = losses(run(EXAMPLES / "jax_loop.py"))
    assert last < 1.0 < first
