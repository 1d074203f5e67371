"""What the trainers' recipes share: a corpus made up on the spot, feeds of it, and a note of every row trained on.

Every recipe is run as

    python examples/hf_trainer.py                         20 steps in a directory that is gone afterwards
    python examples/hf_trainer.py out documents           in a directory that is kept; run again, it continues
    torchrun --nproc-per-node 2 examples/hf_trainer.py out

``make trainers`` kills them with SIGKILL on the way (``RECIPE_KILL_AT``), starts them again, and compares the noted
rows with those of the feed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import lowtide

LENGTH, BATCH, STEPS, SAVE_EVERY, VOCAB, END = 16, 8, 20, 5, 64, 63
KINDS = ("plain", "documents", "mixture")
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def corpus(directory: Path, name: str) -> Path:
    """Tokens of documents of 29, a thousand in all: an epoch is shorter than a run."""
    path = directory / f"{name}.bin"
    if not path.exists():
        tokens = np.random.default_rng(len(name)).integers(0, END, 1000)
        tokens[28::29] = END
        unfinished = path.with_suffix(f".{RANK}")
        tokens.astype(np.uint16).tofile(unfinished)
        unfinished.replace(path)
    return path


def feed_of(directory: Path, kind: str, batch: int = BATCH, **ranks: int) -> lowtide.Feed:
    """The rows to train on: ``batch`` of them per step, of all ranks together."""
    web, code = (
        lowtide.open_tokens(corpus(directory, name), dtype="uint16", eot=END, vocab=VOCAB) for name in ("web", "code")
    )
    if kind == "documents":
        return web.windows(LENGTH, cut="packed", documents=True).batches(batch, seed=1337, **ranks)
    if kind == "mixture":
        mixture = lowtide.mix({"web": (web, 0.7), "code": (code, 0.3)}, then={70: {"web": 0.2, "code": 0.8}})
        return mixture.batches(batch, length=LENGTH, seed=1337, **ranks)
    return web.batches(batch, length=LENGTH, seed=1337, **ranks)


def checksum(row: Any) -> int:
    return zlib.crc32(np.ascontiguousarray(row, np.int64).tobytes())


class Noted:
    """Notes the rows of every step that is trained on, and is killed where ``RECIPE_KILL_AT`` says."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / f"rows-{RANK}.jsonl"
        self._kill_at = int(os.environ.get("RECIPE_KILL_AT", "-1"))
        # Every rank has read the checkpoint before one of them writes the next: gradients would see to that elsewhere.
        run = os.environ.get("TORCHELASTIC_RUN_ID", "")
        (directory / f"here-{run}-{RANK}").touch()
        while not all((directory / f"here-{run}-{rank}").exists() for rank in range(WORLD)):
            time.sleep(0.01)

    def __call__(self, step: int, x: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps([step, [checksum(row) for row in np.asarray(x)]]) + "\n")
        if step == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def main(train: Callable[[Path, str], None]) -> None:
    """Run a recipe as its first lines say."""
    if len(sys.argv) > 1:
        directory = Path(sys.argv[1])
        directory.mkdir(exist_ok=True)
        train(directory, sys.argv[2] if len(sys.argv) > 2 else "plain")
        return
    with tempfile.TemporaryDirectory() as found:
        train(Path(found), "plain")
        steps = [json.loads(line)[0] for line in (Path(found) / "rows-0.jsonl").read_text().splitlines()]
        print(f"trained {len(steps)} steps of {BATCH} rows; run it with a directory, kill it, and run it again")
